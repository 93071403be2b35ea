"""Output heads. Letters: B batch, L length, D width, M features, V vocabulary (the largest of all fields)."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from dither.registry.contracts.spaces import Group, TokenSpace
from dither.registry.contracts.tensors import at_least_float32

__all__ = ["SigmoidHead", "SoftplusHead", "TokenHead", "make_linear"]


def make_linear(
    width: int,
    out: int,
    *,
    zero: bool,
    bias: bool,
) -> nn.Linear:
    """Return a linear layer, initialised to zero or by torch's default."""
    linear = nn.Linear(width, out, bias)
    if zero:
        nn.init.zeros_(linear.weight)
        if bias:
            nn.init.zeros_(linear.bias)
    return linear


class TokenHead(nn.Module):
    """One linear layer per field; logits are padded with -inf to the largest vocabulary.

    Args:
        space: The fields.
        width: Width of the model.
        zero: Whether the layers start at zero.
        bias: Whether the layers have a bias.
    """

    def __init__(
        self,
        space: TokenSpace,
        width: int,
        *,
        zero: bool,
        bias: bool,
    ) -> None:
        super().__init__()
        self.space = space
        self.maps = nn.ModuleList(
            make_linear(width, field.size, zero=zero, bias=bias)
            for field in space.fields
        )

    @property
    def linear(self) -> nn.Linear | None:
        """The only layer, if there is a single field and nothing replaced it; used by fused losses."""
        # A subclass, such as one with LoRA, is more than a matrix product.
        if len(self.maps) == 1 and type(self.maps[0]) is nn.Linear:
            return self.maps[0]
        return None

    def forward(self, h: Float[Tensor, "B L D"]) -> Float[Tensor, "B L V"]:
        # No copy of what may be the largest tensor of all.
        if len(self.maps) == 1:
            logits: Tensor = self.maps[0](h)
            return logits
        # Each field has its positions of h, and a vocabulary of its own: B L v -> B L V
        fields = zip(self.maps, self.space.split(h).values(), strict=True)
        return torch.cat([self._pad(linear(part)) for linear, part in fields], 1)

    def _pad(self, logits: Float[Tensor, "B L v"]) -> Float[Tensor, "B L V"]:
        # -inf gives ids that the field does not have probability 0.
        missing = self.space.vocab - logits.shape[-1]
        return functional.pad(logits, (0, missing), value=-torch.inf)


class SoftplusHead(nn.Module):
    """Softplus of a linear layer for a group of columns; 0 for the others.

    Args:
        features: Number of columns.
        width: Width of the model.
        group: The predicted columns.
        zero: Whether the layer starts at zero, so that every value starts at log 2.
        bias: Whether the layer has a bias.
    """

    def __init__(
        self,
        features: int,
        width: int,
        group: Group,
        *,
        zero: bool,
        bias: bool,
    ) -> None:
        super().__init__()
        self.padding = group.start, features - group.stop
        self.linear = make_linear(width, group.stop - group.start, zero=zero, bias=bias)

    def forward(self, h: Float[Tensor, "B L D"]) -> Float[Tensor, "B L M"]:
        # Zeros before and after the columns of the group
        return functional.pad(self.activate(self.linear(h)), self.padding)

    def activate(self, values: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        return functional.softplus(values)


class SigmoidHead(SoftplusHead):
    """Sigmoid of a linear layer for a group of columns; 0 for the others. Arguments of `SoftplusHead`."""

    def activate(self, values: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        # In half precision probabilities near 1 would be 1.
        return at_least_float32(values).sigmoid()
