"""Embeddings of features. Letters: B batch, L length, K tokens including the class token, M features, D width."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from dither.registry.contracts.records import State

__all__ = ["PatchEmbedding", "RegionEmbedding"]


class RegionEmbedding(nn.Module):
    """A linear layer per position, a token for fully masked positions, and a class token (GET).

    Args:
        features: Number of columns.
        width: Size of a vector.
        columns: Columns that are read; None for all.
        cls: Whether a class token comes first.
        elements: Whether another linear layer embeds which elements are masked or noisy.
        position: (start, length, cond) -> vectors added to every position.
    """

    def __init__(
        self,
        features: int,
        width: int,
        *,
        columns: Sequence[int] | None,
        cls: bool,
        elements: bool,
        position: nn.Module,
    ) -> None:
        super().__init__()
        self.columns: Tensor | None
        # A buffer moves with the model; the options determine it, so that no checkpoint holds it.
        indices = None
        if columns is not None:
            indices = torch.tensor(columns)
            features = len(columns)
        self.register_buffer("columns", indices, persistent=False)
        self.linear = nn.Linear(features, width)
        self.elements = nn.Linear(features, width, bias=False) if elements else None
        self.mask_token = nn.Parameter(torch.empty(width))
        self.cls_token = nn.Parameter(torch.empty(width)) if cls else None
        self.position = position
        nn.init.trunc_normal_(self.mask_token, std=0.02)
        if self.cls_token is not None:
            nn.init.trunc_normal_(self.cls_token, std=0.02)

    def forward(
        self, state: State, cond: Mapping[str, Tensor], start: int = 0
    ) -> tuple[Float[Tensor, "B K D"], int]:
        """Return the tokens and the number of extra ones; the class token comes before position 0."""
        x = state.x
        masked = state.masked
        # Elements whose values are not those of the clean sample
        flagged = masked
        if state.noisy is not None:
            flagged = masked | state.noisy
        if self.columns is not None:
            x = x[..., self.columns]
            masked = masked[..., self.columns]
            flagged = flagged[..., self.columns]

        # A masked value may be anything; with `elements` the model sees that it is not a 0:
        # B L M -> B L D
        h = apply_linear(self.linear, x.masked_fill(masked, 0.0))
        if self.elements is not None:
            h = h + self.elements(flagged.to(h.dtype))
        # A region of which nothing is visible is one learned vector, as in BERT.
        h = torch.where(masked.all(-1, keepdim=True), self.mask_token, h)
        h = h + self.position(start, h.shape[1], cond)

        # Later pieces of a sample find the class token in the cache.
        if self.cls_token is None or start:
            return h, 0
        return torch.cat([self.cls_token.expand(len(h), 1, -1), h], 1), 1


class PatchEmbedding(nn.Module):
    """A linear layer per position, such as a patch of an image (ViT, DiT); it reads no masks.

    Args:
        features: Number of columns.
        width: Size of a vector.
        position: (start, length, cond) -> vectors added to every position.
    """

    def __init__(self, features: int, width: int, position: nn.Module) -> None:
        super().__init__()
        self.linear = nn.Linear(features, width)
        self.position = position

    def forward(
        self, state: State, cond: Mapping[str, Tensor], start: int = 0
    ) -> tuple[Float[Tensor, "B L D"], int]:
        """Return one vector per position, and 0 extra tokens."""
        # A masked value may be anything: B L M -> B L D
        h = apply_linear(self.linear, state.x.masked_fill(state.masked, 0.0))
        return h + self.position(start, h.shape[1], cond), 0


def apply_linear(
    linear: nn.Linear, x: Float[Tensor, "B L M"]
) -> Float[Tensor, "B L D"]:
    """Return the linear map of features, whose states stay in float32 under a model cast to bfloat16."""
    out: Tensor = linear(x.to(linear.weight.dtype))
    return out
