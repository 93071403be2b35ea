"""Procedural plans and exported plans."""

import hashlib
import json
from io import StringIO
from itertools import combinations
from typing import get_args

import ezdxf
import networkx
import numpy as np
import pytest
import shapely
from PIL import Image, ImageDraw

from dither.tasks.bubble_diagram import plans as plan_arrays
from dither.tasks.bubble_diagram.data import procedural as generator
from dither.tasks.bubble_diagram.data.procedural import BLOCK, LARGER_COUNTS, make_plans
from dither.tasks.bubble_diagram.export import (
    CORNERS,
    EXPORTS,
    NODES,
    _walls,
    dxf_plan,
    geojson_plan,
    housegan_plan,
    ifc_plan,
    write_diagrams,
    write_samples,
)
from dither.tasks.bubble_diagram.formats.entries import ReadOptions
from dither.tasks.bubble_diagram.formats.housegan import (
    FROM_HOUSEGAN,
    TO_HOUSEGAN,
    read_housegan,
)
from dither.tasks.bubble_diagram.formats.jsonl import read_plans
from dither.tasks.bubble_diagram.geometry.door_swings import (
    OUTER,
    door_swings,
)
from dither.tasks.bubble_diagram.geometry.floor_plan import (
    DOOR_WIDTH,
    Door,
    floor_plan,
)
from dither.tasks.bubble_diagram.geometry.wall_rectangles import divide_walls
from dither.tasks.bubble_diagram.geometry.wall_shapes import (
    gap_box,
    openings_in,
    solid_walls,
    wall_polygons,
)
from dither.tasks.bubble_diagram.ifc import STOREY
from dither.tasks.bubble_diagram.metrics import Frequencies
from dither.tasks.bubble_diagram.plans import Diagram, encode, room_names
from dither.tasks.bubble_diagram.relations import edges_of
from dither.tasks.bubble_diagram.specs import BubbleDiagram, ProceduralPlans
from dither.tasks.bubble_diagram.validity import token_validity
from dither.tasks.bubble_diagram.vocabulary import (
    BALCONY,
    EDGE_PAD,
    GRID,
    INSIDE,
    METRES,
    NO_EDGE,
    NODE_MASK,
    NODE_PAD,
    ROOM_COUNTS,
    ROOMS,
    SURROUNDING,
    Export,
    pairs,
)

PLANS = make_plans(0, 0, 20)
DIAGRAMS = [PLANS.diagram(row) for row in range(20)]
BARE = [Diagram(d.types, d.edges, name=f"n{k}") for k, d in enumerate(DIAGRAMS[:10])]


def one_bedroom(types):
    """Return the types after a round trip through HouseGAN++'s layout with bedrooms = "all-second"."""
    return tuple(ROOMS.index(FROM_HOUSEGAN[TO_HOUSEGAN[ROOMS[kind]]]) for kind in types)


@pytest.mark.parametrize("adjacency", ["proximity", "door"])
def test_housegan_round_trip(tmp_path, adjacency):
    """Exact except for bedroom types, which the layout does not distinguish; doors join all rooms."""
    for number, diagram in enumerate(DIAGRAMS):
        (tmp_path / f"{number}.json").write_text(json.dumps(housegan_plan(diagram)))
        options = ReadOptions(adjacency=adjacency, bedrooms="all-second")
        (entry,) = read_housegan(tmp_path / f"{number}.json", options)
        found = entry.diagram
        assert (found.types, found.boxes, found.name) == (
            one_bedroom(diagram.types),
            diagram.boxes,
            str(number),
        )
        if adjacency == "proximity":
            assert found.edges == diagram.edges
        else:
            assert len(found.edges) == len(diagram.types) - 1
            assert {*found.edges} <= {*diagram.edges}
            assert networkx.is_connected(
                networkx.Graph([edge[:2] for edge in found.edges])
            )


