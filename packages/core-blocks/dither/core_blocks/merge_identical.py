"""Merges identical positions into one: fully masked regions, in a model that cannot distinguish them.

Softmax over n equal keys equals softmax over one of them with log n added to its logit, so values
and gradients stay the same. Letters: B batch, L tokens, N remaining tokens, D width.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from .row_counts import rounded_up

__all__ = ["MergedPositions"]


@dataclass(frozen=True)
class MergedPositions:
    """Which tokens of a batch remain, and which tokens each one represents.

    Attributes:
        remaining: Indices of the remaining tokens in order; shorter rows are filled up.
        index: Where each token is represented among them; anything for padding.
        weight: Log of the number of tokens that each one represents, added to the logits; -inf for
            filling.
    """

    remaining: Int[Tensor, "B N"]
    index: Int[Tensor, "B L"]
    weight: Float[Tensor, "B 1 1 N"]

    @classmethod
    def of(
        cls,
        tokens: Bool[Tensor, "B L"],
        identical: Bool[Tensor, "B L"],
        dtype: torch.dtype,
    ) -> MergedPositions | None:
        """Remove padding and all but the first of the `identical` tokens; None if every token remains.

        Args:
            tokens: False on padding.
            identical: True on tokens of a row that have the same vector.
            dtype: Of the weights; float32 at least.
        """
        # The first of the identical tokens of a row represents the others.
        identical = identical & tokens
        first = identical & (identical.cumsum(1) == 1)
        remains = tokens & ~identical | first

        # A row of padding alone keeps one token, because softmax requires a key.
        counts = remains.sum(1, keepdim=True).clamp_min(1)
        longest = rounded_up(int(counts.max()))
        if longest >= tokens.shape[1]:
            return None

        # A stable sort puts the remaining tokens first, in order.
        order = remains.int().argsort(dim=1, descending=True, stable=True)
        remaining = order[:, :longest]

        # log n of the n tokens that each represents: B N
        represented = torch.where(first, identical.sum(1, keepdim=True), 1)
        represented = represented.gather(1, remaining)
        filling = torch.arange(longest, device=tokens.device) >= counts
        exact = torch.promote_types(dtype, torch.float32)
        weight = represented.to(exact).log().masked_fill(filling, -torch.inf)

        # Where each token went; identical ones to where the first of them went: B L
        index = (remains.cumsum(1) - 1).clamp_min(0)
        merged = index.gather(1, first.int().argmax(1, keepdim=True))
        index = torch.where(identical, merged, index)
        return cls(remaining, index, weight[:, None, None])

    def take(self, h: Float[Tensor, "B L D"]) -> Float[Tensor, "B N D"]:
        """Return the vectors of the remaining tokens."""
        return _gather(h, self.remaining)

    def spread(self, h: Float[Tensor, "B N D"]) -> Float[Tensor, "B L D"]:
        """Copy the vector of each remaining token to all tokens that it represents."""
        return _gather(h, self.index)

    def requested(
        self, requested: Bool[Tensor, "B L"] | None
    ) -> Bool[Tensor, "B N"] | None:
        """Return which remaining tokens represent a requested one."""
        if requested is None:
            return None
        # A merged token is requested if any of its tokens is.
        count = torch.zeros_like(self.remaining)
        return count.scatter_add(1, self.index, requested.long()) > 0


def _gather(
    h: Float[Tensor, "B K D"], index: Int[Tensor, "B J"]
) -> Float[Tensor, "B J D"]:
    # index_select of rows, whose backward is faster than that of gather.
    starts = torch.arange(len(index), device=index.device)[:, None] * h.shape[1]
    rows = (starts + index).flatten()
    return h.flatten(0, 1).index_select(0, rows).view(*index.shape, -1)
