"""A block, one layer of the denoiser.

Letters: B batch, L length, K keys, D width, C condition width.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pydantic import Field

from dither.registry import Misfit, Spec, hookimpl
from dither.registry.kinds import BlockSpec

if TYPE_CHECKING:
    from torch import Tensor, nn


class ExampleBlock(BlockSpec):
    """x + gate MLP(h, mean of the visible values), with h = modulated norm of x.

    The condition gives the modulation and the gate; a new block is the identity.
    """

    name = "example-block"
    ratio: float = Field(2.0, gt=0, le=16)
    """Width of the hidden layer, as a multiple of the model width."""

    def traits(self) -> frozenset[str]:
        """Promise properties, which the conformance kit then checks."""
        return frozenset({"zero-init", "equivariant", "cache"})

    def check(self, width: int, cond: int) -> Iterator[Misfit]:
        """Yield an empty hidden layer, which is reported at the line of `ratio`."""
        if int(self.ratio * width) < 1:
            message = (
                f"ratio = {self.ratio:g} gives an empty hidden layer at width {width}"
            )
            yield Misfit(message, ("ratio",))

    def build(self, width: int, cond: int) -> nn.Module:
        # torch is imported here, so that `dither list` and `dither validate` stay fast.
        import torch
        from torch import nn

        hidden = int(self.ratio * width)

        class MeanMixing(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.norm = nn.LayerNorm(width, elementwise_affine=False)
                self.value = nn.Linear(width, width)
                self.mlp = nn.Sequential(
                    nn.Linear(2 * width, hidden), nn.GELU(), nn.Linear(hidden, width)
                )
                self.modulation = nn.Linear(cond, 3 * width)
                # The gate is 0 at first: training starts from the identity (adaLN-Zero).
                nn.init.zeros_(self.modulation.weight)
                nn.init.zeros_(self.modulation.bias)

            def forward(
                self,
                x: Tensor,  # B L D
                c: Tensor,  # B C or B L C, after the nonlinearity
                *,
                mask: Tensor
                | None = None,  # #B 1 #L K, True where a query may see a key
                cache: Any = None,  # keys and values of finished positions
                layer: int = 0,  # index of this block in the cache
                keep: bool = False,
            ) -> Tensor:
                if c.ndim == 2:
                    c = c[:, None]
                shift, scale, gate = self.modulation(c).chunk(3, -1)
                h = self.norm(x) * (1 + scale) + shift
                value = self.value(h)

                # Values of finished positions come first. One head, whose keys are its values.
                if cache is not None:
                    heads = value[:, None]
                    _, joined = cache.join(layer, heads, heads)
                    value = joined[:, 0]

                # The mean of the values that each position may see.
                if mask is None:
                    mean = value.mean(1, keepdim=True)
                else:
                    weight = mask[:, 0].to(value.dtype)
                    mean = weight @ value / weight.sum(-1, keepdim=True).clamp_min(1)

                out: Tensor = x + gate * self.mlp(torch.cat([h, mean.expand_as(h)], -1))
                return out

        return MeanMixing()


@hookimpl
def register_components() -> list[type[Spec]]:
    return [ExampleBlock]
