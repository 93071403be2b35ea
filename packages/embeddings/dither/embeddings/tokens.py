"""Embedding of tokens. Letters: B batch, L length, D width."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from jaxtyping import Float
from torch import Tensor, nn

from dither.registry.contracts.records import State
from dither.registry.contracts.spaces import TokenSpace

from .options import Init

__all__ = ["TokenEmbedding", "make_embedding_table"]


def make_embedding_table(rows: int, width: int, init: Init) -> nn.Embedding:
    """Return a table of vectors.

    Args:
        rows: Number of vectors.
        width: Size of a vector.
        init: "normal" has standard deviation 1; "kaiming" is uniform between -1/sqrt(width) and
            1/sqrt(width), which is `kaiming_uniform_` with a = sqrt(5) over (rows, width); a number
            is the standard deviation.
    """
    table = nn.Embedding(rows, width)
    if init == "kaiming":
        nn.init.uniform_(table.weight, -(width**-0.5), width**-0.5)
    elif init != "normal":
        nn.init.normal_(table.weight, std=init)
    return table


class TokenEmbedding(nn.Module):
    """One table per field.

    Args:
        space: The fields.
        width: Size of a vector.
        init: Initialisation of the tables; see `make_embedding_table`.
        position: (start, length, cond) -> vectors added to every position, or None.
        known: Whether a learned vector, 0 at first, is added to known tokens.
    """

    def __init__(
        self,
        space: TokenSpace,
        width: int,
        *,
        init: Init,
        position: nn.Module | None,
        known: bool = False,
    ) -> None:
        super().__init__()
        self.space = space
        self.position = position
        self.tables = nn.ModuleList(
            make_embedding_table(field.size, width, init) for field in space.fields
        )
        self.known = nn.Parameter(torch.zeros(width)) if known else None

    def forward(
        self, state: State, cond: Mapping[str, Tensor], start: int = 0
    ) -> tuple[Float[Tensor, "B L D"], int]:
        """Return the vectors and 0 extra tokens."""
        # Every field has a table of its own, as ids mean other things in each: B L -> B L D
        fields = self.space.split(state.x).values()
        vectors = [table(ids) for table, ids in zip(self.tables, fields, strict=True)]
        h = torch.cat(vectors, 1)
        if self.position is not None:
            h = h + self.position(start, h.shape[1], cond)
        # A noised token may look like a known one; this vector marks the known.
        if self.known is not None and state.noisy is not None:
            h = h + self.known * ~state.noisy[..., None]
        return h, 0
