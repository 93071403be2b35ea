"""Graph edit distance of two graphs of the same rooms, the compatibility of HouseGAN.

Letters: R rooms.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from jaxtyping import Bool
from numpy import ndarray

EXACT_ROOMS = 8
"""Rooms up to which every assignment may be tried, at most 109,600."""

STEPS = 10_000
"""Assignments that are tried for more rooms: .05 s at most. Ten times as many take .3 s, and lower
the mean of 47 samples of 9 to 14 rooms from 9.11 to 9.06."""

_Near = Bool[ndarray, "R R"]


def graph_edit_distance(types: Sequence[int], first: _Near, second: _Near) -> int:
    """Return the fewest changes of types and edges that turn a graph into another one.

    It is exact for up to `EXACT_ROOMS`, and an upper bound for more if `STEPS` do not do. Deleting a
    room and inserting another costs at least as much as changing its type and its edges, so that
    the distance is the least cost of an assignment of rooms to rooms, found by branch and bound.

    Args:
        types: Types of the rooms of both graphs.
        first: Symmetric adjacency of the rooms; False on the diagonal.
        second: That of the other graph.
    """
    rooms = len(types)
    ours = first.tolist()
    theirs = second.tolist()
    edges = int(second.sum()) // 2
    # For each room: edges of the first graph that end there or at a later room.
    open_edges = []
    for room in range(rooms + 1):
        closed = first[:room, :room].sum()
        open_edges.append(int(first.sum() - closed) // 2)
    # An upper bound: every room is its own image.
    best = int((first != second).sum()) // 2
    steps_left = math.inf if rooms <= EXACT_ROOMS else STEPS

    def assign(images: list[int], cost: int, joined: int) -> None:
        """Assign the next room, given the cost of those before and the edges between their images."""
        nonlocal best, steps_left
        room = len(images)
        # Of the edges that are left, at least as many change as their numbers differ by.
        bound = cost + abs(open_edges[room] - (edges - joined))
        if bound >= best or steps_left <= 0:
            return
        if room == rooms:
            best = cost
            return
        # Itself first, which is mostly the best one.
        for image in (room, *range(room), *range(room + 1, rooms)):
            if image in images:
                continue
            steps_left -= 1
            row = theirs[image]
            near = [row[other] for other in images]
            changed = sum(map(int.__ne__, ours[room], near))
            retyped = types[room] != types[image]
            total = cost + changed + retyped
            assign([*images, image], total, joined + sum(near))

    assign([], 0, 0)
    return best
