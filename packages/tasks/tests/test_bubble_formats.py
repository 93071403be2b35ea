"""Readers of published floor-plan formats, on small files written as the formats are documented."""

import json
import os
import pickle
import struct
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace

import networkx
import numpy as np
import pytest
import shapely
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from scipy.io import savemat

from dither.registry.files.restricted_pickle import Stub, load_restricted
from dither.tasks.bubble_diagram.data.plan_files import find_source
from dither.tasks.bubble_diagram.data.procedural import make_plans
from dither.tasks.bubble_diagram.formats import graph2plan
from dither.tasks.bubble_diagram.formats.entries import ReadOptions
from dither.tasks.bubble_diagram.formats.graph2plan import read_graph2plan
from dither.tasks.bubble_diagram.formats.housegan import read_housegan
from dither.tasks.bubble_diagram.formats.resplan import (
    PIXELS_PER_METRE,
    on_grid,
    polygons_of,
    read_msd,
    read_resplan,
)
from dither.tasks.bubble_diagram.formats.rplan_png import read_rplan_picture
from dither.tasks.bubble_diagram.plans import Diagram
from dither.tasks.bubble_diagram.relations import edges_of
from dither.tasks.bubble_diagram.vocabulary import LIVING, ROOM_IDS, ROOMS

MASTER, KITCHEN, BATH, SECOND, BALCONY = (
    ROOM_IDS[name]
    for name in ("MasterRoom", "Kitchen", "Bathroom", "SecondRoom", "Balcony")
)
OPTIONS = ReadOptions()
THREE = [(60, 60, 140, 160), (144, 60, 200, 110), (144, 112, 180, 160)]
TYPES = [LIVING, KITCHEN, BATH]


def write_png(path, types, boxes):
    """Write a picture; later rooms cover earlier ones, walls and a door have no instance."""
    pixels = np.zeros((256, 256, 4), np.uint8)
    pixels[..., 1] = 13
    for number, (kind, (x0, y0, x1, y1)) in enumerate(
        zip(types, boxes, strict=True), 1
    ):
        pixels[y0:y1, x0:x1] = (0, kind, number, 255)
    pixels[58:60, 60:72, 0], pixels[58:60, 60:72, 1] = 255, 15
    Image.fromarray(pixels).save(path)
    return path


def only(entries):
    (entry,) = entries
    return entry


def fault(entries):
    """Return category and message of the first fault of a single rejected entry."""
    entry = only(entries)
    assert entry.diagram is None
    return entry.faults[0]


def test_rplan_picture(tmp_path):
    """Each room has the category of most of its pixels."""
    path = write_png(tmp_path / "7.png", TYPES, THREE)
    pixels = np.asarray(Image.open(path)).copy()
    pixels[60:70, 60:80, 1] = BALCONY  # a minority of the living room
    pixels[200:204, 20:30, 1:3] = (17, 9)  # a door with an instance number
    Image.fromarray(pixels).save(path)
    diagram = only(read_rplan_picture(path, OPTIONS)).diagram
    assert replace(diagram, boundary=None) == Diagram.from_boxes(TYPES, THREE, "7")
    door, outline = (
        diagram.boundary[:2],
        {point for point in diagram.boundary[2:] if point[0] >= 0},
    )
    assert (door, outline) == (
        ((60, 59), (72, 59)),
        {(60, 60), (140, 60), (140, 160), (60, 160)},
    )
    boxes = [(60, 60, 170, 190), (72, 161, 125, 221), (100, 60, 150, 90)]
    entry = only(
        read_rplan_picture(write_png(path, [LIVING, MASTER, BATH], boxes), OPTIONS)
    )
    assert replace(entry.diagram, boundary=None) == Diagram.from_boxes(
        (LIVING, MASTER, BATH), boxes, "7"
    )


