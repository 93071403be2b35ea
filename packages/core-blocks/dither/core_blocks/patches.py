"""Patches of a grid: p x p positions as one token (ViT; Dosovitskiy et al., 2021).

Letters: B batch, L length (positions of the grid, row by row), T tokens (patches), M features.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from einops import rearrange
from jaxtyping import Bool, Float, Shaped
from torch import Tensor, nn

from dither.registry.contracts.records import State
from dither.registry.contracts.spaces import FeatureSpace

__all__ = ["Patches", "UnpatchedHead"]


@dataclass(frozen=True)
class Patches:
    """Division of a grid into patches.

    Attributes:
        rows: Rows of patches.
        columns: Columns of patches.
        size: Rows and columns of positions in a patch.
        per_position: Conditions with one value per position.
    """

    rows: int
    columns: int
    size: int
    per_position: frozenset[str]

    @classmethod
    def of(cls, space: FeatureSpace, size: int) -> Patches:
        """Return the division of the grid of a space."""
        assert space.grid is not None
        rows, columns = space.grid
        names = [
            condition.name for condition in space.conditions if condition.per_position
        ]
        return cls(rows // size, columns // size, size, frozenset(names))

    def merge(self, x: Shaped[Tensor, "B L *M"]) -> Shaped[Tensor, "B T *N"]:
        """Return one row per patch: its positions row by row, each with all of its columns."""
        x = x if x.ndim == 3 else x[..., None]
        return rearrange(
            x,
            "b (h p w q) m -> b (h w) (p q m)",
            h=self.rows,
            w=self.columns,
            p=self.size,
            q=self.size,
        )

    def split(self, x: Shaped[Tensor, "B T N"]) -> Shaped[Tensor, "B L M"]:
        """Return one row per position; the inverse of `merge`."""
        return rearrange(
            x,
            "b (h w) (p q m) -> b (h p w q) m",
            h=self.rows,
            w=self.columns,
            p=self.size,
            q=self.size,
        )

    def inputs(
        self,
        state: State,
        level: Float[Tensor, "B *L"],
        valid: Bool[Tensor, "B L"],
        cond: Mapping[str, Tensor],
    ) -> tuple[State, Float[Tensor, "B *T"], Bool[Tensor, "B T"], Mapping[str, Tensor]]:
        """Return the inputs of a model per patch.

        A patch is valid if any of its positions is; its level and coordinates are those of its
        first position.
        """
        noisy = state.noisy
        requested = state.requested
        previous = state.previous
        if previous is not None:
            previous = self.merge(previous.masked_fill(~valid[..., None], 0))
        state = replace(
            state,
            # Padding next to valid positions of a patch must not influence them.
            x=self.merge(state.x.masked_fill(~valid[..., None], 0)),
            masked=self.merge(state.masked),
            noisy=None if noisy is None else self.merge(noisy),
            requested=None if requested is None else self.merge(requested).any(-1),
            previous=previous,
        )
        if level.ndim > 1:
            level = self.merge(level)[..., 0]
        per_patch = dict(cond)
        for name in self.per_position & cond.keys():
            per_patch[name] = self.merge(cond[name])[..., 0]
        return state, level, self.merge(valid).any(-1), per_patch


class UnpatchedHead(nn.Module):
    """A head over patches whose output is divided into the positions of the grid.

    Args:
        head: `B T D` -> `B T N`.
        patches: The division.
    """

    def __init__(self, head: nn.Module, patches: Patches) -> None:
        super().__init__()
        self.inner = head
        self.patches = patches

    def forward(self, h: Float[Tensor, "B T D"]) -> Float[Tensor, "B L M"]:
        return self.patches.split(self.inner(h))
