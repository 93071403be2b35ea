"""Layouts close their gaps and are dwellings where they can be."""

from dataclasses import replace

import numpy as np
import pytest

from dither.tasks.bubble_diagram.data.procedural import make_plans
from dither.tasks.bubble_diagram.geometry.compactness import compactness
from dither.tasks.bubble_diagram.geometry.floor_plan import access_tree, floor_plan
from dither.tasks.bubble_diagram.geometry.placement import (
    dwelling_problems,
    place_diagram,
)
from dither.tasks.bubble_diagram.plans import Diagram, decode
from dither.tasks.bubble_diagram.validity import validity_levels
from dither.tasks.bubble_diagram.vocabulary import METRES, ROOM_IDS

LIVING, MASTER, KITCHEN, BATH = (
    ROOM_IDS[name] for name in ("LivingRoom", "MasterRoom", "Kitchen", "Bathroom")
)


def test_compactness_counts_slits_and_corners():
    boxes = np.array([(0, 0, 60, 60), (64, 0, 120, 60)])
    assert compactness((LIVING, KITCHEN), boxes) == (1.0, 4)
    # A slit of 16 pixels makes two parts, a shorter room an L-shape.
    fill, corners = compactness(
        (LIVING, KITCHEN), np.add(boxes, [[0] * 4, [12, 0, 12, 0]])
    )
    assert (fill, corners) == (pytest.approx(116 / 132), 8)
    assert compactness((LIVING, KITCHEN), boxes - [[0] * 4, [0, 0, 0, 20]])[1] == 6


@pytest.mark.slow
def test_layouts_are_compact_dwellings(make_diagrams):
    fills = []
    dwellings = 0
    for diagram in make_diagrams(6, 22, boxes=False):
        placed = place_diagram(replace(diagram, doors=None))
        assert placed.exact
        fills.append(compactness(diagram.types, placed.boxes)[0])
        dwellings += not list(dwelling_problems(placed))
    assert dwellings >= 4
    assert np.median(fills) > 0.95


def test_given_doors_and_areas_hold_in_the_layout():
    # The kitchen is diagonal to the bathroom, with a door between the two.
    boxes = [(0, 50, 60, 110), (64, 50, 110, 110), (50, 0, 100, 46)]
    diagram = Diagram.from_boxes((LIVING, KITCHEN, BATH), boxes)
    areas = ((20.0, 30.0), (8.0, 10.0), (4.0, 6.0))
    asked = replace(diagram, boxes=None, areas=areas, doors=((0, 1), (1, 2), (0, None)))
    placed = place_diagram(asked)
    assert placed.exact
    plan = floor_plan(asked.types, placed.boxes, None, asked.doors)
    assert {(0, 1), (1, 2)} <= plan.shared_walls(0.85 / METRES, 6)
    for area, (low, high) in zip(plan.room_areas() * METRES**2, areas, strict=True):
        assert low <= area <= high


def test_rooms_are_reached_through_public_ones():
    types = (LIVING, MASTER, BATH, KITCHEN)
    weights = {(0, 1): 1.0, (1, 2): 3.0, (0, 3): 1.0, (2, 3): 5.0}
    assert access_tree(types, weights) == [(0, 1), (0, 3), (2, 3)]
    # Unless that costs more than a bedroom
    weights[2, 3] = 60.0
    assert access_tree(types, weights) == [(0, 1), (0, 3), (1, 2)]


def test_a_short_wall_has_room_for_the_front_door_and_a_window():
    rooms = np.array(
        [(34, 0, 72, 80), (0, 0, 30, 80), (76, 0, 110, 80), (34, 84, 72, 120)]
    )
    plan = floor_plan((LIVING, MASTER, MASTER, BATH), rooms)
    (door,) = [door for door in plan.doors if door.j is None]
    windows = [window for window in plan.windows if window.room == 0]
    (window,) = windows
    ends = sorted([(door.x, 6), (window.x, window.length / 2)])
    (first, half), (second, other_half) = ends
    assert first - half >= 34
    assert first + half < second - other_half
    assert second + other_half <= 72


@pytest.mark.slow
def test_rooms_that_are_far_from_the_living_room_reach_it():
    """Diagrams whose boxes of preferred sizes lead to no dwelling; a larger living room does."""
    tokens = make_plans(9, 0, 206).tokens(8)[[74, 117, 121, 178, 205]]
    dwellings = 0
    for row, proof in zip(tokens, validity_levels(tokens, 8).boxes, strict=True):
        diagram = replace(decode(row, 8), doors=None)
        rooms = len(diagram.types)
        placed = place_diagram(diagram, proof[:rooms].astype(np.int64), search=False)
        assert placed.exact
        dwellings += not list(dwelling_problems(placed))
    assert dwellings >= 4
