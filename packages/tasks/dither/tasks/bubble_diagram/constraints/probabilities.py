"""Probabilities that constraints are met in partially decided diagrams, and lookahead by batched bound propagation.

A relation that contradicts the closed bounds is impossible in any plan. Relations that are not
refuted may still be impossible; a linear program would decide that, at a thousand times the cost.
Letters: N diagrams, R room slots, E pairs or doors, L tokens, V ids, K properties of an id, M = 3 R
+ 1 marks, k selected relations or bounds; F, C, A, B as in `wall_constraints.Table`.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Final

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ..geometry.wall_constraints import (
    DISJOINT,
    OPEN,
    Canvas,
    close_bounds,
    constraint_table,
    initial_bounds,
)
from ..relations import pair_ends
from ..validity import connects, is_buildable
from ..vocabulary import (
    DOOR,
    EDGE_SIZE,
    LIVING,
    NO_DOOR,
    NO_EDGE,
    NODE_MASK,
    NODE_PAD,
    NODE_SIZE,
    RELATED,
    door_ends,
)
from .rules import FRONT, Adjacency, Area, Count

__all__ = [
    "STATES",
    "AdjacencyProbability",
    "AreaProbability",
    "BuildableProbability",
    "CountProbability",
    "Probability",
    "ReachableProbability",
    "contradictory",
    "count_groups",
    "impossible_relations",
]

STATES: Final = 512
"""Largest joint state of counts; beyond it, groups of counts are treated as independent."""
_ROUNDS: Final = 3
"""Rounds of propagation; most is known after the first."""
_BATCH: Final = 64
"""Diagrams that are closed at once, so that their bounds fit into the CPU cache."""


def _properties(*sets: frozenset[int]) -> Float[Tensor, "V K"]:
    """Whether each id is in each of some sets."""
    return torch.tensor([[float(v in ids) for ids in sets] for v in range(NODE_SIZE)])


def _by_id(
    probs: Float[Tensor, "N L V"],
    properties: Float[Tensor, "V K"],
    at: Int[Tensor, " N"],
    start: int,
    count: int,
) -> Float[Tensor, "N V count K"]:
    """Return the probability that tokens `start`, ... have properties, for each id that token `at` may become."""
    table = properties.to(probs)
    size = min(probs.shape[-1], NODE_SIZE)
    shares = probs[:, start : start + count, :size] @ table[:size]
    own = torch.arange(start, start + count, device=at.device) == at[:, None]
    return torch.where(own[:, None, :, None], table[None, :, None], shares[:, None])


def _padded(by_id: Float[Tensor, "N 15"], probs: Float[Tensor, "N L V"]) -> Float[Tensor, "N V"]:
    return torch.nn.functional.pad(by_id, (0, probs.shape[-1] - NODE_SIZE))


class AdjacencyProbability:
    """Probability that one adjacency constraint is met; pairs of rooms are treated as independent."""

    def __init__(self, rule: Adjacency, slots: int) -> None:
        self.rule = rule
        self.slots = slots
        forward = rule.relations
        backward = rule.reversed
        self.sorts = _properties(rule.first, rule.second, rule.first & rule.second)
        """Whether a type is in the first set, in the second, and in both."""
        self.relations = _properties(forward, backward, forward & backward)
        """Whether a relation of a pair i < j matches with i as the first room, with j as the first,
        and both."""
        base = slots * (slots + 1) // 2
        self.start = base if rule.doors else slots
        self.ends = torch.tensor(door_ends(slots)).T[:, : base if rule.doors else base - slots]
        self.outside = torch.tensor([0.0, float(rule.second == FRONT), 0.0])

    def log_prob(
        self, probs: Float[Tensor, "N L V"], at: Int[Tensor, " N"]
    ) -> Float[Tensor, "N V"]:
        """Return the log-probability for each id of token `at`, others distributed as `probs`."""
        i, j = self.ends.to(at.device)
        room = _by_id(probs, self.sorts, at, 0, self.slots)
        room = torch.cat([room, self.outside.to(room).expand(*room.shape[:2], 1, 3)], 2)
        (a, b, ab), (c, d, cd) = room[:, :, i].unbind(-1), room[:, :, j].unbind(-1)
        forward, backward, either = _by_id(probs, self.relations, at, self.start, len(i)).unbind(-1)
        match = (a * d * forward + b * c * backward - ab * cd * either).clamp(
            0, 1
        )  # inclusion-exclusion
        none = torch.log1p(-match).sum(2)
        return _padded(torch.log(-torch.expm1(none)) if self.rule.required else none, probs)


class AreaProbability:
    """Probability that all rooms of some types have an area within bounds; exact for independent tokens.

    Args:
        rule: The constraint, on types.
        slots: Room slots.
        start: Index of the first area token.
    """

    def __init__(self, rule: Area, slots: int, start: int) -> None:
        self.slots = slots
        self.start = start
        self.kinds = _properties(rule.types)
        self.inside = _properties(rule.bins)

    def log_prob(
        self, probs: Float[Tensor, "N L V"], at: Int[Tensor, " N"]
    ) -> Float[Tensor, "N V"]:
        of_type = _by_id(probs, self.kinds, at, 0, self.slots)
        wrong = _by_id(probs, 1 - self.inside, at, self.start, self.slots)
        return _padded(torch.log1p(-(of_type * wrong).clamp(0, 1)).sum((2, 3)), probs)


class ReachableProbability:
    """Probability that doors join all rooms, only close ones, with one front door: 0 if impossible, else taken as 1.

    A door is possible where neither it nor the relation of its rooms is excluded. Exact once all
    tokens are decided.
    """

    def __init__(self, slots: int) -> None:
        self.slots = slots

    def log_prob(
        self, probs: Float[Tensor, "N L V"], at: Int[Tensor, " N"]
    ) -> Float[Tensor, "N V"]:
        slots = self.slots
        base = self.slots * (self.slots + 1) // 2
        pairs = base - slots
        related = _properties(RELATED)
        near = (_by_id(probs, related, at, slots, pairs)[..., 0] > 0).flatten(0, 1).cpu().numpy()
        doors = (
            _by_id(probs, _properties(frozenset({NO_DOOR}), frozenset({DOOR})), at, base, base) > 0
        )
        without, may = doors.flatten(0, 1).cpu().numpy().transpose(2, 0, 1)
        must = may & ~without
        real = np.repeat((probs[:, :slots, NODE_PAD] == 0).cpu().numpy(), NODE_SIZE, 0)
        possible = connects(may[:, :pairs] & near, real) & ~(must[:, :pairs] & ~near).any(1)
        possible &= may[:, pairs:].any(1) & (must[:, pairs:].sum(1) <= 1)
        return _padded(
            torch.from_numpy(possible).to(probs).reshape(len(at), NODE_SIZE).log(), probs
        )


def count_groups(rules: Sequence[Count], slots: int) -> list[CountProbability]:
    """Group counts whose joint distribution is tracked exactly."""
    groups: list[list[Count]] = []
    for rule in rules:
        if groups and prod(_width(one, slots) for one in (*groups[-1], rule)) <= STATES:
            groups[-1].append(rule)
        else:
            groups.append([rule])
    return [CountProbability(group, slots) for group in groups]


def _width(rule: Count, slots: int) -> int:
    """Return the number of distinct states: up to `high`, or up to `low` without upper bound."""
    return (rule.low if rule.high >= slots else rule.high) + 1


class CountProbability:
    """Probability that a group of counts is met, by dynamic programming over rooms."""

    def __init__(self, rules: Sequence[Count], slots: int) -> None:
        self.rules = list(rules)
        self.slots = slots
        self.widths = [_width(rule, slots) for rule in rules]
        counted = [
            tuple(c for c, rule in enumerate(rules) if v in rule.types) for v in range(NODE_SIZE)
        ]
        self.steps = [(), *sorted(set(counted) - {()})]
        """For each kind of room, the counts that it increments; the first kind increments none."""
        self.kind_of = torch.tensor([self.steps.index(step) for step in counted])

    def log_prob(
        self, probs: Float[Tensor, "N L V"], at: Int[Tensor, " N"]
    ) -> Float[Tensor, "N V"]:
        """Return the log-probability for each id of token `at`, other rooms distributed as `probs`."""
        kinds = len(self.steps)
        kind_of = self.kind_of.to(at.device)
        member = torch.nn.functional.one_hot(kind_of, kinds).to(probs.dtype)
        rooms = probs[:, : self.slots, :NODE_SIZE] @ member
        own = torch.arange(self.slots, device=at.device) == at[:, None]
        excluded = torch.nn.functional.one_hot(torch.zeros_like(at), kinds).to(rooms.dtype)
        rooms = torch.where(own[..., None], excluded[:, None], rooms)
        counted = self._count(rooms)
        met = torch.stack([self._met(self._moved(counted, step)) for step in self.steps], 1)
        return torch.where(
            (at < self.slots)[:, None], _padded(met[:, kind_of], probs), met[:, :1]
        ).log()

    def _count(self, rooms: Float[Tensor, "N R kinds"]) -> Float[Tensor, "N *widths"]:
        shape = (len(rooms), *[1] * len(self.widths))
        counted = rooms.new_zeros(len(rooms), *self.widths)
        counted.flatten(1)[:, 0] = 1
        for room in rooms.unbind(1):
            by_step = zip(self.steps, room.unbind(1), strict=True)
            moved = [self._moved(counted, step) * prob.reshape(shape) for step, prob in by_step]
            counted = sum(moved, torch.zeros_like(counted))
        return counted

    def _moved(
        self, counted: Float[Tensor, "N *widths"], step: tuple[int, ...]
    ) -> Float[Tensor, "N *widths"]:
        """Increment some counts; states above the largest allowed count are dropped."""
        for c in step:
            axis = c + 1
            last = self.widths[c] - 1
            moved = torch.zeros_like(counted)
            moved.narrow(axis, 1, last).copy_(counted.narrow(axis, 0, last))
            if (
                self.rules[c].high >= self.slots
            ):  # without upper bound, the last state absorbs all larger counts
                moved.select(axis, last).add_(counted.select(axis, last))
            counted = moved
        return counted

    def _met(self, counted: Float[Tensor, "N *widths"]) -> Float[Tensor, " N"]:
        for c, rule in enumerate(self.rules):
            axis = c + 1
            counted = counted.narrow(
                axis, min(rule.low, self.widths[c]), max(self.widths[c] - rule.low, 0)
            )
        return counted.flatten(1).sum(1)


class BuildableProbability:
    """Probability that a diagram reaches level 5: 0 where lookahead refutes it, otherwise taken as 1.

    Before the end, only one thing matters about a room: whether it is the living room, which may
    overlap others. Once all other tokens are decided, each possible id is decided exactly: 1 if
    there are boxes, 0 if there are none or the search gave up.
    """

    def __init__(self, slots: int) -> None:
        self.slots = slots

    def log_prob(
        self, probs: Float[Tensor, "N L V"], at: Int[Tensor, " N"]
    ) -> Float[Tensor, "N V"]:
        base = self.slots * (self.slots + 1) // 2
        if (other := at >= base).any():  # doors and areas have no effect
            log_prob = probs.new_zeros(len(at), probs.shape[-1])
            if not other.all():
                log_prob[~other] = self.log_prob(probs[~other], at[~other])
            return log_prob
        probs = probs[:, :base]
        numbers = torch.arange(len(at), device=at.device)
        likeliest = probs.max(-1)
        decided = (likeliest.values == 1).index_put(
            (numbers, at), torch.tensor(True, device=at.device)
        )
        ids = likeliest.indices.cpu().numpy()
        own = at.cpu().numpy()
        last = decided.all(1).cpu().numpy()
        attainable = (probs[numbers, at] > 0).cpu().numpy()
        edge = np.flatnonzero((own >= self.slots) & ~last)
        room = np.flatnonzero((own < self.slots) & ~last)
        known = decided[:, self.slots :].cpu().numpy() & (ids[:, self.slots :] <= NO_EDGE)
        relations = np.where(known, ids[:, self.slots :], OPEN)
        living = probs[:, : self.slots, LIVING].cpu().numpy()
        if len(room):
            for is_living in (True, False):
                living[room, own[room]] = is_living
                refuted = room[
                    contradictory(relations[room], self.slots, _disjoint_pairs(living[room]))
                ]
                attainable[refuted, :NODE_MASK] &= (np.arange(NODE_MASK) == LIVING) != is_living
        if len(edge):
            disjoint = _disjoint_pairs(living[edge])
            impossible = impossible_relations(
                relations[edge], own[edge] - self.slots, self.slots, disjoint
            )
            attainable[edge, :EDGE_SIZE] &= np.pad(
                ~impossible, ((0, 0), (0, EDGE_SIZE - impossible.shape[1]))
            )
        rows, options = np.nonzero(attainable & last[:, None])
        ended = ids[rows]
        ended[np.arange(len(rows)), own[rows]] = options
        attainable[rows, options] = is_buildable(ended, self.slots)
        return torch.from_numpy(attainable).to(probs.device, probs.dtype).log()


def _disjoint_pairs(living: Float[np.ndarray, "N R"]) -> Bool[np.ndarray, "N E"]:
    """Pairs of which no room can be the only living room, given the probability of each room that it is."""
    apart = (living == 0) | ((living == 1).any(1, keepdims=True) & (living < 1))
    i, j = pair_ends(living.shape[1])
    return np.asarray(apart[:, i] & apart[:, j])


def contradictory(
    relations: Int[np.ndarray, "N E"], rooms: int, disjoint: Bool[np.ndarray, "N E"]
) -> Bool[np.ndarray, " N"]:
    """Return which diagrams no plan shows; see `impossible_relations`."""
    ids = np.where(relations == OPEN, OPEN, relations + DISJOINT * disjoint)
    states, same = np.unique(ids, axis=0, return_inverse=True)
    possible = _propagate(_decided_bounds(states, rooms), states, rooms)
    return np.asarray(~possible[same.reshape(-1)])


def impossible_relations(
    relations: Int[np.ndarray, "N E"],
    at: Int[np.ndarray, " N"],
    rooms: int,
    disjoint: Bool[np.ndarray, "N E"] | None = None,
) -> Bool[np.ndarray, "N 11"]:
    """Return the relations that one pair `at` of each diagram cannot have in any plan.

    Undecided pairs, pairs without rooms, and the pair in question are `OPEN`. Boxes of `disjoint`
    pairs do not overlap.
    """
    numbers = np.arange(len(relations))
    slots = relations.shape[1]
    apart = np.zeros(relations.shape, np.int64) if disjoint is None else DISJOINT * disjoint
    ids = np.where(relations == OPEN, OPEN, relations + apart)
    own = apart[numbers, at]
    ids[numbers, at] = OPEN
    # Early in sampling, many diagrams share the same decided relations.
    states, same = np.unique(np.column_stack([ids, at, own]), axis=0, return_inverse=True)
    ids = states[:, :slots]
    at = states[:, slots]
    own = states[:, -1]
    most = _decided_bounds(ids, rooms)
    rows, options = np.nonzero(np.repeat(_propagate(most, ids, rooms)[:, None], NO_EDGE + 1, 1))
    ahead = most[rows]
    then = ids[rows]
    then[np.arange(len(rows)), at[rows]] = tried = options + own[rows]
    _impose(ahead, np.arange(len(rows)), constraint_table(rooms).fixed[at[rows], tried])
    impossible = np.ones((len(states), NO_EDGE + 1), bool)
    impossible[rows, options] = ~_propagate(ahead, then, rooms)
    return impossible[same.reshape(-1)]


def _decided_bounds(relations: Int[np.ndarray, "N E"], rooms: int) -> Int[np.ndarray, "N 2 M M"]:
    """Return the fixed bounds of the decided relations."""
    # int16 is enough: without a contradiction sums stay far within its range, and with one, an
    # overflow to a positive sum is no smaller than the current bound, so it excludes nothing.
    most = np.repeat(initial_bounds(rooms, Canvas()).astype(np.int16)[None], len(relations), 0)
    rows, decided = np.nonzero(relations != OPEN)
    _impose(most, rows, constraint_table(rooms).fixed[decided, relations[rows, decided]])
    return most


def _impose(
    most: Int[np.ndarray, "N 2 M M"], rows: Int[np.ndarray, " k"], bounds: Int[np.ndarray, "k *F 4"]
) -> None:
    axis, first, second, least = np.moveaxis(bounds, -1, 0)
    rows = rows.reshape(-1, *[1] * (bounds.ndim - 2))
    np.minimum.at(most, (np.broadcast_to(rows, axis.shape), axis, first, second), least)


def _propagate(
    most: Int[np.ndarray, "N 2 M M"], relations: Int[np.ndarray, "N E"], rooms: int
) -> Bool[np.ndarray, " N"]:
    """Close bounds and impose single remaining alternatives in place; False where there is a contradiction."""
    table = constraint_table(rooms)
    possible = np.ones(len(most), bool)
    live = np.arange(len(most))
    for _ in range(_ROUNDS):
        for start in range(0, len(live), _BATCH):
            some = live[start : start + _BATCH]
            batch = most[some]
            possible[some] = close_bounds(batch, 2)
            most[some] = batch
        live = live[possible[live]]
        within, decided = np.nonzero(relations[live] != OPEN)
        rows = live[within]
        selected = relations[rows, decided]
        bounds = table.choices[decided, selected]
        axis, first, second, least = np.moveaxis(bounds, -1, 0)
        consistent = least + most[rows[:, None, None, None], axis, second, first] >= 0
        alive = table.available[decided, selected] & consistent.all(-1)
        left = alive.sum(-1)
        possible[rows[(left == 0).any(-1)]] = False
        number, choice = np.nonzero(left == 1)
        single = rows[number]
        forced = bounds[number, choice, alive[number, choice].argmax(-1)]
        axis, first, second, least = np.moveaxis(forced, -1, 0)
        new = (most[single[:, None], axis, first, second] > least).any(-1) & possible[single]
        _impose(most, single[new], forced[new])
        live = np.unique(single[new])  # those in which a bound changed
        if not len(live):
            break
    return possible


Probability = (
    CountProbability
    | AdjacencyProbability
    | BuildableProbability
    | AreaProbability
    | ReachableProbability
)
