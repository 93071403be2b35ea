"""Layout of rooms, realisations, and pictures of diagrams, floor plans and trajectories."""

import re
from dataclasses import replace
from io import BytesIO
from itertools import combinations
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image, ImageColor

from dither.tasks.bubble_diagram.data.procedural import make_plans
from dither.tasks.bubble_diagram.decoded_samples import decode_samples
from dither.tasks.bubble_diagram.geometry.floor_plan import floor_plan
from dither.tasks.bubble_diagram.geometry.placement import (
    PREFERRED_SIDES,
    Placement,
    place_diagram,
    place_rooms,
    spread_boxes,
)
from dither.tasks.bubble_diagram.geometry.realisability import realise, realises
from dither.tasks.bubble_diagram.plans import Diagram, decode, encode, room_names
from dither.tasks.bubble_diagram.plots.diagram import (
    METRES,
    Rectangle,
    Scene,
    draw_bubbles,
    draw_floorplan,
    draw_gallery,
)
from dither.tasks.bubble_diagram.plots.pictures import (
    draw_frames,
    draw_html_gallery,
    trajectory_pictures,
)
from dither.tasks.bubble_diagram.plots.svg import Page, to_pngs, to_svg
from dither.tasks.bubble_diagram.relations import edges_of, exclusive, overlapping
from dither.tasks.bubble_diagram.vocabulary import (
    COLOURS,
    EDGE_MASK,
    EDGE_PAD,
    NODE_MASK,
    NODE_PAD,
    RELATIONS,
    ROOM_IDS,
    ROOMS,
)

ABOVE, BELOW, LEFT = (RELATIONS.index(name) for name in ("above", "below", "left-of"))


CYCLE = Diagram((0, 1, 2), ((0, 1, ABOVE), (0, 2, BELOW), (1, 2, ABOVE)))


def relations(diagram):
    return encode(diagram, len(diagram.types))[len(diagram.types) :]


def test_layout_reproduces_the_relations_of_plans(make_diagrams):
    exact = 0
    for diagram in make_diagrams(40, 11, boxes=False):
        boxes = place_rooms(diagram)
        assert boxes[:, :2].min(0).tolist() == [0, 0]
        assert (boxes[:, 2:] > boxes[:, :2]).all()
        exact += bool((edges_of(boxes) == relations(diagram)).all())
    assert exact >= 39


# The first needs another side for rooms that are not separated on their first one; in the others a room whose centre is
# inside the next must not surround it, and the wall that gives way must be the nearest.
HARD = [
    ((1, 6, 3, 0, 2), "01L 02B 03L 13I 23LA 24L 34B"),
    ((0, 1, 7, 3, 2), "01I 02RB 03LB 04B 24L 34R"),
    ((3, 2, 0, 1, 3), "01L 02B 03R 04B 12B 14RB 23RA 24A 34LB"),
]
TAGS = {"LA": 0, "LB": 1, "L": 2, "A": 3, "I": 4, "B": 6, "R": 7, "RA": 8, "RB": 9}


def test_plans_that_need_several_rounds():
    for types, edges in HARD:
        diagram = Diagram(
            types,
            tuple(
                (int(edge[0]), int(edge[1]), TAGS[edge[2:]]) for edge in edges.split()
            ),
        )
        assert (edges_of(place_rooms(diagram)) == relations(diagram)).all()


def test_contradictory_relations_have_a_layout():
    assert (edges_of(place_rooms(CYCLE)) == [ABOVE, BELOW, ABOVE]).sum() == 2, (
        "as many relations as possible hold"
    )
    assert (place_rooms(CYCLE) == place_rooms(CYCLE)).all()
    random = np.random.default_rng(0)
    for rooms in (1, 2, 5, 9):
        edges = [
            (i, j, int(random.integers(10))) for i, j in combinations(range(rooms), 2)
        ]
        boxes = place_rooms(
            Diagram(tuple(random.integers(0, 13, rooms).tolist()), tuple(edges))
        )
        assert (boxes[:, 2:] > boxes[:, :2]).all()


def test_realisations_are_spread_to_preferred_sizes(make_diagrams):
    before, after = [], []
    for diagram in make_diagrams(10, 22, boxes=False):
        exclude = exclusive(np.array(diagram.types))
        tight = realise(relations(diagram), len(diagram.types), disjoint=exclude).boxes
        boxes = spread_boxes(diagram, tight)
        assert realises(boxes, relations(diagram))
        assert not (overlapping(boxes) & exclude).any()
        preferred = PREFERRED_SIDES[[*diagram.types]] ** 2
        for some, ratios in ((tight, before), (boxes, after)):
            ratios.extend(
                np.abs(np.log((some[:, 2:] - some[:, :2]).prod(1) / preferred)).tolist()
            )
    assert np.median(after) < 0.2
    assert np.mean(after) < 0.3 * np.mean(before)


