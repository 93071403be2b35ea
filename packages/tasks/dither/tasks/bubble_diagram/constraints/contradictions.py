"""Which constraints contradict each other, found before anything is sampled. No torch.

Whether rules can be met together is a question of whole numbers, answered exactly by HiGHS (scipy.optimize.milp): each
room has a type, each pair of rooms a relation, and every rule is a line. A smallest set of rules that cannot be met is
found by leaving out one after the other (Chinneck and Dravnieks 1991).
"""

from __future__ import annotations

from collections.abc import Sequence
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from time import monotonic
from typing import Final

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_array

from ..geometry.realisability import realise
from ..vocabulary import NO_EDGE, ROOMS, pair_index, pairs
from .rules import Adjacency, Buildable, Count, PairRelation, RoomType, Rule, Size, turned

__all__ = ["contradictions", "ordering_cycles", "possible", "unrealisable"]

SECONDS: Final = 10.0
"""Longest time for one answer; rules for which none is found by then count as possible."""

SHRINKING: Final = 3.0
"""Seconds after which `unrealisable` leaves out no further relation."""

_INFEASIBLE: Final = 2
_LEFT, _RIGHT, _ABOVE, _BELOW = ({0, 1, 2}, {7, 8, 9}, {0, 3, 8}, {1, 6, 9})


def contradictions(rules: Sequence[Rule], slots: int) -> list[list[Rule]]:
    """Return sets of rules that cannot be met together by a diagram of up to `slots` rooms, each as small as can be."""
    left, found = list(rules), []
    while left and not possible(left, slots):
        core = list(left)
        for rule in left:
            fewer = [other for other in core if other is not rule]
            if not possible(fewer, slots):
                core = fewer
        found.append(core)
        left = [rule for rule in left if rule is not core[-1]]
    return found


def ordering_cycles(rules: Sequence[Rule]) -> list[list[Rule]]:
    """Return sets of fixed relations that put rooms left of, or above, each other in a circle; one for each direction.

    Some diagrams are so; plans are not, since the centres of the rooms have an order.
    """
    found = []
    for before, after in ((_LEFT, _RIGHT), (_ABOVE, _BELOW)):
        arrows: dict[tuple[int, int], Rule] = {}
        for rule in rules:
            if isinstance(rule, PairRelation) and rule.relations <= before:
                arrows[rule.i, rule.j] = rule
            elif isinstance(rule, PairRelation) and rule.relations <= after:
                arrows[rule.j, rule.i] = rule
        graph: dict[int, set[int]] = {}
        for u, v in arrows:
            graph.setdefault(v, set()).add(u)
        try:
            TopologicalSorter(graph).prepare()
        except CycleError as error:
            rooms = error.args[1]
            circle = [arrows[step] for step in pairwise(rooms)]
            found.append([rule for rule in rules if rule in circle])
    return found


def unrealisable(rules: Sequence[Rule]) -> list[Rule]:
    """Return fixed relations that no boxes show together; none if some boxes do, or the search gave up.

    They are as few as can be, or as few as were found within `SHRINKING` seconds.
    """
    until = monotonic() + SHRINKING
    fixed = [rule for rule in rules if isinstance(rule, PairRelation) and len(rule.relations) == 1]
    if _shown(fixed):
        return []
    core: list[PairRelation] = list(fixed)
    for rule in fixed:
        if monotonic() >= until:
            break
        fewer = [other for other in core if other is not rule]
        if not _shown(fewer):
            core = fewer
    return [*core]


def _shown(fixed: Sequence[PairRelation]) -> bool:
    """Whether some boxes show these relations, or the search gave up (see `realisability`)."""
    rooms = sorted({room for rule in fixed for room in (rule.i, rule.j)})
    edges = np.full(len(pairs(len(rooms))), NO_EDGE)
    asked = np.zeros(len(edges), bool)
    for rule in fixed:
        place = pair_index(rooms.index(rule.i), rooms.index(rule.j), len(rooms))
        (edges[place],), asked[place] = rule.relations, True
    return not fixed or realise(edges, len(rooms), apart=asked).verdict != "impossible"


def possible(rules: Sequence[Rule], slots: int) -> bool:
    """Whether some diagram of up to `slots` rooms meets all rules."""
    if any(isinstance(rule, RoomType) and not rule.types for rule in rules):
        return False
    lines = _Lines(rules, slots)
    for rule in rules:
        lines.add_rule(rule)
    return lines.solve()


