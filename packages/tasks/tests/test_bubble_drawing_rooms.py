"""Where rooms stand in pictures, and the words on them."""

import time
from dataclasses import replace
from itertools import combinations
from xml.etree import ElementTree

import numpy as np
import pytest

from dither.tasks.bubble_diagram.data.procedural import make_plans
from dither.tasks.bubble_diagram.decoded_samples import decode_samples
from dither.tasks.bubble_diagram.geometry.layout import preferred_sides
from dither.tasks.bubble_diagram.geometry.placement import Placement, place_diagram, room_names, spread_boxes
from dither.tasks.bubble_diagram.geometry.realisability import is_witness, realise
from dither.tasks.bubble_diagram.geometry.wall_constraints import Canvas, wall_constraints_of
from dither.tasks.bubble_diagram.plans import Diagram, encode
from dither.tasks.bubble_diagram.plots.diagram import Scene, draw_bubbles, draw_diagram, draw_gallery
from dither.tasks.bubble_diagram.plots.floorplan import METRES, draw_floorplan, room_areas
from dither.tasks.bubble_diagram.plots.pictures import to_png
from dither.tasks.bubble_diagram.plots.svg import Line, Page, Rectangle, Text, to_svg
from dither.tasks.bubble_diagram.relations import edges_of
from dither.tasks.bubble_diagram.vocabulary import RELATIONS

BUBBLE = 0.9
"""Width of the line about a name."""


def unplaced(seed, count, most=8, least=0):
    plans = make_plans(seed, 0, count, most)
    found = [replace(plans.diagram(row), boxes=None) for row in range(count)]
    return [diagram for diagram in found if len(diagram.types) >= least]


def wanted(diagram):
    return encode(diagram, len(diagram.types))[len(diagram.types) :]


def spoiled(diagram, random):
    """A diagram with three relations changed."""
    edges = list(diagram.edges)
    for place in random.choice(len(edges), 3, replace=False):
        i, j, relation = edges[place]
        edges[place] = (i, j, int((relation + random.integers(1, 10)) % 10))
    return replace(diagram, edges=tuple(edges))


def hopeless(random, rooms):
    """Any relations at all, mostly one room about another, so that rooms hide each other."""
    edges = [(i, j, int(random.choice([4, 5, random.integers(10)]))) for i, j in combinations(range(rooms), 2)]
    return Diagram(tuple(random.integers(0, 13, rooms).tolist()), tuple(edges))


@pytest.mark.parametrize(("most", "least"), [(8, 0), (14, 10)])
def test_boxes_of_a_picture_prove_the_diagram(most, least):
    diagrams = unplaced(21, 40, most, least)
    assert len(diagrams) > 5
    for diagram in diagrams:
        placed = place_diagram(diagram)
        assert (edges_of(placed.boxes) == wanted(diagram)).all()
        assert is_witness(placed.boxes, wall_constraints_of(wanted(diagram), len(diagram.types)), Canvas())
        assert placed.exact
        assert placed.boxes[:, :2].min(0).tolist() == [0, 0]


def test_a_witness_is_spread_towards_the_sizes_that_rooms_like():
    before, after = [], []
    for diagram in unplaced(22, 25):
        rooms = len(diagram.types)
        witness = realise(wanted(diagram), rooms).boxes
        boxes = spread_boxes(diagram, witness)
        assert is_witness(boxes, wall_constraints_of(wanted(diagram), rooms), Canvas())
        liked = preferred_sides(diagram.types).prod(1)
        for found, ratios in ((witness, before), (boxes, after)):
            ratios.extend(np.abs(np.log((found[:, 2:] - found[:, :2]).prod(1) / liked)).tolist())
    assert np.median(after) < 0.2
    assert np.mean(after) < 0.3 * np.mean(before)


def test_any_witness_can_be_spread():
    """Boxes anywhere, upon each other: what the rooms would like breaks the diagram, if nothing demands it."""
    random = np.random.default_rng(5)
    for _ in range(60):
        rooms = int(random.integers(4, 9))
        low = random.integers(0, 200, (rooms, 2))
        witness = np.concatenate([low, np.minimum(low + random.integers(12, 120, (rooms, 2)), 256)], 1)
        diagram = replace(Diagram.from_boxes(tuple(random.integers(0, 13, rooms).tolist()), witness), boxes=None)
        boxes = spread_boxes(diagram, witness)
        assert is_witness(boxes, wall_constraints_of(wanted(diagram), rooms), Canvas())
        assert (boxes != witness).any()