def test_any_realisation_can_be_spread():
    """Random overlapping boxes, whose diagrams the preferred sizes would break if their bounds were not hard."""
    random = np.random.default_rng(5)
    for _ in range(12):
        rooms = int(random.integers(4, 9))
        low = random.integers(0, 200, (rooms, 2))
        boxes = np.concatenate(
            [low, np.minimum(low + random.integers(12, 120, (rooms, 2)), 256)], 1
        )
        diagram = replace(
            Diagram.from_boxes(tuple(random.integers(0, 13, rooms).tolist()), boxes),
            boxes=None,
        )
        spread = spread_boxes(diagram, boxes)
        assert realises(spread, relations(diagram))
        assert (spread != boxes).any()
    with pytest.raises(ValueError, match="realise"):
        spread_boxes(diagram, boxes[::-1])


SVG = "{http://www.w3.org/2000/svg}"
BROKEN = "#c8443c"
GREY = "#c9ced6"
IS_NODE = np.arange(36) < 8


ROUNDED = 0.11
"""Lengths in SVG are multiples of 0.1, so differences of two are off by up to this."""


def shapes(page, kind):
    return [*ElementTree.fromstring(to_svg(page)).iter(SVG + kind)]


def rooms_of(page):
    return [
        one
        for one in shapes(page, "rect")
        if one.get("fill") in COLOURS and one.get("stroke-width") == "1.3"
    ]


def labels_of(page):
    return [
        one
        for one in shapes(page, "rect")
        if one.get("fill") == "#ffffff" and one.get("stroke-width") == "0.9"
    ]


def corners(shape):
    """Bounding box of a rectangle or a text."""
    x, y = (float(shape.get(key)) for key in "xy")
    if shape.tag == SVG + "rect":
        return x, y, x + float(shape.get("width")), y + float(shape.get("height"))
    long, size = float(shape.get("textLength")), float(shape.get("font-size"))
    width, height = (size, long) if shape.get("transform") else (long, size)
    x = x - width / 2 if shape.get("text-anchor") == "middle" else x
    return x, y - height / 2, x + width, y + height / 2


def assert_disjoint(shapes):
    for (one, a), (other, b) in combinations(
        ((shape, corners(shape)) for shape in shapes), 2
    ):
        overlap = (
            min(a[2], b[2]) - max(a[0], b[0]) > ROUNDED
            and min(a[3], b[3]) - max(a[1], b[1]) > ROUNDED
        )
        assert not overlap, f"{one.attrib} overlaps {other.attrib}"


def test_gallery_has_rooms_links_names_captions_and_legend():
    diagram = Diagram.from_boxes(
        (0, 7, 7, 3),
        [
            (50, 50, 110, 120),
            (114, 50, 160, 90),
            (50, 124, 90, 170),
            (200, 200, 230, 240),
        ],
    )
    page = draw_gallery([place_diagram(diagram), place_diagram(CYCLE)])
    rooms, labels = rooms_of(page), labels_of(page)
    assert len(rooms) == len(labels) == 7
    texts = [text.text for text in shapes(page, "text")]
    assert room_names(diagram) == ["Living", "Second 1", "Second 2", "Bath"]
    assert {
        *room_names(diagram),
        "LivingRoom",
        "SecondRoom",
        "Bathroom",
        "MasterRoom",
    } <= set(texts)
    lines = {line.findtext(SVG + "title"): line for line in shapes(page, "line")}
    assert {"Living left of Second 1", "Living above Second 2"} <= set(lines)
    dashed = [
        line.get("stroke") for line in lines.values() if line.get("stroke-dasharray")
    ]
    assert dashed == [BROKEN], "violated relations are dashed red"
    red = [text.text for text in shapes(page, "text") if text.get("fill") == BROKEN]
    assert red == ["3 rooms, 3 relations, 1 violated"]
    by_colour = {room.get("fill"): corners(room) for room in rooms[:4]}
    living, bath = by_colour[COLOURS[0]], by_colour[COLOURS[3]]
    scale = (living[2] - living[0]) / 60
    assert np.subtract(bath, living)[:2] == pytest.approx(150 * scale, abs=0.5)


def spoiled(diagram, random):
    edges = list(diagram.edges)
    for index in random.choice(len(edges), 3, replace=False):
        i, j, relation = edges[index]
        edges[index] = (i, j, int((relation + random.integers(1, 10)) % 10))
    return replace(diagram, edges=tuple(edges))


