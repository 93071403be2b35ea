"""Which relations can still be had in diagrams that are half decided: many at once, by bounds alone.

What the relations decided so far demand of the walls (`demands`) is added up along paths (`closure`), and a choice that
has one way left takes it. A relation that contradicts this cannot be had in any plan. What is not refuted may still be
impossible: a linear program would know, and takes a thousand times longer.

Letters: N diagrams, E pairs of R rooms, M = 3 R + 1 marks, k relations or bounds picked out of them; a relation demands
up to F fixed bounds and C choices of A alternatives of B bounds each.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np
from jaxtyping import Bool, Int

from ..geometry import difference_bounds as closure
from ..geometry.wall_constraints import Canvas, relation_constraints
from ..vocabulary import NO_EDGE, pairs

__all__ = ["OPEN", "refuted"]

OPEN: Final = NO_EDGE + 1
"""In place of a relation that is not decided."""

_ROUNDS: Final = 3
"""How often bounds are added up and choices taken; most is known after the first."""

_TOGETHER: Final = 64
"""Diagrams that are added up together, so that their bounds stay in the processor's cache."""


class _Table(NamedTuple):
    """What each relation of each pair demands, `OPEN` nothing; bounds that say nothing fill up."""

    fixed: Int[np.ndarray, "E 12 F 4"]
    choices: Int[np.ndarray, "E 12 C A B 4"]
    offered: Bool[np.ndarray, "E 12 C A"]


def refuted(relations: Int[np.ndarray, "N E"], at: Int[np.ndarray, " N"], rooms: int) -> Bool[np.ndarray, "N 11"]:
    """Return for each diagram which relations the pair number `at` cannot have any more in a plan.

    Args:
        relations: Of every pair, `OPEN` where it is not decided; the pair in question counts as open.
        at: A pair of each diagram.
        rooms: Room slots; pairs without rooms are open.
    """
    relations, numbers = relations.copy(), np.arange(len(relations))
    relations[numbers, at] = OPEN
    # Nothing is decided at first, and samples share many beginnings.
    states, same = np.unique(np.concatenate([relations, at[:, None]], 1), axis=0, return_inverse=True)
    relations, at = states[:, :-1], states[:, -1]
    most = _start(len(states), rooms)
    rows, decided = np.nonzero(relations != OPEN)
    _impose(most, rows, _table(rooms).fixed[decided, relations[rows, decided]])
    gone = np.repeat(~_settle(most, relations, rooms)[:, None], NO_EDGE + 1, 1)
    rows, ways = np.nonzero(~gone)
    gone[rows, ways] = ~_reach(most, rows, at[rows], ways, rooms)
    rows, ways = np.nonzero(~gone)
    ahead, then = most[rows], relations[rows]
    then[np.arange(len(rows)), at[rows]] = ways
    _impose(ahead, np.arange(len(rows)), _table(rooms).fixed[at[rows], ways])
    gone[rows, ways] = ~_settle(ahead, then, rooms)
    return gone[same.reshape(-1)]


@lru_cache(maxsize=8)
def _table(rooms: int) -> _Table:
    demands = [[relation_constraints(i, j, way) for way in range(NO_EDGE + 1)] for i, j in pairs(rooms)]
    every = [one for row in demands for one in row]
    f, c = (max(len(one[part]) for one in every) for part in (0, 1))
    a, b = (max(size) for size in zip(*((len(o), len(w)) for _, some in every for o in some for w in o), strict=True))
    fixed = np.zeros((len(demands), OPEN + 1, f, 4), np.int16)
    choices = np.zeros((len(demands), OPEN + 1, c, a, b, 4), np.int16)
    offered = np.zeros((len(demands), OPEN + 1, c, a), bool)
    offered[..., 0] = True
    for pair, row in enumerate(demands):
        for way, (bounds, offers) in enumerate(row):
            fixed[pair, way, : len(bounds)] = np.array(bounds).reshape(-1, 4)
            for number, offer in enumerate(offers):
                offered[pair, way, number] = np.arange(a) < len(offer)
                for place, alternative in enumerate(offer):
                    choices[pair, way, number, place, : len(alternative)] = alternative
    return _Table(fixed, choices, offered)


