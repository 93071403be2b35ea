"""Small files of each layout, written here as their makers document them."""

import json
import os
import pickle
import struct
import sys
import types as python_types
import zlib
from contextlib import suppress
from pathlib import Path

import networkx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from scipy.io import savemat

from dither.registry.config.errors import Refused
from dither.tasks.bubble_diagram.data.plan_files import find_source, read_source
from dither.tasks.bubble_diagram.data.procedural import make_plans
from dither.tasks.bubble_diagram.formats.common import ReadOptions
from dither.tasks.bubble_diagram.formats.graph2plan import read_graph2plan
from dither.tasks.bubble_diagram.formats.housegan import read_housegan
from dither.tasks.bubble_diagram.formats.resplan import on_grid, outlines_of, read_msd, read_resplan
from dither.tasks.bubble_diagram.formats.restricted_pickle import Stub, UnsafePickleError, load_restricted
from dither.tasks.bubble_diagram.formats.rplan_png import read_rplan_picture
from dither.tasks.bubble_diagram.plans import Diagram
from dither.tasks.bubble_diagram.vocabulary import ROOMS

LIVING, MASTER, KITCHEN, BATH, SECOND, BALCONY = (
    ROOMS.index(name) for name in ("LivingRoom", "MasterRoom", "Kitchen", "Bathroom", "SecondRoom", "Balcony")
)
CHOICES = ReadOptions()
THREE = [(60, 60, 140, 160), (144, 60, 200, 110), (144, 112, 180, 160)]
TYPES = [LIVING, KITCHEN, BATH]


def write_png(path, types, boxes):
    """Later rooms are drawn over earlier ones; walls and a door are instances of nothing."""
    pixels = np.zeros((256, 256, 4), np.uint8)
    pixels[..., 1] = 13
    for number, (kind, (x0, y0, x1, y1)) in enumerate(zip(types, boxes, strict=True), 1):
        pixels[y0:y1, x0:x1] = (0, kind, number, 255)
    pixels[58:60, 60:72, 0], pixels[58:60, 60:72, 1] = 255, 15
    Image.fromarray(pixels).save(path)
    return path


def only(entries):
    (entry,) = entries
    return entry


def fault(entries):
    entry = only(entries)
    assert entry.diagram is None
    return entry.faults[0].message


# RPLAN


def test_a_picture_of_rplan(tmp_path):
    boxes = [(60, 60, 170, 190), (72, 161, 125, 221), (100, 60, 150, 90)]
    entry = only(read_rplan_picture(write_png(tmp_path / "7.png", [LIVING, MASTER, BATH], boxes), CHOICES))
    assert entry.diagram == Diagram.from_boxes((LIVING, MASTER, BATH), boxes, "7")


def test_every_turn_of_a_picture(tmp_path):
    """Boxes of a picture turned by a quarter are the boxes turned."""
    boxes = np.array(THREE)
    for turn in range(4):
        entry = only(read_rplan_picture(write_png(tmp_path / f"{turn}.png", TYPES, boxes.tolist()), CHOICES))
        pixels = np.asarray(Image.open(tmp_path / f"{turn}.png"))
        Image.fromarray(np.rot90(pixels, -1).copy()).save(tmp_path / "turned.png")
        turned = only(read_rplan_picture(tmp_path / "turned.png", CHOICES))
        x0, y0, x1, y1 = boxes.T
        boxes = np.stack([256 - y1, x0, 256 - y0, x1], 1)
        assert turned.diagram.boxes == tuple(map(tuple, boxes.tolist()))
        assert entry.diagram.boxes != turned.diagram.boxes


def test_a_room_takes_its_commonest_category_and_doors_are_none(tmp_path):
    path = write_png(tmp_path / "a.png", TYPES, THREE)
    pixels = np.asarray(Image.open(path)).copy()
    pixels[60:70, 60:80, 1] = BALCONY  # part of the living room
    pixels[200:204, 20:30, 1:3] = (17, 9)  # a door that has a number
    Image.fromarray(pixels).save(path)
    assert only(read_rplan_picture(path, CHOICES)).diagram == Diagram.from_boxes(TYPES, THREE, "a")


