"""Boundaries: the rule for procedural plans, files, placement in an outline, and the task with the condition."""

import json
from dataclasses import replace

import numpy as np
import pytest
import shapely
import torch
from scipy.io import savemat

from dither.registry.config.errors import Refused
from dither.tasks.bubble_diagram.constraints.table import Constraints
from dither.tasks.bubble_diagram.data.procedural import make_plans
from dither.tasks.bubble_diagram.formats.entries import ReadOptions
from dither.tasks.bubble_diagram.formats.graph2plan import read_graph2plan
from dither.tasks.bubble_diagram.formats.jsonl import read_plans
from dither.tasks.bubble_diagram.geometry.boundary import (
    OUTER_WALL,
    boundaries_of_boxes,
    corners_of,
    mask_of,
    pack_boundary,
    read_boundary,
    with_boundaries,
)
from dither.tasks.bubble_diagram.geometry.floor_plan import floor_plan
from dither.tasks.bubble_diagram.geometry.outline_files import read_outline
from dither.tasks.bubble_diagram.geometry.outline_fit import (
    outline_iou,
    outline_outside,
    place_in_outline,
)
from dither.tasks.bubble_diagram.geometry.outline_rectangles import (
    floor_within,
    rectangles_within,
)
from dither.tasks.bubble_diagram.geometry.placement import place_diagram
from dither.tasks.bubble_diagram.geometry.wall_constraints import SMALLEST
from dither.tasks.bubble_diagram.plans import (
    Diagram,
    Plans,
    PlanSplits,
    encode,
    outline_areas,
)
from dither.tasks.bubble_diagram.specs import BubbleDiagram, ProceduralPlans
from dither.tasks.bubble_diagram.vocabulary import (
    LIVING,
    METRES,
    NO_EDGE,
    pair_index,
    pairs,
)

L_SHAPE = [(40, 40), (200, 40), (200, 120), (120, 120), (120, 200), (40, 200)]


@pytest.fixture(scope="module")
def task():
    return BubbleDiagram(
        data=ProceduralPlans(train=600, valid=60, test=6), boundary=True
    ).build()


def test_front_doors_of_procedural_plans_are_in_outer_walls():
    plans = make_plans(0, 0, 300)
    boundaries = boundaries_of_boxes(plans.types, plans.boxes)
    low, high = boundaries[:, 2:6].min(1), boundaries[:, 2:6].max(1)
    assert (outline_areas(boundaries) == (high - low).prod(1)).all()
    doors = boundaries[boundaries[:, 0, 0] >= 0]
    assert len(doors) > 0.95 * len(plans)
    middle = doors[:, :2].mean(1)
    sides = np.stack(
        [
            middle - low[boundaries[:, 0, 0] >= 0],
            high[boundaries[:, 0, 0] >= 0] - middle,
        ]
    )
    assert (np.abs(sides).min((0, 2)) == 0).all()


