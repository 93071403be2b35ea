"""Contradictions between constraints, found before sampling. No torch.

Feasibility of a set of rules is an integer program, solved exactly by HiGHS (scipy.optimize.milp): each room has a
type, each pair of rooms a relation, and every rule is linear. An irreducible infeasible subset is found by the deletion
filter (Chinneck and Dravnieks 1991).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeVar

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_array

from ..geometry.realisability import realise
from ..vocabulary import NO_EDGE, ROOMS, pair_index, pairs
from .rules import Adjacency, Buildable, Count, PairRelation, RoomType, Rule, Size, reversed_ids

__all__ = ["contradictions", "feasible", "unrealisable"]

SECONDS: Final = 10.0
"""Time limit of one integer program; undecided rules count as feasible."""

_SEARCH: Final = 50
"""Linear programs after which fixed relations count as realisable."""

_INFEASIBLE: Final = 2


def contradictions(rules: Sequence[Rule], slots: int) -> list[list[Rule]]:
    """Return irreducible sets of rules that no diagram with up to `slots` rooms meets."""
    remaining, cores = list(rules), []
    while remaining and not feasible(remaining, slots):
        core = _irreducible(remaining, lambda some: feasible(some, slots))
        cores.append(core)
        remaining = [rule for rule in remaining if rule is not core[-1]]
    return cores


def unrealisable(rules: Sequence[Rule]) -> list[Rule]:
    """Return an irreducible set of fixed relations that no boxes realise together, such as a cycle of "left of".

    Empty if some boxes realise all of them, or the search gave up.
    """
    fixed = [rule for rule in rules if isinstance(rule, PairRelation) and len(rule.relations) == 1]
    return [] if _realisable(fixed) else [*_irreducible(fixed, _realisable)]


_AnyRule = TypeVar("_AnyRule", bound=Rule)


def _irreducible(rules: Sequence[_AnyRule], possible: Callable[[list[_AnyRule]], bool]) -> list[_AnyRule]:
    """Deletion filter: drop each rule without which the others remain impossible."""
    core = list(rules)
    for rule in rules:
        fewer = [other for other in core if other is not rule]
        if not possible(fewer):
            core = fewer
    return core


def _realisable(fixed: Sequence[PairRelation]) -> bool:
    """Whether some boxes show these relations, or the search gave up."""
    rooms = sorted({room for rule in fixed for room in (rule.i, rule.j)})
    edges = np.full(len(pairs(len(rooms))), NO_EDGE)
    constrained = np.zeros(len(edges), bool)
    for rule in fixed:
        pair = pair_index(rooms.index(rule.i), rooms.index(rule.j), len(rooms))
        (edges[pair],), constrained[pair] = rule.relations, True
    return not fixed or realise(edges, len(rooms), apart=constrained, limit=_SEARCH).verdict != "impossible"


def feasible(rules: Sequence[Rule], slots: int) -> bool:
    """Whether some diagram with up to `slots` rooms meets all rules."""
    if any(isinstance(rule, RoomType) and not rule.types for rule in rules):
        return False
    program = _IntegerProgram(rules, slots)
    for rule in rules:
        program.add_rule(rule)
    return program.solve()


class _IntegerProgram:
    """Binary variables, and linear constraints low <= a x <= high.

    Types and relations that no rule distinguishes share a variable.
    """

    def __init__(self, rules: Sequence[Rule], slots: int) -> None:
        self.slots, self.variables, self.rows = slots, 0, 0
        self.entries: list[tuple[int, int, float]] = []
        self.low: list[float] = []
        self.high: list[float] = []
        types = [ids for rule in rules for ids in _types_in(rule)]
        relations = [ids for rule in rules for ids in _relations_in(rule)]
        self.kinds, self.classes = _partition(len(ROOMS), types), _partition(NO_EDGE + 1, relations)
        self.used = self.new(slots)
        self.kind = [self.new(len(self.kinds)) for _ in range(slots)]
        needed = {pair for pair in pairs(slots) if any(isinstance(rule, Adjacency) for rule in rules)}
        needed |= {(rule.i, rule.j) for rule in rules if isinstance(rule, PairRelation)}
        self.relation = {pair: self.new(len(self.classes)) for pair in sorted(needed)}
        for slot in range(slots):
            self.line([*self.ones(self.kind[slot]), (self.used[slot], -1)], 0, 0)
            if slot:
                self.line([(self.used[slot - 1], 1), (self.used[slot], -1)], 0, 1)
        for variables in self.relation.values():
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

    def type_terms(self, room: int, types: frozenset[int]) -> list[tuple[int, float]]:
        return self.ones([v for v, kind in zip(self.kind[room], self.kinds, strict=True) if kind <= types])

    def relation_terms(self, u: int, v: int, relations: frozenset[int]) -> list[tuple[int, float]]:
        pair, ids = ((u, v), relations) if u < v else ((v, u), reversed_ids(relations))
        return self.ones([x for x, part in zip(self.relation[pair], self.classes, strict=True) if part <= ids])

    def add_rule(self, rule: Rule) -> None:
        match rule:
            case Size():
                self.line(self.ones(self.used), rule.low, rule.high)
            case RoomType():
                self.line(self.type_terms(rule.room, rule.types), 1, 1)
            case PairRelation():
                self.line(self.ones([self.used[rule.j]]), 1, 1)
                self.line(self.relation_terms(rule.i, rule.j, rule.relations), 1, 1)
            case Count():
                every = [term for room in range(self.slots) for term in self.type_terms(room, rule.types)]
                self.line(every, rule.low, rule.high)
            case Adjacency():
                self.add_adjacency(rule)
            case Buildable():
                for count in rule.counts():
                    self.add_rule(count)

    def add_adjacency(self, rule: Adjacency) -> None:
        rooms = range(self.slots)
        pairs_met = []
        for u, v in ((u, v) for u in rooms for v in rooms if u != v):
            parts = (
                self.type_terms(u, rule.first),
                self.type_terms(v, rule.second),
                self.relation_terms(u, v, rule.relations),
            )
            if not rule.required:
                self.line([term for part in parts for term in part], 0, 2)
                continue
            (met,) = self.new(1)
            pairs_met.append(met)
            for part in parts:
                self.line([*part, (met, -1)], 0, 1)
        if rule.required:
            self.line(self.ones(pairs_met), 1, np.inf)

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


def _relations_in(rule: Rule) -> list[frozenset[int]]:
    if isinstance(rule, Adjacency):
        return [rule.relations, reversed_ids(rule.relations)]
    return [rule.relations] if isinstance(rule, PairRelation) else []


def _partition(count: int, sets: Sequence[frozenset[int]]) -> list[frozenset[int]]:
    """Return the coarsest partition of the ids such that each set is a union of parts."""
    parts: dict[tuple[bool, ...], set[int]] = {}
    for number in range(count):
        parts.setdefault(tuple(number in ids for ids in sets), set()).add(number)
    return [frozenset(part) for part in parts.values()]
