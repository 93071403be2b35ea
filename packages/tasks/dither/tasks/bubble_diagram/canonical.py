"""One form for all orders of a plan's rooms, exact: two plans have the same form if and only if they are the same plan.

Rooms are told apart by type, then by how they lie to rooms already told apart, until nothing changes (colour refinement,
Weisfeiler and Lehman 1968). Where some rooms still look alike, each of them is tried in turn as the next, and the
smallest form counts; rooms that can be exchanged with each other need one trial only (twins).

Letters: R rooms.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

import numpy as np
from jaxtyping import Int

from .plans import Diagram, Plans
from .relations import labels_of
from .vocabulary import EDGE_MASK, NO_EDGE

__all__ = ["canonical_form", "known_labels", "plan_groups"]

_UNSAID: Final = EDGE_MASK
"""How the second room of a pair lies to the first, where only the other way round is known."""

_Matrix = Int[np.ndarray, "R R"]


def known_labels(diagram: Diagram, *, both: bool) -> _Matrix:
    """Return how each room lies to each other; `NO_EDGE` where they are not related.

    Args:
        diagram: The plan.
        both: Work out both ways from the boxes, where there are boxes; else the second way counts as not said.
    """
    rooms = len(diagram.types)
    matrix = np.full((rooms, rooms), NO_EDGE, np.int8)
    for i, j, relation in diagram.edges:
        matrix[i, j], matrix[j, i] = relation, _UNSAID
    if both and diagram.boxes is not None:
        boxes = np.array(diagram.boxes)
        every = labels_of(boxes[:, None], boxes[None])
        matrix = np.where(matrix == NO_EDGE, NO_EDGE, every).astype(np.int8)
    return matrix


def canonical_form(types: tuple[int, ...], labels: _Matrix) -> bytes:
    """Return what is the same for all orders of the rooms, and for no other plan."""
    rooms = len(types)
    # One number says both how u lies to v and v to u; the diagonal carries the type.
    pairs = labels.astype(np.int64) * 16 + labels.T
    pairs[np.arange(rooms), np.arange(rooms)] = np.asarray(types, np.int64) + 256
    return bytes([rooms]) + _smallest(pairs, _refine(pairs, np.zeros(rooms, np.int64)))


def _refine(pairs: _Matrix, colours: Int[np.ndarray, " R"]) -> Int[np.ndarray, " R"]:
    """Return colours 0, 1, ... that follow from how a room lies to rooms of each colour, whatever their order."""
    while True:
        seen = np.sort(pairs * 4096 + colours[None], axis=1)
        rows = np.column_stack([colours, pairs.diagonal(), seen])
        _, finer = np.unique(rows, axis=0, return_inverse=True)
        finer = finer.reshape(-1).astype(np.int64)
        if finer.max() == colours.max():
            return finer
        colours = finer


def _smallest(pairs: _Matrix, colours: Int[np.ndarray, " R"]) -> bytes:
    counts = np.bincount(colours)
    if counts.max() == 1:
        order = np.argsort(colours)
        return pairs[np.ix_(order, order)].astype(np.int16).tobytes()
    alike = np.flatnonzero(colours == np.flatnonzero(counts > 1)[0])
    best: bytes | None = None
    tried: list[int] = []
    for room in alike.tolist():
        if any(_twins(pairs, room, other) for other in tried):
            continue
        tried.append(room)
        # Twice the colour leaves place for this room before the others that look like it.
        chosen = 2 * colours + 1
        chosen[room] -= 1
        form = _smallest(pairs, _refine(pairs, np.unique(chosen, return_inverse=True)[1].reshape(-1).astype(np.int64)))
        best = form if best is None else min(best, form)
    assert best is not None
    return best


def _twins(pairs: _Matrix, first: int, second: int) -> bool:
    """Whether nothing changes when two rooms change places."""
    order = np.arange(len(pairs))
    order[[first, second]] = second, first
    return bool((pairs[np.ix_(order, order)] == pairs).all())


def plan_groups(plans: Plans) -> list[bytes]:
    """Return a digest for each plan; plans that a model could not or should not tell apart have the same.

    The same are plans with the same form, where both ways of each relation are known from boxes, and plans with the
    same form of what the tokens alone say.
    """
    leader: dict[bytes, bytes] = {}

    def first_of(mark: bytes) -> bytes:
        while leader.setdefault(mark, mark) != mark:
            mark = leader[mark]
        return mark

    marks = []
    for row in range(len(plans)):
        diagram = plans.diagram(row)
        said = _digest(diagram, both=False)
        marks.append(said)
        if diagram.boxes is not None:
            one, other = sorted((first_of(said), first_of(_digest(diagram, both=True))))
            leader[other] = one
    return [first_of(mark) for mark in marks]


def _digest(diagram: Diagram, *, both: bool) -> bytes:
    form = canonical_form(diagram.types, known_labels(diagram, both=both))
    return blake2b(form, digest_size=16, person=b"both" if both else b"said").digest()