class _Lines:
    """Variables between 0 and 1, and lines low <= a x <= high.

    Types that no rule tells apart are one kind of room, and relations one way to lie.
    """

    def __init__(self, rules: Sequence[Rule], slots: int) -> None:
        self.slots, self.variables, self.rows = slots, 0, 0
        self.entries: list[tuple[int, int, float]] = []
        self.low: list[float] = []
        self.high: list[float] = []
        types = [some for rule in rules for some in _types_in(rule)]
        ways = [some for rule in rules for some in _ways_in(rule)]
        self.kinds, self.ways = _told_apart(len(ROOMS), types), _told_apart(NO_EDGE + 1, ways)
        self.used = self.new(slots)
        self.kind = [self.new(len(self.kinds)) for _ in range(slots)]
        needed = {pair for pair in pairs(slots) if any(isinstance(rule, Adjacency) for rule in rules)}
        needed |= {(rule.i, rule.j) for rule in rules if isinstance(rule, PairRelation)}
        self.way = {pair: self.new(len(self.ways)) for pair in sorted(needed)}
        for slot in range(slots):
            self.line([*self.ones(self.kind[slot]), (self.used[slot], -1)], 0, 0)
            if slot:
                self.line([(self.used[slot - 1], 1), (self.used[slot], -1)], 0, 1)
        for variables in self.way.values():
            self.line(self.ones(variables), 1, 1)

    def new(self, count: int) -> list[int]:
        self.variables += count
        return list(range(self.variables - count, self.variables))

    @staticmethod
    def ones(variables: Sequence[int]) -> list[tuple[int, float]]:
        return [(variable, 1.0) for variable in variables]

    def line(self, terms: Sequence[tuple[int, float]], low: float, high: float) -> None:
        self.entries += [(self.rows, variable, factor) for variable, factor in terms]
        self.low.append(low)
        self.high.append(high)
        self.rows += 1

    def is_of(self, room: int, types: frozenset[int]) -> list[tuple[int, float]]:
        return self.ones([v for v, kind in zip(self.kind[room], self.kinds, strict=True) if kind <= types])

    def lies(self, u: int, v: int, relations: frozenset[int]) -> list[tuple[int, float]]:
        pair, seen = ((u, v), relations) if u < v else ((v, u), turned(relations))
        return self.ones([x for x, way in zip(self.way[pair], self.ways, strict=True) if way <= seen])

    def add_rule(self, rule: Rule) -> None:
        match rule:
            case Size():
                self.line(self.ones(self.used), rule.low, rule.high)
            case RoomType():
                self.line(self.is_of(rule.room, rule.types), 1, 1)
            case PairRelation():
                self.line(self.ones([self.used[rule.j]]), 1, 1)
                self.line(self.lies(rule.i, rule.j, rule.relations), 1, 1)
            case Count():
                every = [term for room in range(self.slots) for term in self.is_of(room, rule.types)]
                self.line(every, rule.low, rule.high)
            case Adjacency():
                self.add_adjacency(rule)
            case Buildable():
                for count in rule.counts():
                    self.add_rule(count)

    def add_adjacency(self, rule: Adjacency) -> None:
        rooms = range(self.slots)
        found = []
        for u, v in ((u, v) for u in rooms for v in rooms if u != v):
            parts = (self.is_of(u, rule.first), self.is_of(v, rule.second), self.lies(u, v, rule.relations))
            if not rule.wanted:
                self.line([term for part in parts for term in part], 0, 2)
                continue
            (here,) = self.new(1)
            found.append(here)
            for part in parts:
                self.line([*part, (here, -1)], 0, 1)
        if rule.wanted:
            self.line(self.ones(found), 1, np.inf)

    def solve(self) -> bool:
        rows, columns, factors = zip(*self.entries, strict=True)
        matrix = coo_array((factors, (rows, columns)), shape=(self.rows, self.variables)).tocsr()
        answer = milp(
            np.zeros(self.variables),
            integrality=np.ones(self.variables, np.int64),
            bounds=Bounds(0, 1),
            constraints=LinearConstraint(matrix, np.array(self.low), np.array(self.high)),
            options={"time_limit": SECONDS},
        )
        return int(answer.status) != _INFEASIBLE


def _types_in(rule: Rule) -> list[frozenset[int]]:
    if isinstance(rule, Adjacency):
        return [rule.first, rule.second]
    if isinstance(rule, Buildable):
        return [count.types for count in rule.counts()]
    return [rule.types] if isinstance(rule, RoomType | Count) else []


def _ways_in(rule: Rule) -> list[frozenset[int]]:
    if isinstance(rule, Adjacency):
        return [rule.relations, turned(rule.relations)]
    return [rule.relations] if isinstance(rule, PairRelation) else []


def _told_apart(count: int, sets: Sequence[frozenset[int]]) -> list[frozenset[int]]:
    """Part the ids so that each of the sets is made of whole parts."""
    parts: dict[tuple[bool, ...], set[int]] = {}
    for number in range(count):
        parts.setdefault(tuple(number in some for some in sets), set()).add(number)
    return [frozenset(part) for part in parts.values()]