def test_pictures_that_cannot_be_taken(tmp_path):
    path = write_png(tmp_path / "a.png", TYPES, THREE)
    whole = path.read_bytes()
    for cut in (0, 5, 30, 60, len(whole) // 2, len(whole) - 40):
        path.write_bytes(whole[:cut])
        assert "is no PNG that can be read" in fault(read_rplan_picture(path, CHOICES))
    Image.fromarray(np.zeros((256, 256, 3), np.uint8)).save(path)
    assert "256 x 256 pixels of RGB; a picture of RPLAN is 256 x 256 of RGBA" in fault(
        read_rplan_picture(path, CHOICES)
    )
    Image.fromarray(np.zeros((255, 256, 4), np.uint8)).save(path)
    assert "is 256 x 255 pixels" in fault(read_rplan_picture(path, CHOICES))
    assert "No such file" in fault(read_rplan_picture(tmp_path / "none.png", CHOICES))
    write_png(path, [LIVING], THREE[:1])
    assert fault(read_rplan_picture(path, CHOICES)) == "a plan has 2 to 8 rooms here, this one has 1"
    write_png(path, [LIVING, 99], THREE[:2])
    assert "room 2 is of category 99" in fault(read_rplan_picture(path, CHOICES))


@given(st.integers(0, 700), st.integers(0, 255))
def test_no_picture_ends_in_a_traceback(tmp_path_factory, place, value):
    folder = tmp_path_factory.getbasetemp()
    whole = bytearray(write_png(folder / "fuzz.png", TYPES, THREE).read_bytes())
    whole[place % len(whole)] = value
    (folder / "fuzz.png").write_bytes(whole)
    only(read_rplan_picture(folder / "fuzz.png", CHOICES))


# Graph2Plan

FIELDS = [(name, "O") for name in ("name", "boundary", "gtBox", "gtBoxNew", "rType", "rEdge", "box", "edge")]


def write_mat(path, plans, variable="data"):
    """Struct array with the fields that some plan has."""
    names = [(name, kind) for name, kind in FIELDS if any(name in plan for plan in plans)]
    data = np.empty((1, len(plans)), names)
    for place, plan in enumerate(plans):
        data[0, place] = tuple(plan.get(name, np.zeros((0, 0))) for name, _ in names)
    savemat(path, {variable: data})
    return path


def g2p(types, boxes, name="1"):
    boxes = np.array(boxes, np.uint8)
    return {
        "name": name,
        "boundary": np.array([[60, 60, 0, 1]], np.uint8),
        "gtBoxNew": boxes,
        "gtBox": boxes[:, [1, 0, 3, 2]] + 1,
        "rType": np.array(types, np.uint8)[:, None],
        "rEdge": np.array([[0, 1, 9]], np.uint8),
    }


def without(plan, *keys):
    return {key: value for key, value in plan.items() if key not in keys}


def test_plans_of_graph2plan(tmp_path):
    """Moved boxes win over the first ones, and both over stored relations."""
    plans = make_plans(0, 0, 30)
    some = [plans.diagram(row) for row in range(30)]
    path = write_mat(tmp_path / "data.mat", [g2p(d.types, d.boxes, str(n)) for n, d in enumerate(some)])
    found = list(read_graph2plan(path, CHOICES))
    assert [entry.diagram for entry in found] == [
        Diagram(d.types, d.edges, d.boxes, str(n)) for n, d in enumerate(some)
    ]
    assert found[4].plan == 'plan 4 "4"'


def test_other_fields_of_graph2plan(tmp_path):
    whole = g2p(TYPES, THREE)
    first = without(whole, "gtBoxNew")
    first["gtBox"] = np.array(THREE)[:, [1, 0, 3, 2]]
    converted = {"name": "1", "box": np.column_stack([THREE, TYPES]), "edge": np.array([[0, 1, 3]])}
    bare = without(whole, "gtBoxNew", "gtBox")
    bare["rEdge"] = np.array([[0, 1, 9], [1, 2, 3]])
    for plan, expected in (
        (first, Diagram.from_boxes(TYPES, THREE, "1")),
        (converted, Diagram.from_boxes(TYPES, THREE, "1")),
        (bare, Diagram(tuple(TYPES), ((0, 1, 9), (1, 2, 3)), None, "1")),
    ):
        assert only(read_graph2plan(write_mat(tmp_path / "data.mat", [plan]), CHOICES)).diagram == expected


def test_what_squeezing_leaves_of_small_plans(tmp_path):
    """One edge is a vector, and types lie: as written by programs that drop dimensions of length one."""
    bare = {"name": "1", "rType": np.array([0, 2], np.uint8), "rEdge": np.array([0, 1, 2], np.uint8)}
    entry = only(read_graph2plan(write_mat(tmp_path / "data.mat", [bare]), CHOICES))
    assert entry.diagram == Diagram((0, 2), ((0, 1, 2),), None, "1")
    single = {"name": "1", "rType": 0, "gtBoxNew": np.array([1, 2, 30, 40])}
    assert fault(read_graph2plan(write_mat(tmp_path / "data.mat", [single]), CHOICES)).endswith("this one has 1")


def test_pickle_free_forms_of_graph2plan(tmp_path):
    expected = [Diagram.from_boxes(TYPES, THREE, "a"), Diagram.from_boxes(TYPES[:2], THREE[:2], "b")]
    box = np.column_stack([THREE, TYPES])
    plans = [{"name": "a", "box": box.tolist()}, {"name": "b", "box": box[:2].tolist()}]
    for content in (plans, {"data": plans}):
        (tmp_path / "data.json").write_text(json.dumps(content))
        assert [e.diagram for e in read_graph2plan(tmp_path / "data.json", CHOICES)] == expected
    arrays = {"name": np.array(["a", "b"]), "rooms": np.array([3, 2]), "box": np.concatenate([box, box[:2]])}
    np.savez(tmp_path / "data.npz", **arrays)
    assert [e.diagram for e in read_graph2plan(tmp_path / "data.npz", CHOICES)] == expected
    np.savez(tmp_path / "data.npz", **arrays | {"rooms": np.array([3, 3])})
    assert "as many rows as rooms add up to" in fault(read_graph2plan(tmp_path / "data.npz", CHOICES))
    np.savez(tmp_path / "data.npz", rooms=np.array([3], object), box=box)
    assert "Object arrays cannot be loaded" in fault(read_graph2plan(tmp_path / "data.npz", CHOICES))


WRONG = [
    (g2p(TYPES[:1], THREE[:1]), "a plan has 2 to 8 rooms here, this one has 1"),
    (g2p([SECOND] * 40, [(k, 0, k + 6, 9) for k in range(40)]), "this one has 40"),
    (g2p([LIVING, 13, BATH], THREE), "room 1: 13 is no type of room, they are 0..12"),
    (
        g2p(TYPES, [THREE[0], (200, 60, 144, 110), THREE[2]]),
        "room 1 (Kitchen): [200, 60, 144, 110] is empty or inv",
    ),
    (
        {"name": "x", "rType": np.array([0, 2, 3]), "gtBoxNew": np.array(THREE[:2])},
        "four walls are due for each of 3",
    ),
    ({"rType": np.array([0, 2]), "rEdge": np.array([[0, 0, 3]])}, "room 0 has no relation to itself"),
    (
        {"rType": np.array([0, 2]), "rEdge": np.array([[1, 0, 3]])},
        "how room 1 lies to 0 does not say how 0 lies to 1",
    ),
    ({"rType": np.array([0, 2]), "rEdge": np.array([[0, 1, 10]])}, "10 is no relation, they are 0..9"),
    ({"rType": np.array([0, 2]), "rEdge": np.array([[0, 4, 1]])}, "rooms are numbered 0..1"),
    ({"rType": np.array([0, 2]), "rEdge": np.array([[0, 1, 1], [0, 1, 2]])}, "rooms 0 and 1 have two relations"),
    ({"name": "only"}, "a plan has 2 to 8 rooms here, this one has 0"),
    ({"rType": np.array([0.0, np.nan])}, "room 1: nan is no type of room"),
    (
        {"rType": np.array([0, 2]), "gtBoxNew": np.array([[1, 2, np.nan, 4], [np.inf, 1, 2, 3]])},
        "are no coordinates",
    ),
]


def test_wrong_plans_of_graph2plan(tmp_path):
    """Each is named, and those around them are taken."""
    good = g2p(TYPES, THREE, "good")
    path = write_mat(tmp_path / "data.mat", [plan for wrong, _ in WRONG for plan in (wrong, good)])
    found = list(read_graph2plan(path, CHOICES))
    assert [entry.diagram for entry in found[1::2]] == [Diagram.from_boxes(TYPES, THREE, "good")] * len(WRONG)
    for number, ((_, message), entry) in enumerate(zip(WRONG, found[::2], strict=True)):
        assert entry.diagram is None
        assert entry.plan.startswith(f"plan {2 * number}")
        assert message in entry.faults[0].message


def test_matlab_files_that_cannot_be_taken(tmp_path):
    path = write_mat(tmp_path / "a.mat", [g2p(TYPES, THREE)], "plans")
    assert fault(read_graph2plan(path, CHOICES)) == "holds no variable data; it holds plans"
    savemat(path, {"data": np.eye(3)})
    assert "its variable data is float64 of shape (3, 3)" in fault(read_graph2plan(path, CHOICES))
    whole = write_mat(path, [g2p(TYPES, THREE)]).read_bytes()
    for cut in (60, len(whole) // 2):
        path.write_bytes(whole[:cut])
        assert "is no MATLAB file that can be read" in fault(read_graph2plan(path, CHOICES))
    header = b"MATLAB 7.3 MAT-file".ljust(124) + struct.pack("<HH", 0x0200, 0x4D49)
    path.write_bytes(header + b"\x89HDF\r\n\x1a\n" + bytes(400))
    assert "is of MATLAB 7.3 (HDF5); save it again with -v7" in fault(read_graph2plan(path, CHOICES))


def test_a_matlab_file_that_crashes_its_reader_is_named(tmp_path, monkeypatch):
    """`loadmat` ends the process that it runs in on some damaged files; only that one."""
    path = write_mat(tmp_path / "a.mat", [g2p(TYPES, THREE)])
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    (tmp_path / "python").write_text("#!/bin/sh\nkill -SEGV $$\n")
    (tmp_path / "python").chmod(0o755)
    assert fault(read_graph2plan(path, CHOICES)) == "is no MATLAB file that can be read: it makes the reader crash"


# HouseGAN++

HOUSE = {  # a living room with a kitchen and two bedrooms; the small bedroom hangs on the large one
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
    # walls of rooms, then of doors: the last door joins rooms 0 and 3 which no wall says
    "ed_rm": [[0], [0, 1], [1, 0], [2], [4, 0], [4, 1], [5, 2], [5, 1], [6, 0], [6, 3], [7, 1]],
}


def house(tmp_path, change=None, **choices):
    content = HOUSE | (change or {})
    (tmp_path / "5.json").write_text(json.dumps(content))
    return read_housegan(tmp_path / "5.json", ReadOptions(**choices))


def test_proximity_and_doors_of_housegan(tmp_path):
    boxes = [(20, 20, 60, 60), (64, 20, 144, 120), (148, 20, 188, 60), (20, 64, 60, 144)]
    near = only(house(tmp_path)).diagram
    # The larger bedroom is the master's.
    assert near == Diagram.from_boxes((SECOND, LIVING, KITCHEN, MASTER), boxes, "5")
    assert [edge[:2] for edge in near.edges] == [(0, 1), (0, 3), (1, 2), (1, 3)]
    doors = only(house(tmp_path, adjacency="door")).diagram
    assert [edge[:2] for edge in doors.edges] == [(0, 1), (0, 3), (1, 2)]
    assert set(doors.edges) < set(near.edges)
    assert only(house(tmp_path, bedrooms="all-second")).diagram.types == (SECOND, LIVING, KITCHEN, SECOND)


def test_types_of_housegan(tmp_path):
    rooms = [1, 2, 4, 5, 6, 7, 8, 10, 16]
    boxes = [[20 * k, 0, 20 * k + 15, 40] for k in range(9)]
    found = only(house(tmp_path, {"room_type": rooms, "boxes": boxes}, most=9)).diagram
    names = [ROOMS[kind] for kind in found.types]
    assert names == [
        "LivingRoom",
        "Kitchen",
        "Bathroom",
        "Balcony",
        "Entrance",
        "DiningRoom",
        "StudyRoom",
        "Storage",
        "Wall-in",
    ]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"room_type": [3, 1, 2, 11, 17, 17, 17, 15]}, "room_type[3]: 11 is unknown; known are 1 LivingRoom"),
        ({"room_type": [3, 1, 2, "x", 17, 17, 17, 15]}, "room_type[3]: 'x' is unknown"),
        ({"room_type": [1, 17, 17, 17, 17, 17, 17, 15]}, "a plan has 2 to 8 rooms here, this one has 1"),
        ({"boxes": HOUSE["boxes"][:-1]}, "8 nodes, but 7 boxes"),
        ({"boxes": [[59, 20, 20, 59], *HOUSE["boxes"][1:]]}, "room 0 (SecondRoom): [59, 20, 21, 60] is empty or inv"),
        ({"boxes": [[20, 20, 59], *HOUSE["boxes"][1:]]}, "are no coordinates"),
        ({"boxes": [[1, 1, 2, 10**400], *HOUSE["boxes"][1:]]}, "four walls are due"),
        ({"boxes": "none"}, "has no list boxes"),
        ({"ed_rm": [[0, 99]]}, "ed_rm[0]: expected one or two nodes of 0..7, got [0, 99]"),
    ],
)
def test_wrong_plans_of_housegan(tmp_path, change, message):
    assert message in fault(house(tmp_path, change, adjacency="door"))