def test_what_is_no_witness_is_not_spread():
    (diagram,) = unplaced(23, 1)
    boxes = realise(wanted(diagram), len(diagram.types)).boxes
    with pytest.raises(ValueError, match="no witness"):
        spread_boxes(diagram, boxes[::-1])


def test_a_witness_that_is_given_serves_without_a_search():
    """Rows of plans whose well placed rooms break a relation, so that only the witness shows them."""
    random, served, grown = np.random.default_rng(0), 0, 0
    for diagram in unplaced(6, 120):
        changed = replace(diagram, edges=spoiled(diagram, random).edges[:1] + diagram.edges[1:])
        witness = realise(wanted(changed), len(changed.types)).boxes
        if witness is not None and not place_diagram(changed, search=False).exact:
            assert place_diagram(changed, witness, search=False).exact
            assert place_diagram(changed).exact
            (exhibit,) = decode_samples(encode(changed, 8)[None], 8)
            assert exhibit.level == 4
            assert exhibit.arrangement.exact
            boxes = spread_boxes(changed, witness)
            area, tight = ((some[:, 2:] - some[:, :2]).prod(1).sum() for some in (boxes, witness))
            grown += bool(area > 2 * tight)
            served += 1
    assert served
    assert grown == served, "a witness that is kept as it is, is tight"


def test_boxes_that_relate_more_than_the_diagram_are_no_proof():
    boxes = np.array([(0, 0, 30, 30), (34, 0, 64, 30), (68, 0, 98, 30)])
    left = RELATIONS.index("left-of")
    assert Placement.of(Diagram((0, 1, 2), ((0, 1, left), (1, 2, left))), boxes).exact
    placed = Placement.of(Diagram((0, 1, 2), ((0, 1, left),)), boxes)
    assert placed.holds == (True,)
    assert placed.extra_names() == ["Master and Kitchen"]
    assert not placed.exact


def extents(page):
    """Corners of the names in a picture."""
    found = [s for s in page.shapes if isinstance(s, Rectangle) and s.fill == "#ffffff" and s.stroke_width == BUBBLE]
    return [(s.x, s.y, s.x + s.width, s.y + s.height) for s in found]


def words(page):
    """Corners of all text of a picture, as wide as it is and as high as its size."""
    for text in page.shapes:
        if isinstance(text, Text):
            wide, high = (text.size, text.width) if text.upright else (text.width, text.size)
            x = text.x if text.left else text.x - wide / 2
            yield text.text, (x, text.y - high / 2, x + wide, text.y + high / 2)


def overlap(a, b):
    return min(a[2], b[2]) - max(a[0], b[0]) > 1e-6 and min(a[3], b[3]) - max(a[1], b[1]) > 1e-6


def awkward():
    random = np.random.default_rng(3)
    good = unplaced(4, 20) + unplaced(5, 60, 14, 11)
    return [
        *good,
        *(spoiled(one, random) for one in good),
        *(hopeless(random, rooms) for rooms in (1, 2, 5, 9, 14) * 3),
    ]


@pytest.mark.parametrize("size", [130, 230, 420])
def test_names_do_not_overlap_and_stay_in_the_picture(size):
    for diagram in awkward():
        placed = place_diagram(diagram, search=False)
        page = Page(size, size, tuple(draw_bubbles(Scene(placed, 6, 6, size - 12, size - 12), tags=size > 200)))
        names = extents(page)
        assert len(names) == len(diagram.types)
        for corners in names:
            assert min(corners) >= 6 - 1e-6
            assert max(corners) <= size - 6 + 1e-6
        for a, b in combinations(names, 2):
            assert not overlap(a, b), room_names(diagram)
        text = list(words(page))
        assert sorted(said for said, _ in text if len(said) > 2) == sorted(room_names(diagram))
        for (_, a), (_, b) in combinations(text, 2):
            assert not overlap(a, b), "letters on a line stand on other words"


def test_words_of_floor_plans_do_not_overlap_and_stay_in_the_picture():
    for diagram in awkward():
        page = draw_floorplan(place_diagram(diagram, search=False), size=300)
        text = list(words(page))
        for said, corners in text:
            assert min(corners) >= 0, said
            assert max(corners) <= 300, said
        for (one, a), (other, b) in combinations(text, 2):
            assert not overlap(a, b), f"{one!r} stands on {other!r}"


