"""Constraints as sampling needs them: what holds of samples, and how likely it is that they will be met.

Letters: N diagrams, R room slots, L tokens, V ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Final

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dither.registry.config.errors import dotted
from dither.registry.flow.records import Clean

from ..validity import is_realisable
from ..vocabulary import EDGE_PAD, EDGE_SIZE, NO_EDGE, NODE_MASK, NODE_PAD, NODE_SIZE, pair_index, pairs
from .contradictions import possible
from .lookahead import OPEN, refuted
from .rules import Adjacency, Buildable, Count, PairRelation, RoomType, Rule, Size, turned

__all__ = ["AdjacencyProbability", "ConstraintGuidance", "CountProbability", "RealisabilityProbability", "countings"]


class ConstraintGuidance:
    """What samples must fulfil; a `dither.registry.flow.protocols.Goal`.

    Args:
        rules: What the constraints come down to; they do not contradict each other.
        slots: Room slots.

    Attributes:
        allowed: Ids that each token may have, PAD included where there need be no room.
    """

    def __init__(self, rules: Sequence[Rule], slots: int) -> None:
        self.rules, self.slots = list(rules), slots
        self.ends = torch.tensor(pairs(slots)).T
        self.allowed = self._allowed()
        built = [rule for rule in rules if isinstance(rule, Buildable)]
        counts = [rule for rule in rules if isinstance(rule, Count)] + [one for rule in built for one in rule.counts()]
        self._parts: list[CountProbability | AdjacencyProbability | RealisabilityProbability] = [
            *countings(counts, slots),
            *(AdjacencyProbability(rule, slots) for rule in rules if isinstance(rule, Adjacency)),
            *(RealisabilityProbability(slots) for _ in built),
        ]

    def _allowed(self) -> Bool[Tensor, "L V"]:
        allowed = torch.zeros(self.slots + self.ends.shape[1], NODE_SIZE, dtype=torch.bool)
        allowed[: self.slots, :NODE_MASK] = allowed[: self.slots, NODE_PAD] = True
        allowed[self.slots :, : NO_EDGE + 1] = allowed[self.slots :, EDGE_PAD] = True
        for rule in self.rules:
            if isinstance(rule, RoomType):
                allowed[rule.room] &= _some(rule.types)
            elif isinstance(rule, PairRelation):
                allowed[self.slots + pair_index(rule.i, rule.j, self.slots)] &= _some(rule.relations)
        return allowed

    def room_counts(self, counts: Int[np.ndarray, " n"]) -> Int[np.ndarray, " n"]:
        """Return how often diagrams of 0, 1, 2 .. rooms are to be drawn: as in `counts`, of those that can be.

        Where none of these is in `counts`, all that can be are drawn alike.
        """

        def can(n: int) -> bool:
            return 0 < n <= self.slots and possible([*self.rules, Size((), n, n)], self.slots)

        kept: Int[np.ndarray, " n"] = np.array([some if some and can(n) else 0 for n, some in enumerate(counts)])
        return kept if kept.any() else np.array([int(can(n)) for n in range(len(counts))])

    def begin(self, empty: Clean) -> Clean:
        """Return what sampling starts from: tokens that have one way to be are known, and the rest has this goal."""
        only = (self.allowed.sum(1) == 1) & empty.valid
        # PAD is among what a token may be unless there must be a room.
        x0 = torch.where(only, self.allowed.long().argmax(1), empty.x0)
        return Clean(x0, empty.valid, only, empty.cond, self)

    def satisfied(self, x: Int[Tensor, "N L"]) -> dict[str, Bool[Tensor, " N"]]:
        """Return which constraints samples meet, by the key of the constraint; False where a token is no clean id."""
        clean = ((x >= 0) & (x < NODE_SIZE)).all(1)
        return {dotted(rule.path): self._holds(rule, x) & clean for rule in self.rules}

    def _holds(self, rule: Rule, x: Int[Tensor, "N L"]) -> Bool[Tensor, " N"]:
        types = x[:, : self.slots]
        match rule:
            case Size():
                rooms = (types != NODE_PAD).sum(1)
                return (rooms >= rule.low) & (rooms <= rule.high)
            case RoomType():
                return _among(types[:, rule.room], rule.types)
            case PairRelation():
                return _among(x[:, self.slots + pair_index(rule.i, rule.j, self.slots)], rule.relations)
            case Count():
                number = _among(types, rule.types).sum(1)
                return (number >= rule.low) & (number <= rule.high)
            case Adjacency():
                return self._lie(rule, x) == rule.wanted
            case Buildable():
                return torch.from_numpy(is_realisable(x.cpu().numpy(), self.slots)).to(x.device)

    def _lie(self, rule: Adjacency, x: Int[Tensor, "N L"]) -> Bool[Tensor, " N"]:
        """Whether any room of the first types lies to one of the second as it is said."""
        (i, j), relations = self.ends.to(x.device), x[:, self.slots :]
        ahead = _among(x[:, i], rule.first) & _among(x[:, j], rule.second) & _among(relations, rule.relations)
        seen = turned(rule.relations)
        behind = _among(x[:, j], rule.first) & _among(x[:, i], rule.second) & _among(relations, seen)
        return (ahead | behind).any(1)

    def log_prob(self, log_clean: Float[Tensor, "N L V"], at: Int[Tensor, " N"]) -> Float[Tensor, "N V"]:
        """Return how likely the constraints are met if the token `at` becomes v and the others are independent draws.

        Allowed ids and counts are exact, up to `counting.STATES`; adjacencies, and that the diagram can be built, are
        an estimate, until the last token is decided. -inf only where the constraints cannot be met any more, or the
        search for boxes gave up.

        Args:
            log_clean: Log-probabilities of every token; a decided one has 0 at its id.
            at: The token in question, in each row.
        """
        dtype = torch.float32 if at.device.type == "mps" else torch.float64
        allowed = self.allowed.to(at.device)
        weight = log_clean.to(dtype).exp() * torch.nn.functional.pad(allowed, (0, log_clean.shape[-1] - NODE_SIZE))
        mass = weight.sum(-1)
        believed = weight / mass.clamp_min(torch.finfo(dtype).tiny)[..., None]
        own = torch.arange(mass.shape[1], device=at.device) == at[:, None]
        chance = allowed[at].to(dtype).log() + mass.masked_fill(own, 1).log().sum(1)[:, None]
        chance = torch.nn.functional.pad(chance, (0, log_clean.shape[-1] - NODE_SIZE), value=-torch.inf)
        for part in self._parts:
            chance = chance + part.log_prob(believed, at)
        return chance


def _some(ids: frozenset[int]) -> Bool[Tensor, " V"]:
    return torch.tensor([v in ids for v in range(NODE_SIZE)])


def _among(x: Int[Tensor, "*n"], ids: frozenset[int]) -> Bool[Tensor, "*n"]:
    return torch.isin(x, torch.tensor(sorted(ids), dtype=x.dtype, device=x.device))


STATES: Final = 512
"""Most numbers that are followed together; more counts than that are taken as independent of each other."""


def countings(rules: Sequence[Count], slots: int) -> list[CountProbability]:
    """Put counts together, as many as can be followed at once."""
    groups: list[list[Count]] = []
    for rule in rules:
        if groups and prod(_width(one, slots) for one in (*groups[-1], rule)) <= STATES:
            groups[-1].append(rule)
        else:
            groups.append([rule])
    return [CountProbability(group, slots) for group in groups]


def _width(rule: Count, slots: int) -> int:
    """Return how many numbers matter: up to `high`, or up to `low` where there is no end."""
    return (rule.low if rule.high >= slots else rule.high) + 1


class CountProbability:
    """The chance that all of some counts are met.

    Args:
        rules: The counts.
        slots: Room slots.
    """

    def __init__(self, rules: Sequence[Count], slots: int) -> None:
        self.rules, self.slots = list(rules), slots
        self.widths = [_width(rule, slots) for rule in rules]
        told = [tuple(c for c, rule in enumerate(rules) if v in rule.types) for v in range(NODE_SIZE)]
        self.steps = [(), *sorted(set(told) - {()})]
        """For each kind of room, the counts that it adds to; the first kind adds to none."""
        self.kind_of = torch.tensor([self.steps.index(step) for step in told])

    def log_prob(self, believed: Float[Tensor, "N L V"], at: Int[Tensor, " N"]) -> Float[Tensor, "N V"]:
        """Return the chance by what the token `at` becomes, the other rooms being as believed."""
        vocab, kinds = believed.shape[-1], len(self.steps)
        kind_of = self.kind_of.to(at.device)
        member = torch.nn.functional.one_hot(kind_of, kinds).to(believed.dtype)
        rooms = believed[:, : self.slots, :NODE_SIZE] @ member
        own = torch.arange(self.slots, device=at.device) == at[:, None]
        aside = torch.nn.functional.one_hot(torch.zeros_like(at), kinds).to(rooms.dtype)
        rooms = torch.where(own[..., None], aside[:, None], rooms)
        counted = self._count(rooms)
        met = torch.stack([self._met(self._moved(counted, step)) for step in self.steps], 1)
        by_id = torch.nn.functional.pad(met[:, kind_of], (0, vocab - NODE_SIZE))
        return torch.where((at < self.slots)[:, None], by_id, met[:, :1]).log()

    def _count(self, rooms: Float[Tensor, "N R kinds"]) -> Float[Tensor, "N *widths"]:
        shape = (len(rooms), *[1] * len(self.widths))
        counted = rooms.new_zeros(len(rooms), *self.widths)
        counted.flatten(1)[:, 0] = 1
        for room in rooms.unbind(1):
            counted = sum(
                (
                    self._moved(counted, step) * chance.reshape(shape)
                    for step, chance in zip(self.steps, room.unbind(1), strict=True)
                ),
                torch.zeros_like(counted),
            )
        return counted

    def _moved(self, counted: Float[Tensor, "N *widths"], step: tuple[int, ...]) -> Float[Tensor, "N *widths"]:
        """Add one to some numbers; what exceeds the largest number allowed is dropped."""
        for c in step:
            axis, last = c + 1, self.widths[c] - 1
            moved = torch.zeros_like(counted)
            moved.narrow(axis, 1, last).copy_(counted.narrow(axis, 0, last))
            if self.rules[c].high >= self.slots:  # no end: the last number stands for all from there on
                moved.select(axis, last).add_(counted.select(axis, last))
            counted = moved
        return counted

    def _met(self, counted: Float[Tensor, "N *widths"]) -> Float[Tensor, " N"]:
        for c, rule in enumerate(self.rules):
            axis = c + 1
            counted = counted.narrow(axis, min(rule.low, self.widths[c]), max(self.widths[c] - rule.low, 0))
        return counted.flatten(1).sum(1)


def _sets(size: int, *sets: frozenset[int]) -> Float[Tensor, "V sets"]:
    return torch.tensor([[float(v in some) for some in sets] for v in range(size)])


class AdjacencyProbability:
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

    def log_prob(self, believed: Float[Tensor, "N L V"], at: Int[Tensor, " N"]) -> Float[Tensor, "N V"]:
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


class RealisabilityProbability:
    """The chance that a diagram will reach level 4: none where that is refuted, and else taken as certain.

    What the rooms must be is not looked at before the end; counts say it (see `goal`). Once all other tokens are
    decided it is 0 or 1, for every id that is believed possible: 1 if there are boxes, which prove it, and 0 if there
    are none or the search gave up.

    Args:
        slots: Room slots.
    """

    def __init__(self, slots: int) -> None:
        self.slots = slots

    def log_prob(self, believed: Float[Tensor, "N L V"], at: Int[Tensor, " N"]) -> Float[Tensor, "N V"]:
        """Return the chance by what the token `at` becomes, the others being as believed."""
        numbers = torch.arange(len(at), device=at.device)
        likeliest = believed.max(-1)
        decided = (likeliest.values == 1).index_put((numbers, at), torch.tensor(True, device=at.device))
        ids = likeliest.indices.cpu().numpy()
        own, last = at.cpu().numpy(), decided.all(1).cpu().numpy()
        hopeful = (believed[numbers, at] > 0).cpu().numpy()
        edge = np.flatnonzero((own >= self.slots) & ~last)
        known = decided[:, self.slots :].cpu().numpy() & (ids[:, self.slots :] <= NO_EDGE)
        relations = np.where(known, ids[:, self.slots :], OPEN)
        if len(edge):
            gone = refuted(relations[edge], own[edge] - self.slots, self.slots)
            hopeful[edge, :EDGE_SIZE] &= np.pad(~gone, ((0, 0), (0, EDGE_SIZE - gone.shape[1])))
        rows, ways = np.nonzero(hopeful & last[:, None])
        ended = ids[rows]
        ended[np.arange(len(rows)), own[rows]] = ways
        hopeful[rows, ways] = is_realisable(ended, self.slots)
        return torch.from_numpy(hopeful).to(believed.device, believed.dtype).log()
