"""Bubble diagrams drawn by hand: files, their mistakes, and plans without a model."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dither.engine.cli import main
from dither.registry.config.errors import Refused
from dither.tasks.bubble_diagram.formats.room_program import RoomProgram, read_program
from dither.tasks.bubble_diagram.geometry.boundary import pack_boundary
from dither.tasks.bubble_diagram.layout import _misses, _ranks, layout, plan_problems
from dither.tasks.bubble_diagram.plans import Diagram
from dither.tasks.bubble_diagram.relations import NEAR, labels_of
from dither.tasks.bubble_diagram.vocabulary import RELATIONS

DIAGRAMS = sorted((Path(__file__).parent / "diagrams").iterdir())


def shown(program, boxes):
    """Whether boxes show the relations of a program, and doors join near rooms."""
    for i, j, relation in program.relations:
        assert labels_of(boxes[i], boxes[j]) == relation

    def gap(i, j):
        apart = np.maximum(boxes[i, :2] - boxes[j, 2:], boxes[j, :2] - boxes[i, 2:])
        return apart.max()

    near = [(i, j) for i, j in program.doors or () if j is not None]
    assert all(gap(i, j) <= NEAR for i, j in (*near, *program.near))
    assert all(gap(i, j) > NEAR for i, j in program.apart)


@pytest.mark.slow
@pytest.mark.parametrize("path", DIAGRAMS, ids=lambda path: path.name)
def test_diagrams_drawn_by_hand_are_laid_out_as_dwellings(path):
    program = read_program(path)
    # The time limit would end the search of a busy machine earlier.
    plans = layout(path, n=2, seed=1, seconds=600)
    assert len(plans) == 2
    assert (plans[0].boxes != plans[1].boxes).any()
    assert plan_problems(plans[0]) == []
    for plan in plans:
        assert plan.diagram.types == program.types
        assert plan.exact
        shown(program, plan.boxes)


@pytest.mark.slow
def test_equal_seeds_give_equal_plans():
    first, second = (layout(DIAGRAMS[0], n=2, seed=1, seconds=600) for _ in range(2))
    for plan, other in zip(first, second, strict=True):
        assert (plan.boxes == other.boxes).all()


@pytest.mark.slow
def test_relations_of_a_later_room_and_of_a_diagram():
    above = RELATIONS.index("above")
    program = RoomProgram((0, 2, 3), ("a", "b", "c"), relations=((2, 0, above),))
    (plan,) = layout(program)
    assert labels_of(plan.boxes[2], plan.boxes[0]) == above
    diagram = Diagram((0, 2, 3), ((0, 1, above),))
    (plan,) = layout(diagram)
    # Pairs without a relation are not near, as in samples.
    assert [edge[:2] for edge in plan.diagram.edges] == [(0, 1)]


def test_contradictions_are_refused():
    left = RELATIONS.index("left-of")
    loop = RoomProgram(
        (0, 1, 2), ("a", "b", "c"), ((0, 1, left), (1, 2, left), (2, 0, left))
    )
    near = RoomProgram((0, 1), ("a", "b"), near=((0, 1),), apart=((0, 1),))
    for program in (loop, near):
        with pytest.raises(Refused) as caught:
            layout(program)
        assert caught.value.codes == ["contradiction"]


def test_arguments_of_layout_are_checked():
    path = str(next(path for path in DIAGRAMS if path.name == "two_rooms.toml"))
    (plan,) = layout(path)
    assert len(plan.diagram.types) == 4
    for options, code in (
        ({"n": 0}, "out-of-range"),
        ({"n": 1.5}, "wrong-type"),
        ({"n": None}, "wrong-type"),
        ({"seed": -1}, "out-of-range"),
    ):
        with pytest.raises(Refused) as caught:
            layout(path, **options)
        assert caught.value.codes == [code]


def test_contradictions_name_what_contradicts():
    left = RELATIONS.index("left-of")
    right = RELATIONS.index("right-of")
    names = ("hall", "stove", "tub", "cot", "desk")
    relations = ((0, 1, left), (1, 2, left), (0, 2, right), (3, 4, left))
    program = RoomProgram((0, 2, 3, 5, 6), names, relations, doors=((0, 3), (1, 4)))
    with pytest.raises(Refused) as caught:
        layout(program)
    (problem,) = caught.value.problems
    for part in ("hall left-of stove", "stove left-of tub", "hall right-of tub"):
        assert part in problem.message
    assert not {"cot", "desk"} & set(problem.message.split())

    loop = replace(program, relations=((1, 2, left), (2, 4, left), (4, 1, left)))
    with pytest.raises(Refused) as caught:
        layout(loop)
    words = set(caught.value.problems[0].message.split())
    assert {"stove", "tub", "desk"} <= words
    assert not {"hall", "cot"} & words


@pytest.mark.slow
def test_the_front_door_of_an_outline_is_kept_or_reported():
    outline = [(0, 0), (120, 0), (120, 90), (0, 90)]
    places = {"left": [(0, 20), (0, 32)], "right": [(120, 20), (120, 32)]}
    for place, door in places.items():
        boundary = np.array(pack_boundary(outline, door))
        doors = ((0, 1), (1, None))
        program = RoomProgram((0, 2), ("a", "b"), doors=doors, boundary=boundary)
        (plan,) = layout(program)
        assert plan_problems(plan) == []
        # The kitchen has the front door, and is at its place.
        kitchen_first = plan.boxes[1, 0] < plan.boxes[0, 0]
        assert kitchen_first == (place == "left")
    # Stated doors may be inner ones only.
    (plan,) = layout(replace(program, doors=((0, 1),)))
    assert not plan.unmet
    # Its relation keeps the kitchen away from it.
    left = RELATIONS.index("left-of")
    (plan,) = layout(replace(program, relations=((1, 0, left),)))
    assert any("front door" in problem for problem in plan.unmet)


MISTAKES = """
name = 3
room = 1
relations = [["kitchn", "left-of", "living"], ["kitchen", "left", "living"], ["kitchen"]]
doors = [["living", "living"], ["living", "bath"]]
areas = { living = "20 m2" }
outline = "missing.json"