def test_names_stand_on_their_rooms():
    for diagram in unplaced(4, 40):
        scene = Scene(place_diagram(diagram), 0, 0, 420, 420)
        for room, label in enumerate(scene.write()):
            assert label.spot is None, "there is room for every name"
            over = [k for k, (x0, y0, x1, y1) in enumerate(scene.boxes) if x0 < label.x < x1 and y0 < label.y < y1]
            assert max(over, key=scene.order.index) == room


def test_a_name_without_a_place_has_a_line_to_its_room():
    """The second room hides the first."""
    boxes = np.array([(10, 10, 40, 40), (0, 0, 60, 60), (0, 70, 60, 130)])
    scene = Scene(Placement.of(Diagram((0, 1, 2), ()), boxes), 0, 0, 300, 300)
    scene.order = [0, 1, 2]
    scene.surface = type(scene.surface)(300, 300, scene.boxes, scene.order)
    hidden = scene.write()[0]
    assert hidden.spot is not None
    x0, y0, x1, y1 = scene.boxes[0]
    assert hidden.spot == ((x0 + x1) / 2, (y0 + y1) / 2)
    assert scene.anchor(0) == hidden.spot


def test_every_room_is_drawn_once():
    for diagram in awkward()[::5]:
        placed = place_diagram(diagram, search=False)
        for page in (draw_diagram(diagram, arrangement=placed), draw_floorplan(placed)):
            root = ElementTree.fromstring(to_svg(page))
            titles = [one.text for one in root.iter("{http://www.w3.org/2000/svg}title")]
            names = room_names(diagram)
            assert sorted(one for one in titles if one in names) == sorted(names)


def test_letters_on_a_line_say_its_relation():
    boxes = [(0, 0, 90, 60), (94, 0, 200, 60), (0, 64, 60, 120)]
    page = draw_diagram(Diagram.from_boxes((0, 1, 2), boxes))
    letters = [text for text in page.shapes if isinstance(text, Text) and len(text.text) < 3]
    assert sorted(text.text for text in letters) == ["A", "L"]
    lines = {line.title: line for line in page.shapes if isinstance(line, Line)}
    assert set(lines) == {"Living left of Master", "Living above Kitchen"}
    between = lines["Living left of Master"]
    (left,) = (text for text in letters if text.text == "L")
    assert between.x0 < left.x < between.x1
    dots = [s for s in page.shapes if isinstance(s, Rectangle) and s.width == pytest.approx(4.4)]
    assert len(dots) == 2
    assert all(abs(dot.x - between.x0) < 80 for dot in dots), "the dots are at the living room"


def test_areas_are_what_shows_of_the_rooms():
    boxes = np.array([(0, 0, 100, 100), (90, 90, 120, 120), (10, 10, 30, 40)])
    areas = room_areas(boxes, [0, 1, 2])
    assert areas == pytest.approx(np.array([10000 - 100 - 600, 900, 600]) * METRES**2)
    assert pytest.approx(18**2) == room_areas(np.array([(0, 0, 256, 256)]), [0])[0]
    page = draw_floorplan(Placement.of(Diagram((0, 1, 2), ()), boxes))
    text = [said for said, _ in words(page)]
    assert {"Living", "46.0 m²", "4.4 m²", "3.0 m²"} <= set(text)
    assert any("53 m² in 3 rooms" in said for said in text)


def test_the_bar_of_a_floor_plan_is_as_long_as_it_says():
    placed = Placement.of(Diagram((0, 1), ()), np.array([(0, 0, 128, 128), (140, 0, 256, 128)]))
    page = draw_floorplan(placed, size=400)
    floor = next(s for s in page.shapes if isinstance(s, Rectangle) and s.title == "Living")
    bar = next(s for s in page.shapes if isinstance(s, Line) and s.y0 == s.y1)
    metres = int(next(said for said, _ in words(page) if "·" in said).split()[0])
    assert (bar.x1 - bar.x0) / metres == pytest.approx(floor.width / 9)


def test_many_diagrams_take_seconds():
    random = np.random.default_rng(1)
    diagrams = [spoiled(one, random) if place % 2 else one for place, one in enumerate(unplaced(9, 64))]
    start = time.process_time()
    to_png(draw_gallery(diagrams, arrangements=[place_diagram(one, search=False) for one in diagrams]))
    assert time.process_time() - start < 10, "about 2.5 s on an idle core"