def test_mask_and_area_of_an_outline_agree():
    boundary = np.array(pack_boundary(L_SHAPE))
    assert (
        mask_of(boundary).sum()
        == outline_areas(boundary[None])[0]
        == 160 * 160 - 80 * 80
    )
    assert pack_boundary(L_SHAPE * 9) is None


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.json", json.dumps({"outline": L_SHAPE, "front_door": [[60, 40], [72, 40]]})),
        ("a.svg", '<svg><path d="M40,40 H200v80h-80V200L40 200Z"/><path d="M60 40 L72 40"/></svg>'),
        ("a.json", json.dumps({"outline": [(x * 18 / 2.56, y * 18 / 2.56) for x, y in L_SHAPE], "unit": "cm",
                               "front_door": [[60 * 18 / 2.56, 40 * 18 / 2.56], [72 * 18 / 2.56, 40 * 18 / 2.56]]})),
        ("a.svg", '<svg><defs><path d="M0 0h9v9z"/></defs><!-- <path d="M0 0h9v9z"/> -->'
                  '<g transform="translate(40 40)">'
                  '<polygon transform="scale(2)" points="0,0 80,0 80,40 40,40 40,80 0,80"/></g>'
                  '<line x1="60" y1="40" x2="72" y2="40"/></svg>'),
        ("a.svg", '<svg xmlns="http://www.w3.org/2000/svg"><path transform="rotate(90, 120, 120) matrix(1 0 0 1 0 0)" '
                  'd="M40,200V40h80v80h80v80z"/><path d="M60 40 L72 40"/></svg>'),
        (
            "a.geojson",
            json.dumps({"type": "FeatureCollection", "features": [
                {"geometry": {"type": kind, "coordinates": [points] if kind == "Polygon" else points}}
                for kind, points in (
                    ("Polygon", [(x * 18 / 256, -y * 18 / 256) for x, y in (*L_SHAPE, L_SHAPE[0])]),
                    ("LineString", [(60 * 18 / 256, -40 * 18 / 256), (72 * 18 / 256, -40 * 18 / 256)]),
                )
            ]}),
        ),
    ],
)  # fmt: skip
def test_outlines_are_read_and_centred(tmp_path, name, text):
    path = tmp_path / name
    path.write_text(text)
    boundary = read_boundary(path)
    assert corners_of(boundary) == [(x + 8, y + 8) for x, y in L_SHAPE]
    assert boundary[:2].tolist() == [[68, 48], [80, 48]]


@pytest.mark.parametrize(
    ("name", "text", "code"),
    [
        ("a.svg", "<svg/>", "unreadable-file"),
        ("a.svg", '<path d="M0 0 C1 1 2 2 3 3"/>', "unreadable-file"),
        ("a.json", "{}", "unreadable-file"),
        ("a.json", '{"outline": [[0, 0], [900, 0], [900, 9]]}', "out-of-range"),
        ("a.json", '{"outline": [[0, 0], [90, 0]]}', "out-of-range"),
        ("a.json", None, "file-not-found"),
        ("a.json", '{"outline": [[0, 0], [12, 0], [12, 9], [0, 9]]}', "out-of-range"),
        ("a.json", '{"outline": [[0, 0], [90, 90], [90, 0], [0, 90]]}', "unreadable-file"),
        ("a.json", '{"outline": [[0, 0], [90, 0], [90, 90]], "unit": "ft"}', "unreadable-file"),
        ("a.json", '{"outline": [[0, 0], [90, 0], [90, 90]], "units": "m"}', "unreadable-file"),
        ("a.json", '{"outline": [[0, 0], [90, 0], [90, 90], [0, 90]], "front_door": [[40, 40], [52, 40]]}',
         "unreadable-file"),
        ("a.svg", '<svg><path d="M0 0h90v90h-90z M20 20h20v20h-20z"/></svg>', "unreadable-file"),
        ("a.svg", '<svg><rect width="90" height="90" rx="5"/></svg>', "unreadable-file"),
        ("a.svg", '<svg><rect width="90" height="90"/><line x2="9"/><rect id="x" width="9" height="9"/></svg>',
         "unreadable-file"),
        ("a.svg", '<svg><rect width="90" height="90" transform="spin(9)"/></svg>', "unreadable-file"),
        ("a.svg", '<svg><use href="#a"/></svg>', "unreadable-file"),
        ("a.svg", '<svg><svg viewBox="0 0 9 9"><rect width="90" height="90"/></svg></svg>', "unreadable-file"),
        ("a.svg", '<svg><defs><path d="M0 0h90v90z"/></defs></svg>', "unreadable-file"),
        ("a.geojson", '{"type": "Polygon", "coordinates": [[[0, 0], [9, 0], [9, 9]], [[2, 1], [3, 1], [3, 2]]]}',
         "unreadable-file"),
        ("a.geojson", '{"type": "MultiPolygon", "coordinates": []}', "unreadable-file"),
        ("a.svg", '<svg width="210mm"><rect width="90" height="90"/></svg>', "unreadable-file"),
        ("a.svg", '<svg><style>rect { transform: scale(2) }</style><rect width="90" height="90"/></svg>',
         "unreadable-file"),
        ("a.svg", '<svg><defs><style>.h{display: none}</style></defs><rect class="h" width="90" height="90"/></svg>',
         "unreadable-file"),
        ("a.json", '{"outline": [[0, 0], [90, 0], [90, NaN]]}', "out-of-range"),
        ("a.json", '{"outline": [[0, 0], [90, 0], null]}', "unreadable-file"),
        ("a.json", "[[0, 0], [90, 0], [90, 90]]", "unreadable-file"),
        ("a.geojson", '{"features": [{"type": "Polygon", "coordinates": [[[0, 0], [9, 0], [9, 9]]]}, '
                      '{"type": "Polygon", "coordinates": [[[0, 0], [9, 0], [9, 9]]]}]}', "unreadable-file"),
    ],
)  # fmt: skip
def test_invalid_outlines_are_rejected(tmp_path, name, text, code, refusal):
    if text is not None:
        (tmp_path / name).write_text(text)
    assert code in {
        problem.code for problem in refusal(read_boundary, tmp_path / name).problems
    }


