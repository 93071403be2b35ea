"""A model.

Letters: B batch, L length, K positions with extra tokens, D width, V vocabulary or features.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pydantic import Field

from dither.registry import Misfit, Refused, Slot, Space, Spec, below, hookimpl, named
from dither.registry.kinds import ConditionSpec, EmbeddingSpec, HeadSpec, ModelSpec

if TYPE_CHECKING:
    from torch import Tensor, nn

    from dither.registry.contracts.records import State


class ExampleModel(ModelSpec):
    """Residual MLPs over each position, the mean of all positions, and the noise level."""

    name = "example-model"
    width: int = Field(64, ge=1, le=65_536)
    """Width of the hidden states."""
    depth: int = Field(2, ge=1, le=1024)
    """Number of layers."""
    embedding: Slot[EmbeddingSpec] = named("tokens")
    """Embedding of the state."""
    condition: Slot[ConditionSpec] = named("level")
    """Embedding of the noise level."""
    head: Slot[HeadSpec] = named("tokens")
    """Output layer."""

    def check(self, space: Space) -> Iterator[Misfit]:
        """Yield incompatibilities of the parts, each at its own line."""
        yield from super().check(space)
        yield from below("embedding", self.embedding.check(space, self.width))
        yield from below("condition", self.condition.check(self.width))
        yield from below("head", self.head.check(space, self.width))

    def build(self, space: Space) -> nn.Module:
        return network(
            width=self.width,
            depth=self.depth,
            embedding=self.embedding.build(space, self.width),
            head=self.head.build(space, self.width),
            condition=self.condition.build(self.width),
        )


def network(
    width: int, depth: int, embedding: nn.Module, condition: nn.Module, head: nn.Module
) -> nn.Module:
    """Return a `Denoiser`."""
    # torch is imported here, so that `dither list` and `dither validate` stay fast.
    import torch
    from torch import nn
    from torch.nn.functional import pad

    class Layer(nn.Module):
        """h + MLP(norm of h, mean over valid positions, condition)."""

        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.LayerNorm(width)
            self.mlp = nn.Sequential(
                nn.Linear(3 * width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
            )

        def forward(
            self, h: Tensor, c: Tensor, valid: Tensor
        ) -> Tensor:  # B K D, B K D, B K
            x = self.norm(h)
            weight = valid[..., None].to(x.dtype)
            # Padding does not count.
            mean = (x * weight).sum(1, keepdim=True) / weight.sum(
                1, keepdim=True
            ).clamp_min(1)
            changed: Tensor = h + self.mlp(torch.cat([x, mean.expand_as(x), c], -1))
            return changed

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = embedding
            self.condition = condition
            self.head = head
            self.layers = nn.ModuleList(Layer() for _ in range(depth))

        def forward(
            self,
            state: State,
            level: Tensor,
            valid: Tensor,
            cond: Mapping[str, Tensor],
            **options: Any,
        ) -> Tensor:
            """Return raw values, B L V. level: `B` or `B L`."""
            raw: Tensor = self.head(self.trunk(state, level, valid, cond, **options))
            return raw

        def trunk(
            self,
            state: State,
            level: Tensor,
            valid: Tensor,
            cond: Mapping[str, Tensor],
            **options: Any,
        ) -> Tensor:
            """Return the input of the head, B L D.

            Training may apply the head to some positions at a time, and sampling to few.
            """
            h, extra = self.embedding(state, cond, 0)
            c = self.condition(level, cond).to(h.dtype)
            if c.ndim == 2:
                c = c[:, None].expand(-1, valid.shape[1], -1)

            # Extra tokens are valid, and have the condition of the first position.
            c = torch.cat([c[:, :1].expand(-1, extra, -1), c], 1)
            valid = pad(valid, (extra, 0), value=True)
            for layer in self.layers:
                h = layer(h, c, valid)
            out: Tensor = h[:, extra:]
            return out

        def new_cache(self) -> Any:
            # Every position sees every other, so that none is finished before the last step.
            raise Refused("this model sees whole samples; use a sampler without blocks")

    return Network()


@hookimpl
def register_components() -> list[type[Spec]]:
    return [ExampleModel]
