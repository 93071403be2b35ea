"""The menu's entry for the plain transformer layer. No torch here."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar, Self

from pydantic import Field

from dither.registry.costs import Cost

from .block_options import WIDE, Affine, TransformerBlock

if TYPE_CHECKING:
    from .pre_norm import PreNormBlock

__all__ = ["PreNorm"]


class PreNorm(TransformerBlock):
    """Self-attention and an MLP behind a norm each, added to what comes in: a plain transformer layer (GET, ViT).

    It does not look at the condition, and so it knows neither the noise level nor what else the model is told.
    """

    name: ClassVar[str] = "pre-norm"
    reads_condition: ClassVar[bool] = False
    affine: Affine = True
    """Whether the norms have a learned scale and shift; "scale" is without the shift, as RMS norm always is."""
    drop_path: float = Field(0.0, ge=0, lt=1)
    """Stochastic depth: share of the samples for which, in training, the last layer leaves out attention, and the MLP
    by another draw. It falls evenly to 0 at the first layer."""

    def at(self, layer: int, depth: int) -> Self:
        """Have the share of its place in the model."""
        return self.model_copy(update={"drop_path": self.drop_path * layer / max(depth - 1, 1)})

    def cost(self, width: int, cond: int, length: int) -> Cost:
        """What the layer takes: behind norms and maps out nothing is multiplied, so that less is kept."""
        whole = super().cost(width, cond, length)
        state = length * width
        return replace(whole, kept=whole.kept - 4 * state, remade=whole.remade - 2 * state * (width >= WIDE))

    def build(self, width: int, cond: int) -> PreNormBlock:
        """Return one layer."""
        from .pre_norm import PreNormBlock

        return PreNormBlock(width, **self.model_dump())
