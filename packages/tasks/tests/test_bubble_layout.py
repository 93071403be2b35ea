"""Layout of room boxes, and realisations spread to the preferred sizes."""

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest

from dither.tasks.bubble_diagram.geometry.placement import (
    _SIDES,
    place_diagram,
    place_rooms,
    spread_boxes,
)
from dither.tasks.bubble_diagram.geometry.realisability import realise, realises
from dither.tasks.bubble_diagram.plans import Diagram, encode
from dither.tasks.bubble_diagram.relations import edges_of, exclusive, overlapping
from dither.tasks.bubble_diagram.vocabulary import RELATIONS

ABOVE, BELOW, LEFT = (RELATIONS.index(name) for name in ("above", "below", "left-of"))


def relations(diagram):
    return encode(diagram, len(diagram.types))[len(diagram.types) :]


def is_realised(diagram, boxes):
    return realises(boxes, relations(diagram))


@pytest.mark.parametrize("relation", range(10))
def test_two_rooms_have_their_relation(relation):
    u, v = place_rooms(Diagram((0, 2), ((0, 1, relation),)))
    assert edges_of(np.stack([u, v])).tolist() == [relation]
    centre = (u + u[[2, 3, 0, 1]] - v - v[[2, 3, 0, 1]]) / 2
    for word, axis, sign in (("left", 0, -1), ("right", 0, 1), ("above", 1, -1), ("below", 1, 1)):
        assert (word in RELATIONS[relation]) <= (sign * centre[axis] > 0), word


def test_layout_reproduces_the_relations_of_plans(make_diagrams):
    exact = 0
    for diagram in make_diagrams(100, 11, boxes=False):
        boxes = place_rooms(diagram)
        assert boxes[:, :2].min(0).tolist() == [0, 0]
        assert (boxes[:, 2:] > boxes[:, :2]).all()
        exact += bool((edges_of(boxes) == relations(diagram)).all())
    assert exact >= 98


# The first needs another side for rooms that are not separated on their first one; in the others a room whose centre is
# inside the next must not surround it, and the wall that gives way must be the nearest.
HARD = [
    ((1, 6, 3, 0, 2), "01L 02B 03L 13I 23LA 24L 34B"),
    ((0, 1, 7, 3, 2), "01I 02RB 03LB 04B 24L 34R"),
    ((3, 2, 0, 1, 3), "01L 02B 03R 04B 12B 14RB 23RA 24A 34LB"),
]
TAGS = {"LA": 0, "LB": 1, "L": 2, "A": 3, "I": 4, "B": 6, "R": 7, "RA": 8, "RB": 9}


@pytest.mark.parametrize(("types", "edges"), HARD)
def test_plans_that_need_several_rounds(types, edges):
    diagram = Diagram(types, tuple((int(edge[0]), int(edge[1]), TAGS[edge[2:]]) for edge in edges.split()))
    assert (edges_of(place_rooms(diagram)) == relations(diagram)).all()


def test_contradictory_relations_have_a_layout():
    cycle = Diagram((0, 1, 2), ((0, 1, ABOVE), (0, 2, BELOW), (1, 2, ABOVE)))
    assert (edges_of(place_rooms(cycle)) == [ABOVE, BELOW, ABOVE]).sum() == 2, "as many relations as possible hold"
    random = np.random.default_rng(0)
    for rooms in (1, 2, 5, 9):
        edges = [(i, j, int(random.integers(10))) for i, j in combinations(range(rooms), 2)]
        boxes = place_rooms(Diagram(tuple(random.integers(0, 13, rooms).tolist()), tuple(edges)))
        assert (boxes[:, 2:] > boxes[:, :2]).all()
    assert (place_rooms(cycle) == place_rooms(cycle)).all()


def test_placement_realises_plans(make_diagrams):
    for diagram in [*make_diagrams(15, 21, boxes=False), *make_diagrams(15, 21, most=14, boxes=False)]:
        placement = place_diagram(diagram)
        assert is_realised(diagram, placement.boxes)
        assert placement.exact
        assert not (overlapping(placement.boxes) & exclusive(np.array(diagram.types))).any()
        assert placement.boxes[:, :2].min(0).tolist() == [0, 0]


def test_realisations_are_spread_to_preferred_sizes(make_diagrams):
    before, after = [], []
    for diagram in make_diagrams(25, 22, boxes=False):
        exclude = exclusive(np.array(diagram.types))
        tight = realise(relations(diagram), len(diagram.types), disjoint=exclude).boxes
        boxes = spread_boxes(diagram, tight)
        assert is_realised(diagram, boxes)
        assert not (overlapping(boxes) & exclude).any()
        preferred = _SIDES[[*diagram.types]] ** 2
        for some, ratios in ((tight, before), (boxes, after)):
            ratios.extend(np.abs(np.log((some[:, 2:] - some[:, :2]).prod(1) / preferred)).tolist())
    assert np.median(after) < 0.2
    assert np.mean(after) < 0.3 * np.mean(before)


def test_any_realisation_can_be_spread():
    """Random overlapping boxes, whose diagrams the preferred sizes would break if their bounds were not hard."""
    random = np.random.default_rng(5)
    for _ in range(30):
        rooms = int(random.integers(4, 9))
        low = random.integers(0, 200, (rooms, 2))
        boxes = np.concatenate([low, np.minimum(low + random.integers(12, 120, (rooms, 2)), 256)], 1)
        diagram = replace(Diagram.from_boxes(tuple(random.integers(0, 13, rooms).tolist()), boxes), boxes=None)
        spread = spread_boxes(diagram, boxes)
        assert is_realised(diagram, spread)
        assert (spread != boxes).any()
    with pytest.raises(ValueError, match="realise"):
        spread_boxes(diagram, boxes[::-1])
