"""Contradictions between constraints, found before sampling, as irreducible infeasible subsets. No torch.

Feasibility of rules is an integer program, solved exactly by HiGHS: each room has a type, each pair
a relation, and every rule is linear. Subsets are found by the deletion filter (Chinneck and
Dravnieks 1991).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise, permutations
from typing import Final, TypeVar

import numpy as np

from ..geometry.realisability import realise
from ..vocabulary import AREA_MASK, NO_EDGE, RELATED, ROOMS, door_ends, pair_index, pairs
from .rules import (
    FRONT,
    Adjacency,
    Area,
    Buildable,
    Count,
    PairRelation,
    Reachable,
    RoomType,
    Rule,
    reversed_ids,
)

__all__ = ["contradictions", "feasible", "unrealisable"]

SECONDS: Final = 10.0
"""Time limit of one integer program; undecided rules count as feasible."""

_SEARCH: Final = 50
"""Linear programs after which fixed relations count as realisable."""

_INFEASIBLE: Final = 2


def contradictions(rules: Sequence[Rule], slots: int) -> list[list[Rule]]:
    """Return irreducible sets of rules that no diagram with up to `slots` rooms meets."""
    remaining = list(rules)
    cores = []
    while remaining and not feasible(remaining, slots):
        core = _irreducible(remaining, lambda some: feasible(some, slots))
        cores.append(core)
        remaining = [rule for rule in remaining if rule is not core[-1]]
    return cores


def unrealisable(rules: Sequence[Rule]) -> list[Rule]:
    """Return an irreducible set of fixed relations that no boxes realise together, such as a cycle of "left of".

    Empty if some boxes realise all of them, or the search gave up.
    """
    fixed = [
        rule
        for rule in rules
        if isinstance(rule, PairRelation) and len(rule.relations) == 1 and not rule.doors
    ]
    return [] if _realisable(fixed) else [*_irreducible(fixed, _realisable)]


_AnyRule = TypeVar("_AnyRule", bound=Rule)


def _irreducible(
    rules: Sequence[_AnyRule], possible: Callable[[list[_AnyRule]], bool]
) -> list[_AnyRule]:
    """Deletion filter: drop each rule without which the others remain impossible."""
    core = list(rules)
    for rule in rules:
        fewer = [other for other in core if other is not rule]
        if not possible(fewer):
            core = fewer
    return core


def _realisable(fixed: Sequence[PairRelation]) -> bool:
    """Whether some boxes show these relations, or the search gave up."""
    rooms = sorted({room for rule in fixed for room in (rule.i, rule.j) if room is not None})
    edges = np.full(len(pairs(len(rooms))), NO_EDGE)
    constrained = np.zeros(len(edges), bool)
    for rule in fixed:
        assert rule.j is not None
        pair = pair_index(rooms.index(rule.i), rooms.index(rule.j), len(rooms))
        (edges[pair],), constrained[pair] = rule.relations, True
    return (
        not fixed
        or realise(edges, len(rooms), apart=constrained, limit=_SEARCH).verdict != "impossible"
    )


def feasible(rules: Sequence[Rule], slots: int) -> bool:
    """Whether some diagram with up to `slots` rooms meets all rules."""
    return _IntegerProgram(rules, slots).feasible()


class _IntegerProgram:
    """Binary variables, and linear constraints low <= a x <= high.

    Room slots have one variable per type, and a last one for empty; pairs that occur in a rule have
    one per relation, doors one without and one with a door, and areas one per bin. A variable
    listed k times in a row has the factor k, and ~v the factor -1.
    """

    def __init__(self, rules: Sequence[Rule], slots: int) -> None:
        self.slots = slots
        self.variables = 0
        self.flows = set[int]()
        self.rows: list[tuple[list[int], float, float]] = []
        self.kind = [self.new(len(ROOMS) + 1) for _ in range(slots)]
        self.apart = any(
            getattr(rule, "relations", RELATED) != RELATED or not getattr(rule, "required", True)
            for rule in rules
            if not getattr(rule, "doors", False)
        )
        """Whether a rule may separate rooms; if not, they can all be close."""
        needed = {
            (rule.i, rule.j)
            for rule in rules
            if isinstance(rule, PairRelation) and not rule.doors and rule.j is not None
        }
        if any(
            (isinstance(rule, Adjacency) and not rule.doors)
            or isinstance(rule, Reachable)
            or (isinstance(rule, Buildable) and self.apart)
            for rule in rules
        ):
            needed |= {*pairs(slots)}
        self.relation = {pair: self.new(NO_EDGE + 1) for pair in sorted(needed)}
        with_doors = any(getattr(rule, "doors", isinstance(rule, Reachable)) for rule in rules)
        self.door = {ends: self.new(2) for ends in door_ends(slots) if with_doors}
        self.area = [
            self.new(AREA_MASK)
            for _ in range(slots)
            if any(isinstance(rule, Area) for rule in rules)
        ]
        for variables in (*self.kind, *self.relation.values(), *self.door.values(), *self.area):
            self.rows.append((variables, 1, 1))
        for first, second in pairwise(self.kind):  # empty slots come last
            self.rows.append(([*first[:-1], second[-1]], 1, 2))
        for rule in rules:
            self.add_rule(rule)

    def new(self, count: int) -> list[int]:
        self.variables += count
        return list(range(self.variables - count, self.variables))

    def of_type(self, room: int, types: frozenset[int]) -> list[int]:
        return [self.kind[room][kind] for kind in types]

    def related(
        self,
        u: int,
        v: int,
        relations: frozenset[int],
        doors: bool = False,
    ) -> list[int]:
        if doors:
            return [self.door[min(u, v), max(u, v)][door] for door in relations]
        pair, ids = ((u, v), relations) if u < v else ((v, u), reversed_ids(relations))
        return [self.relation[pair][relation] for relation in ids]

    def add_rule(self, rule: Rule) -> None:
        rooms = range(self.slots)
        match rule:
            case RoomType():
                self.rows.append((self.of_type(rule.room, rule.types), 1, 1))
            case PairRelation():
                last, other = (rule.i, self.slots) if rule.j is None else (rule.j, rule.j)
                self.rows.append((self.kind[last][:-1], 1, 1))
                self.rows.append((self.related(rule.i, other, rule.relations, rule.doors), 1, 1))
            case Count():
                self.rows.append(
                    (
                        [v for room in rooms for v in self.of_type(room, rule.types)],
                        rule.low,
                        rule.high,
                    )
                )
            case Adjacency():
                self.add_adjacency(rule)
            case Area():
                self.add_area(rule)
            case Buildable():
                for count in rule.counts():
                    self.add_rule(count)
                if self.apart:
                    self.add_connected(
                        {pair: relation[NO_EDGE] for pair, relation in self.relation.items()}
                    )
            case Reachable():
                self.add_reachable()

    def add_reachable(self) -> None:
        fronts = [self.door[room, self.slots][1] for room in range(self.slots)]
        self.rows.append((fronts, 1, 1))
        self.rows += [
            ([front, kind[-1]], 0, 1) for front, kind in zip(fronts, self.kind, strict=True)
        ]
        inner = {pair: self.door[pair][1] for pair in pairs(self.slots)}
        self.rows += [([door, self.relation[pair][NO_EDGE]], 0, 1) for pair, door in inner.items()]
        self.add_connected({pair: self.door[pair][0] for pair in inner})

    def add_connected(self, blocked: dict[tuple[int, int], int]) -> None:
        """Require links to connect all rooms: each other room receives one unit of a flow from room 0."""
        most = self.slots - 1
        received = [[kind[-1]] for kind in self.kind]
        for (i, j), none in blocked.items():
            for u, v in ((i, j), (j, i)):
                (flow,) = self.new(1)
                self.flows.add(flow)
                received[v].append(flow)
                received[u].append(~flow)
                self.rows += [
                    ([flow, *[stop] * most], 0, most) for stop in (none, self.kind[j][-1])
                ]
        self.rows += [(variables, 1, 1) for variables in received[1:]]

    def add_area(self, rule: Area) -> None:
        for room in range(self.slots) if rule.room is None else (rule.room,):
            outside = [
                self.area[room][number] for number in range(AREA_MASK) if number not in rule.bins
            ]
            if rule.room is None:
                self.rows.append(([*self.of_type(room, rule.types), *outside], 0, 1))
            else:
                self.rows += [(self.kind[room][:-1], 1, 1), (outside, 0, 0)]

    def add_adjacency(self, rule: Adjacency) -> None:
        met: list[int] = []
        front = rule.second == FRONT
        every = (
            [(u, self.slots) for u in range(self.slots)]
            if front
            else permutations(range(self.slots), 2)
        )
        for u, v in every:
            parts = [self.of_type(u, rule.first), self.related(u, v, rule.relations, rule.doors)]
            parts += [] if front else [self.of_type(v, rule.second)]
            if (
                rule.required
            ):  # the first of two new variables may be 1 only if one variable of each part is
                here, elsewhere = self.new(2)
                met.append(here)
                self.rows += [
                    ([here, elsewhere], 1, 1),
                    *(([*part, elsewhere], 1, 2) for part in parts),
                ]
            else:
                self.rows.append(
                    ([variable for part in parts for variable in part], 0, len(parts) - 1)
                )
        if rule.required:
            self.rows.append((met, 1, np.inf))

    def feasible(self) -> bool:
        from scipy.optimize import Bounds, LinearConstraint, milp  # it takes .3 s
        from scipy.sparse import csr_array

        listed = np.array([variable for row, _, _ in self.rows for variable in row])
        rows = np.repeat(np.arange(len(self.rows)), [len(row) for row, _, _ in self.rows])
        entries = np.where(listed < 0, -1.0, 1.0), (rows, np.where(listed < 0, ~listed, listed))
        matrix = csr_array(entries, shape=(len(self.rows), self.variables))
        low, high = np.array([(low, high) for _, low, high in self.rows]).T
        flows = np.isin(np.arange(self.variables), [*self.flows])
        answer = milp(
            np.zeros(self.variables),
            integrality=(~flows).astype(np.int64),
            bounds=Bounds(0, np.where(flows, self.slots, 1)),
            constraints=LinearConstraint(matrix, low, high),
            options={"time_limit": SECONDS},
        )
        return int(answer.status) != _INFEASIBLE