def test_json_that_cannot_be_read(tmp_path):
    for content, message in (
        (b'{"room_type": "\xff"}', "is not UTF-8: byte 0xff at place 15"),
        (b'{"room_type"', "is not JSON: Expecting ':' delimiter at line 1, column 13"),
        (b"[" * 100_000, "is not JSON that can be read"),
        (b"[]", "is no table"),
    ):
        (tmp_path / "a.json").write_bytes(content)
        assert message in fault(read_housegan(tmp_path / "a.json", CHOICES))
    assert fault(read_housegan(tmp_path / "b.json", CHOICES)) == "cannot be read: No such file or directory"


LEAF = st.one_of(st.none(), st.booleans(), st.integers(-3, 300), st.floats(), st.sampled_from(["1", ""]))
JSON = st.recursive(LEAF, lambda inner: st.lists(inner, max_size=4), max_leaves=10)


@given(st.sampled_from(sorted(HOUSE)), JSON, st.integers(0, 7))
def test_no_house_ends_in_a_traceback(tmp_path_factory, key, value, place):
    folder = tmp_path_factory.getbasetemp()
    for change in (value, [*HOUSE[key][:place], value, *HOUSE[key][place + 1 :]]):
        only(house(folder, {key: change}, adjacency="door"))


# ResPlan and MSD