@pytest.fixture(scope="module")
def difficult(make_diagrams):
    """Placements with many rooms, with violated relations, and with rooms that hide each other."""
    random = np.random.default_rng(3)
    large = [
        diagram
        for diagram in make_diagrams(10, 5, most=14, boxes=False)
        if len(diagram.types) > 10
    ]
    diagrams = make_diagrams(4, 4, boxes=False) + large
    diagrams += [spoiled(diagram, random) for diagram in diagrams[::3]]
    for rooms in (1, 2, 5, 9, 14):
        edges = [
            (i, j, int(random.choice([4, 5, random.integers(10)])))
            for i, j in combinations(range(rooms), 2)
        ]
        diagrams.append(
            Diagram(tuple(random.integers(0, 13, rooms).tolist()), tuple(edges))
        )
    return [place_diagram(diagram, search=False) for diagram in diagrams]


@pytest.mark.slow
@pytest.mark.parametrize("size", [130, 420])
def test_labels_are_disjoint_and_inside(difficult, size):
    for placement in difficult:
        scene = Scene(placement, Rectangle(6, 6, size - 12, size - 12))
        page = Page(size, size, tuple(draw_bubbles(scene)))
        labels, names = labels_of(page), room_names(placement.diagram)
        assert len(labels) == len(names)
        assert_disjoint(labels)
        for label in labels:
            assert min(corners(label)) >= 6 - ROUNDED
            assert max(corners(label)) <= size - 6 + ROUNDED
        texts = shapes(page, "text")
        assert sorted(text.text for text in texts) == sorted(names)
        assert_disjoint(texts)


@pytest.mark.slow
def test_names_are_on_the_visible_part_of_their_rooms(make_diagrams):
    for diagram in make_diagrams(12, 4, boxes=False):
        scene = Scene(place_diagram(diagram), Rectangle(0, 0, 420, 420))
        for room, label in enumerate(scene.label_rooms()):
            assert label.spot is None
            over = [
                k
                for k, (x0, y0, x1, y1) in enumerate(scene.boxes)
                if x0 < label.x < x1 and y0 < label.y < y1
            ]
            assert max(over, key=scene.order.index) == room


def test_areas_are_those_of_the_visible_parts():
    boxes = np.array([(0, 0, 100, 100), (90, 90, 120, 120), (10, 10, 30, 40)])
    plan = floor_plan((0, 1, 2), boxes)
    areas = np.bincount(plan.label[plan.label >= 0]) * METRES**2
    texts = [
        text.text
        for text in shapes(
            draw_floorplan(Placement.of(Diagram((0, 1, 2), ()), boxes)), "text"
        )
    ]
    assert {"Living", *(f"{area:.1f} m²" for area in areas)} <= set(texts)
    assert areas[1:] == pytest.approx(np.array([900, 600]) * METRES**2)
    assert (
        (10000 - 34 * 44 - 14 * 14) * METRES**2
        <= areas[0]
        <= (10000 - 100 - 600) * METRES**2
    ), "less walls"
    assert any(f"{areas.sum():.0f} m² in 3 rooms" in text for text in texts)


@pytest.mark.parametrize("far", [104, 140])
def test_floor_plans_show_possible_doors_and_whole_walls(far):
    boxes = np.array([(0, 0, 100, 30), (far, 0, far + 40, 30)])
    page = draw_floorplan(
        Placement.of(Diagram((0, 1), (), doors=((0, 1), (0, None))), boxes)
    )
    arcs = [path.get("d") for path in shapes(page, "path") if "A" in path.get("d")]
    caption = " ".join(text.text for text in shapes(page, "text"))
    assert len(arcs) == (2 if far == 104 else 1)
    assert ("no wall for 1 door" in caption) == (far == 140)
    walls = max(float(path.get("stroke-width")) for path in shapes(page, "path"))
    points = np.array(
        re.findall(
            r"([\d.]+),([\d.]+)", "".join(p.get("d") for p in shapes(page, "path"))
        ),
        float,
    )
    assert points.min() > walls / 2
    assert (points.max(0) < [page.width - walls / 2, page.height - walls / 2]).all()
    assert page.height < 0.6 * page.width, "as large as the plan"


