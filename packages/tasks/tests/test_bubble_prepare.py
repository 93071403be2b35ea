"""Preparation of plan files: duplicates, splits, reports, and the folder of prepared plans."""

import json
import shlex
from pathlib import Path

import numpy as np
import pytest

from dither.engine.cli import main
from dither.registry.config.errors import Refused
from dither.tasks.bubble_diagram.data.plan_files import prepare_plans
from dither.tasks.bubble_diagram.formats.entries import Entry
from dither.tasks.bubble_diagram.formats.jsonl import plan_line
from dither.tasks.bubble_diagram.plans import Diagram, Plans
from dither.tasks.bubble_diagram.specs import BubbleDiagram, PlanFiles

HALVES = {"most": 8, "valid": 0.1, "test": 0.1}


def entries(diagrams):
    return [Entry(Path("plans.jsonl"), f"line {n}", diagram) for n, diagram in enumerate(diagrams, 1)]


def reordered(diagram):
    return Diagram.from_boxes(diagram.types[::-1], diagram.boxes[::-1])


def sorts(entries):
    return [(entry.plan, entry.faults[0].sort) for entry in entries]


@pytest.fixture
def source(tmp_path, make_diagrams):
    """Return a function that writes plans and further lines, and returns the file."""

    def write(*lines, count=20, name="a.jsonl"):
        text = "".join(line + "\n" for line in [*map(plan_line, make_diagrams(count)), *lines])
        (tmp_path / name).write_text(text, encoding="utf-8")
        return tmp_path / name

    return write


@pytest.fixture
def spec(tmp_path, source):
    return PlanFiles(source=str(source()), destination=str(tmp_path / "out"))


def test_duplicates_are_rejected(make_diagrams):
    diagrams = make_diagrams(40)
    done = prepare_plans(entries([*diagrams, reordered(diagrams[3]), diagrams[7]]), **HALVES)
    assert len(done.plans) == 40
    assert sorts(done.rejected) == [("line 41", "duplicate"), ("line 42", "duplicate")]
    assert "line 4" in done.rejected[0].faults[0].message
    assert np.bincount(done.split).tolist() == [32, 4, 4]
    assert "2 duplicates" in done.report()


def test_rooms_with_equal_boxes_are_rejected(make_diagrams):
    equal = Diagram.from_boxes((0, 2, 3), [(0, 0, 50, 50), (60, 0, 90, 30), (60, 0, 90, 30)])
    done = prepare_plans(entries([*make_diagrams(10), equal]), **HALVES)
    assert sorts(done.rejected) == [("line 11", "boxes")]


def test_from_files_to_plans(tmp_path, source, make_diagrams):
    diagrams = make_diagrams(50)
    invalid = '{"types": ["Kitchen", "Bathrom"], "boxes": [[0, 0, 5, 5], [9, 0, 6, 9]]}'
    spec = PlanFiles(source=str(source(invalid, plan_line(diagrams[0]), count=50)), destination=str(tmp_path / "out"))
    report = spec.prepare()
    assert "50 plans: 40 for training, 5 for validation, 5 for testing" in report
    assert "Bathrom" in report
    rows = [json.loads(line) for line in (tmp_path / "out" / "rejected.jsonl").read_text().splitlines()]
    assert [(row["place"].split(", ")[1], row["sort"]) for row in rows] == [
        ("line 51", "types"),
        ("line 52", "duplicate"),
    ]
    assert spec.manifest().rejected == {"types": 1, "duplicate": 1}
    splits = spec.build()
    parts = [splits.train, splits.valid, splits.test]
    assert [len(part) for part in parts] == [40, 5, 5]
    tokens = {row.tobytes() for part in parts for row in part.tokens(8)}
    assert tokens == {row.tobytes() for row in Plans.from_diagrams(diagrams, 8).tokens(8)}
    first = splits.train.diagram(0)
    assert any((d.types, d.edges, d.boxes) == (first.types, first.edges, first.boxes) for d in diagrams)
    task = BubbleDiagram(data=spec)
    assert not list(task.check())
    assert task.build().size("train") == 40


def test_unprepared_plans_name_the_command(tmp_path, source):
    path = source(name="it's.jsonl")
    spec = PlanFiles(source=str(path), most=7, bedrooms="all-second", destination=str(tmp_path / "out"))
    (misfit,) = spec.check()
    assert (misfit.code, misfit.path) == ("not-prepared", ("source",))
    with pytest.raises(Refused) as info:
        spec.build()
    assert info.value.codes == ["not-prepared"]
    assert info.value.problems[0].help == misfit.help
    words = shlex.split(misfit.help.removeprefix("run: "))
    assert words[:3] == ["dither", "prepare", "plans"]
    assert main(words[1:]) == 0, "the named command fails"
    assert not list(spec.check())
    assert len(spec.build().train) > 5


def test_changed_source_or_options(tmp_path, source, spec):
    spec.prepare()
    other = spec.model_copy(update={"valid": 0.2})
    for attempt in (other.build, other.prepare):
        with pytest.raises(Refused, match="valid") as info:
            attempt()
        assert info.value.codes == ["changed-options"]
    path = source(count=21)
    for attempt in (spec.build, spec.prepare):
        with pytest.raises(Refused, match="source") as info:
            attempt()
        assert info.value.codes == ["changed-options"]
    path.unlink()
    assert len(spec.build().train) == 16, "prepared plans do not require their source"
    source(count=30)
    spec.model_copy(update={"force": True}).prepare()
    assert len(spec.build().train) == 24


def test_destination_may_be_inside_but_not_around_the_source(tmp_path, source):
    (tmp_path / "source").mkdir()
    path = source(name="source/a.jsonl")
    for folder in (tmp_path / "out", path.parent / "out"):
        spec = PlanFiles(source=str(path.parent), destination=str(folder), format="jsonl")
        spec.prepare()
        spec.model_copy(update={"force": True}).prepare()
        assert len(spec.build().train) == 16
    for folder in (path.parent, tmp_path):
        with pytest.raises(Refused) as info:
            PlanFiles(source=str(path.parent), destination=str(folder), force=True).prepare()
        assert info.value.codes == ["file-exists"]
    assert path.is_file()


def test_door_relations_survive(tmp_path):
    """Door relations do not follow from the boxes, and are stored as they are."""
    walls = [[[0], [1]], [[0, 1]], [[0, 2]], [[1, 2]]]
    for n in range(4):
        boxes = [[10, 10, 59, 59], [64, 10, 110 + n, 59], [10, 64, 59, 110]]
        plan = {"room_type": [1, 2, 4], "boxes": boxes, "edges": [], "ed_rm": walls[n]}
        (tmp_path / f"{n}.json").write_text(json.dumps(plan))
    spec = PlanFiles(source=str(tmp_path), destination=str(tmp_path / "out"), adjacency="door")
    spec.prepare()
    edges = [part.diagram(row).edges for part in vars(spec.build()).values() for row in range(len(part))]
    assert sorted(map(len, edges)) == [0, 1, 1, 1]


@pytest.mark.parametrize(
    ("options", "text"),
    [({"valid": 0.6, "test": 0.4}, "valid = 0.6"), ({"adjacency": "door", "format": "rplan-png"}, "rplan-png")],
)
def test_incompatible_options(options, text):
    with pytest.raises(ValueError, match=text):
        PlanFiles(source="a", **options)