def polygon(*points):
    """Well-known binary, as shapely writes it."""
    walls = [*points, points[0]]
    return struct.pack("<BIII", 1, 3, 1, len(walls)) + b"".join(struct.pack("<dd", *point) for point in walls)


def box(x0, y0, x1, y1):
    return polygon((x0, y0), (x1, y0), (x1, y1), (x0, y1))


def several(*parts):
    return struct.pack("<BII", 1, 6, len(parts)) + b"".join(parts)


@pytest.fixture
def shapely(monkeypatch):
    """What pickles of shapely 2 name; opening one here would be seen."""
    module = python_types.ModuleType("shapely")

    def from_wkb(content):
        raise AssertionError("something in a pickle was run")

    from_wkb.__module__ = "shapely"
    from_wkb.__qualname__ = "from_wkb"
    module.from_wkb = from_wkb
    monkeypatch.setitem(sys.modules, "shapely", module)

    class Shape:
        def __init__(self, content):
            self.content = content

        def __reduce__(self):
            return from_wkb, (self.content,)

    return Shape


def write_pickle(path, value, protocol=None):
    path.write_bytes(pickle.dumps(value, protocol))
    return path


@pytest.mark.parametrize("protocol", range(6))
def test_resplan(tmp_path, shapely, protocol):
    plan = {
        "id": 12,
        "living": shapely(several(box(60, 60, 100, 160), box(90, 60, 140, 100))),
        "kitchen": shapely(box(144, 60, 200, 110)),
        "bedroom": shapely(several(box(60, 164, 90, 190), box(94, 164, 140, 196))),
        "balacony": None,
        "wall": shapely(box(0, 0, 9, 9)),
        "graph": networkx.Graph([(0, 1)]),
        "wall_width": 3.5,
    }
    wrong = {"id": 13, "living": "nothing", "kitchen": None}
    path = write_pickle(tmp_path / "ResPlan.pkl", [plan, wrong, plan], protocol)
    first, second, third = read_resplan(path, ReadOptions(pickles=True))
    shift = np.array([128 - 130, 128 - 128] * 2)  # to the middle
    boxes = np.array([(60, 60, 140, 160), (144, 60, 200, 110), (60, 164, 90, 190), (94, 164, 140, 196)]) + shift
    assert first.diagram == Diagram.from_boxes((LIVING, KITCHEN, SECOND, MASTER), [tuple(b) for b in boxes], "12")
    assert third.diagram == first.diagram
    assert second.faults[0].message == "living is no shape of shapely"


