"""An embedding of tokens (Lan et al. 2020, "ALBERT", section 3.1).

Letters: B batch, L length, D width.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pydantic import Field

from dither.registry import Space, Spec, TokenSpace, hookimpl
from dither.registry.kinds import TOKENS, EmbeddingSpec

if TYPE_CHECKING:
    from torch import Tensor, nn

    from dither.registry.contracts.records import State


class ExampleEmbedding(EmbeddingSpec):
    """Low-rank tables, one per field, and a linear map to the model width."""

    name = "example-embedding"
    serves = TOKENS
    rank: int = Field(16, ge=1, le=4096)
    """Width of the tables."""

    def build(self, space: Space, width: int) -> nn.Module:
        # torch is imported here, so that `dither list` and `dither validate` stay fast.
        import torch
        from torch import nn

        # Guaranteed by `serves`.
        assert isinstance(space, TokenSpace)
        tokens = space
        rank = self.rank

        class LowRankTables(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.tables = nn.ModuleList(
                    nn.Embedding(field.size, rank) for field in tokens.fields
                )
                self.linear = nn.Linear(rank, width)

            def forward(
                self, state: State, cond: Mapping[str, Tensor], start: int = 0
            ) -> tuple[Tensor, int]:
                """Return B L D, and the number of extra tokens before the first position.

                `start` is the index of that position in the whole sample.
                """
                parts = zip(self.tables, tokens.split(state.x).values(), strict=True)
                vectors = torch.cat([table(ids) for table, ids in parts], 1)
                h: Tensor = self.linear(vectors)
                return h, 0

        return LowRankTables()


@hookimpl
def register_components() -> list[type[Spec]]:
    return [ExampleEmbedding]
