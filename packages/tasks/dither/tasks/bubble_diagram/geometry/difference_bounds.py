"""Difference bound matrices (Dill 1989): bounds on differences of marks, closed by Floyd-Warshall.

A contradiction proves that a diagram is impossible, the absence of one proves nothing.
Letters: R rooms, M = 3 R + 1 marks, N diagrams.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from jaxtyping import Bool, Int

from .wall_constraints import END, MIDDLE, START, Canvas

__all__ = ["ROUNDS", "close", "impose", "initial_bounds"]

ROUNDS = 4
"""Rounds of `close` after which hardly anything changes."""


@lru_cache(maxsize=64)
def initial_bounds(rooms: int, canvas: Canvas) -> Int[np.ndarray, "2 M M"]:
    """Return the bounds of unrelated rooms on a canvas. Read-only.

    Entry (axis, p, q) is the upper bound of mark p minus mark q, in half pixels.
    """
    marks = 3 * rooms + 1
    most = np.full((2, marks, marks), 2 * canvas.side, np.int64)
    first = 3 * np.arange(rooms)
    most[:, first + START, first + MIDDLE] = most[:, first + MIDDLE, first + END] = -canvas.smallest
    most[:, first + START, first + END] = -2 * canvas.smallest
    most[:, -1, :-1] = 0
    most[:, np.arange(marks), np.arange(marks)] = 0
    close(most[None], ROUNDS)
    most.flags.writeable = False
    return most


def impose(most: Int[np.ndarray, "2 M M"], bounds: Int[np.ndarray, "n 4"]) -> bool:
    """Add bounds in place and update all paths through them; return False on a contradiction."""
    for axis, p, q, bound in bounds.tolist():
        if bound < most[axis, p, q]:
            plane = most[axis]
            if plane[q, p] + bound < 0:
                return False
            np.minimum(plane, plane[:, p, None] + (bound + plane[q]), out=plane)
    return True


def close(most: Int[np.ndarray, "N 2 M M"], rounds: int) -> Bool[np.ndarray, " N"]:
    """Compute shortest paths in place, tightening middles between rounds; False where there is a contradiction."""
    for number in range(rounds):
        if number:
            _tighten_middles(most)
        for mark in range(most.shape[-1]):
            np.minimum(most, most[..., mark, None] + most[..., mark, None, :], out=most)
    least: Int[np.ndarray, " N"] = np.diagonal(most, axis1=-2, axis2=-1).min((-1, -2))
    return least >= 0


def _tighten_middles(most: Int[np.ndarray, "*n M M"]) -> None:
    """Use that a middle is half of start plus end, and that starts and ends are at whole pixels."""
    walls = np.arange(most.shape[-1]) % 3 != MIDDLE
    walls[-1] = True
    most[..., walls[:, None] & walls] &= -2
    s, c, e = (most[..., mark:-1:3, :] for mark in (START, MIDDLE, END))
    np.minimum(c, (s + e) >> 1, out=c)
    from_s, from_c, from_e = (most[..., mark:-1:3] for mark in (START, MIDDLE, END))
    np.minimum(from_c, (from_s + from_e) >> 1, out=from_c)
    np.minimum(s, 2 * c + from_e.swapaxes(-1, -2), out=s)
    np.minimum(e, 2 * c + from_s.swapaxes(-1, -2), out=e)
    np.minimum(from_s, 2 * from_c + e.swapaxes(-1, -2), out=from_s)
    np.minimum(from_e, 2 * from_c + s.swapaxes(-1, -2), out=from_e)
