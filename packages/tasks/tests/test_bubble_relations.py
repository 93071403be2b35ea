from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dither.tasks.bubble_diagram.relations import GRID, NEAR, edges_of, labels_of, nearby
from dither.tasks.bubble_diagram.vocabulary import (
    COLOURS,
    INSIDE,
    NO_EDGE,
    RELATIONS,
    ROOMS,
    SHORT,
    SURROUNDING,
    pair_index,
    pairs,
)

NAME = {name: index for index, name in enumerate(RELATIONS)}


@st.composite
def boxes(draw, largest=12):
    """Small boxes, so that centres often fall on walls."""
    x0, y0 = draw(st.integers(0, largest - 1)), draw(st.integers(0, largest - 1))
    return np.array([x0, y0, draw(st.integers(x0 + 1, largest)), draw(st.integers(y0 + 1, largest))])


def test_vocabulary():
    assert len(ROOMS) == len(SHORT) == len(COLOURS) == 13
    assert len(set(ROOMS)) == len(set(SHORT)) == len(set(COLOURS)) == 13
    assert (len(RELATIONS), RELATIONS[INSIDE], RELATIONS[SURROUNDING], NO_EDGE) == (10, "inside", "surrounding", 10)
    # Graph2Plan orders them so that 9 - r is the opposite.
    opposite = {"left": "right", "above": "below", "inside": "surrounding"}
    opposite |= {b: a for a, b in opposite.items()} | {"of": "of"}
    for r, name in enumerate(RELATIONS):
        assert RELATIONS[9 - r] == "-".join(opposite[word] for word in name.split("-"))


def test_pairs_are_the_upper_triangle():
    assert pairs(4) == [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)]
    for rooms in (2, 5, 8, 14):
        assert [pair_index(i, j, rooms) for i, j in pairs(rooms)] == list(range(rooms * (rooms - 1) // 2))
    for i, j in ((1, 1), (2, 1), (-1, 2), (0, 4)):
        with pytest.raises(ValueError, match="0 <= i < j < 4"):
            pair_index(i, j, 4)


# Position of the first centre relative to the second box (10, 10, 20, 20): the 25 cells in words.
CELLS = {
    "before": {"before": "left-above", "start": "above", "in": "above", "end": "right-above", "behind": "right-above"},
    "start": {"before": "left-above", "start": "left-above", "in": "above", "end": "right-above", "behind": "right-of"},
    "in": {"before": "left-of", "start": "left-of", "in": "inside", "end": "right-of", "behind": "right-of"},
    "end": {"before": "left-of", "start": "left-below", "in": "below", "end": "right-below", "behind": "right-below"},
    "behind": {"before": "left-below", "start": "left-below", "in": "below", "end": "below", "behind": "right-below"},
}
CENTRE = {"before": 5, "start": 10, "in": 15, "end": 20, "behind": 25}


@pytest.mark.parametrize("row", CELLS)
@pytest.mark.parametrize("column", CELLS)
def test_each_cell(row, column):
    x, y = CENTRE[column], CENTRE[row]
    v = np.array([10, 10, 20, 20])
    for half in (3, 4):  # too large to lie within, too small to contain
        u = np.array([x - half, y - 2 * half, x + half, y + 2 * half])
        assert RELATIONS[int(labels_of(u, v))] == CELLS[row][column]


def slow_label(u, v):
    """The reference implementation: comparisons in their published order, in half pixels."""
    ux0, uy0, ux1, uy1 = (2 * int(wall) for wall in u)
    vx0, vy0, vx1, vy1 = (2 * int(wall) for wall in v)
    if ux0 < vx0 and uy0 < vy0 and ux1 > vx1 and uy1 > vy1:
        return "surrounding"
    if ux0 >= vx0 and uy0 >= vy0 and ux1 <= vx1 and uy1 <= vy1:
        return "inside"
    x, y = (ux0 + ux1) // 2, (uy0 + uy1) // 2

    def place(centre, low, high):
        words = {centre < low: "before", centre == low: "start", low < centre < high: "in", centre == high: "end"}
        return words.get(True, "behind")

    return CELLS[place(y, vy0, vy1)][place(x, vx0, vx1)]


@given(boxes(), boxes())
def test_labels_equal_the_reference(u, v):
    assert RELATIONS[int(labels_of(u, v))] == slow_label(u, v)


QUARTER = {
    "left-above": "right-above", "above": "right-of", "right-above": "right-below", "right-of": "below",
    "right-below": "left-below", "below": "left-of", "left-below": "left-above", "left-of": "above",
    "inside": "inside", "surrounding": "surrounding",
}  # fmt: skip


def rotated(box):
    x0, y0, x1, y1 = box
    return np.array([GRID - y1, x0, GRID - y0, x1])


@given(boxes(), boxes())
def test_labels_rotate_with_the_plan(u, v):
    before, after = labels_of(u, v), labels_of(rotated(u), rotated(v))
    assert QUARTER[RELATIONS[int(before)]] == RELATIONS[int(after)]
    assert nearby(u, v) == nearby(rotated(u), rotated(v))


@pytest.mark.parametrize("axis", [0, 1])
def test_nearby_is_nine_pixels_along_both_axes(axis):
    u = np.array([100, 100, 120, 120])
    for gap, near in ((-5, True), (0, True), (NEAR, True), (NEAR + 1, False)):
        for sign in (-1, 1):
            move = np.zeros(4, int)
            move[[axis, axis + 2]] = sign * (20 + gap)
            assert nearby(u, u + move) == near == nearby(u + move, u)
            move[[1 - axis, 3 - axis]] = 20 + NEAR  # a neighbour across the corner counts
            assert nearby(u, u + move) == near


def test_edges_of_a_batch():
    random = np.random.default_rng(0)
    low = random.integers(0, 60, (50, 5, 2))
    plans = np.concatenate([low, low + random.integers(1, 40, (50, 5, 2))], -1)
    edges = edges_of(plans)
    assert edges.shape == (50, 10)
    for plan, row in zip(plans, edges, strict=True):
        for (i, j), label in zip(pairs(5), row, strict=True):
            u, v = plan[i], plan[j]
            gaps = [max(u[a], v[a]) - min(u[a + 2], v[a + 2]) for a in (0, 1)]
            assert label == (NAME[slow_label(u, v)] if max(gaps) <= 9 else NO_EDGE)
    assert len(Counter(edges.ravel().tolist())) == 11, "some relation does not occur in the example"
