"""Self-conditioning: the previous prediction of x_0 as an input (Chen et al., 2022).

Letters: B batch, L length, M features, V vocabulary, D width.
"""

from __future__ import annotations

from typing import cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from dither.registry.contracts.spaces import Space, TokenSpace

__all__ = ["PreviousPrediction"]


class PreviousPrediction(nn.Module):
    """The expected embedding of predicted tokens, or a linear map of predicted features.

    It is zero at first, and a prediction of zeros adds nothing: a new model equals one without it.

    Args:
        space: Of the predictions; each field of tokens has a table of its own.
        width: Size of a vector.
    """

    def __init__(self, space: Space, width: int) -> None:
        super().__init__()
        self.space = space
        # Tables of nn.Embedding, so that optimizers treat them as those of the ids.
        tables = [nn.Embedding(size, width) for size in _sizes(space)]
        for table in tables:
            nn.init.zeros_(table.weight)
        self.tables = nn.ModuleList(tables)

    def forward(self, previous: Float[Tensor, "B L V"]) -> Float[Tensor, "B L D"]:
        """Return the sum of the vectors of ids or columns, weighted by the prediction."""
        parts = [previous]
        if isinstance(self.space, TokenSpace):
            parts = list(self.space.split(previous).values())
        vectors = []
        for table, part in zip(self.tables, parts, strict=True):
            weight = cast(nn.Embedding, table).weight
            # Predictions have the size of the largest vocabulary, and are in float32 under autocast, too.
            vectors.append(part[..., : len(weight)].to(weight.dtype) @ weight)
        return torch.cat(vectors, 1)


def _sizes(space: Space) -> list[int]:
    """Return the ids of each field, or the columns."""
    if isinstance(space, TokenSpace):
        return [field.size for field in space.fields]
    return [space.width]
