"""Embedding of graphs: nodes, then every pair of them. Letters: B batch, L length, D width, E pairs."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from dither.registry.contracts.records import State
from dither.registry.contracts.spaces import TokenSpace

from .options import Endpoint, Init
from .tokens import TokenEmbedding, make_embedding_table

__all__ = ["GraphEmbedding"]


class GraphEmbedding(nn.Module):
    """Tokens of nodes and pairs plus their positions: entity(node) + index(i), entity(pair) + ends(i, j).

    Pairs are those of the upper triangle row by row: (0, 1), (0, 2), ..., (1, 2), ...

    Further fields reuse the positions, each with its own entity: one token per node, or one per
    pair and then per node.

    Args:
        space: Fields of n nodes, of n(n-1)/2 pairs, and any number of n or n(n+1)/2 positions.
        width: Size of a vector.
        endpoint: "shared" adds the vectors of both nodes from one table, so that (i, j) equals (j,
            i); "directed" has one table for the first node and one for the second; "tied" uses the
            table of the nodes.
        init: Initialisation of the tables; see `make_embedding_table`.
    """

    ends: Int[Tensor, "2 E"]

    def __init__(
        self,
        space: TokenSpace,
        width: int,
        *,
        endpoint: Endpoint,
        init: Init,
    ) -> None:
        super().__init__()
        n = space.fields[0].length
        self.tokens = TokenEmbedding(space, width, init=init, position=None)
        self.lengths = [field.length for field in space.fields]
        self.entity = make_embedding_table(len(self.lengths), width, init)
        self.node = make_embedding_table(n, width, init)
        # Tables for the nodes of a pair; "tied" uses `node`.
        tables = {"shared": 1, "directed": 2, "tied": 0}[endpoint]
        self.pair = nn.ModuleList(
            make_embedding_table(n, width, init) for _ in range(tables)
        )
        # combinations lists the upper triangle row by row; a single node has none: 2 E
        pairs = torch.tensor(list(combinations(range(n), 2)), dtype=torch.int64)
        ends = pairs.reshape(-1, 2).T.contiguous()
        self.register_buffer("ends", ends, persistent=False)

    def forward(
        self, state: State, cond: Mapping[str, Tensor], start: int = 0
    ) -> tuple[Float[Tensor, "B L D"], int]:
        """Return the vectors and 0 extra tokens; a graph is never split, so `start` is 0."""
        h, extra = self.tokens(state, cond, start)
        return h + self.position_embedding(), extra

    def position_embedding(self) -> Float[Tensor, "L D"]:
        """Return entity + position of every token; it is the same for all samples."""
        nodes = self.node.weight
        pairs = self._pairs()
        positions = [nodes, pairs]
        # Further fields have a token per node, or one per pair and then per node.
        for length in self.lengths[2:]:
            if length == len(nodes):
                positions.append(nodes)
            else:
                positions.append(torch.cat([pairs, nodes]))

        # Every field has an entity of its own: L D
        entities = self.entity.weight.unbind()
        return torch.cat([e + p for e, p in zip(entities, positions, strict=True)])

    def _pairs(self) -> Float[Tensor, "E D"]:
        """Return the sum of the vectors of both nodes of every pair."""
        if len(self.pair) == 2:
            first, second = self.pair
            out: Tensor = first(self.ends[0]) + second(self.ends[1])
            return out
        # One table for both nodes: (i, j) equals (j, i).
        table = self.pair[0] if len(self.pair) else self.node
        return table(self.ends).sum(0)  # type: ignore[no-any-return]