@pytest.mark.slow
def test_rooms_fill_outlines_and_keep_their_relations():
    plans, shares = make_plans(1, 0, 4), []
    for row, boundary in enumerate(boundaries_of_boxes(plans.types, plans.boxes)):
        diagram = replace(plans.diagram(row), boxes=None)
        placed = place_in_outline(place_diagram(diagram), boundary)
        assert placed.exact
        assert place_in_outline(
            place_diagram(diagram),
            np.array(pack_boundary([(0, 0), (90, 0), (90, 80), (0, 80)])),
        ).exact
        shares.append(outline_iou(placed))
    assert np.mean(shares) > 0.85


U_SHAPE = [(20, 20), (220, 20), (220, 200), (150, 200), (150, 90), (90, 90), (90, 200), (20, 200)]  # fmt: skip
TRIANGLE = [(20, 20), (230, 20), (20, 230)]
CORRIDOR = [(0, 0), (170, 0), (170, 31), (31, 31), (31, 170), (0, 170)]


@pytest.mark.parametrize(
    "outline",
    [
        pytest.param(L_SHAPE, marks=pytest.mark.slow),
        pytest.param(U_SHAPE, marks=pytest.mark.slow),
        pytest.param(TRIANGLE, marks=pytest.mark.slow),
        CORRIDOR,
    ],
)
@pytest.mark.slow
def test_no_room_is_outside_its_outline(outline):
    """Neither in plans that can be realised, nor where relations contradict each other."""
    boundary = np.array(pack_boundary(outline))
    inside = mask_of(boundary)
    plans = make_plans(5, 0, 3)
    for row in range(3):
        diagram = replace(plans.diagram(row), boxes=None)
        edges = [(i, j, (7 * relation) % 10) for i, j, relation in diagram.edges]
        for some in (diagram, replace(diagram, edges=tuple(edges))):
            placed = place_in_outline(place_diagram(some), boundary)
            assert outline_outside(placed) == 0
            # Walls are inside, too.
            shift = np.subtract(corners_of(boundary)[0], placed.outline[0])
            boxes = placed.boxes + np.tile(shift, 2)
            for x0, y0, x1, y1 in boxes:
                assert inside[
                    y0 - OUTER_WALL : y1 + OUTER_WALL, x0 - OUTER_WALL : x1 + OUTER_WALL
                ].all()
                assert min(x1 - x0, y1 - y0) >= SMALLEST
            if some is diagram and outline is not CORRIDOR:
                assert placed.exact
                assert not placed.unmet
            else:
                assert placed.unmet or not place_diagram(some).exact


