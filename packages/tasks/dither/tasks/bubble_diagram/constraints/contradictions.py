"""Contradictions between constraints, found before sampling. No torch.

Feasibility of rules is an integer program, solved exactly by HiGHS: each room has a type, each pair
a relation, and every rule is linear. Contradictions are irreducible infeasible subsets, found by
the deletion filter (Chinneck and Dravnieks 1991).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import chain, pairwise, permutations
from typing import TypeVar

import numpy as np

from ..geometry.realisability import realise
from ..vocabulary import (
    AREA_MASK,
    DOOR,
    NO_DOOR,
    NO_EDGE,
    ROOMS,
    door_ends,
    pair_index,
    pairs,
)
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

SECONDS = 10.0
"""Time limit of one integer program; undecided rules count as feasible."""

_SEARCH = 50
"""Linear programs after which fixed relations count as realisable."""

_INFEASIBLE = 2
"""Status of HiGHS."""

_AnyRule = TypeVar("_AnyRule", bound=Rule)


def contradictions(rules: Sequence[Rule], slots: int) -> list[list[Rule]]:
    """Return irreducible sets of rules that no diagram with up to `slots` rooms meets."""
    remaining = list(rules)
    cores = []
    while remaining and not feasible(remaining, slots):
        core = _irreducible(remaining, lambda subset: feasible(subset, slots))
        cores.append(core)
        # Without one of its rules this set is feasible, and others may show.
        remaining = [rule for rule in remaining if rule is not core[-1]]
    return cores


def unrealisable(rules: Sequence[Rule]) -> list[Rule]:
    """Return an irreducible set of fixed relations that no boxes realise together.

    An example is a cycle of "left of". Empty if some boxes realise all of them, or the search gave
    up.
    """
    # The search decides sets of single relations, not of alternatives.
    fixed = []
    for rule in rules:
        match rule:
            case PairRelation(doors=False, relations=names) if len(names) == 1:
                fixed.append(rule)
    if _realisable(fixed):
        return []
    return [*_irreducible(fixed, _realisable)]


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
    if not fixed:
        return True
    ends = [(rule.i, rule.j) for rule in fixed if rule.j is not None]
    # Rooms without a fixed relation can be anywhere, so the search leaves them out.
    rooms = sorted(set(chain.from_iterable(ends)))
    edges = np.full(len(pairs(len(rooms))), NO_EDGE)
    constrained = np.zeros(len(edges), bool)
    for (i, j), rule in zip(ends, fixed, strict=True):
        pair = pair_index(rooms.index(i), rooms.index(j), len(rooms))
        (relation,) = rule.relations
        edges[pair] = relation
        constrained[pair] = True
    search = realise(edges, len(rooms), apart=constrained, limit=_SEARCH)
    return search.verdict != "impossible"


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
        self.flows: set[int] = set()
        self.rows: list[tuple[list[int], float, float]] = []

        # Unless a rule may separate rooms, they can all be close.
        self.apart = any(rule.separates for rule in rules)
        self.kind = [self.new(len(ROOMS) + 1) for _ in range(slots)]
        self.relation = {
            pair: self.new(NO_EDGE + 1) for pair in self.related_pairs(rules)
        }
        self.door: dict[tuple[int, int], list[int]] = {}
        if any(rule.doors for rule in rules):
            self.door = {ends: self.new(2) for ends in door_ends(slots)}
        self.area: list[list[int]] = []
        if any(isinstance(rule, Area) for rule in rules):
            self.area = [self.new(AREA_MASK) for _ in range(slots)]

        # Each token has exactly one id.
        tokens = [*self.kind, *self.relation.values()]
        tokens += [*self.door.values(), *self.area]
        for variables in tokens:
            self.require(variables, 1, 1)
        # Empty slots come last: a slot is empty, or the one before it holds a room.
        for first, second in pairwise(self.kind):
            self.require([*first[:-1], second[-1]], 1, 2)
        for rule in rules:
            self.add_rule(rule)

    def related_pairs(self, rules: Sequence[Rule]) -> list[tuple[int, int]]:
        """Return the pairs of rooms whose relation matters."""
        named: set[tuple[int, int]] = set()
        for rule in rules:
            match rule:
                case PairRelation(doors=False, i=i, j=int(j)):
                    named.add((i, j))
                case Adjacency(doors=False) | Reachable():
                    return pairs(self.slots)
                case Buildable() if self.apart:
                    return pairs(self.slots)
        return sorted(named)

    def new(self, count: int) -> list[int]:
        """Return new variables."""
        self.variables += count
        return list(range(self.variables - count, self.variables))

    def require(self, variables: list[int], low: float, high: float) -> None:
        """Require that the sum of variables is within bounds."""
        self.rows.append((variables, low, high))

    def of_type(self, room: int, types: frozenset[int]) -> list[int]:
        return [self.kind[room][kind] for kind in types]

    def related(
        self,
        u: int,
        v: int,
        relations: frozenset[int],
        doors: bool = False,
    ) -> list[int]:
        """Return the variables of relations, or doors, of room u to room v."""
        ids = relations
        variables = self.relation
        if doors:
            variables = self.door
        elif u > v:
            # Only the relation of the smaller room number to the larger one has variables.
            ids = reversed_ids(relations)
        of_pair = variables[min(u, v), max(u, v)]
        return [of_pair[number] for number in ids]

    def add_rule(self, rule: Rule) -> None:
        match rule:
            case RoomType():
                self.require(self.of_type(rule.room, rule.types), 1, 1)
            case PairRelation():
                self.add_pair(rule)
            case Count():
                rooms = [self.of_type(room, rule.types) for room in range(self.slots)]
                self.require([*chain(*rooms)], rule.low, rule.high)
            case Adjacency():
                self.add_adjacency(rule)
            case Area():
                self.add_area(rule)
            case Buildable():
                for count in rule.counts():
                    self.add_rule(count)
                if self.apart:
                    far = {ends: v[NO_EDGE] for ends, v in self.relation.items()}
                    self.add_connected(far)
            case Reachable():
                self.add_reachable()

    def add_pair(self, rule: PairRelation) -> None:
        """Require two rooms, or a room with a front door, and their relation or door."""
        last = rule.i
        other = self.slots
        if rule.j is not None:
            last = rule.j
            other = rule.j
        # The slots before an existing room are not empty either.
        self.require(self.kind[last][:-1], 1, 1)
        ids = self.related(
            u=rule.i,
            v=other,
            relations=rule.relations,
            doors=rule.doors,
        )
        self.require(ids, 1, 1)

    def add_reachable(self) -> None:
        """Require one front door, of a room that exists, and doors only between close rooms."""
        fronts = []
        for room in range(self.slots):
            fronts.append(self.door[room, self.slots][DOOR])

        self.require(fronts, 1, 1)
        for front, kind in zip(fronts, self.kind, strict=True):
            empty = kind[-1]
            self.require([front, empty], 0, 1)

        blocked = {}
        for pair in pairs(self.slots):
            door = self.door[pair][DOOR]
            far = self.relation[pair][NO_EDGE]
            self.require([door, far], 0, 1)
            blocked[pair] = self.door[pair][NO_DOOR]
        self.add_connected(blocked)

    def add_connected(self, blocked: dict[tuple[int, int], int]) -> None:
        """Require links to connect all rooms: each but room 0 receives one unit of flow from it.

        `blocked` is the variable of each pair that says that it has no link.
        """
        most = self.slots - 1
        # An empty slot counts as served.
        received = [[kind[-1]] for kind in self.kind]
        for (i, j), none in blocked.items():
            for u, v in ((i, j), (j, i)):
                (flow,) = self.new(1)
                self.flows.add(flow)
                received[v].append(flow)
                received[u].append(~flow)
                # No flow without a link, or to an empty slot.
                for stop in (none, self.kind[j][-1]):
                    self.require([flow, *[stop] * most], 0, most)
        for variables in received[1:]:
            self.require(variables, 1, 1)

    def add_area(self, rule: Area) -> None:
        outside = sorted({*range(AREA_MASK)} - rule.bins)
        # A room has one type and one bin: not one of the types and a bin outside at once.
        for room, bins in enumerate(self.area):
            wrong = [bins[number] for number in outside]
            if rule.room is None:
                allowed = self.of_type(room, rule.types)
                self.require([*allowed, *wrong], 0, 1)
            elif rule.room == room:
                self.require(self.kind[room][:-1], 1, 1)
                self.require(wrong, 0, 0)

    def add_adjacency(self, rule: Adjacency) -> None:
        met: list[int] = []
        front = rule.second == FRONT
        ends: Iterable[tuple[int, int]] = permutations(range(self.slots), 2)
        if front:
            ends = [(room, self.slots) for room in range(self.slots)]
        for u, v in ends:
            parts = [
                self.of_type(u, rule.first),
                self.related(u, v, rule.relations, rule.doors),
            ]
            if not front:
                parts.append(self.of_type(v, rule.second))
            # At most one variable of each part is 1: all parts hold if the sum is full.
            if not rule.required:
                self.require([*chain(*parts)], 0, len(parts) - 1)
                continue
            # `holds` may be 1 only if one variable of each part is.
            holds, elsewhere = self.new(2)
            met.append(holds)
            self.require([holds, elsewhere], 1, 1)
            for part in parts:
                self.require([*part, elsewhere], 1, 2)
        if rule.required:
            self.require(met, 1, np.inf)

    def feasible(self) -> bool:
        # 0.3 s, which experiments without constraints save
        from scipy.optimize import Bounds, LinearConstraint, milp
        from scipy.sparse import csr_array

        # Repeated entries of a sparse matrix are added, which makes the factors.
        terms, low, high = zip(*self.rows, strict=True)
        listed = np.array([*chain(*terms)])
        rows = np.repeat(np.arange(len(terms)), [len(row) for row in terms])
        negative = listed < 0
        factors = np.where(negative, -1.0, 1.0)
        columns = np.where(negative, ~listed, listed)
        shape = (len(self.rows), self.variables)
        matrix = csr_array((factors, (rows, columns)), shape)
        # Flows need not be whole: a fractional flow connects the rooms as well.
        flows = np.isin(np.arange(self.variables), [*self.flows])
        answer = milp(
            np.zeros(self.variables),
            integrality=(~flows).astype(np.int64),
            bounds=Bounds(0, np.where(flows, self.slots, 1)),
            constraints=LinearConstraint(matrix, np.array(low), np.array(high)),
            options={"time_limit": SECONDS},
        )
        return int(answer.status) != _INFEASIBLE