def test_msd(tmp_path):
    graph = networkx.Graph(ID=4)
    corners = [(0.0, 0.0), (4.0, 0.0), (4.0, 3.0), (0.0, 3.0), (0.0, 0.0)]
    graph.add_node(0, geometry=corners, room_type=1, centroid=np.zeros(2))
    graph.add_node(1, geometry=[(x + 4.2, y) for x, y in corners], room_type=0)
    graph.add_node(2, geometry=[(x, y + 3.2) for x, y in corners], room_type=7)
    graph.add_edge(0, 1, connectivity="door")
    found = only(read_msd(write_pickle(tmp_path / "4.pickle", graph), ReadOptions(pickles=True))).diagram
    assert found.types == (LIVING, MASTER, BATH)
    assert found.name == "4"
    # y grows upwards there: room 2 lies above room 0. A metre is 14.2 pixels.
    assert found.edges == ((0, 1, 2), (0, 2, 6), (1, 2, 9))
    assert [(x1 - x0, y1 - y0) for x0, y0, x1, y1 in found.boxes] == [(57, 42)] * 3 or all(
        abs(x1 - x0 - 57) <= 1 and abs(y1 - y0 - 43) <= 1 for x0, y0, x1, y1 in found.boxes
    )
    graph.nodes[1]["room_type"] = 9
    path = write_pickle(tmp_path / "4.pickle", graph)
    assert fault(read_msd(path, ReadOptions(pickles=True))) == "node 1: room_type 9 is none of 0..8"


