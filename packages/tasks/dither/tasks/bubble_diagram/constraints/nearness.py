"""How likely it is that rooms of two sorts lie to each other as asked, all tokens being independent.

The chance of each pair of rooms is exact; that none of the pairs, or not none, is as asked is taken to be as if the
pairs were independent. Once all tokens are decided it is 0 or 1 exactly. Letters: N diagrams, R room slots, L tokens,
V ids, E pairs of slots.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ..vocabulary import EDGE_SIZE, NODE_SIZE, pairs
from .rules import Adjacency, turned

__all__ = ["Nearness"]


def _sets(size: int, *sets: frozenset[int]) -> Float[Tensor, "V sets"]:
    return torch.tensor([[float(v in some) for some in sets] for v in range(size)])


class Nearness:
    """The chance that one adjacency holds.

    Args:
        rule: The adjacency.
        slots: Room slots.
    """

    def __init__(self, rule: Adjacency, slots: int) -> None:
        self.rule, self.slots = rule, slots
        there, back = rule.relations, turned(rule.relations)
        self.sorts = _sets(NODE_SIZE, rule.first, rule.second, rule.first & rule.second)
        """Whether a type is of the first sort, of the second, and of both."""
        self.ways = _sets(EDGE_SIZE, there, back, there & back)
        """Whether a relation of a pair i < j is right with i as the first, with j as the first, and both."""
        self.ends = torch.tensor(pairs(slots)).T

    def log_chance(self, believed: Float[Tensor, "N L V"], at: Int[Tensor, " N"]) -> Float[Tensor, "N V"]:
        """Return the chance by what the token `at` becomes, the others being as believed."""
        (i, j), dtype = self.ends.to(at.device), believed.dtype
        sorts, ways = self.sorts.to(at.device, dtype), self.ways.to(at.device, dtype)
        room = believed[:, : self.slots, :NODE_SIZE] @ sorts
        pair = believed[:, self.slots :, :EDGE_SIZE] @ ways
        edge = torch.arange(len(i), device=at.device) + self.slots == at[:, None]
        ends = (i == at[:, None]) | (j == at[:, None])
        right = _right(room[:, i], room[:, j], pair)
        rest = torch.log1p(-right.masked_fill(edge | ends, 0)).sum(1)
        none = rest[:, None] + self._touched(believed, room, pair, at, edge | ends)
        return torch.log(-torch.expm1(none)) if self.rule.wanted else none

    def _touched(
        self,
        believed: Float[Tensor, "N L V"],
        room: Float[Tensor, "N R 3"],
        pair: Float[Tensor, "N E 3"],
        at: Int[Tensor, " N"],
        touched: Bool[Tensor, "N E"],
    ) -> Float[Tensor, "N V"]:
        """Return the logarithm of the chance that none of the pairs that depend on `at` is as asked, by what it is."""
        (i, j), vocab = self.ends.to(at.device), believed.shape[-1]
        sorts, ways = self.sorts.to(room), self.ways.to(room)
        rows = sorts.tolist()
        kinds = sorted(map(list, set(map(tuple, rows))))
        result = []
        for kind in sorts.new_tensor(kinds):
            first = torch.where((i == at[:, None])[..., None], kind, room[:, i])
            second = torch.where((j == at[:, None])[..., None], kind, room[:, j])
            result.append(torch.log1p(-_right(first, second, pair).masked_fill(~touched, 0)).sum(1))
        by_type = torch.nn.functional.pad(
            torch.stack(result, 1)[:, [kinds.index(row) for row in rows]], (0, vocab - NODE_SIZE)
        )
        own = (at - self.slots).clamp_min(0)
        first, second = _row(room, i[own]), _row(room, j[own])
        by_way = torch.log1p(-_right(first[:, None], second[:, None], ways))
        by_way = torch.nn.functional.pad(by_way, (0, vocab - EDGE_SIZE))
        return torch.where((at < self.slots)[:, None], by_type, by_way)


def _row(room: Float[Tensor, "N R 3"], which: Int[Tensor, " N"]) -> Float[Tensor, "N 3"]:
    return room[torch.arange(len(room), device=room.device), which]


def _right(
    first: Float[Tensor, "... 3"], second: Float[Tensor, "... 3"], way: Float[Tensor, "... 3"]
) -> Float[Tensor, "..."]:
    """Return the chance that a pair of rooms is as asked, either of them being the first."""
    (a, b, both), (c, d, too), (there, back, either) = (x.unbind(-1) for x in (first, second, way))
    return (a * d * there + b * c * back - both * too * either).clamp(0, 1)
