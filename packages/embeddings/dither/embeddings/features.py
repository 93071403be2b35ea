"""Vectors in. Letters: B batch, L length, K tokens (the class token too), M features, D width."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from dither.registry.flow.records import State

__all__ = ["RegionEmbedding"]


class RegionEmbedding(nn.Module):
    """A linear map of each position, a token for those that are hidden as a whole, and a class token (GET).

    Args:
        features: Numbers per position.
        width: Size of a vector.
        columns: Those of the numbers that are read; None for all.
        cls: Whether a class token leads.
        elements: Whether positions are told which of their elements are hidden, or noisy beside clean ones.
        position: (start, length, cond) -> what is added to every position, hidden or not; or None.
    """

    def __init__(
        self,
        features: int,
        width: int,
        *,
        columns: Sequence[int] | None = None,
        cls: bool = True,
        elements: bool = False,
        position: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.columns: Tensor | None
        self.register_buffer("columns", None if columns is None else torch.tensor(columns), persistent=False)
        features = features if columns is None else len(columns)
        self.linear = nn.Linear(features, width)
        self.elements = nn.Linear(features, width, bias=False) if elements else None
        self.mask_token = nn.Parameter(torch.empty(width))
        self.cls_token = nn.Parameter(torch.empty(width)) if cls else None
        self.position = position
        nn.init.trunc_normal_(self.mask_token, std=0.02)
        if self.cls_token is not None:
            nn.init.trunc_normal_(self.cls_token, std=0.02)

    def forward(self, state: State, cond: Mapping[str, Tensor], start: int = 0) -> tuple[Float[Tensor, "B K D"], int]:
        """Embed; the class token leads where the first position is that of the sample."""
        x, hidden, told = state.x, state.masked, state.masked
        if state.noisy is not None:
            told = hidden | state.noisy
        if self.columns is not None:
            x, hidden, told = (part[..., self.columns] for part in (x, hidden, told))
        h = self.linear(x.masked_fill(hidden, 0.0))
        if self.elements is not None:
            h = h + self.elements(told.to(h.dtype))
        h = torch.where(hidden.all(-1, keepdim=True), self.mask_token, h)
        if self.position is not None:
            h = h + self.position(start, h.shape[1], cond)
        if self.cls_token is None or start:
            return h, 0
        return torch.cat([self.cls_token.expand(len(h), 1, -1), h], 1), 1