def test_pickles_are_refused_unless_asked_for(tmp_path):
    path = write_pickle(tmp_path / "a.pkl", [])
    for read in (read_resplan, read_msd):
        assert "A pickle is a program that runs when it is opened" in fault(read(path, CHOICES))


class Harm:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def test_nothing_in_a_pickle_is_run(tmp_path):
    path = write_pickle(tmp_path / "a.pkl", [{"living": Harm(tmp_path / "harm")}])
    made = load_restricted(path.read_bytes())[0]["living"]
    assert isinstance(made, Stub)
    assert made.what.endswith(".mkdir")
    assert made.given == (str(tmp_path / "harm"),)
    list(read_resplan(path, ReadOptions(pickles=True)))
    assert not (tmp_path / "harm").exists()
    pickle.loads(path.read_bytes())
    assert (tmp_path / "harm").exists(), "the pickle does no harm, so the test says nothing"


PLAIN = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(allow_nan=False), st.text(), st.binary()
    ),
    lambda inner: st.one_of(st.lists(inner), st.dictionaries(st.text(), inner), st.tuples(inner, inner, inner)),
    max_leaves=20,
)


@given(PLAIN, st.integers(3, 5))
def test_plain_data_comes_out_of_a_pickle(value, protocol):
    assert load_restricted(pickle.dumps(value, protocol)) == value


