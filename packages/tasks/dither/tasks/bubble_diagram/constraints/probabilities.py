"""Probabilities that constraints are met in partially decided diagrams.

Realisability is estimated by lookahead: batched propagation of bounds. A relation that contradicts
the closed bounds is impossible in any plan. Relations that are not refuted may still be impossible;
a linear program would decide that, at a thousand times the cost.
Letters: N diagrams, R room slots, E pairs or doors, L tokens, V ids, K properties of an id, M = 3 R
+ 1 marks, k selected relations or bounds; F, C, A, B as in `wall_constraints.Table`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy import ndarray
from torch import Tensor
from torch.nn.functional import one_hot, pad

from ..arrays import Numbers, Pairs, Relations, Rows
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

STATES = 512
"""Largest joint state of counts; beyond it, groups of counts are treated as independent."""
_ROUNDS = 3
"""Rounds of propagation; most is known after the first."""
_BATCH = 64
"""Diagrams that are closed at once, so that their bounds fit into the CPU cache."""

_Probs = Float[Tensor, "N L V"]
_At = Int[Tensor, " N"]
_ById = Float[Tensor, "N V"]
_Bounds = Int[ndarray, "N 2 M M"]
_Counted = Float[Tensor, "N *widths"]


class AdjacencyProbability:
    """Probability that one adjacency constraint is met; pairs of rooms count as independent."""

    def __init__(self, rule: Adjacency, slots: int) -> None:
        self.rule = rule
        forward = rule.relations
        backward = rule.reversed
        base = slots * (slots + 1) // 2
        self.ends = torch.tensor(door_ends(slots)).T
        if not rule.doors:
            self.ends = self.ends[:, : base - slots]
        both = rule.first & rule.second
        self.sorts = _Properties(0, slots, rule.first, rule.second, both)
        """Whether a type is in the first set, in the second, and in both."""
        start = base if rule.doors else slots
        either = forward & backward
        count = self.ends.shape[1]
        self.relations = _Properties(start, count, forward, backward, either)
        """Whether a relation of a pair i < j matches with i as the first room, with j, and both."""
        self.outside = torch.tensor([0.0, float(rule.second == FRONT), 0.0])

    def log_prob(self, probs: _Probs, at: _At) -> _ById:
        i, j = self.ends.to(at.device)
        sorts = self.sorts.by_id(probs, at)
        # The outside is one more slot, whose type is certain.
        outside = self.outside.to(sorts)
        outside = outside.expand(*sorts.shape[:2], 1, -1)
        sorts = torch.cat([sorts, outside], 2)
        i_first, i_second, i_both = sorts[:, :, i].unbind(-1)
        j_first, j_second, j_both = sorts[:, :, j].unbind(-1)
        forward, backward, either = self.relations.by_id(probs, at).unbind(-1)

        # Inclusion and exclusion: pairs that match in both directions were counted twice.
        ahead = i_first * j_second * forward
        behind = i_second * j_first * backward
        both = i_both * j_both * either
        match = (ahead + behind - both).clamp(0, 1)

        # log1p and expm1 keep the digits of probabilities close to 0 and 1.
        none = torch.log1p(-match).sum(2)
        if not self.rule.required:
            return _padded(none, probs)
        return _padded(torch.log(-torch.expm1(none)), probs)


class AreaProbability:
    """Probability that all rooms of some types have an area within bounds; exact if independent.

    Args:
        rule: The constraint, on types.
        slots: Room slots.
        start: Index of the first area token.
    """

    def __init__(
        self,
        rule: Area,
        slots: int,
        start: int,
    ) -> None:
        self.kinds = _Properties(0, slots, rule.types)
        outside = frozenset(range(NODE_SIZE)) - rule.bins
        self.outside = _Properties(start, slots, outside)

    def log_prob(self, probs: _Probs, at: _At) -> _ById:
        of_type = self.kinds.by_id(probs, at)
        wrong = self.outside.by_id(probs, at)
        # The type and the area of a room are different tokens, so they are independent.
        log_probs = torch.log1p(-(of_type * wrong).clamp(0, 1))
        return _padded(log_probs.sum((2, 3)), probs)


class ReachableProbability:
    """Probability that doors join all rooms, only close ones, with one front door.

    0 if that is impossible, else taken as 1. A door is possible where neither it nor the relation
    of its rooms is excluded. Exact once all tokens are decided.
    """

    def __init__(self, slots: int) -> None:
        self.slots = slots
        base = slots * (slots + 1) // 2
        self.pairs = base - slots
        self.related = _Properties(slots, self.pairs, RELATED)
        self.doors = _Properties(base, base, frozenset({NO_DOOR}), frozenset({DOOR}))

    def log_prob(self, probs: _Probs, at: _At) -> _ById:
        pairs = self.pairs
        # Rows are diagrams, each with every id of token `at`.
        (near,) = _possible(self.related.by_id(probs, at))
        without, may = _possible(self.doors.by_id(probs, at))
        must = may & ~without
        exists = (probs[:, : self.slots, NODE_PAD] == 0).cpu().numpy()
        real = np.repeat(exists, NODE_SIZE, 0)

        # All doors that may exist connect the rooms, and no certain one joins rooms far apart.
        possible = connects(may[:, :pairs] & near, real)
        too_far = must[:, :pairs] & ~near
        possible &= ~too_far.any(1)
        # There may be a front door, and there are not two of them for certain.
        possible &= may[:, pairs:].any(1)
        possible &= must[:, pairs:].sum(1) <= 1
        by_id = torch.from_numpy(possible).to(probs)
        by_id = by_id.reshape(len(at), NODE_SIZE)
        return _padded(by_id.log(), probs)


def _possible(by_id: Float[Tensor, "N V L P"]) -> Bool[ndarray, "P M L"]:
    """Return which properties have a positive probability, for M = N V diagrams."""
    rows = (by_id > 0).flatten(0, 1)
    possible: Bool[ndarray, "P M L"] = rows.permute(2, 0, 1).cpu().numpy()
    return possible


def count_groups(rules: Sequence[Count], slots: int) -> list[CountProbability]:
    """Group counts whose joint distribution is tracked exactly."""
    groups: list[list[Count]] = []
    states = 0
    for rule in rules:
        width = _width(rule, slots)
        if groups and states * width <= STATES:
            groups[-1].append(rule)
            states *= width
        else:
            groups.append([rule])
            states = width
    return [CountProbability(group, slots) for group in groups]


def _width(rule: Count, slots: int) -> int:
    """Return the number of distinct states: up to `high`, or up to `low` without upper bound."""
    largest = rule.high
    if rule.high >= slots:
        largest = rule.low

    return largest + 1


class CountProbability:
    """Probability that a group of counts is met, by dynamic programming over rooms."""

    def __init__(self, rules: Sequence[Count], slots: int) -> None:
        self.rules = list(rules)
        self.slots = slots
        self.widths = [_width(rule, slots) for rule in rules]
        # Many types, and PAD, increment the same counts: one step of the recursion serves them all.
        counted = []
        for kind in range(NODE_SIZE):
            counted.append(
                tuple(c for c, rule in enumerate(rules) if kind in rule.types)
            )
        self.steps = [(), *sorted({*counted} - {()})]
        """For each kind of room, the counts that it increments; the first kind increments none."""
        self.kind_of = torch.tensor([self.steps.index(step) for step in counted])

    def log_prob(self, probs: _Probs, at: _At) -> _ById:
        kinds = len(self.steps)
        kind_of = self.kind_of.to(at.device)
        by_kind = one_hot(kind_of, kinds).to(probs.dtype)
        rooms = probs[:, : self.slots, :NODE_SIZE] @ by_kind

        # Room `at` is left out of the counts, and then added as each kind.
        own = torch.arange(self.slots, device=at.device) == at[:, None]
        excluded = one_hot(torch.zeros_like(at), kinds).to(rooms.dtype)
        rooms = torch.where(own[..., None], excluded[:, None], rooms)
        # Counted once without the room, then moved by each kind that it may have.
        counted = self._count(rooms)
        moved = (self._moved(counted, step) for step in self.steps)
        met = torch.stack([self._met(counts) for counts in moved], 1)
        # Any other token leaves the counts as they are, which is the first step.
        by_id = _padded(met[:, kind_of], probs)
        is_room = (at < self.slots)[:, None]
        return torch.where(is_room, by_id, met[:, :1]).log()

    def _count(self, rooms: Float[Tensor, "N R kinds"]) -> _Counted:
        """Return the joint distribution of the counts of independent rooms."""
        shape = (len(rooms), *[1] * len(self.widths))
        counted = rooms.new_zeros(len(rooms), *self.widths)
        counted.flatten(1)[:, 0] = 1
        for room in rooms.unbind(1):
            following = torch.zeros_like(counted)
            for step, prob in zip(self.steps, room.unbind(1), strict=True):
                moved = self._moved(counted, step)
                following = following + moved * prob.reshape(shape)
            counted = following
        return counted

    def _moved(self, counted: _Counted, step: tuple[int, ...]) -> _Counted:
        """Increment some counts; states above the largest allowed count are dropped."""
        for c in step:
            axis = c + 1
            last = self.widths[c] - 1
            moved = torch.zeros_like(counted)
            moved.narrow(axis, 1, last).copy_(counted.narrow(axis, 0, last))
            # Without upper bound, the last state absorbs all larger counts.
            if self.rules[c].high >= self.slots:
                moved.select(axis, last).add_(counted.select(axis, last))
            counted = moved
        return counted

    def _met(self, counted: _Counted) -> Float[Tensor, " N"]:
        axes = enumerate(zip(self.rules, self.widths, strict=True), start=1)
        for axis, (rule, width) in axes:
            counted = counted.narrow(axis, rule.low, width - rule.low)
        return counted.flatten(1).sum(1)


class BuildableProbability:
    """Probability that a diagram reaches level 5: 0 where lookahead refutes it, else taken as 1.

    Before the end, only one thing matters about a room: whether it is the living room, which may
    overlap others. Once all other tokens are decided, each possible id is decided exactly: 1 if
    there are boxes, 0 if there are none or the search gave up.
    """

    def __init__(self, slots: int) -> None:
        self.slots = slots

    def log_prob(self, probs: _Probs, at: _At) -> _ById:
        # Doors and areas have no effect.
        base = self.slots * (self.slots + 1) // 2
        rows = torch.nonzero(at < base)[:, 0]
        log_prob = probs.new_zeros(len(at), probs.shape[-1])
        if len(rows):
            attainable = self._attainable(probs[rows, :base], at[rows])
            log_prob[rows] = attainable.to(log_prob).log()
        return log_prob

    def _attainable(self, probs: _Probs, at: _At) -> Bool[Tensor, "N V"]:
        slots = self.slots
        numbers = torch.arange(len(at), device=at.device)
        # An id of probability 1 is decided, and token `at` is about to be.
        likeliest = probs.max(-1)
        is_decided = likeliest.values == 1
        is_decided[numbers, at] = True
        decided = is_decided.cpu().numpy()
        ids = likeliest.indices.cpu().numpy()
        own = at.cpu().numpy()
        last = np.asarray(decided.all(1))
        attainable = (probs[numbers, at] > 0).cpu().numpy()

        edges = ids[:, slots:]
        known = decided[:, slots:] & (edges <= NO_EDGE)
        relations = np.where(known, edges, OPEN)
        living = probs[:, :slots, LIVING].cpu().numpy()
        rooms = np.flatnonzero((own < slots) & ~last)
        pairs = np.flatnonzero((own >= slots) & ~last)
        if len(rooms):
            refuted = _refuted_types(relations[rooms], living[rooms], own[rooms])
            attainable[rooms, :NODE_MASK] &= ~refuted
        if len(pairs):
            disjoint = _disjoint_pairs(living[pairs])
            at_pair = own[pairs] - slots
            impossible = impossible_relations(
                relations=relations[pairs],
                at=at_pair,
                rooms=slots,
                disjoint=disjoint,
            )
            attainable[pairs, : NO_EDGE + 1] &= ~impossible
            attainable[pairs, NO_EDGE + 1 : EDGE_SIZE] = False

        # Each id of the last token makes a whole diagram, of which the search decides.
        rows, options = np.nonzero(attainable & last[:, None])
        ended = ids[rows]
        np.put_along_axis(ended, own[rows, None], options[:, None], 1)
        attainable[rows, options] = is_buildable(ended, slots)
        return torch.from_numpy(attainable)


def _refuted_types(
    relations: Relations,
    living: Float[ndarray, "N R"],
    at: Numbers,
) -> Bool[ndarray, "N 13"]:
    """Return the types that one room `at` of each diagram cannot have in any plan.

    `living` is the probability of each room that it is the living room.
    """
    of_living = np.arange(NODE_MASK) == LIVING
    refuted = np.zeros((len(at), NODE_MASK), bool)
    for is_living in (True, False):
        np.put_along_axis(living, at[:, None], is_living, 1)
        disjoint = _disjoint_pairs(living)
        rows = contradictory(relations, living.shape[1], disjoint)
        refuted[rows] |= of_living == is_living
    return refuted


def _disjoint_pairs(living: Float[ndarray, "N R"]) -> Pairs:
    """Pairs of which no room can be the only living room.

    `living` is the probability of each room that it is.
    """
    # There is only one living room: once it is known, no other room is it.
    is_other = (living == 1).any(1, keepdims=True) & (living < 1)
    apart = (living == 0) | is_other
    i, j = pair_ends(living.shape[1])
    return apart[:, i] & apart[:, j]


def contradictory(
    relations: Relations,
    rooms: int,
    disjoint: Pairs,
) -> Rows:
    """Return which diagrams no plan shows; see `impossible_relations`."""
    apart = np.where(disjoint, DISJOINT, 0)
    ids = np.where(relations == OPEN, OPEN, relations + apart)
    # Many diagrams of a batch share their decided relations.
    states, same = np.unique(ids, axis=0, return_inverse=True)
    possible = _propagate(_decided_bounds(states, rooms), states, rooms)
    return ~possible[same.reshape(-1)]


def impossible_relations(
    relations: Relations,
    at: Numbers,
    rooms: int,
    disjoint: Pairs | None = None,
) -> Bool[ndarray, "N 11"]:
    """Return the relations that one pair `at` of each diagram cannot have in any plan.

    Undecided pairs, pairs without rooms, and the pair in question are `OPEN`. Boxes of `disjoint`
    pairs do not overlap.
    """
    numbers = np.arange(len(relations))
    apart = np.zeros(relations.shape, np.int64)
    if disjoint is not None:
        apart[disjoint] = DISJOINT
    ids = np.where(relations == OPEN, OPEN, relations + apart)
    ids[numbers, at] = OPEN

    # Early in sampling, many diagrams share the same decided relations.
    states = np.column_stack([ids, at, apart[numbers, at]])
    states, same = np.unique(states, axis=0, return_inverse=True)
    ids, at, apart_at = np.split(states, [-2, -1], 1)
    most = _decided_bounds(ids, rooms)
    possible = _propagate(most, ids, rooms)

    # Each relation is imposed on each state that is still possible, and propagated.
    labels = np.arange(NO_EDGE + 1)
    states_left = np.flatnonzero(possible)
    rows = np.repeat(states_left, len(labels))
    options = np.tile(labels, len(states_left))
    pair = at[rows, 0]
    tried = options + apart_at[rows, 0]
    ahead = most[rows]
    then = ids[rows]
    trials = np.arange(len(rows))
    then[trials, pair] = tried
    _impose(ahead, trials, constraint_table(rooms).fixed[pair, tried])
    impossible = np.ones((len(states), NO_EDGE + 1), bool)
    impossible[rows, options] = ~_propagate(ahead, then, rooms)
    return impossible[same.reshape(-1)]


def _decided_bounds(relations: Relations, rooms: int) -> _Bounds:
    """Return the fixed bounds of the decided relations."""
    # int16 is enough: without a contradiction sums stay far within its range, and with one, an
    # overflow to a positive sum is at least the current bound, so it excludes nothing.
    start = initial_bounds(rooms, Canvas()).astype(np.int16)
    most = np.repeat(start[None], len(relations), 0)
    rows, decided = np.nonzero(relations != OPEN)
    fixed = constraint_table(rooms).fixed[decided, relations[rows, decided]]
    _impose(most, rows, fixed)
    return most


def _impose(
    most: _Bounds,
    rows: Int[ndarray, " k"],
    bounds: Int[ndarray, "k *F 4"],
) -> None:
    axis, first, second, least = np.moveaxis(bounds, -1, 0)
    rows = rows.reshape(-1, *[1] * (axis.ndim - 1))
    places = np.broadcast_arrays(rows, axis, first, second)
    # Unbuffered, because several bounds of a diagram may be on the same two marks.
    np.minimum.at(most, tuple(places), least)


def _propagate(
    most: _Bounds,
    relations: Relations,
    rooms: int,
) -> Rows:
    """Close bounds and impose single remaining alternatives in place; False if contradictory."""
    table = constraint_table(rooms)
    possible = np.ones(len(most), bool)
    live = np.arange(len(most))
    for _ in range(_ROUNDS):
        # Only diagrams with a bound that is new since the last round are closed again.
        for start in range(0, len(live), _BATCH):
            batch = live[start : start + _BATCH]
            bounds = most[batch]
            possible[batch] = close_bounds(bounds, 2)
            most[batch] = bounds
        live = live[possible[live]]

        # An alternative p - q <= least is refuted if the closed bound on q - p is below -least.
        within, decided = np.nonzero(relations[live] != OPEN)
        rows = live[within]
        selected = relations[rows, decided]
        choices = table.choices[decided, selected]
        axis, first, second, least = np.moveaxis(choices, -1, 0)
        backward = most[rows[:, None, None, None], axis, second, first]
        consistent = least + backward >= 0
        alive = table.available[decided, selected] & consistent.all(-1)
        left = alive.sum(-1)
        possible[rows[(left == 0).any(-1)]] = False

        # A single one that is left holds.
        number, choice = np.nonzero(left == 1)
        single = rows[number]
        alternative = alive[number, choice].argmax(-1)
        forced = choices[number, choice, alternative]
        axis, first, second, least = np.moveaxis(forced, -1, 0)
        forward = most[single[:, None], axis, first, second]
        changes = (forward > least).any(-1)
        changes &= possible[single]
        _impose(most, single[changes], forced[changes])
        live = np.unique(single[changes])
        if not len(live):
            break
    return possible


class _Properties:
    """Whether the ids of `count` tokens from `start` on are in each of K sets."""

    def __init__(self, start: int, count: int, *sets: frozenset[int]) -> None:
        self.start = start
        self.stop = start + count
        self.table = torch.zeros(NODE_SIZE, len(sets))
        for column, ids in enumerate(sets):
            self.table[sorted(ids & {*range(NODE_SIZE)}), column] = 1

    def by_id(self, probs: _Probs, at: _At) -> Float[Tensor, "N V count K"]:
        """Return the probability that the tokens have the properties, by id of token `at`."""
        table = self.table.to(probs)
        size = min(probs.shape[-1], NODE_SIZE)
        shares = probs[:, self.start : self.stop, :size] @ table[:size]
        # The properties of token `at` itself are certain, given its id.
        tokens = torch.arange(self.start, self.stop, device=at.device)
        own = (tokens == at[:, None])[:, None, :, None]
        return torch.where(own, table[:, None], shares[:, None])


def _padded(by_id: Float[Tensor, "N 15"], probs: _Probs) -> _ById:
    return pad(by_id, (0, probs.shape[-1] - NODE_SIZE))
