"""Raw values out. Letters: B batch, L length, D width, M features, V vocabulary (the largest of all fields)."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from dither.registry.flow.spaces import Group, TokenSpace

__all__ = ["SoftplusHead", "TokenHead", "make_linear"]


def make_linear(width: int, out: int, *, zero: bool, bias: bool = True) -> nn.Linear:
    """Return a linear map that starts at zero, or as torch has it."""
    linear = nn.Linear(width, out, bias)
    if zero:
        nn.init.zeros_(linear.weight)
        if bias:
            nn.init.zeros_(linear.bias)
    return linear


class TokenHead(nn.Module):
    """One linear map per field, filled up with -inf to the vocabulary of the largest.

    Args:
        space: The fields.
        width: Width of the model.
        zero: Whether the maps start at zero.
        bias: Whether the maps have a bias.
    """

    def __init__(self, space: TokenSpace, width: int, *, zero: bool = True, bias: bool = True) -> None:
        super().__init__()
        self.space = space
        self.maps = nn.ModuleList(make_linear(width, field.size, zero=zero, bias=bias) for field in space.fields)

    @property
    def linear(self) -> nn.Linear | None:
        """The map that is all of this head where there is a single field; else None."""
        only = self.maps[0] if len(self.maps) == 1 else None
        return only if type(only) is nn.Linear else None  # another module in its place does something else

    def forward(self, h: Float[Tensor, "B L D"]) -> Float[Tensor, "B L V"]:
        """Read each position with the map of its field."""
        if len(self.maps) == 1:  # spares copies of what may be the largest tensor of all
            logits: Tensor = self.maps[0](h)
            return logits
        parts = zip(self.maps, self.space.split(h).values(), strict=True)
        return torch.cat([self._filled_up(read(part)) for read, part in parts], 1)

    def _filled_up(self, logits: Float[Tensor, "B L v"]) -> Float[Tensor, "B L V"]:
        return functional.pad(logits, (0, self.space.vocab - logits.shape[-1]), value=-torch.inf)


class SoftplusHead(nn.Module):
    """Numbers above 0 for a group of columns, log(1 + exp(linear map)); 0 for all other columns.

    Args:
        features: Numbers per position.
        width: Width of the model.
        group: The columns; all by default.
        zero: Whether the map starts at zero, and so every number at log 2.
        bias: Whether the map has a bias.
    """

    def __init__(
        self, features: int, width: int, group: Group | None = None, *, zero: bool = False, bias: bool = True
    ) -> None:
        super().__init__()
        group = Group("all", 0, features) if group is None else group
        self.around = group.start, features - group.stop
        self.linear = make_linear(width, group.stop - group.start, zero=zero, bias=bias)

    def forward(self, h: Float[Tensor, "B L D"]) -> Float[Tensor, "B L M"]:
        """Read each position."""
        return functional.pad(functional.softplus(self.linear(h)), self.around)