def loaded_masks(plan):
    """The room masks of HouseDiffusion's loader: polygons of the walls of a node, later rooms over earlier ones."""
    kinds, full = plan["room_type"], np.zeros((64, 64), int)
    for node in range(len(kinds)):
        walls = [
            wall[:4]
            for wall, ends in zip(plan["edges"], plan["ed_rm"], strict=True)
            if ends[0] == node
        ]
        assert all(
            wall[2:] == after[:2]
            for wall, after in zip(walls, walls[1:] + walls[:1], strict=True)
        )
        picture = Image.new("L", (256, 256))
        ImageDraw.Draw(picture).polygon(
            [tuple(wall[:2]) for wall in walls], fill="white"
        )
        mask = np.array(picture.resize((64, 64))) > 0
        assert mask.any()
        if kinds[node] not in (15, 17):
            full[mask] = node + 1
    return full


def test_housegan_plans_load_in_housediffusion():
    """No room is hidden by others, at most 200 pairs of nodes and 100 corners, and one front door."""
    for diagram in DIAGRAMS:
        plan, rooms = housegan_plan(diagram), len(diagram.types)
        nodes, full = len(plan["room_type"]), loaded_masks(plan)
        assert {*range(1, rooms + 1)} <= {*full.ravel().tolist()}
        assert nodes <= NODES
        assert nodes * (nodes - 1) / 2 <= 200
        assert len(plan["edges"]) <= CORNERS
        assert plan["room_type"][rooms:] == [17] * (rooms - 1) + [15]
        (host,) = [
            ends[1] for ends in plan["ed_rm"] if ends[0] == nodes - 1 and len(ends) == 2
        ]
        assert diagram.types[host] in (
            ROOMS.index("LivingRoom"),
            ROOMS.index("Entrance"),
        )


def corners_of_masks(full):
    """Corners that HouseDiffusion's loader finds in its masks: one where a mask is convex, two where it is concave."""
    corners = []
    for room in np.unique(full[full > 0]):
        mask = np.pad(full == room, 1).astype(int)
        around = mask[1:, 1:] + mask[:-1, 1:] + mask[1:, :-1] + mask[:-1, :-1]
        corners.append((around == 1).sum() + 2 * (around == 3).sum())
    return corners