def _start(count: int, rooms: int) -> Int[np.ndarray, "N 2 M M"]:
    # Sixteen bits do: where nothing is contradicted, sums stay far within them, and where something is, a sum that
    # turns positive is no smaller than what is there, so that nothing is refuted by it.
    most = closure.start(rooms, Canvas()).astype(np.int16)
    return np.repeat(most[None], count, 0)


def _impose(most: Int[np.ndarray, "N 2 M M"], rows: Int[np.ndarray, " k"], bounds: Int[np.ndarray, "k *F 4"]) -> None:
    axis, first, second, least = np.moveaxis(bounds, -1, 0)
    rows = rows.reshape(-1, *[1] * (bounds.ndim - 2))
    np.minimum.at(most, (np.broadcast_to(rows, axis.shape), axis, first, second), least)


def _kept(
    most: Int[np.ndarray, "N 2 M M"], rows: Int[np.ndarray, " k"], bounds: Int[np.ndarray, "k *F 4"]
) -> Bool[np.ndarray, "k *F"]:
    """True for bounds that the others do not refute."""
    axis, first, second, least = np.moveaxis(bounds, -1, 0)
    kept: Bool[np.ndarray, "k *F"] = least + most[rows.reshape(-1, *[1] * (bounds.ndim - 2)), axis, second, first] >= 0
    return kept


def _reach(
    most: Int[np.ndarray, "N 2 M M"],
    rows: Int[np.ndarray, " k"],
    at: Int[np.ndarray, " k"],
    ways: Int[np.ndarray, " k"],
    rooms: int,
) -> Bool[np.ndarray, " k"]:
    """True for relations none of whose bounds is refuted by itself."""
    table = _table(rooms)
    offered = table.offered[at, ways] & _kept(most, rows, table.choices[at, ways]).all(-1)
    reach: Bool[np.ndarray, " k"] = offered.any(-1).all(-1) & _kept(most, rows, table.fixed[at, ways]).all(-1)
    return reach


def _settle(most: Int[np.ndarray, "N 2 M M"], relations: Int[np.ndarray, "N E"], rooms: int) -> Bool[np.ndarray, " N"]:
    """Work out what follows, in place; False where there is a contradiction."""
    possible, live = np.ones(len(most), bool), np.arange(len(most))
    for _ in range(_ROUNDS):
        for start in range(0, len(live), _TOGETHER):
            some = live[start : start + _TOGETHER]
            worked = most[some]
            possible[some] = closure.close_all(worked)
            most[some] = worked
        live = live[possible[live]]
        live = _take_single(most, relations, live, possible, rooms)
        if not len(live):
            break
    return possible


def _take_single(
    most: Int[np.ndarray, "N 2 M M"],
    relations: Int[np.ndarray, "N E"],
    live: Int[np.ndarray, " k"],
    possible: Bool[np.ndarray, " N"],
    rooms: int,
) -> Int[np.ndarray, " k"]:
    """Impose the alternatives that are left alone; return the rows in which that said something new.

    Rows with a choice that has none left are noted as impossible.
    """
    table = _table(rooms)
    within, decided = np.nonzero(relations[live] != OPEN)
    rows = live[within]
    ways = relations[rows, decided]
    bounds = table.choices[decided, ways]
    alive = table.offered[decided, ways] & _kept(most, rows, bounds).all(-1)
    left = alive.sum(-1)
    possible[rows[(left == 0).any(-1)]] = False
    number, choice = np.nonzero(left == 1)
    rows, bounds = rows[number], bounds[number, choice, alive[number, choice].argmax(-1)]
    axis, first, second, least = np.moveaxis(bounds, -1, 0)
    new = (most[rows[:, None], axis, first, second] > least).any(-1) & possible[rows]
    _impose(most, rows[new], bounds[new])
    return np.unique(rows[new])
