"""Lookahead: relations that are impossible in partially decided diagrams, by batched bound propagation.

A relation that contradicts the closed bounds is impossible in any plan. Relations that are not refuted may still be
impossible; a linear program would decide that, at a thousand times the cost.
Letters: N diagrams, E pairs of R rooms, M = 3 R + 1 marks, k selected relations or bounds; F, C, A, B as in `Table`.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from jaxtyping import Bool, Int

from ..geometry.wall_constraints import DISJOINT, OPEN, Canvas, close_bounds, constraint_table, initial_bounds
from ..vocabulary import NO_EDGE

__all__ = ["contradictory", "impossible_relations"]

_ROUNDS: Final = 3
"""Rounds of propagation; most is known after the first."""

_BATCH: Final = 64
"""Diagrams that are closed at once, so that their bounds fit into the CPU cache."""


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

    Undecided pairs, pairs without rooms, and the pair in question are `OPEN`. Boxes of `disjoint` pairs do not overlap.
    """
    numbers, slots = np.arange(len(relations)), relations.shape[1]
    apart = np.zeros(relations.shape, np.int64) if disjoint is None else DISJOINT * disjoint
    ids, own = np.where(relations == OPEN, OPEN, relations + apart), apart[numbers, at]
    ids[numbers, at] = OPEN
    # Early in sampling, many diagrams share the same decided relations.
    states, same = np.unique(np.column_stack([ids, at, own]), axis=0, return_inverse=True)
    ids, at, own = states[:, :slots], states[:, slots], states[:, -1]
    most = _decided_bounds(ids, rooms)
    rows, options = np.nonzero(np.repeat(_propagate(most, ids, rooms)[:, None], NO_EDGE + 1, 1))
    ahead, then = most[rows], ids[rows]
    then[np.arange(len(rows)), at[rows]] = tried = options + own[rows]
    _impose(ahead, np.arange(len(rows)), constraint_table(rooms).fixed[at[rows], tried])
    impossible = np.ones((len(states), NO_EDGE + 1), bool)
    impossible[rows, options] = ~_propagate(ahead, then, rooms)
    return impossible[same.reshape(-1)]


def _decided_bounds(relations: Int[np.ndarray, "N E"], rooms: int) -> Int[np.ndarray, "N 2 M M"]:
    """Return the fixed bounds of the decided relations."""
    # int16 is enough: without a contradiction sums stay far within its range, and with one, an overflow to a positive
    # sum is no smaller than the current bound, so it excludes nothing.
    most = np.repeat(initial_bounds(rooms, Canvas()).astype(np.int16)[None], len(relations), 0)
    rows, decided = np.nonzero(relations != OPEN)
    _impose(most, rows, constraint_table(rooms).fixed[decided, relations[rows, decided]])
    return most


def _impose(most: Int[np.ndarray, "N 2 M M"], rows: Int[np.ndarray, " k"], bounds: Int[np.ndarray, "k *F 4"]) -> None:
    axis, first, second, least = np.moveaxis(bounds, -1, 0)
    rows = rows.reshape(-1, *[1] * (bounds.ndim - 2))
    np.minimum.at(most, (np.broadcast_to(rows, axis.shape), axis, first, second), least)


def _propagate(
    most: Int[np.ndarray, "N 2 M M"], relations: Int[np.ndarray, "N E"], rooms: int
) -> Bool[np.ndarray, " N"]:
    """Close bounds and impose single alternatives in place; False where there is a contradiction."""
    possible, live = np.ones(len(most), bool), np.arange(len(most))
    for _ in range(_ROUNDS):
        for start in range(0, len(live), _BATCH):
            some = live[start : start + _BATCH]
            batch = most[some]
            possible[some] = close_bounds(batch, 2)
            most[some] = batch
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
    """Impose single remaining alternatives; return the rows in which a bound changed.

    Rows with a choice without alternatives are marked as impossible.
    """
    table = constraint_table(rooms)
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
    rows, bounds = rows[number], bounds[number, choice, alive[number, choice].argmax(-1)]
    axis, first, second, least = np.moveaxis(bounds, -1, 0)
    new = (most[rows[:, None], axis, first, second] > least).any(-1) & possible[rows]
    _impose(most, rows[new], bounds[new])
    return np.unique(rows[new])