def test_rejected_rplan_pictures(tmp_path):
    path = write_png(tmp_path / "a.png", TYPES, THREE)
    content = path.read_bytes()
    for length in (0, 30, len(content) // 2, len(content) - 40):
        path.write_bytes(content[:length])
        assert fault(read_rplan_picture(path, OPTIONS)).sort == "file"
    for shape, actual in (((256, 256, 3), "RGB"), ((255, 256, 4), "256 x 255")):
        Image.fromarray(np.zeros(shape, np.uint8)).save(path)
        assert actual in fault(read_rplan_picture(path, OPTIONS)).message
    assert fault(read_rplan_picture(tmp_path / "none.png", OPTIONS)).sort == "file"
    assert (
        fault(read_rplan_picture(write_png(path, [LIVING], THREE[:1]), OPTIONS)).sort
        == "rooms"
    )
    assert (
        fault(
            read_rplan_picture(write_png(path, [LIVING, 99], THREE[:2]), OPTIONS)
        ).sort
        == "types"
    )


FIELDS = [
    (name, "O")
    for name in (
        "name",
        "boundary",
        "gtBox",
        "gtBoxNew",
        "rType",
        "rEdge",
        "box",
        "edge",
    )
]


def write_mat(path, plans, variable="data"):
    """Write a struct array with the fields that occur in some plan."""
    names = [
        (name, kind) for name, kind in FIELDS if any(name in plan for plan in plans)
    ]
    data = np.empty((1, len(plans)), names)
    for index, plan in enumerate(plans):
        data[0, index] = tuple(plan.get(name, np.zeros((0, 0))) for name, _ in names)
    savemat(path, {variable: data})
    return path


def g2p(types, boxes, name="1"):
    boxes = np.array(boxes, np.uint8)
    plan = {
        "name": name,
        "boundary": np.array([[60, 60, 0, 1]], np.uint8),
        "gtBoxNew": boxes,
    }
    plan |= {
        "gtBox": boxes[:, [1, 0, 3, 2]] + 1,
        "rType": np.array(types, np.uint8)[:, None],
    }
    return plan | {"rEdge": np.array([[0, 1, 9]], np.uint8)}


@pytest.fixture
def in_process(monkeypatch):
    """Read MATLAB files in this process."""
    monkeypatch.setattr(
        graph2plan,
        "ProcessPoolExecutor",
        lambda workers, mp_context: ThreadPoolExecutor(workers),
    )


def test_graph2plan_fields(tmp_path, in_process):
    full = g2p(TYPES, THREE)
    bare = {key: value for key, value in full.items() if not key.startswith("gtBox")}
    expected = Diagram.from_boxes(TYPES, THREE, "1")
    plans = {
        "aligned": (full, expected),
        "unaligned": (bare | {"gtBox": np.array(THREE)[:, [1, 0, 3, 2]]}, expected),
        "preprocessed": ({"name": "1", "box": np.column_stack([THREE, TYPES]), "edge": [[0, 1, 3]]}, expected),
        "edges": (bare | {"rEdge": np.array([[0, 1, 9], [1, 2, 3]])},
                  Diagram(tuple(TYPES), ((0, 1, 9), (1, 2, 3)), None, "1")),
        "a single edge": ({"name": "1", "rType": np.array([0, 2], np.uint8), "rEdge": np.array([0, 1, 2], np.uint8)},
                          Diagram((0, 2), ((0, 1, 2),), None, "1")),
    }  # fmt: skip
    for name, (plan, diagram) in plans.items():
        assert (
            only(
                read_graph2plan(write_mat(tmp_path / "data.mat", [plan]), OPTIONS)
            ).diagram
            == diagram
        ), name
    single = {"name": "1", "rType": 0, "gtBoxNew": np.array([1, 2, 30, 40])}
    assert (
        fault(read_graph2plan(write_mat(tmp_path / "data.mat", [single]), OPTIONS)).sort
        == "rooms"
    )


def test_graph2plan_runs_no_code_of_the_working_folder(tmp_path, monkeypatch):
    path = write_mat(tmp_path / "data.mat", [g2p(TYPES, THREE)])
    for name in ("multiprocessing", "scipy"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit(99)")
    monkeypatch.chdir(tmp_path)
    assert only(read_graph2plan(path, OPTIONS)).diagram


@pytest.mark.slow
def test_graph2plan_is_read_by_a_script_without_a_main_guard(tmp_path):
    write_mat(tmp_path / "data.mat", [g2p(TYPES, THREE)])
    (tmp_path / "script.py").write_text(
        "from pathlib import Path\n"
        "from dither.tasks.bubble_diagram.formats.entries import ReadOptions\n"
        "from dither.tasks.bubble_diagram.formats.graph2plan import read_graph2plan\n"
        "print(len(list(read_graph2plan(Path('data.mat'), ReadOptions()))))\n"
    )
    command = [sys.executable, "script.py"]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "1\n", "")


INVALID = [
    (g2p(TYPES[:1], THREE[:1]), "rooms", "1 rooms"),
    (g2p([SECOND] * 40, [(k, 0, k + 6, 9) for k in range(40)]), "rooms", "40 rooms"),
    (g2p([LIVING, 13, BATH], THREE), "types", "room 1"),
    (
        g2p(TYPES, [THREE[0], (200, 60, 144, 110), THREE[2]]),
        "boxes",
        "room 1 (Kitchen): [200, 60, 144, 110]",
    ),
    (
        {"name": "x", "rType": np.array([0, 2, 3]), "gtBoxNew": np.array(THREE[:2])},
        "boxes",
        "(2, 4)",
    ),
    (
        {"rType": np.array([0, 2]), "rEdge": np.array([[1, 0, 3]])},
        "edges",
        "rooms 1 and 0",
    ),
    ({"rType": np.array([0, 2]), "rEdge": np.array([[0, 1, 10]])}, "edges", "10"),
    (
        {"rType": np.array([0, 2]), "rEdge": np.array([[0, 1, 1], [0, 1, 2]])},
        "edges",
        "0 and 1",
    ),
    ({"name": "only"}, "rooms", "0 rooms"),
    ({"rType": np.array([0.0, np.nan])}, "types", "nan"),
    (
        {
            "rType": np.array([0, 2]),
            "gtBoxNew": np.array([[1, 2, np.nan, 4], [np.inf, 1, 2, 3]]),
        },
        "boxes",
        "nan",
    ),
]


def test_invalid_graph2plan_plans(tmp_path, in_process):
    """Each is reported with its category; valid plans between them are read."""
    valid = g2p(TYPES, THREE, "valid")
    path = write_mat(
        tmp_path / "data.mat",
        [plan for invalid, _, _ in INVALID for plan in (invalid, valid)],
    )
    entries = list(read_graph2plan(path, OPTIONS))
    assert [entry.diagram for entry in entries[1::2]] == [
        Diagram.from_boxes(TYPES, THREE, "valid")
    ] * len(INVALID)
    for number, ((_, sort, text), entry) in enumerate(
        zip(INVALID, entries[::2], strict=True)
    ):
        assert entry.diagram is None
        assert entry.plan.startswith(f"plan {2 * number}")
        assert entry.faults[0].sort == sort
        assert text in entry.faults[0].message


def test_rejected_matlab_files(tmp_path, in_process):
    path = write_mat(tmp_path / "a.mat", [g2p(TYPES, THREE)], "plans")
    assert fault(read_graph2plan(path, OPTIONS)) == (
        "file",
        "missing variable data; variables: plans",
    )
    savemat(path, {"data": np.eye(3)})
    assert "float64" in fault(read_graph2plan(path, OPTIONS)).message
    content = write_mat(path, [g2p(TYPES, THREE)]).read_bytes()
    path.write_bytes(content[: len(content) // 2])
    assert fault(read_graph2plan(path, OPTIONS)).sort == "file"
    header = b"MATLAB 7.3 MAT-file".ljust(124) + struct.pack("<HH", 0x0200, 0x4D49)
    path.write_bytes(header + b"\x89HDF\r\n\x1a\n" + bytes(400))
    assert "-v7" in fault(read_graph2plan(path, OPTIONS)).message


HOUSE = {  # a living room with a kitchen and two bedrooms; the small bedroom has a door to the large one
    "room_type": [3, 1, 2, 3, 17, 17, 17, 15],
    "boxes": [
        [20.0, 20.0, 59.0, 59.0],
        [64.0, 20.0, 143.0, 119.0],
        [148.0, 20.0, 187.0, 59.0],
        [20.0, 64.0, 59.0, 143.0],
        [60, 30, 62, 42],
        [144, 30, 146, 42],
        [30, 60, 42, 62],
        [90, 120, 102, 122],
    ],
    "edges": [[20.0, 20.0, 20.0, 59.0, 3, 0]] * 6,
    # walls of rooms, then of doors: the last inner door joins rooms 0 and 3, which no wall lists
    "ed_rm": [
        [0],
        [0, 1],
        [1, 0],
        [2],
        [4, 0],
        [4, 1],
        [5, 2],
        [5, 1],
        [6, 0],
        [6, 3],
        [7, 1],
    ],
}


def house(folder, change=None, **options):
    (folder / "5.json").write_text(json.dumps(HOUSE | (change or {})))
    return read_housegan(folder / "5.json", ReadOptions(**options))


def test_housegan_proximity_and_doors(tmp_path):
    boxes = [
        (20, 20, 60, 60),
        (64, 20, 144, 120),
        (148, 20, 188, 60),
        (20, 64, 60, 144),
    ]
    near = only(house(tmp_path)).diagram
    plan = Diagram.from_boxes((SECOND, LIVING, KITCHEN, MASTER), boxes, "5")
    assert replace(near, doors=None) == plan, "the larger bedroom is the master"
    assert near.doors == ((0, 1), (0, 3), (1, 2), (1, None))
    assert [edge[:2] for edge in near.edges] == [(0, 1), (0, 3), (1, 2), (1, 3)]
    doors = only(house(tmp_path, adjacency="door")).diagram
    assert [edge[:2] for edge in doors.edges] == [(0, 1), (0, 3), (1, 2)]
    assert set(doors.edges) < set(near.edges)
    assert only(house(tmp_path, bedrooms="all-second")).diagram.types == (
        SECOND,
        LIVING,
        KITCHEN,
        SECOND,
    )


def test_invalid_housegan_plans(tmp_path):
    boxes = HOUSE["boxes"]
    for change, sort, text in (
        ({"room_type": [3, 1, 2, 11, 17, 17, 17, 15]}, "types", "room_type[3]"),
        ({"room_type": [3, 1, 2, "x", 17, 17, 17, 15]}, "types", "room_type[3]"),
        ({"room_type": [1, 17, 17, 17, 17, 17, 17, 15]}, "rooms", "1 rooms"),
        ({"boxes": boxes[:-1]}, "boxes", "7 boxes"),
        (
            {"boxes": [[59, 20, 20, 59], *boxes[1:]]},
            "boxes",
            "room 0 (SecondRoom): [59, 20, 21, 60]",
        ),
        ({"boxes": [[20, 20, 59], *boxes[1:]]}, "boxes", "boxes[0]"),
        ({"boxes": [[1, 1, 2, 10**400], *boxes[1:]]}, "boxes", "inf"),
        ({"ed_rm": None}, "edges", "ed_rm"),
        ({"ed_rm": [[0, 99]]}, "edges", "ed_rm[0]"),
    ):
        found = fault(house(tmp_path, change, adjacency="door"))
        assert (found.sort, text in found.message) == (sort, True)


LEAF = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 300),
    st.floats(),
    st.sampled_from(["1", ""]),
)
JSON = st.recursive(LEAF, lambda inner: st.lists(inner, max_size=4), max_leaves=10)


@given(st.sampled_from(sorted(HOUSE)), JSON, st.integers(0, 7))
def test_malformed_housegan_plan_is_an_entry(tmp_path_factory, key, value, position):
    folder = tmp_path_factory.getbasetemp()
    for change in (value, [*HOUSE[key][:position], value, *HOUSE[key][position + 1 :]]):
        only(house(folder, {key: change}, adjacency="door"))


def write_pickle(path, value, protocol=None):
    path.write_bytes(pickle.dumps(value, protocol))
    return path


@pytest.mark.parametrize("protocol", [0, 5])
def test_resplan(tmp_path, protocol):
    several = shapely.MultiPolygon
    plan = {
        "id": 12,
        "living": several(
            [shapely.box(60, 60, 100, 160), shapely.box(90, 60, 140, 100)]
        ),
        "kitchen": shapely.box(144, 60, 200, 110),
        "bedroom": several(
            [shapely.box(60, 164, 90, 190), shapely.box(94, 164, 140, 196)]
        ),
        "balacony": None,
        "wall": shapely.box(0, 0, 9, 9),
        "door": several(
            [
                shapely.box(140, 70, 144, 80),
                shapely.box(70, 160, 80, 164),
                shapely.box(10, 10, 20, 12),
            ]
        ),
        "front_door": shapely.box(56, 100, 60, 112),
        "graph": networkx.Graph([(0, 1)]),
        "wall_width": 3.5,
    }
    invalid = {"id": 13, "living": "nothing", "kitchen": None}
    path = write_pickle(tmp_path / "ResPlan.pkl", [plan, invalid, plan], protocol)
    first, second, third = read_resplan(path, OPTIONS)
    shift = np.array([128 - 130, 128 - 128] * 2)  # to the centre
    boxes = (
        np.array(
            [
                (60, 60, 140, 160),
                (144, 60, 200, 110),
                (60, 164, 90, 190),
                (94, 164, 140, 196),
            ]
        )
        + shift
    )
    expected = Diagram.from_boxes(
        (LIVING, KITCHEN, SECOND, MASTER), [tuple(b) for b in boxes], "12"
    )
    assert replace(first.diagram, doors=None) == expected, "no boundary without inner"
    assert third.diagram == first.diagram
    assert first.diagram.doors == ((0, 1), (0, 2), (0, None))
    assert second.faults[0].sort == "boxes"
    assert "living" in second.faults[0].message


def test_resplan_scale_and_small_rooms(tmp_path):
    """Units differ by plan; storage rooms and stairs are rooms."""
    boxes = [(0, 0, 30, 40), (30, 0, 50, 40), (0, 40, 50, 60), (50, 0, 60, 60)]
    plan = dict(
        zip(
            ("living", "kitchen", "storage", "stair"),
            map(lambda box: shapely.box(*box), boxes),
            strict=True,
        )
    )
    plan |= {"inner": shapely.box(0, 0, 60, 60), "area": 144.0}  # 5 units are a metre
    for area, side in ((144.0, 60 / 5), (36.0, 60 / 10), ("?", 60 / PIXELS_PER_METRE)):
        diagram = only(
            read_resplan(
                write_pickle(tmp_path / "a.pkl", [plan | {"area": area}]), OPTIONS
            )
        ).diagram
        assert [ROOMS[kind] for kind in diagram.types] == [
            "LivingRoom",
            "Kitchen",
            "Storage",
            "Storage",
        ]
        walls = np.array(diagram.boxes)
        assert (
            np.abs(
                walls[:, 2:].max(0) - walls[:, :2].min(0) - side * PIXELS_PER_METRE
            ).max()
            <= 1
        )
    outline = [
        (-1, -1),
        (61, -1),
        (61, 30),
        (61, 61),
        (-1, 61),
    ]  # a corner on a straight wall, a slit, and the door
    inner = shapely.MultiPolygon(
        [shapely.Polygon(outline), shapely.box(70, 70, 71, 71)]
    )
    plan |= {"inner": inner, "area": None, "front_door": shapely.box(20, -3, 32, -1)}
    diagram = only(
        read_resplan(write_pickle(tmp_path / "a.pkl", [plan]), OPTIONS)
    ).diagram
    left, top = diagram.boxes[0][0] - 1, diagram.boxes[0][1] - 1
    corners = [(x - left, y - top) for x, y in diagram.boundary if x >= 0]
    assert corners == [(21, -1), (33, -1), (0, 0), (62, 0), (62, 62), (0, 62)]
    wrong = fault(
        read_resplan(
            write_pickle(tmp_path / "a.pkl", [plan | {"area": float("nan")}]), OPTIONS
        )
    )
    assert wrong.sort == "boxes"


def test_msd(tmp_path):
    graph = networkx.Graph(ID=4)
    corners = [(0.0, 0.0), (4.0, 0.0), (4.0, 3.0), (0.0, 3.0), (0.0, 0.0)]
    graph.add_node(0, geometry=corners, room_type=1, centroid=np.zeros(2))
    graph.add_node(1, geometry=[(x + 4.2, y) for x, y in corners], room_type=0)
    graph.add_node(2, geometry=[(x, y + 3.2) for x, y in corners], room_type=7)
    graph.add_edge(0, 1, connectivity="door")
    diagram = only(
        read_msd(write_pickle(tmp_path / "4.pickle", graph), OPTIONS)
    ).diagram
    assert (diagram.types, diagram.name, diagram.doors) == (
        (LIVING, MASTER, BATH),
        "4",
        ((0, 1),),
    )
    assert diagram.edges == ((0, 1, 2), (0, 2, 6), (1, 2, 9)), (
        "y points up in MSD, so room 2 is above room 0"
    )
    for x0, y0, x1, y1 in diagram.boxes:  # a metre is 14.2 pixels
        assert abs(x1 - x0 - 57) <= 1
        assert abs(y1 - y0 - 43) <= 1
    graph.nodes[1]["room_type"] = 9
    assert (
        fault(read_msd(write_pickle(tmp_path / "4.pickle", graph), OPTIONS)).sort
        == "types"
    )
    assert (
        fault(read_msd(write_pickle(tmp_path / "4.pickle", [1]), OPTIONS)).sort
        == "file"
    )


class Harm:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("protocol", range(6))
def test_nothing_in_a_pickle_is_executed(tmp_path, protocol):
    path = write_pickle(
        tmp_path / "a.pkl", [{"living": Harm(tmp_path / "harm")}], protocol
    )
    stub = load_restricted(path.read_bytes())[0]["living"]
    assert isinstance(stub, Stub)
    assert stub.what.endswith(".mkdir")
    assert stub.args == (str(tmp_path / "harm"),)
    list(read_resplan(path, OPTIONS))
    assert not (tmp_path / "harm").exists()
    pickle.loads(path.read_bytes())
    assert (tmp_path / "harm").exists(), (
        "the pickle is harmless, so the test proves nothing"
    )


def test_stubs_are_closed():
    """Even the exception for bytes of old protocols cannot call another codec, and stubs share no state."""
    call = b"c_codecs\nencode\n(Vabc\nVrot13\ntR."
    assert load_restricted(call).what == "_codecs.encode"
    build = b"cos\nsystem\n(lp0\n(dp1\nVx\nI1\nsb0cos\nsystem\n."
    with suppress(pickle.UnpicklingError):
        assert not hasattr(load_restricted(build), "x")
    for persistent in (b"Pabc\n.", b"\x80\x02Vabc\nQ."):
        with pytest.raises(pickle.UnpicklingError):
            load_restricted(persistent)


@given(st.binary(max_size=60), st.integers(0, 400), st.integers(0, 255))
def test_damaged_pickle_is_an_unpickling_error(noise, position, value):
    content = bytearray(
        pickle.dumps(
            {"a": [1, (2, 3)], "b": networkx.Graph([(0, 1)]), "c": np.arange(3)}
        )
    )
    content[position % len(content)] = value
    for damaged in (bytes(content), noise, bytes(content)[: position % len(content)]):
        with suppress(pickle.UnpicklingError):
            load_restricted(damaged)


def test_bounds_of_geometries():
    def bounds(shape):
        return [polygon.bounds for polygon in polygons_of({"living": shape}, "living")]

    square, expected = shapely.box(0, 0, 4, 3), (0, 0, 4, 3)
    as_state = Stub()
    as_state.state = shapely.to_wkb(square)
    assert bounds(as_state) == [expected]
    solid = shapely.force_3d(square, 9.0)
    for options in (
        {"byte_order": 0},
        {"flavor": "iso"},
        {"flavor": "extended"},
        {"include_srid": True},
    ):
        assert bounds(Stub(shapely.to_wkb(solid, **options))) == [expected]
    nested = shapely.GeometryCollection(
        [shapely.Point(1, 1), shapely.MultiPolygon([square, square])]
    )
    assert bounds(Stub(shapely.to_wkb(nested))) == [expected] * 2
    mixed = pickle.dumps(
        shapely.GeometryCollection([shapely.LineString([(0, 0), (9, 9)]), square])
    )
    assert bounds(load_restricted(mixed)) == [expected]
    for empty in (
        None,
        Stub(shapely.to_wkb(shapely.Point(0, 0))),
        Stub(shapely.to_wkb(shapely.Polygon())),
    ):
        assert bounds(empty) == []
    for damaged in (shapely.to_wkb(square)[:-3], b"", struct.pack("<BI", 1, 99)):
        with pytest.raises(ValueError, match="geometry"):
            bounds(Stub(damaged))
    with pytest.raises(ValueError, match="geometry"):
        bounds("nothing")


def test_plans_are_centred_on_the_grid():
    """Shifting a plan to the centre changes neither sizes nor relations."""
    assert on_grid([(0, 0, 10, 20)], 2.0).tolist() == [[118, 108, 138, 148]]
    flipped = on_grid([(0, 0, 10, 20), (0, 20, 10, 30)], 1.0, flip=True)
    assert flipped.tolist() == [[123, 123, 133, 143], [123, 113, 133, 123]]
    assert on_grid([(0, 0, 100, 40), (100, 0, 200, 40)], 2.56).tolist() == [
        [0, 102, 128, 153],
        [128, 102, 256, 153],
    ]
    plans, random = make_plans(6, 0, 50), np.random.default_rng(0)
    for row in range(50):
        boxes = plans.boxes[row, : int(plans.rooms[row])] + np.tile(
            random.integers(-40, 40, 2), 2
        )
        centred = on_grid(boxes, 1.0)
        assert (centred - boxes == np.tile((centred - boxes)[0, :2], 2)).all()
        assert (edges_of(centred.astype(int)) == edges_of(boxes)).all()


def test_format_by_suffix(tmp_path, refusal):
    for number, (names, form, expected) in enumerate((
        (("10.png", "9.png", "notes.txt", ".hidden.png"), "auto", ("rplan-png", ["9.png", "10.png"])),
        (("data.mat",), "auto", ("graph2plan", ["data.mat"])),
        (("1.json", "list.txt"), "auto", ("housegan", ["1.json"])),
        (("a.jsonl",), "auto", ("jsonl", ["a.jsonl"])),
        ((), "auto", "no-samples"),
        (("a.pkl",), "auto", "unknown-format"),
        (("a.png", "a.mat"), "auto", "unknown-format"),
        (("a.txt",), "rplan-png", "unknown-format"),
    )):  # fmt: skip
        folder = tmp_path / str(number)
        folder.mkdir()
        for name in names:
            (folder / name).touch()
        if isinstance(expected, str):
            assert refusal(find_source, folder, form).codes == [expected]
        else:
            found, files = find_source(folder, form)
            assert (found, [file.name for file in files]) == expected