def door_masks(plan):
    """The mask of each door alone."""
    first = [ends[0] for ends in plan["ed_rm"]]
    doors = []
    for node, kind in enumerate(plan["room_type"]):
        if kind in (15, 17):
            picture = Image.new("L", (256, 256))
            walls = [
                wall for wall, k in zip(plan["edges"], first, strict=True) if k == node
            ]
            ImageDraw.Draw(picture).polygon(
                [tuple(wall[:2]) for wall in walls], fill="white"
            )
            doors.append((np.array(picture.resize((64, 64))) > 0).astype(int))
    return doors  # fmt: skip


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ("plans", 30),
        pytest.param("plans", 300, marks=pytest.mark.slow),
        ("relations", 20),
        ("boxes", 40),
    ],
)
def test_walls_of_housegan_plans_have_a_length_and_few_corners(source, count):
    """Plans, layouts of shuffled relations, random boxes; HouseDiffusion's loader ends at a wall of length 0."""
    random = np.random.default_rng(0)
    made = make_plans(3, 0, count)
    diagrams = [made.diagram(row) for row in range(len(made))]
    if source == "relations":
        diagrams = []
        for row in range(count):
            types = made.diagram(row).types
            edges = made.diagram((row + 1) % count).edges
            rooms = len(types)
            diagrams.append(Diagram(types, tuple(e for e in edges if e[1] < rooms)))
    if source == "boxes":
        diagrams = []
        for rooms in (2, 5, 7, 8) * (count // 4):
            low = random.integers(0, 230, (rooms, 2))
            high = np.minimum(low + random.integers(1, 100, (rooms, 2)), 256)
            boxes = [tuple(box) for box in np.concatenate([low, high], 1).tolist()]
            diagrams.append(Diagram.from_boxes([0, *[3] * (rooms - 1)], boxes))
    for diagram in diagrams:
        plan = housegan_plan(diagram)
        assert all(wall[:2] != wall[2:4] for wall in plan["edges"])
        assert len(plan["edges"]) <= CORNERS
        counts = corners_of_masks(loaded_masks(plan))
        for mask in door_masks(plan):
            counts += corners_of_masks(mask)
        assert sum(counts) <= CORNERS or source == "boxes"


@pytest.mark.slow
def test_exported_samples_name_plans_that_housediffusion_rejects(tmp_path):
    """Twelve rooms with eleven doors are 24 nodes."""
    plan = next(
        d
        for d in map(make_plans(5, 0, 200, 14).diagram, range(200))
        if len(d.types) == 12
    )
    _, notes = write_samples(encode(plan, 14)[None], 14, tmp_path, "housegan")
    assert any("1 of 1 samples have more than" in note for note in notes)


def test_housegan_layout():
    """As in the published files: outlines node by node, and each door with the rooms on both sides."""
    for diagram in [*DIAGRAMS, *BARE]:
        plan = housegan_plan(diagram)
        rooms, nodes = len(diagram.types), len(plan["room_type"])
        assert len(plan["boxes"]) == nodes
        assert len(plan["edges"]) == len(plan["ed_rm"])
        assert [ends[0] for ends in plan["ed_rm"]] == sorted(
            ends[0] for ends in plan["ed_rm"]
        )
        for node in range(nodes):
            walls = [
                wall
                for wall, ends in zip(plan["edges"], plan["ed_rm"], strict=True)
                if ends[0] == node
            ]
            assert all(wall[4] == plan["room_type"][node] for wall in walls)
            x, y = [wall[0] for wall in walls], [wall[1] for wall in walls]
            assert [min(x), min(y), max(x), max(y)] == plan["boxes"][
                node
            ] or diagram.boxes is None
        for wall, ends in zip(plan["edges"], plan["ed_rm"], strict=True):
            assert wall[5] == (plan["room_type"][ends[1]] if len(ends) == 2 else 0)
        joined = sorted(
            sorted(ends)
            for ends in plan["ed_rm"]
            if len(ends) == 2 and max(ends) < rooms
        )
        doors = [sorted(ends[1] for ends in plan["ed_rm"] if ends[0] == node and len(ends) == 2)
                 for node in range(rooms, nodes - 1)]  # fmt: skip
        assert sorted(doors * 2) == joined


@pytest.mark.parametrize("seed", range(2))
def test_floor_plans_of_any_boxes(seed):
    """Overlapping, nested and equal boxes: outlines enclose disjoint regions, and doors join all rooms."""
    random = np.random.default_rng(seed)
    for rooms in (1, 2, 5, 9):
        low = random.integers(0, 200, (rooms, 2))
        boxes = np.concatenate(
            [low, np.minimum(low + random.integers(12, 120, (rooms, 2)), 256)], 1
        )
        boxes[rooms // 2] = boxes[0]
        plan = floor_plan([0, *[3] * (rooms - 1)], boxes)
        assert len(plan.doors) == rooms
        assert plan.doors[-1].j is None
        if rooms > 1:
            assert networkx.is_connected(
                networkx.Graph(
                    (door.i, door.j) for door in plan.doors if door.j is not None
                )
            )
        for room, outline in enumerate(plan.outlines):
            ends = list(zip(outline, (*outline[1:], outline[0]), strict=True))
            assert all((a[0] == b[0]) != (a[1] == b[1]) for a, b in ends)
            area = sum(x0 * y1 - x1 * y0 for (x0, y0), (x1, y1) in ends) / 2
            assert area == (plan.label == room).sum() > 0


def test_files(tmp_path):
    names = {"jsonl": ["plans.jsonl"], "housegan": ["0.json", "1.json"]}
    names |= {form: [f"0.{form}", f"1.{form}"] for form in ("svg", "geojson", "dxf")}
    assert (
        [*names, "ifc"]
        == list(EXPORTS)
        == list(BubbleDiagram.exports)
        == list(get_args(Export))
    )
    for form, expected in names.items():
        files = write_diagrams(dict(enumerate(DIAGRAMS[:2])), tmp_path / form, form)
        assert [file.name for file in files] == expected
        assert {file.name for file in (tmp_path / form).iterdir()} == {*expected} | (
            {"list.txt"} if form == "housegan" else set()
        )
    assert (tmp_path / "housegan" / "list.txt").read_text() == "0.json\n1.json\n"
    assert read_plans(tmp_path / "jsonl" / "plans.jsonl", 8) == DIAGRAMS[:2]
    drawing = ezdxf.readfile(tmp_path / "dxf" / "0.dxf")
    rooms = drawing.modelspace().query('LWPOLYLINE[layer=="rooms"]')
    names = drawing.modelspace().query('TEXT[layer=="names"]')
    assert len(rooms) == len(names) == len(DIAGRAMS[0].types)
    assert all(room.closed for room in rooms)
    assert not drawing.audit().errors


def test_walls_of_drawings_are_outside_of_rooms_and_end_at_doors():
    for diagram in DIAGRAMS[:8]:
        plan = floor_plan(diagram.types, np.array(diagram.boxes), None, diagram.doors)
        walls = shapely.union_all(list(wall_polygons(diagram.types, plan)))
        rooms = [shapely.Polygon(outline) for outline in plan.outlines]
        assert all(walls.intersection(room).area < 1 for room in rooms)
        # Outer walls of 0.3 m
        across, down = np.subtract(walls.bounds[2:], walls.bounds[:2])
        low, high = np.min(diagram.boxes, 0)[:2], np.max(diagram.boxes, 0)[2:]
        if BALCONY not in diagram.types:
            assert (across, down) == tuple(high - low + 2 * OUTER)
        drawing = ezdxf.read(StringIO(dxf_plan(diagram)))
        space = drawing.modelspace()
        swings = [swing for swing in door_swings(diagram.types, plan) if swing]
        assert len(space.query("ARC")) == len(swings)
        for window in plan.windows:
            # No wall is left in front of the glass.
            ends = [(window.x, window.y - 9), (window.x, window.y + 9)]
            if window.upright:
                ends = [(window.x - 9, window.y), (window.x + 9, window.y)]
            assert not walls.intersects(shapely.LineString(ends))
        for swing in swings:
            middle = shapely.Point(np.mean([swing.hinge, swing.closed], 0))
            assert not walls.contains(middle)
        assert len(space.query('LWPOLYLINE[layer=="windows"]')) == 2 * len(plan.windows)
        width = drawing.header["$EXTMAX"][0] - drawing.header["$EXTMIN"][0]
        assert width >= (high - low)[0] * METRES


TOUCHING = Diagram.from_boxes(
    (0, 1, 3, 9),
    [(20, 20, 100, 100), (100, 20, 150, 80), (100, 80, 150, 100), (20, 100, 80, 115)],
    "touching",
)
"""Rooms without gaps between them, and a balcony."""


def test_building_models_hold_what_is_drawn(tmp_path):
    """Valid IFC: spaces with the areas of rooms, and walls with the volume of those drawn, less openings."""
    ifcopenshell = pytest.importorskip("ifcopenshell")
    geom = pytest.importorskip("ifcopenshell.geom")
    validate = pytest.importorskip("ifcopenshell.validate")

    def volume(element):
        mesh = geom.create_shape(geom.settings(), element).geometry
        corners = np.reshape(mesh.verts, (-1, 3))[np.reshape(mesh.faces, (-1, 3))]
        a, b, c = corners.swapaxes(0, 1)
        return float((a * np.cross(b, c)).sum()) / 6

    for diagram in (DIAGRAMS[0], TOUCHING):
        plan = floor_plan(diagram.types, np.array(diagram.boxes), None, diagram.doors)
        (file,) = write_diagrams({0: diagram}, tmp_path, "ifc")
        log = validate.json_logger()
        validate.validate(str(file), log)
        assert not log.statements
        model = ifcopenshell.open(str(file))
        assert model.schema == "IFC4"
        assert len(model.by_type("IfcBuildingStorey")) == 1
        spaces = model.by_type("IfcSpace")
        assert [space.Name for space in spaces] == room_names(diagram)
        assert [space.ObjectType for space in spaces] == [
            ROOMS[kind] for kind in diagram.types
        ]
        areas = plan.room_areas() * METRES**2
        assert [volume(space) / STOREY for space in spaces] == pytest.approx(areas)
        quantities = [
            space.IsDefinedBy[0].RelatingPropertyDefinition for space in spaces
        ]
        assert [q.Quantities[0].AreaValue for q in quantities] == pytest.approx(areas)

        walls = solid_walls(diagram.types, plan)
        expected = walls.area * METRES**2 * STOREY
        for opening in openings_in(plan):
            height = 2.1 if isinstance(opening, Door) else 1.2
            gap = walls.intersection(gap_box(opening, plan))
            expected -= gap.area * METRES**2 * height
        assert sum(map(volume, model.by_type("IfcWall"))) == pytest.approx(expected)

        doors, windows = model.by_type("IfcDoor"), model.by_type("IfcWindow")
        assert len(doors) == len(plan.doors)
        assert len(windows) == len(plan.windows)
        for leaf in (*doors, *windows):
            (filled,) = leaf.FillsVoids
            (voided,) = filled.RelatingOpeningElement.VoidsElements
            assert voided.RelatingBuildingElement.is_a("IfcWall")
        for door, swing in zip(doors, door_swings(diagram.types, plan), strict=True):
            place = ifcopenshell.util.placement.get_local_placement(
                door.ObjectPlacement
            )
            if swing is None:
                assert door.OperationType == "SLIDING_TO_LEFT"
                continue
            # A door opens along y; its hinge is at x = 0 if it is on the left.
            hinge, opened = np.array([swing.hinge, swing.opened]) * [METRES, -METRES]
            assert (opened - hinge) @ place[:2, 1] == pytest.approx(DOOR_WIDTH * METRES)
            x = 0.0 if door.OperationType == "SINGLE_SWING_LEFT" else door.OverallWidth
            assert place[:2, 3] + x * place[:2, 0] == pytest.approx(hinge)


@pytest.mark.slow
# ifcopenshell leaves the file of the rules open.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_building_models_meet_the_rules_of_the_schema():
    ifcopenshell = pytest.importorskip("ifcopenshell")
    validate = pytest.importorskip("ifcopenshell.validate")
    log = validate.json_logger()
    model = ifcopenshell.file.from_string(ifc_plan(DIAGRAMS[0]))
    validate.validate(model, log, express_rules=True)
    assert not log.statements


def test_walls_are_divided_at_no_opening():
    for diagram in (*DIAGRAMS[:20], TOUCHING):
        plan = floor_plan(diagram.types, np.array(diagram.boxes), None, diagram.doors)
        walls = solid_walls(diagram.types, plan)
        gaps = [gap_box(opening, plan) for opening in openings_in(plan)]
        boxes = [shapely.box(*box) for box in divide_walls(walls, gaps)]
        assert sum(box.area for box in boxes) == pytest.approx(walls.area)
        assert shapely.union_all(boxes).symmetric_difference(walls).area < 0.01
        for gap in gaps:
            assert sum(box.intersection(gap).area > 0.01 for box in boxes) == 1


def test_vector_plans_agree_with_the_boxes():
    """Rooms in metres with the areas of the floor plan, one door fewer than rooms, and a front door on an outline."""
    for diagram in DIAGRAMS[:8]:
        shapes = geojson_plan(diagram)["features"]
        by_layer = {
            layer: [s for s in shapes if s["properties"]["layer"] == layer]
            for layer in ("rooms", "doors")
        }
        rooms = [
            shapely.Polygon(shape["geometry"]["coordinates"][0])
            for shape in by_layer["rooms"]
        ]
        assert [shape["properties"]["type"] for shape in by_layer["rooms"]] == [
            ROOMS[kind] for kind in diagram.types
        ]
        assert all(room.is_valid and room.exterior.is_ccw for room in rooms)
        assert not any(
            one.intersection(other).area > 1e-9 for one, other in combinations(rooms, 2)
        )
        areas = (
            np.bincount(
                floor_plan(diagram.types, np.array(diagram.boxes)).label.ravel() + 1
            )[1:]
            * (18 / 256) ** 2
        )
        assert [room.area for room in rooms] == pytest.approx(areas, rel=2e-3)
        assert len(by_layer["doors"]) == len(rooms) - 1
        for shape in by_layer["doors"]:
            line = shapely.LineString(shape["geometry"]["coordinates"])
            assert sum(line.distance(room) < 0.4 for room in rooms) >= 2
        (front,) = [s for s in shapes if s["properties"]["layer"] == "front-door"]
        outside = (
            shapely.unary_union(rooms)
            .buffer(0.4, join_style="mitre")
            .buffer(-0.4, join_style="mitre")
            .boundary
        )
        assert (
            shapely.LineString(front["geometry"]["coordinates"]).distance(outside)
            < 0.05
        )


SAMPLES = np.stack([encode(diagram, 8) for diagram in DIAGRAMS[:3]])
CYCLE = Diagram((0, 2, 3), ((0, 1, 2), (0, 2, 7), (1, 2, 2)))
"""Each room left of the next, the last left of the first: impossible."""


def test_exported_samples(tmp_path):
    """Samples have realising boxes if there are any; files are named by sample, and notes count the others."""
    samples = np.stack([*SAMPLES, encode(CYCLE, 8)])
    samples[1, 0] = NODE_MASK
    files, notes = write_samples(samples, 8, tmp_path, "jsonl")
    assert notes[0].startswith("sample 1 skipped")
    assert notes[1].startswith("1 of 3 samples")
    first, last, cycle = read_plans(files[0], 8)
    assert (first.types, first.edges, first.name) == (
        DIAGRAMS[0].types,
        DIAGRAMS[0].edges,
        "sample 0",
    )
    assert (last.types, last.name) == (DIAGRAMS[2].types, "sample 2")
    walls = np.array(first.boxes)
    assert abs(walls[:, :2].min(0) + walls[:, 2:].max(0) - 256).max() <= 1, (
        "boxes are centred"
    )
    assert (cycle.edges, cycle.boxes) == (CYCLE.edges, None)
    files, notes = write_samples(samples, 8, tmp_path, "housegan")
    assert [file.name for file in files] == ["0.json", "2.json", "3.json"]
    for file, row in zip(
        files[:2], (0, 2), strict=True
    ):  # from tokens alone, with boxes from the search
        (entry,) = read_housegan(file, ReadOptions(bedrooms="all-second"))
        assert (entry.diagram.types, entry.diagram.edges) == (
            one_bedroom(DIAGRAMS[row].types),
            DIAGRAMS[row].edges,
        )
    assert notes[1].startswith("1 of 3 samples")
    (entry,) = read_housegan(files[2], ReadOptions(adjacency="door"))
    assert entry.diagram.types == one_bedroom(CYCLE.types)


COUNT = 4096


@pytest.fixture(scope="module")
def plans():
    return make_plans(0, 0, COUNT)


@pytest.fixture(scope="module", params=[8, 14])
def any_plans(request, plans):
    """Plans of up to 8 and of up to 14 rooms."""
    return plans if request.param == 8 else make_plans(5, 0, 1024, 14)


def test_distribution_of_room_counts(any_plans):
    slots, count = any_plans.types.shape[1], len(any_plans)
    shares = {
        rooms: share
        for rooms, share in {**ROOM_COUNTS, **LARGER_COUNTS}.items()
        if rooms <= slots
    }
    for rooms, weight in shares.items():
        share = weight / sum(shares.values())
        assert abs((any_plans.rooms == rooms).mean() - share) < 4 * np.sqrt(
            share * (1 - share) / count
        ), rooms
    assert set(any_plans.rooms.tolist()) == set(shares)


def test_boxes_are_valid_and_give_the_relations(any_plans):
    slots, real = any_plans.types.shape[1], any_plans.types != NODE_PAD
    assert token_validity(any_plans.tokens(slots), slots).order.all(), (
        "one living room, and connected"
    )
    boxes = any_plans.boxes[real]
    assert boxes.min() >= 0
    assert boxes.max() <= GRID
    assert (boxes[:, 2:] - boxes[:, :2] >= 13).all()
    assert not any_plans.boxes[~real].any()
    assert (np.sort(~real, axis=1) == ~real).all(), "empty slots do not come last"
    expected = np.where(
        any_plans.edges == EDGE_PAD, EDGE_PAD, edges_of(any_plans.boxes)
    )
    assert (expected == any_plans.edges).all()
    padding = (
        len(pairs(slots)) * len(any_plans)
        - (any_plans.rooms * (any_plans.rooms - 1) // 2).sum()
    )
    assert (any_plans.edges == EDGE_PAD).sum() == padding


def test_relations_are_distributed_as_in_rplan(plans):
    edges = (plans.edges != EDGE_PAD) & (plans.edges != NO_EDGE)
    assert abs(edges.sum() / COUNT - 10.2) < 0.6
    assert 0.05 < np.isin(plans.edges, [INSIDE, SURROUNDING])[edges].mean() < 0.08


def test_distribution_of_types(plans):
    share = np.bincount(plans.types[plans.types != NODE_PAD], minlength=13) / COUNT
    by_name = dict(zip(ROOMS, share, strict=True))
    assert max(by_name, key=by_name.get) == "SecondRoom"
    assert min(by_name, key=by_name.get) == "Entrance"
    assert (
        0
        < by_name["Entrance"]
        < 0.97
        < min(by_name["MasterRoom"], by_name["Kitchen"])
        < 1
        <= by_name["Bathroom"]
    )
    most = (plans.types[:, :, None] == np.arange(13)).sum(1).max(0)
    caps = {"SecondRoom": 3, "Balcony": 2, "Bathroom": 3}
    assert all(most[kind] <= caps.get(name, 1) for kind, name in enumerate(ROOMS))


def test_plan_is_a_function_of_seed_and_number(plans):
    whole = plans.tokens(8)
    generator._make_block.cache_clear()
    for start, stop in (
        (0, 1),
        (BLOCK - 1, BLOCK + 1),
        (700, 731),
        (BLOCK, BLOCK),
        (1000, 3 * BLOCK),
    ):
        part = make_plans(0, start, stop)
        assert len(part) == stop - start
        assert (part.tokens(8) == whole[start:stop]).all()
        assert (part.boxes == plans.boxes[start:stop]).all()
    assert (make_plans(1, 0, 100).tokens(8) != whole[:100]).any(1).mean() > 0.9


def test_many_plans_are_cached_and_indexed_in_pieces(plans, cache, monkeypatch):
    monkeypatch.setattr(generator, "CACHED", 700)
    made, cached = make_plans(0, 5, 1500), make_plans(0, 5, 1500)
    assert len(list(cache.rglob("types.npy"))) == 1
    assert (made.tokens(8) == plans[5:1500].tokens(8)).all()
    assert (cached.tokens(8) == made.tokens(8)).all()
    assert (cached.boxes == made.boxes).all()
    tokens = made.tokens(8)
    frequencies = Frequencies.of(tokens, 8)
    monkeypatch.setattr(plan_arrays, "BLOCK", 400)
    assert frequencies.distances(Frequencies.of(tokens, 8)) == frequencies.distances(
        frequencies
    )
    next(cache.rglob("types.npy")).write_bytes(b"damaged")
    assert (make_plans(0, 5, 1500).tokens(8) == tokens).all()
    monkeypatch.setattr(
        generator,
        "cache_folder",
        lambda: cache / "procedural-plans" / "file" / "folder",
    )
    (cache / "procedural-plans" / "file").touch()
    assert (make_plans(0, 5, 1500).tokens(8) == tokens).all(), "nothing can be cached"


def test_plans_are_reproducible_across_versions():
    """After a deliberate change of the generator, raise `ProceduralPlans.rev` and update the digest."""
    digest = hashlib.sha256(make_plans(0, 0, 64).tokens(8).tobytes()).hexdigest()
    assert (ProceduralPlans.rev, digest[:16]) == (1, "6bdcde028f8249e4")


def test_a_room_of_two_pixels_with_five_doors_is_exported():
    corners = [(0, 0), (2, 0), (2, 2), (0, 2)]
    sides = [(*a, *b) for a, b in zip(corners, corners[1:] + corners[:1], strict=True)]
    shared = [(node, (5, node, 6, node + 1)) for node in range(9)]
    nodes = [node for _, node in _walls(sides, shared)]
    assert sorted(nodes) == list(range(9))
