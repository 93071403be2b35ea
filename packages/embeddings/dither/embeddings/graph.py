"""Graphs in: nodes, then every pair of them. Letters: B batch, L length, D width, N nodes, E pairs."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from dither.registry.flow.records import State
from dither.registry.flow.spaces import TokenSpace

from .options import Endpoint, Start, is_graph
from .tokens import TokenEmbedding, make_embedding_table

__all__ = ["GraphEmbedding"]


class GraphEmbedding(nn.Module):
    """Tokens of nodes and pairs, and what each position stands for: entity(node) + index(i), entity(pair) + ends(i, j).

    Pairs are those of the upper triangle row by row: (0, 1), (0, 2), ..., (1, 2), ...

    Args:
        space: Two fields: n nodes, n(n-1)/2 pairs.
        width: Size of a vector.
        endpoint: How the ends of a pair are told. "shared" adds the vectors of both ends from one table, so that (i, j)
            and (j, i) would be the same; "directed" has a table for the first and one for the second end; "tied" is
            shared with the table of the nodes.
        init: How the tables start; see `make_embedding_table`.

    Raises:
        ValueError: The space is no graph, or the endpoint is unknown.
    """

    ends: Int[Tensor, "2 E"]

    def __init__(self, space: TokenSpace, width: int, *, endpoint: Endpoint = "shared", init: Start = "normal") -> None:
        super().__init__()
        if not is_graph(space):
            raise ValueError(f"a graph has two fields, n nodes and their n(n-1)/2 pairs; this is {space}")
        if endpoint not in ("shared", "directed", "tied"):
            raise ValueError(f'endpoint may be "shared", "directed" or "tied", not "{endpoint}"')
        n = space.fields[0].length
        self.tokens = TokenEmbedding(space, width, init=init)
        self.entity, self.node = make_embedding_table(2, width, init), make_embedding_table(n, width, init)
        tables = {"shared": 1, "directed": 2, "tied": 0}[endpoint]
        self.pair = nn.ModuleList(make_embedding_table(n, width, init) for _ in range(tables))
        self.register_buffer("ends", torch.triu_indices(n, n, 1), persistent=False)

    def forward(self, state: State, cond: Mapping[str, Tensor], start: int = 0) -> tuple[Float[Tensor, "B L D"], int]:
        """Embed the ids and add what their positions stand for; a graph comes whole, so `start` is 0."""
        h, extra = self.tokens(state, cond, start)
        return h + self.places(), extra

    def places(self) -> Float[Tensor, "L D"]:
        """Return what each position stands for."""
        tables = list(self.pair) or [self.node]
        node, pair = self.entity.weight
        ends = tables[0](self.ends[0]) + tables[-1](self.ends[1])
        return torch.cat([node + self.node.weight, pair + ends])