def test_rectangles_of_an_outline_hold_the_boxes_that_are_inside():
    random = np.random.default_rng(0)
    steps = [(20 + 25 * (k // 2 + k % 2), 20 + 25 * (k // 2)) for k in range(15)]
    for outline in (
        L_SHAPE,
        U_SHAPE,
        [*steps, (20, 195)],
        [(40, 40), (90, 40), (90, 100), (40, 100)],
    ):
        boundary = np.array(pack_boundary(outline))
        floor = floor_within(boundary)
        rectangles = rectangles_within(boundary)
        for x0, y0, x1, y1 in rectangles:
            assert floor[y0:y1, x0:x1].all()
        low = random.integers(20, 200, (2000, 2))
        for (x0, y0), (x1, y1) in zip(
            low, low + random.integers(12, 90, (2000, 2)), strict=True
        ):
            held = (
                ((rectangles[:, :2] <= [x0, y0]) & (rectangles[:, 2:] >= [x1, y1]))
                .all(1)
                .any()
            )
            assert held == floor[y0:y1, x0:x1].all()


def test_outlines_are_turned_so_that_walls_are_level(tmp_path):
    path = tmp_path / "a.json"
    for degrees in (12, 30, -40, 90):
        angle = np.radians(degrees)
        turn = np.array(
            [[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]]
        )
        points, door = np.array(L_SHAPE) @ turn, np.array([[60, 40], [72, 40]]) @ turn
        path.write_text(
            json.dumps({"outline": points.tolist(), "front_door": door.tolist()})
        )
        boundary = read_boundary(path)
        # Sides of 160 and 80 pixels, up to rounding: rectangles as if it were not turned.
        corners = np.array(corners_of(boundary))
        lengths = np.abs(np.roll(corners, -1, 0) - corners)
        assert lengths.min(1).max() <= 1
        assert np.abs(np.sort(lengths.max(1)) - [80, 80, 80, 80, 160, 160]).max() <= 1
        assert len(rectangles_within(boundary)) == 2
        assert np.abs(boundary[0] - boundary[1]).max() in (11, 12, 13)
    path.write_text(json.dumps({"outline": TRIANGLE}))
    assert np.ptp(corners_of(read_boundary(path)), axis=0).tolist() == [210, 210]


def test_outlines_that_are_too_small_are_refused_by_name(tmp_path, refusal):
    data = ProceduralPlans(train=300, valid=60, test=6)
    constraints = Constraints(
        counts={"LivingRoom": 1},
        areas={"LivingRoom": "at least 40 m2", "0": "at least 9 m2"},
    )
    free = BubbleDiagram(data=data, boundary=True).build()
    task = BubbleDiagram(
        data=data, boundary=True, areas=True, constraints=constraints
    ).build()
    path = tmp_path / "outline.json"

    def refused(task, outline, like=None):
        path.write_text(json.dumps({"outline": outline, "unit": "m"}))
        return [
            (p.code, p.path) for p in refusal(task.within, path, 2, 0, like).problems
        ]

    tiny = [(0, 0), (2, 0), (2, 2), (0, 2)]
    assert refused(free, tiny) == [("contradiction", ())]
    assert refused(
        free,
        tiny,
        free.edit(make_plans(0, 0, 1).diagram(0), keep=[0, 1], n=1, redraw=2),
    ) == [("contradiction", ())]
    # No living room of 40 m2, alone or with another room of 9 m2.
    areas = ("task", "constraints", "areas")
    assert refused(task, [(0, 0), (6, 0), (6, 6), (0, 6)]) == [
        ("contradiction", (*areas, "LivingRoom"))
    ]
    path.write_text(
        json.dumps({"outline": [(0, 0), (8, 0), (8, 8), (0, 8)], "unit": "m"})
    )
    assert len(task.within(path, 2, 0).valid) == 2
    numbered = Constraints(
        areas={"0": "at least 20 m2", "1": "at least 20 m2", "2": "at least 20 m2"}
    )
    task = BubbleDiagram(
        data=data, boundary=True, areas=True, constraints=numbered
    ).build()
    assert refused(task, [(0, 0), (8, 0), (8, 8), (0, 8)]) == [("contradiction", areas)]


def test_exports_are_inside_the_outline(task, tmp_path):
    boundary = np.array(pack_boundary(L_SHAPE))
    samples = task.batch("test", range(4))
    # The last two have relations of others, which contradict each other.
    x0 = samples.x0.clone()
    x0[2:, 8:] = torch.where(
        samples.valid[2:, 8:], samples.x0[2:, 8:].flip(1) % 10, x0[2:, 8:]
    )
    flat = torch.from_numpy(np.tile(boundary.reshape(1, -1), (4, 1))).long()
    like = replace(samples, cond={"boundary": flat})
    files, _ = task.export(x0, like, "geojson", tmp_path)
    assert len(files) == 4
    outline = shapely.Polygon(
        [((x + 8) * METRES, -(y + 8) * METRES) for x, y in L_SHAPE]
    )
    for file in files:
        features = json.loads(file.read_text())["features"]
        rooms = [
            shapely.geometry.shape(f["geometry"])
            for f in features
            if f["properties"]["layer"] == "rooms"
        ]
        assert shapely.union_all(rooms).difference(outline.buffer(0.01)).area == 0


def test_graph2plan_files_hold_boundaries(tmp_path):
    boundary = np.array(
        [[60, 40, 0, 0], [72, 40, 0, 0], *([x, y, 0, 0] for x, y in L_SHAPE)], np.uint8
    )
    plan = {
        "boundary": boundary,
        "rType": np.array([0, 2]),
        "gtBoxNew": np.array([[40, 40, 120, 120], [130, 40, 200, 120]]),
    }
    data = np.empty((1,), [(key, "O") for key in plan])
    data[0] = tuple(plan.values())
    savemat(tmp_path / "data.mat", {"data": data})
    (entry,) = read_graph2plan(tmp_path / "data.mat", ReadOptions())
    assert entry.diagram.boundary[:2] == ((60, 40), (72, 40))
    assert [point for point in entry.diagram.boundary[4:] if point[0] >= 0] == L_SHAPE


def test_upright_plans_have_clockwise_outlines():
    plans = make_plans(0, 0, 60)
    rows = np.array(
        [
            pack_boundary(L_SHAPE[turn:] + L_SHAPE[:turn], [(60, 40), (72, 40)])
            for turn in range(6)
        ]
        * 10
    )
    upright = replace(plans, boundaries=rows).upright()
    assert (outline_areas(upright.boundaries) == 160 * 160 - 80 * 80).all(), (
        "clockwise, so positive"
    )
    assert (np.array(pack_boundary(L_SHAPE[::-1])[2:8]) == L_SHAPE).all()
    assert (upright.boundaries[:, 0] <= upright.boundaries[:, 1]).all(), (
        "the left or upper end first"
    )
    assert len({outline.tobytes() for outline in upright.boundaries}) > 30, (
        "all orientations occur"
    )
    same = (upright.boxes == plans.boxes).all((1, 2))
    assert 3 < same.sum() < 20
    assert (upright.boundaries[same] == rows[same]).all()


def test_modelled_front_doors_are_drawn_where_the_boundary_has_one():
    plans, at = make_plans(0, 0, 12), []
    for row, boundary in enumerate(boundaries_of_boxes(plans.types, plans.boxes)):
        diagram = plans.diagram(row)
        boxes, front = np.array(diagram.boxes), boundary[:2].mean(0)
        for room in range(len(diagram.types)):
            plan = floor_plan(diagram.types, boxes, tuple(front), ((room, None),))
            assert [(door.i, door.j) for door in plan.doors] == [(room, None)]
        (host,) = (i for i, j in diagram.doors if j is None)
        door = floor_plan(diagram.types, boxes, tuple(front), diagram.doors).doors[-1]
        assert (door.i, door.j) == (host, None)
        at.append(max(abs(door.x - front[0]), abs(door.y - front[1])) <= 3)
        assert (
            floor_plan(diagram.types, boxes, tuple(front), ((0, 1),)).doors[-1].j
            is not None
        )
    assert np.mean(at) > 0.9


@pytest.mark.slow
def test_task_gives_boundaries_as_a_condition(task, tmp_path):
    (condition,) = task.space.conditions
    batch, like = task.batch("train", [3, 1]), task.like(20, 0)
    assert batch.cond["boundary"].shape == condition.shape(2, task.space.length)
    assert like.cond["boundary"].shape == condition.shape(20, task.space.length)
    samples = task.batch("test", range(6))
    metrics = task.sample_metrics(samples.x0, samples)
    assert metrics["outline_iou"] > 0.8
    assert metrics["outline_outside"] == 0
    # The front door of one plan is elsewhere.
    assert metrics["layout_met"] == pytest.approx(5 / 6)
    # An outline of a fraction of the size: no sample fits, and none is outside.
    small = replace(samples, cond={"boundary": samples.cond["boundary"] // 4})
    metrics = task.sample_metrics(samples.x0, small)
    assert metrics["outline_outside"] == metrics["layout_met"] == 0
    path = tmp_path / "outline.json"
    for side, rooms in ((100, 6.2), (175, 7.0)):
        path.write_text(
            json.dumps({"outline": [[0, 0], [side, 0], [side, side], [0, side]]})
        )
        within = task.within(path, 64, 0)
        assert len(torch.unique(within.cond["boundary"], dim=0)) == 1
        assert abs(float(within.valid[:, :8].sum(1).double().mean()) - rooms) < 0.6
    with pytest.raises(Refused, match="boundary = true"):
        BubbleDiagram(data=ProceduralPlans(train=10, valid=5, test=5)).build().within(
            path, 1, 0
        )


def test_edited_plans_keep_the_order_of_the_task():
    task = BubbleDiagram(
        data=ProceduralPlans(train=50, valid=10, test=5),
        order="from-left-to-right",
        orientation="upright",
    ).build()
    plans = make_plans(3, 0, 1)
    source = plans.upright()
    empty = task.edit(plans.diagram(0), [], 5)
    assert not empty.known.any()
    assert empty.valid[0, :8].sum() == 5
    kept = [room for room in range(int(plans.rooms[0])) if room != 2]
    like = task.edit(plans.diagram(0), kept, 2, 3, seed=1)
    order = [room for room in source.order()[0].tolist() if room in kept]
    slots = np.flatnonzero(like.known[0, :8].numpy())
    assert like.x0[0, slots].tolist() == source.types[0, order].tolist()
    assert like.valid[0, :8].sum() == len(kept) + 2
    expected = Diagram.from_boxes(
        source.types[0, order],
        [tuple(map(int, source.boxes[0, room])) for room in order],
    )
    found = {
        (u, v): int(like.x0[0, 8 + pair_index(int(slots[u]), int(slots[v]), 8)])
        for u, v in pairs(len(order))
    }
    assert {pair: r for pair, r in found.items() if r < NO_EDGE} == {
        (i, j): r for i, j, r in expected.edges
    }


def test_rooms_from_left_to_right():
    plans = make_plans(0, 0, 200)
    ordered = plans.from_left_to_right()
    boxes, real = ordered.boxes.astype(int), ordered.types != 14
    centres = np.where(real, boxes[..., 0] + boxes[..., 2], 1000)[:, 1:]
    assert (ordered.types[:, 0] == LIVING).all()
    assert (np.diff(centres, axis=1) >= 0).all()
    assert (
        type(plans).from_boxes(ordered.types, ordered.boxes).edges == ordered.edges
    ).all()
    bare = replace(plans, boxes=np.zeros_like(plans.boxes))
    assert (bare.from_left_to_right().edges == plans.edges).all()
    with pytest.raises(Refused, match="no training plan has a boundary"):
        with_boundaries(PlanSplits(bare, bare, bare), rectangular=False)


@pytest.mark.parametrize("order", ["given", "from-left-to-right"])
@pytest.mark.parametrize("orientation", ["given", "upright"])
@pytest.mark.slow
def test_edited_plans_are_turned_back_and_keep_their_boxes(
    tmp_path, order, orientation
):
    """The plan itself, as the model sees it, is decoded and exported with its kept rooms first, where they were."""
    data = ProceduralPlans(train=50, valid=10, test=5)
    task = BubbleDiagram(data=data, order=order, orientation=orientation).build()
    for number in range(6):
        diagram = make_plans(7, number, number + 1).diagram(0)
        rooms = len(diagram.types)
        keep = [room for room in range(rooms) if room not in (1, 3)]
        like = task.edit(diagram, keep, n=1, seed=number)
        # The sample that draws the two other rooms as they were
        edit = like.goal.edit
        seen = Plans.from_diagrams([diagram], rooms)
        if orientation == "upright":
            seen = seen.upright()
        rest = [slot for slot in range(rooms) if slot not in edit.slots]
        slots = dict(zip([*keep, 1, 3], [*edit.slots, *rest], strict=True))
        boxes, types = [None] * rooms, [None] * rooms
        for room, slot in slots.items():
            boxes[slot] = tuple(seen.boxes[0, room].tolist())
            types[slot] = diagram.types[room]
        sample = encode(Diagram.from_boxes(types, boxes), 8)
        known = like.known[0].numpy()
        assert (sample[known] == like.x0[0].numpy()[known]).all()
        tokens = torch.from_numpy(sample)[None].long()
        (decoded,) = task.decode(tokens, like)
        assert decoded.types[: len(keep)] == tuple(diagram.types[room] for room in keep)
        assert decoded.boxes[: len(keep)] == tuple(diagram.boxes[room] for room in keep)
        assert decoded.edges == Diagram.from_boxes(decoded.types, decoded.boxes).edges
        (file,), _ = task.export(tokens, like, "jsonl", tmp_path)
        (exported,) = read_plans(file, 8)
        assert exported.boxes == decoded.boxes


@pytest.mark.parametrize(
    ("name", "text", "named"),
    [
        ("a.svg", '<svg><rect id="r" width="100%" height="90"/></svg>', '<rect id="r">'),
        ("a.svg", '<svg><rect id="r" width="9cm" height="9cm"/></svg>', '<rect id="r">'),
        ("a.svg", '<svg><path id="r" d="M0 0 Hx"/></svg>', '<path id="r">'),
        ("a.svg", '<svg><g id="r" transform="rotate(a)"><path/></g></svg>', '<g id="r">'),
        ("a.svg", '<svg height="9in"><rect width="90" height="90"/></svg>', "<svg>"),
        ("a.json", '{"outlines": [[0, 0], [90, 0], [90, 90]]}', '"outline"'),
        ("a.json", '{"outline": [[0, 0], [90, 0]], "frontdoor": []}', '"front_door"'),
    ],
)  # fmt: skip
def test_refusals_name_the_element_or_the_key(tmp_path, name, text, named, refusal):
    (tmp_path / name).write_text(text)
    assert named in refusal(read_boundary, tmp_path / name).problems[0].message


@pytest.mark.parametrize(
    "style",
    ["text { text-transform: none }", "rect { display: inline }", "/* display: none */ rect { fill: red }"],
)  # fmt: skip
def test_rules_that_neither_move_nor_hide_are_accepted(tmp_path, style):
    path = tmp_path / "a.svg"
    shape = '<rect style="transform-origin: 0 0" width="100" height="80"/>'
    path.write_text(f"<svg><style>{style}</style>{shape}</svg>")
    outline, _ = read_outline(path)
    assert np.ptp(outline, axis=0).tolist() == [100, 80]


@pytest.mark.parametrize(
    "hidden",
    ['display="none"', 'style="display: none"', 'visibility="hidden"', 'style="visibility:hidden"'],
)  # fmt: skip
def test_hidden_shapes_and_a_byte_order_mark_are_skipped(tmp_path, hidden):
    path = tmp_path / "a.svg"
    path.write_text(
        f'\ufeff<svg xmlns="http://www.w3.org/2000/svg"><rect {hidden} width="9" height="9"/>'
        '<rect width="100" height="80"/></svg>'
    )
    outline, door = read_outline(path)
    assert len(outline) == 4
    assert np.ptp(outline, axis=0).tolist() == [100, 80]
    assert not len(door)