@pytest.mark.parametrize("gap", range(6))
def test_there_is_a_wall_between_rooms_however_thin(gap):
    boxes = [(0, 0, 60, 60), (60 + gap, 0, 120 + gap, 60)]
    plan = place_diagram(Diagram.from_boxes((1, 2), boxes))
    (image,) = to_pngs([draw_floorplan(plan)])
    pixels = np.asarray(Image.open(BytesIO(image)).convert("L"))
    # Above the door, whose gap is white.
    row = pixels[len(pixels) * 3 // 10]
    middle = row[len(row) // 2 - 10 : len(row) // 2 + 10]
    assert (middle < 100).sum() >= 8


@pytest.fixture(scope="module")
def samples():
    """Return six samples: valid, without living room, with a cycle, with MASK, empty, valid."""
    tokens = make_plans(3, 0, 6).tokens(8)
    tokens[1, :8][tokens[1, :8] == 0] = ROOM_IDS["StudyRoom"]
    tokens[2], tokens[3, 0] = encode(CYCLE, 8), NODE_MASK
    tokens[4] = np.where(np.arange(36) < 8, NODE_PAD, 12)
    return tokens


def test_verdicts_of_samples(samples):
    decoded = list(decode_samples(samples, 8))
    assert [sample.verdict for sample in decoded] == [
        "L6 dwelling", "L0 tokens", "L1 program", "unreadable", "unreadable", "L6 dwelling",
    ]  # fmt: skip
    assert decoded[0].placement.exact
    assert decoded[2].placement.broken == 1
    assert decoded[3].placement is None
    assert len(decoded[3].errors) == 1
    assert list(decode_samples(samples[:0], 8)) == []


def test_html_page_is_self_contained(samples):
    page = draw_html_gallery(list(decode_samples(samples, 8)), 'A <b>"title"</b>')
    tags = {*re.findall(r"<(\w+)", page)}
    for tag in tags - {"meta", "input"}:
        assert len(re.findall(rf"<{tag}\b[^>]*[^/]>|<{tag}>", page)) == page.count(
            f"</{tag}>"
        ), tag
    assert not tags & {"script", "link", "img", "iframe", "a", "object", "b"}
    assert not re.search(r"http|url\(|@import|src=|href=", page)
    assert "A &lt;b&gt;&quot;title&quot;&lt;/b&gt;" in page
    assert "<html" in draw_html_gallery([])


def trajectory(tokens, seed=0):
    """Return the states from fully masked to samples, one token of each sample per step."""
    random, real = (
        np.random.default_rng(seed),
        tokens != np.where(IS_NODE, NODE_PAD, EDGE_PAD),
    )
    state = np.where(real, np.where(IS_NODE, NODE_MASK, EDGE_MASK), tokens)
    orders = [random.permutation(np.flatnonzero(row)) for row in real]
    path = [state.copy()]
    for step in range(max(map(len, orders))):
        for row, order in enumerate(orders):
            if step < len(order):
                state[row, order[step]] = tokens[row, order[step]]
        path.append(state.copy())
    return np.stack(path)


def test_trajectory_as_gif_without_undecodable_samples():
    tokens = make_plans(3, 0, 3).tokens(8)
    tokens[1, 0] = NODE_MASK
    path = np.concatenate([trajectory(tokens)[:-1:16], tokens[None]])
    single = trajectory(tokens[:1])
    pages = draw_frames(single, [place_diagram(decode(tokens[0], 8))])
    for page, state in zip(pages, single[:, 0], strict=True):
        unknown = int((state[:8] == NODE_MASK).sum())
        grey = [
            one
            for one in shapes(page, "rect")
            if (one.get("fill"), one.get("stroke-width")) == (GREY, "1.3")
        ]
        assert len(grey) == unknown
        assert [text.text for text in shapes(page, "text")].count("?") == unknown
    images = to_pngs(
        [Page(width, 5, (), scale) for width, scale in ((1, 2.0), (2, 1.0), (3, 2.0))]
    )
    assert [Image.open(BytesIO(image)).size for image in images] == [
        (2, 10),
        (2, 5),
        (6, 10),
    ]
    (picture,) = trajectory_pictures(path, 8)
    (same,) = trajectory_pictures(path[:, [0, 2]], 8)
    assert replace(picture, png=None) == replace(same, png=None)
    assert list(trajectory_pictures(path[:, [1]], 8)) == []
    with Image.open(BytesIO(picture.gif)) as image:
        assert (image.n_frames > 2, image.info["loop"]) == (True, 0)
        image.seek(image.n_frames - 1)
        assert image.info["duration"] == 3000
        last = np.asarray(image.convert("RGB")).reshape(-1, 3)
    for kind in decode(tokens[0], 8).types + decode(tokens[2], 8).types:
        colour = ImageColor.getrgb(COLOURS[kind])
        assert np.abs(last - colour).max(1).min() <= 6, (
            f"{ROOMS[kind]} has another colour"
        )
