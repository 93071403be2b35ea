"""Whether two diagrams are one plan whose rooms were written in another order.

A diagram says how room i lies to room j for i < j only. In another order of the rooms some pairs are told the other way
round, and what is told then does not follow from what was told before: the opposite of "left of" may be "right of" or
"right above". Where boxes are known, both ways follow from them, and the answer is exact. Where they are not, two
diagrams count as one if no pair speaks against it: each pair told the other way round is so in some plan. That never
overrates how many diagrams are different or new.

Letters: N diagrams, R room slots, L tokens.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from jaxtyping import Bool, Int

from .plans import real_edges
from .relations import labels_of
from .structure import mixed
from .vocabulary import EDGE_PAD, NO_EDGE, NODE_PAD, pairs

__all__ = ["Library", "first_of_their_kind", "room_marks"]

_UNTOLD = -1
"""The relation of a pair that is told the other way round only."""


class Library:
    """Diagrams among which others are looked up.

    Args:
        tokens: Diagrams that are legal.
        rooms: Room slots of each.
        boxes: Where the rooms are, if that is known; zeros where it is not.
    """

    def __init__(
        self, tokens: Int[np.ndarray, "N L"], rooms: int, boxes: Int[np.ndarray, "N R 4"] | None = None
    ) -> None:
        self._rooms = rooms
        self._marks = room_marks(tokens, rooms)
        self._told = _told(tokens, rooms, boxes)
        self._shelf: dict[int, list[int]] = defaultdict(list)
        for row, mark in enumerate(_summed(self._marks)):
            self._shelf[mark].append(row)

    def holds(self, tokens: Int[np.ndarray, "n L"]) -> Bool[np.ndarray, " n"]:
        """True for diagrams that are one of these in some order of their rooms."""
        marks = room_marks(tokens, self._rooms)
        told = _told(tokens, self._rooms, None)
        found = np.zeros(len(tokens), bool)
        for row, mark in enumerate(_summed(marks)):
            shelf = self._shelf.get(mark, ())
            found[row] = any(_same(marks[row], told[row], self._marks[k], self._told[k]) for k in shelf)
        return found


def first_of_their_kind(tokens: Int[np.ndarray, "N L"], rooms: int) -> Bool[np.ndarray, " N"]:
    """True for diagrams that are none of those before them, in any order of their rooms."""
    marks, told = room_marks(tokens, rooms), _told(tokens, rooms, None)
    kinds: dict[int, list[int]] = defaultdict(list)
    first = np.zeros(len(tokens), bool)
    for row, mark in enumerate(_summed(marks)):
        if not any(_same(marks[row], told[row], marks[other], told[other]) for other in kinds[mark]):
            kinds[mark].append(row)
            first[row] = True
    return first


def room_marks(tokens: Int[np.ndarray, "N L"], rooms: int) -> Int[np.ndarray, "N R"]:
    """Return a number per room that follows from its type and from who is near whom, whatever the order of the rooms.

    Weisfeiler and Lehman's colours after three rounds; 0 in empty slots.
    """
    real = tokens[:, :rooms] != NODE_PAD
    i, j = np.array(pairs(rooms), int).reshape(-1, 2).T
    near = np.zeros((len(tokens), rooms, rooms), np.uint64)
    near[:, i, j] = near[:, j, i] = (tokens[:, rooms:] < NO_EDGE) & real_edges(real)
    colour = mixed(tokens[:, :rooms].astype(np.uint64)) * real
    for _ in range(3):
        colour = mixed(colour + mixed(colour[:, None, :] * near).sum(2, dtype=np.uint64)) * real
    marks: Int[np.ndarray, "N R"] = colour.astype(np.int64)
    return marks


def _summed(marks: Int[np.ndarray, "N R"]) -> list[int]:
    sums: list[int] = mixed(marks.astype(np.uint64)).sum(1, dtype=np.uint64).tolist()
    return sums


def _told(
    tokens: Int[np.ndarray, "N L"], rooms: int, boxes: Int[np.ndarray, "N R 4"] | None
) -> Int[np.ndarray, "N R R"]:
    """How each room lies to each other; `_UNTOLD` below the diagonal unless boxes say it."""
    i, j = np.array(pairs(rooms), int).reshape(-1, 2).T
    edges = tokens[:, rooms:]
    back = np.where(edges < NO_EDGE, _UNTOLD, edges)
    if boxes is not None:
        known = np.asarray(boxes.any((1, 2)))[:, None] & (edges < NO_EDGE)
        back = np.where(known, labels_of(boxes[:, j], boxes[:, i]), back)
    told = np.full((len(tokens), rooms, rooms), EDGE_PAD, np.int8)
    told[:, i, j], told[:, j, i] = edges, back
    return told


def _same(
    marks: Int[np.ndarray, " R"],
    told: Int[np.ndarray, "R R"],
    other_marks: Int[np.ndarray, " R"],
    other_told: Int[np.ndarray, "R R"],
) -> bool:
    """Whether some order of the other's rooms makes it this diagram."""
    rooms = int((marks != 0).sum())
    mine, theirs = told.tolist(), other_told.tolist()
    ways = [np.flatnonzero(other_marks == mark).tolist() for mark in marks[:rooms]]
    turned = _turned()

    def fits(place: Sequence[int], room: int) -> bool:
        """Whether a room may stand in its place, seen from those before it."""
        for before in range(room):
            relation, (a, b) = mine[before][room], (place[before], place[room])
            said = theirs[a][b]
            if not (relation == said or (said == _UNTOLD and turned[relation][theirs[b][a]])):
                return False
        return True

    def extend(place: tuple[int, ...]) -> bool:
        room = len(place)
        return room == rooms or any(
            way not in place and fits((*place, way), room) and extend((*place, way)) for way in ways[room]
        )

    return extend(())


@lru_cache(maxsize=1)
def _turned() -> list[list[bool]]:
    """For each two relations, whether some two boxes have the first one way and the second the other way round."""
    walls = [(low, high) for low in range(7) for high in range(low + 1, 7)]
    boxes = np.array([(x0, y0, x1, y1) for x0, x1 in walls for y0, y1 in walls], np.int64)
    u, v = boxes[:, None], boxes[None, :]
    found = np.zeros((NO_EDGE + 1, NO_EDGE + 1), bool)
    found[labels_of(u, v), labels_of(v, u)] = True
    table: list[list[bool]] = found.tolist()
    return table
