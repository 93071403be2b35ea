"""An output layer for tokens.

Letters: B batch, L length, D width, V vocabulary (the largest of all fields).
"""

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
        # torch is imported here, so that `dither list` and `dither validate` stay fast.
        import torch
        from torch import nn
        from torch.nn.functional import gelu, pad

        # Guaranteed by `serves`.
        assert isinstance(space, TokenSpace)
        tokens = space
        hidden = self.hidden

        class DeepHead(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.enter = nn.Linear(width, hidden)
                self.maps = nn.ModuleList(
                    nn.Linear(hidden, field.size) for field in tokens.fields
                )

            def forward(self, h: Tensor) -> Tensor:
                """Return logits B L V; ids outside the vocabulary of a field are -inf. h: B L D."""
                parts = tokens.split(gelu(self.enter(h))).values()
                logits = []
                for linear, part in zip(self.maps, parts, strict=True):
                    known = linear(part)
                    missing = tokens.vocab - known.shape[-1]
                    logits.append(pad(known, (0, missing), value=-torch.inf))
                return torch.cat(logits, 1)

        return DeepHead()


@hookimpl
def register_components() -> list[type[Spec]]:
    return [ExampleHead]