@given(st.binary(max_size=60), st.integers(0, 400), st.integers(0, 255))
def test_no_pickle_ends_in_a_traceback(noise, place, value):
    whole = bytearray(pickle.dumps({"a": [1, (2, 3)], "b": networkx.Graph([(0, 1)]), "c": np.arange(3)}))
    whole[place % len(whole)] = value
    for content in (bytes(whole), noise, bytes(whole)[: place % len(whole)]):
        with suppress(UnsafePickleError):
            load_restricted(content)


def test_shapes():
    found = outlines_of(Stub("shapely.Polygon", (), box(0, 0, 4, 3)))
    assert found[0].tolist() == [[0, 0], [4, 0], [4, 3], [0, 3], [0, 0]]
    hole = struct.pack("<BII", 1, 3, 2) + box(0, 0, 4, 3)[9:] + box(1, 1, 2, 2)[9:]
    assert len(outlines_of(Stub("x", (hole,)))) == 1
    high = struct.pack("<BIII", 1, 0x80000003, 1, 1) + struct.pack("<ddd", 1, 2, 9)
    assert outlines_of(Stub("x", (high,)))[0].tolist() == [[1, 2]]
    big = struct.pack(">BIII", 0, 1003, 1, 1) + struct.pack(">ddd", 1, 2, 9)
    assert outlines_of(Stub("x", (big,)))[0].tolist() == [[1, 2]]
    assert outlines_of(None) == []
    assert outlines_of(Stub("x", (struct.pack("<BIdd", 1, 1, 0, 0),))) == []
    for wrong in (box(0, 0, 4, 3)[:-3], b"", struct.pack("<BI", 1, 99)):
        with pytest.raises(ValueError, match="shape"):
            outlines_of(Stub("x", (wrong,)))


def test_plans_come_to_the_middle_of_the_grid():
    assert on_grid([(0, 0, 10, 20)], 2.0).tolist() == [[118, 108, 138, 148]]
    upwards = on_grid([(0, 0, 10, 20), (0, 20, 10, 30)], 1.0, upwards=True)
    assert upwards.tolist() == [[123, 123, 133, 143], [123, 113, 133, 123]]
    assert on_grid([(0, 0, 100, 40), (100, 0, 200, 40)], 2.56).tolist() == [[0, 102, 128, 154], [128, 102, 256, 154]]


# which files


def test_the_layout_follows_from_the_endings(tmp_path):
    def layout(*names, given="auto"):
        folder = tmp_path / str(zlib.crc32("".join(names).encode()))
        folder.mkdir(exist_ok=True)
        for name in names:
            (folder / name).touch()
        found, files = find_source(folder, given)
        return found, [file.name for file in files]

    assert layout("10.png", "9.png", "notes.txt", ".hidden.png") == ("rplan-png", ["9.png", "10.png"])
    assert layout("data.mat") == ("graph2plan", ["data.mat"])
    assert layout("1.json", "list.txt") == ("housegan", ["1.json"])
    assert layout("1.json", given="graph2plan") == ("graph2plan", ["1.json"])
    assert layout("a.jsonl") == ("jsonl", ["a.jsonl"])
    for names, message in (
        ((), "is empty"),
        (("a.txt",), "none of the layouts has such files"),
        (("a.pkl",), "these may be msd or resplan"),
        (("a.png", "a.mat"), "these may be graph2plan or rplan-png"),
    ):
        with pytest.raises(Refused, match=message):
            layout(*names)
    with pytest.raises(Refused, match=r"holds no file that ends in .png \(rplan-png\); there are .txt"):
        layout("a.txt", given="rplan-png")
    with pytest.raises(Refused, match="there is no file or folder") as caught:
        find_source(tmp_path / "plan", "auto")
    assert "did you mean" not in str(caught.value)
    (tmp_path / "plans").mkdir()
    with pytest.raises(Refused, match='did you mean "plans"'):
        find_source(tmp_path / "plan", "auto")


def test_folders_in_folders(tmp_path):
    (tmp_path / "a" / "b").mkdir(parents=True)
    write_png(tmp_path / "a" / "b" / "1.png", TYPES, THREE)
    layout, files = find_source(tmp_path, "auto")
    assert only(read_source(layout, files, CHOICES)).file == Path(tmp_path / "a" / "b" / "1.png")