[rooms]
living = "LivingRom"
kitchen = "Kitchen"
"""


def test_every_mistake_of_a_file_is_reported_with_its_line(tmp_path):
    path = tmp_path / "flat.toml"
    path.write_text(MISTAKES)
    with pytest.raises(Refused) as caught:
        read_program(path)
    problems = caught.value.problems
    assert sorted((p.origin.line, p.code) for p in problems) == [
        (2, "wrong-type"), (3, "unknown-key"), (4, "unknown-value"), (4, "unknown-value"), (4, "wrong-type"),
        (5, "invalid-value"), (5, "unknown-value"), (6, "invalid-value"), (7, "file-not-found"), (10, "unknown-value"),
    ]  # fmt: skip
    help_texts = [str(problem.help) for problem in problems]
    assert sum("LivingRoom" in text for text in help_texts) == 1


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ('{"rooms": ["LivingRoom",\n"Kitchn"]}', (2, "unknown-value")),
        ('{"rooms": ["LivingRoom", "Kitchen"],\n"relations": [\n[0, "above", 2]]}', (3, "unknown-value")),
        ('{"rooms": ["LivingRoom"]}', (1, "out-of-range")),
        ('{"rooms":\n', (2, "syntax-error")),
        ("[]", (1, "syntax-error")),
        ("[" * 100_000, (1, "syntax-error")),
        ("{}", (1, "missing-key")),
        ('{"rooms": {"a": "LivingRoom",\n"a": "Kitchen", "b": "Bathroom"}}', (2, "syntax-error")),
        ('{"rooms": {"a": "LivingRoom",\n"outside": "Kitchen"}}', (2, "invalid-value")),
        ('{"rooms": ' + "9" * 5000 + "}", (1, "syntax-error")),
    ],
)  # fmt: skip
def test_mistakes_of_json_files(tmp_path, text, place):
    path = tmp_path / "flat.json"
    path.write_text(text)
    with pytest.raises(Refused) as caught:
        read_program(path)
    assert [(p.origin.line, p.code) for p in caught.value.problems] == [place]


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (b"\xff\xfe", "unreadable-file"),
        (b"rooms = " + b"[" * 5000 + b"]" * 5000, "syntax-error"),
        (b"rooms = " + b"9" * 5000, "syntax-error"),
        (b'rooms = ["Kitchen", "Bathroom"]\noutline = { a = 2020-01-01 }', "unreadable-file"),
    ],
)  # fmt: skip
def test_hostile_toml_files(tmp_path, text, code):
    path = tmp_path / "flat.toml"
    path.write_bytes(text)
    with pytest.raises(Refused) as caught:
        read_program(path)
    assert caught.value.codes == [code]


@pytest.mark.slow
def test_layout_command(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    studio = str(Path(__file__).parent / "diagrams" / "studio.toml")
    assert main(["layout", studio, "-n", "2", "--export", "geojson"]) == 0
    folder = tmp_path / "layouts" / "studio"
    names = {path.name for path in folder.iterdir()}
    assert {
        "plans.jsonl",
        "0.geojson",
        "1.geojson",
        "floorplan.png",
        "gallery.html",
    } <= names
    assert len((folder / "plans.jsonl").read_text().splitlines()) == 2
    assert json.loads((folder / "0.geojson").read_text())["features"]
    assert "dwelling" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("form", "code"), [("dfx", "unknown-format"), ("ifc", "missing-dependency")]
)
def test_formats_are_checked_before_the_search(
    form, code, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    # As if it were not installed.
    monkeypatch.setitem(sys.modules, "ifcopenshell", None)
    monkeypatch.setattr("dither.tasks.bubble_diagram.layout.layout", pytest.fail)
    studio = str(Path(__file__).parent / "diagrams" / "studio.toml")
    assert main(["layout", studio, "--export", form]) == 2
    assert f"[{code}]" in capsys.readouterr().err


def test_starts_are_ranked_by_the_relations_that_they_miss():
    left = RELATIONS.index("left-of")
    above = RELATIONS.index("above")
    program = RoomProgram(
        types=(0, 2, 3),
        names=("a", "b", "c"),
        relations=((0, 1, left), (1, 2, left), (0, 2, above)),
        apart=((0, 1),),
        doors=((0, 2),),
    )
    assert _ranks(program).tolist() == [[0, 1, 2], [0, 0, 1]]

    # Room 1 is right of room 0 and apart from it, room 2 is below room 0, with a wall for a door.
    boxes = np.array([[0, 0, 60, 60], [90, 0, 150, 60], [0, 64, 60, 124]])
    # Missed: 0 left of 1 as a relation of rooms that are near, and 1 left of 2.
    assert _misses(program, boxes) == 2
    boxes[2] += 200
    assert _misses(program, boxes) == 4
