"""A block, one layer of the denoiser. Letters: B batch, L length, K keys, D width, C condition width."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pydantic import Field

from dither.registry import Misfit, Spec, hookimpl
from dither.registry.kinds import BlockSpec

if TYPE_CHECKING:
    from torch import Tensor, nn


class ExampleBlock(BlockSpec):
    """x + gate MLP(h, mean of the visible values), h = norm of x modulated by the condition; identity at first."""

    name = "example-block"
    ratio: float = Field(2.0, gt=0, le=16)
    """Width of the hidden layer, as a multiple of the model width."""

    def traits(self) -> frozenset[str]:
        """Promise properties that the conformance kit checks: identity at first, permutation-equivariant, cached."""
        return frozenset({"zero-init", "equivariant", "cache"})

    def check(self, width: int, cond: int) -> Iterator[Misfit]:
        """Yield an incompatibility if the hidden layer is empty; it is reported at the line of `ratio`."""
        if int(self.ratio * width) < 1:
            yield Misfit(
                f"ratio = {self.ratio:g} gives an empty hidden layer at width {width}", ("ratio",)
            )

    def build(self, width: int, cond: int) -> nn.Module:
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
                nn.init.zeros_(self.modulation.weight)  # gate = 0
                nn.init.zeros_(self.modulation.bias)

            def forward(
                self,
                x: Tensor,  # B L D
                c: Tensor,  # B C or B L C, after the nonlinearity
                *,
                mask: Tensor | None = None,  # #B 1 #L K, True where a query may see a key
                cache: Any = None,  # keys and values of finished positions
                layer: int = 0,  # index of this block in the cache
                keep: bool = False,
            ) -> Tensor:
                shift, scale, gate = self.modulation(c if c.ndim == 3 else c[:, None]).chunk(3, -1)
                h = self.norm(x) * (1 + scale) + shift
                value = self.value(h)
                if cache is not None:  # one head, whose keys are its values
                    value = cache.join(layer, value[:, None], value[:, None])[1][:, 0]
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
