"""Positions that are alike, taken as one: regions hidden as a whole, in a model that cannot tell them apart.

Softmax over n equal keys is softmax over one of them with log n added to its logit, so that values and gradients stay
what they are. Letters: B batch, L tokens, N tokens that stay, D width.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

__all__ = ["MergedPositions"]


@dataclass(frozen=True)
class MergedPositions:
    """Which tokens of a batch stay, and what they stand for.

    Attributes:
        stays: The tokens that stay, in their order; rows with fewer are filled up with others.
        place: Where each token is to be found among them; of padding, anywhere.
        weight: Log of how many tokens each one stands for, to be added to the logits of keys; -inf for what fills up.
    """

    stays: Int[Tensor, "B N"]
    place: Int[Tensor, "B L"]
    weight: Float[Tensor, "B 1 1 N"]

    @classmethod
    def of(cls, tokens: Bool[Tensor, "B L"], alike: Bool[Tensor, "B L"], dtype: torch.dtype) -> MergedPositions | None:
        """Leave out padding, and all but the first of the tokens that are `alike`; None where every token stays.

        Args:
            tokens: True on real ones.
            alike: True on those of a row that are one and the same vector.
            dtype: Of the weights; float32 at least.
        """
        alike = alike & tokens
        first = alike & (alike.cumsum(1) == 1)
        stays = tokens & ~alike | first
        counts = stays.sum(1, keepdim=True).clamp_min(1)  # a row of padding alone keeps one, so that it sees something
        most = int(counts.max())
        if most == tokens.shape[1]:
            return None
        order = stays.int().argsort(dim=1, descending=True, stable=True)[:, :most]
        number = torch.where(first, alike.sum(1, keepdim=True), 1).gather(1, order)
        filling = torch.arange(most, device=tokens.device) >= counts
        weight = number.to(torch.promote_types(dtype, torch.float32)).log().masked_fill(filling, -torch.inf)
        place = (stays.cumsum(1) - 1).clamp_min(0)
        place = torch.where(alike, place.gather(1, first.int().argmax(1, keepdim=True)), place)
        return cls(order, place, weight[:, None, None])

    def take(self, h: Float[Tensor, "B L D"]) -> Float[Tensor, "B N D"]:
        """Return the vectors of the tokens that stay."""
        return _rows(h, self.stays)

    def spread(self, h: Float[Tensor, "B N D"]) -> Float[Tensor, "B L D"]:
        """Give every token the vector of the one that stands for it."""
        return _rows(h, self.place)

    def requested(self, requested: Bool[Tensor, "B L"] | None) -> Bool[Tensor, "B N"] | None:
        """Return which tokens that stay stand for one that is asked."""
        if requested is None:
            return None
        return torch.zeros_like(self.stays).scatter_add_(1, self.place, requested.long()) > 0


def _rows(h: Float[Tensor, "B K D"], index: Int[Tensor, "B J"]) -> Float[Tensor, "B J D"]:
    """Choose tokens of each sample."""
    starts = torch.arange(len(h), device=h.device)[:, None] * h.shape[1]
    return h.flatten(0, 1).index_select(0, (starts + index).flatten()).view(*index.shape, -1)
