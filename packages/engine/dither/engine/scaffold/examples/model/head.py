"""An output layer for tokens. Letters: B batch, L length, D width, V vocabulary (the largest of all fields)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from dither.registry import Space, Spec, TokenSpace, hookimpl
from dither.registry.kinds import TOKENS, HeadSpec

if TYPE_CHECKING:
    from torch import Tensor, nn


class ExampleHead(HeadSpec):
    """A hidden layer shared by all fields, then a linear map per field."""

    name = "example-head"
    serves = TOKENS
    hidden: int = Field(64, ge=1, le=65_536)
    """Width of the hidden layer."""

    def build(self, space: Space, width: int) -> nn.Module:
        import torch
        from torch import nn
        from torch.nn.functional import gelu, pad

        assert isinstance(space, TokenSpace)  # guaranteed by `serves`
        tokens = space
        hidden = self.hidden

        class DeepHead(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.enter = nn.Linear(width, hidden)
                self.maps = nn.ModuleList(nn.Linear(hidden, field.size) for field in tokens.fields)

            def forward(self, h: Tensor) -> Tensor:
                """Return logits B L V; ids outside the vocabulary of a field are -inf. h: B L D."""
                parts = zip(self.maps, tokens.split(gelu(self.enter(h))).values(), strict=True)
                logits = [linear(part) for linear, part in parts]
                widths = [(0, tokens.vocab - part.shape[-1]) for part in logits]
                return torch.cat(
                    [
                        pad(p, width, value=-torch.inf)
                        for p, width in zip(logits, widths, strict=True)
                    ],
                    1,
                )

        return DeepHead()


@hookimpl
def register_components() -> list[type[Spec]]:
    return [ExampleHead]
