"""Boxes that keep bounds: a linear program, rounded; and whole pixels where rounding spoils them.

Letters: R rooms; F bounds.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csc_array

from .demands import END, START, Canvas, Demands
from .relations import edges_of

__all__ = ["UndecidedError", "find_walls", "is_witness"]

_ROOM = 40.0
"""What it is worth that rounding keeps every bound, against pixels of wall."""


_ROUNDING = 2.0
"""Farthest, in half pixels, that rounding moves the difference of two marks."""


class UndecidedError(Exception):
    """The solver gave up."""


def is_witness(boxes: Int[np.ndarray, "R 4"], demands: Demands, canvas: Canvas) -> bool:
    """Whether boxes prove that a diagram can be built: drawn again by the rule they give its relations."""
    sides = boxes[:, 2:] - boxes[:, :2]
    fits = boxes.min() >= 0 and boxes.max() <= canvas.side and sides.min() >= canvas.smallest
    asked = demands.asked
    return bool(fits and (edges_of(boxes)[asked] == demands.edges[asked]).all())


def find_walls(
    bounds: Int[np.ndarray, "F 4"], rooms: int, canvas: Canvas, *, whole: bool = False
) -> Float[np.ndarray, "R 4"] | None:
    """Return walls in pixels that keep the bounds, or None if there are none.

    If they can be, the bounds are kept with so much to spare that rounding does not break them; rooms are small.

    Args:
        bounds: See `demands.Bound`.
        rooms: Number of rooms.
        canvas: Where they may stand.
        whole: Ask for whole pixels; slower.

    Raises:
        UndecidedError: The solver gave up.
    """
    matrix, most = _program(bounds, rooms, canvas.smallest)
    found = milp(
        _price(rooms),
        integrality=_whole(rooms) if whole else None,
        bounds=_unknowns(rooms, canvas.side),
        constraints=LinearConstraint(matrix, -np.inf, most),
        options={"presolve": whole},  # the programs are too small for it to pay
    )
    if found.status == 2:
        return None
    if found.x is None:
        raise UndecidedError(found.message)
    walls: Float[np.ndarray, "R 4"] = found.x[:-1].reshape(rooms, 4)
    return walls


@lru_cache(maxsize=64)
def _price(rooms: int) -> Float[np.ndarray, " V"]:
    return np.array([-1.0, -1.0, 1.0, 1.0] * rooms + [-_ROOM * rooms])


@lru_cache(maxsize=64)
def _whole(rooms: int) -> Int[np.ndarray, " V"]:
    return np.array([1] * 4 * rooms + [0])


@lru_cache(maxsize=64)
def _unknowns(rooms: int, side: int) -> Bounds:
    return Bounds(np.zeros(4 * rooms + 1), np.array([float(side)] * 4 * rooms + [1.0]))


def _program(bounds: Int[np.ndarray, "F 4"], rooms: int, smallest: int) -> tuple[Any, Float[np.ndarray, " F"]]:
    """Return the rows of the program and their limits. The last unknown is the share of rounding that all rows bear."""
    first = 3 * np.arange(rooms)
    sides = [np.stack([first * 0 + axis, first + START, first + END, first * 0 - 2 * smallest], 1) for axis in (0, 1)]
    axis, p, q, most = np.concatenate([bounds, *sides]).T
    (low_p, high_p, start_p, end_p), (low_q, high_q, start_q, end_q) = _halves(axis, p), _halves(axis, q)
    rows = np.tile(np.arange(len(axis)), 5)
    columns = np.concatenate([low_p, high_p, low_q, high_q, np.full(len(axis), 4 * rooms)])
    values = np.concatenate([start_p, end_p, -start_q, -end_q, np.full(len(axis), _ROUNDING)])
    matrix = csc_array((values, (rows, columns)), shape=(len(axis), 4 * rooms + 1))
    return matrix, most.astype(float)


def _halves(axis: Int[np.ndarray, " F"], mark: Int[np.ndarray, " F"]) -> tuple[Any, Any, Any, Any]:
    """The two walls of the room of a mark, and how often each counts."""
    room, place = np.divmod(mark, 3)
    return 4 * room + axis, 4 * room + axis + 2, (2 - place).astype(float), place.astype(float)
