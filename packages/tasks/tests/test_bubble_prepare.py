"""Plan files: lines of JSON, preparation, duplicates, splits, reports."""

import json
import shlex
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dither.engine.cli import main
from dither.registry.config.errors import Refused
from dither.tasks.bubble_diagram.data.plan_files import divide_rows, read_entries
from dither.tasks.bubble_diagram.formats.entries import Entry, ReadOptions
from dither.tasks.bubble_diagram.formats.jsonl import (
    SHOWN,
    plan_line,
    read_plans,
    scan_plans,
)
from dither.tasks.bubble_diagram.plans import Diagram, Plans
from dither.tasks.bubble_diagram.specs import BubbleDiagram, JsonPlans, PlanFiles
from dither.tasks.prepared.rejected import RejectedRows

HALVES = {"valid": 0.1, "test": 0.1}


def entries(diagrams):
    return [
        Entry(Path("plans.jsonl"), f"line {n}", diagram)
        for n, diagram in enumerate(diagrams, 1)
    ]


def reordered(diagram):
    return Diagram.from_boxes(diagram.types[::-1], diagram.boxes[::-1])


@pytest.fixture
def source(tmp_path, make_diagrams):
    """Return a function that writes plans and further lines, and returns the file."""

    def write(*lines, count=20, name="a.jsonl"):
        text = "".join(
            line + "\n" for line in [*map(plan_line, make_diagrams(count)), *lines]
        )
        (tmp_path / name).write_text(text, encoding="utf-8")
        return tmp_path / name

    return write


@pytest.fixture
def spec(tmp_path, source):
    return PlanFiles(source=str(source()), destination=str(tmp_path / "out"))


def test_duplicates_and_rooms_with_equal_boxes_are_rejected(make_diagrams):
    diagrams = make_diagrams(40)
    equal = Diagram.from_boxes(
        (0, 2, 3), [(0, 0, 50, 50), (60, 0, 90, 30), (60, 0, 90, 30)]
    )
    with RejectedRows() as rejected:
        rows = read_entries(
            entries([*diagrams, reordered(diagrams[3]), diagrams[7], equal]),
            8,
            rejected,
        )
        done = divide_rows(rows, rejected, **HALVES)
        lines = list(rejected.lines())
    assert len(done.plans) == 40
    assert rejected.counts == {"boxes": 1, "duplicate": 2}
    same = "same plan as plans.jsonl, line"
    assert f"    plans.jsonl, line 41: {same} 4" in lines
    assert f"    plans.jsonl, line 42: {same} 8" in lines
    assert np.bincount(done.split).tolist() == [32, 4, 4]


def test_from_files_to_plans(tmp_path, source, make_diagrams):
    diagrams = make_diagrams(50)
    invalid = '{"types": ["Kitchen", "Bathrom"], "boxes": [[0, 0, 5, 5], [9, 0, 6, 9]]}'
    spec = PlanFiles(
        source=str(source(invalid, plan_line(diagrams[0]), count=50)),
        destination=str(tmp_path / "out"),
    )
    report = spec.prepare()
    assert "50 plans: 40 for training, 5 for validation, 5 for testing" in report
    assert "Bathrom" in report
    rows = [
        json.loads(line)
        for line in (tmp_path / "out" / "rejected.jsonl").read_text().splitlines()
    ]
    assert [(row["place"].split(", ")[1], row["sort"]) for row in rows] == [
        ("line 51", "types"),
        ("line 52", "duplicate"),
    ]
    assert spec.manifest().rejected == {"types": 1, "duplicate": 1}
    splits = spec.build()
    parts = [splits.train, splits.valid, splits.test]
    assert [len(part) for part in parts] == [40, 5, 5]
    tokens = {row.tobytes() for part in parts for row in part.tokens(8)}
    assert tokens == {
        row.tobytes() for row in Plans.from_diagrams(diagrams, 8).tokens(8)
    }
    first = splits.train.diagram(0)
    assert any(
        (d.types, d.edges, d.boxes) == (first.types, first.edges, first.boxes)
        for d in diagrams
    )
    task = BubbleDiagram(data=spec)
    assert not list(task.check())
    assert task.build().size("train") == 40


def test_unprepared_plans_name_the_command(tmp_path, source, refusal):
    path = source(name="it's.jsonl")
    spec = PlanFiles(
        source=str(path),
        most=7,
        bedrooms="all-second",
        destination=str(tmp_path / "out"),
    )
    (misfit,) = spec.check()
    assert (misfit.code, misfit.path) == ("not-prepared", ("source",))
    (problem,) = refusal(spec.build).problems
    assert (problem.code, problem.help) == ("not-prepared", misfit.help)
    words = shlex.split(misfit.help.removeprefix("run: "))
    assert words[:3] == ["dither", "prepare", "plans"]
    assert main(words[1:]) == 0, "the named command fails"
    assert not list(spec.check())
    assert len(spec.build().train) > 5


def test_changed_source_or_options(source, spec, refusal):
    spec.prepare()
    other = spec.model_copy(update={"valid": 0.2})
    for attempt in (other.build, other.prepare):
        refused = refusal(attempt)
        assert (refused.codes, "valid" in str(refused)) == (["changed-options"], True)
    path = source(count=21)
    for attempt in (spec.build, spec.prepare):
        refused = refusal(attempt)
        assert (refused.codes, "source" in str(refused)) == (["changed-options"], True)
    path.unlink()
    assert len(spec.build().train) == 16, "prepared plans do not require their source"
    source(count=30)
    spec.model_copy(update={"force": True}).prepare()
    assert len(spec.build().train) == 24


def test_destination_may_be_inside_but_not_around_the_source(tmp_path, source, refusal):
    (tmp_path / "source").mkdir()
    path = source(name="source/a.jsonl")
    for folder in (tmp_path / "out", path.parent / "out"):
        spec = PlanFiles(
            source=str(path.parent), destination=str(folder), format="jsonl"
        )
        spec.prepare()
        spec.model_copy(update={"force": True}).prepare()
        assert len(spec.build().train) == 16
    for folder in (path.parent, tmp_path):
        spec = PlanFiles(source=str(path.parent), destination=str(folder), force=True)
        assert refusal(spec.prepare).codes == ["file-exists"]
    assert path.is_file()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"valid": 0.6, "test": 0.4}, "valid = 0.6"),
        ({"adjacency": "door", "format": "rplan-png"}, "rplan-png"),
    ],
)
def test_incompatible_options(options, text):
    with pytest.raises(ValueError, match=text):
        PlanFiles(source="a", **options)


GOOD = '{"types": ["LivingRoom", "Kitchen"], "edges": [[0, 1, "left-of"]]}'


def read(folder, *lines, most=8):
    path = folder / "plans.jsonl"
    path.write_bytes(
        b"\n".join(line if isinstance(line, bytes) else line.encode() for line in lines)
    )
    return read_plans(path, most)


def problems(folder, *lines, most=8):
    """Return messages by line."""
    with pytest.raises(Refused) as info:
        read(folder, *lines, most=most)
    messages = {}
    for problem in info.value.problems:
        assert problem.code == ("invalid-sample" if problem.origin else "more-problems")
        messages.setdefault(problem.origin.line if problem.origin else None, []).append(
            problem.message
        )
        assert "plans.jsonl" in str(problem)
    return messages


def test_round_trip(tmp_path, make_diagrams):
    diagrams = make_diagrams(50)
    diagrams += [
        Diagram(d.types, d.edges, name=f"Wohnung № {k}") for k, d in enumerate(diagrams)
    ]
    assert read(tmp_path, *map(plan_line, diagrams)) == diagrams
    assert (
        len(read(tmp_path, b"\xef\xbb\xbf" + GOOD.encode() + b"\r", "", "   ", GOOD))
        == 2
    )


def test_door_relations_are_written_without_boxes(tmp_path):
    door = Diagram(
        (0, 2), (), ((0, 0, 50, 50), (50, 0, 90, 50)), "two rooms without a door"
    )
    assert "boxes" not in plan_line(door)
    (diagram,) = read(tmp_path, plan_line(door))
    assert (diagram.types, diagram.edges, diagram.name) == (
        door.types,
        door.edges,
        door.name,
    )


TWO = '{"types": ["LivingRoom", "Kitchen"], '


@pytest.mark.parametrize(
    ("line", "sort", "text"),
    [
        ("{", "text", "column 1"),
        (b'{"name": "\xff"}', "text", "column 11"),
        ("[" * 100_000, "text", ""),
        ('{"types": ' + "1" * 10_000 + "}", "text", ""),
        ('{"types": ["Kitchen"], "edges": []}', "rooms", "1 rooms"),
        (
            '{"types": ["Kitchen", "Bathrom"], "edges": []}',
            "types",
            'did you mean "Bathroom"?',
        ),
        ('{"types": ["Kitchen", null], "edges": []}', "types", "types[1]"),
        (TWO[:-2] + "}", "boxes", ""),
        (TWO + '"edge": [], "edges": []}', "text", 'did you mean "edges"?'),
        (TWO + '"boxes": [[0, 0, 5, 5]]}', "boxes", "(1, 4)"),
        (TWO + '"boxes": [[0, 0, 5, 5], [1, 2, 3]]}', "boxes", "boxes[1]"),
        (TWO + '"boxes": [[0, 0, 5, 5], [1, 2, true, 9]]}', "boxes", "boxes[1]"),
        (
            TWO + '"boxes": [[0, 0, 5, 5], [9, 0, 6, 9]]}',
            "boxes",
            "room 1 (Kitchen): [9, 0, 6, 9]",
        ),
        (
            TWO + '"boxes": [[-1, 0, 5, 5], [6, 0, 25, 9]]}',
            "boxes",
            "room 0 (LivingRoom): [-1, 0, 5, 5]",
        ),
        (TWO + '"edges": [[0, 1, "leftof"]]}', "edges", 'did you mean "left-of"?'),
        (TWO + '"edges": [[0, 2, "above"]]}', "edges", "0..1"),
        (TWO + '"edges": [[1, 0, "above"]]}', "edges", "rooms 1 and 0"),
        (
            TWO + '"edges": [[0, 1, "above"], [0, 1, "below"]]}',
            "edges",
            "rooms 0 and 1",
        ),
        (
            TWO
            + '"boxes": [[0, 0, 9, 40], [12, 0, 25, 40]], "edges": [[0, 1, "above"]]}',
            "edges",
            "show left-of",
        ),
        (
            TWO
            + '"boxes": [[0, 0, 9, 40], [40, 0, 65, 40]], "edges": [[0, 1, "left-of"]]}',
            "edges",
            "show no relation",
        ),
    ],
)
def test_invalid_lines(tmp_path, line, sort, text):
    messages = problems(tmp_path, GOOD, line, GOOD)
    assert list(messages) == [2]
    assert text in messages[2][0]
    entry = list(scan_plans(tmp_path / "plans.jsonl", ReadOptions()))[1]
    assert entry.faults[0].sort == sort


def test_many_problems_are_reported_at_once_and_counted(tmp_path):
    invalid = (
        '{"types": ["Kitchen", "Bad"], "boxes": [[5, 0, 1], [0, 0, 300, 9]], "edge": 1}'
    )
    messages = problems(tmp_path, invalid, GOOD, "nonsense", *["{}"] * 100)
    assert [len(messages[line]) for line in (1, 3)] == [3, 1]
    assert list(messages) == [1, *range(3, SHOWN), None]
    assert "84" in messages[None][0]


def test_unreadable_files(tmp_path, refusal):
    (tmp_path / "plan.jsonl").write_text(GOOD)
    (tmp_path / "empty.jsonl").write_text("\n \n")
    for path, code in (
        ("plans.jsonl", "file-not-found"),
        ("", "unreadable-file"),
        ("empty.jsonl", "no-samples"),
    ):
        (problem,) = refusal(read_plans, tmp_path / path, 8).problems
        assert problem.code == code
        assert (problem.help == 'did you mean "plan.jsonl"?') == (
            code == "file-not-found"
        )


LEAF = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 300),
    st.floats(),
    st.sampled_from(["Kitchen", "above", ""]),
)
KEY = st.sampled_from(["types", "boxes", "edges", "name", "q"])
JSON = st.recursive(
    LEAF,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(KEY, inner)),
    max_leaves=12,
)
KITCHEN = st.just(["Kitchen", "Balcony"])
PLAN = [
    st.fixed_dictionaries({"types": KITCHEN, key: JSON}) for key in ("boxes", "edges")
]


@given(st.one_of(JSON, *PLAN))
def test_any_json_is_read_or_refused(tmp_path_factory, value):
    path = tmp_path_factory.getbasetemp() / "fuzz.jsonl"
    path.write_text(json.dumps(value))
    with suppress(Refused):
        assert isinstance(read_plans(path, 8)[0], Diagram)


def test_invalid_lines_are_found_by_the_check(tmp_path):
    """`validate` reports the lines that a run refuses, and a changed file is read again."""
    path = tmp_path / "plans.jsonl"
    path.write_text("\n".join([GOOD, "{", GOOD, TWO + '"edges": [[0, 5, "above"]]}']))
    misfits = list(JsonPlans(path=str(path)).check())
    assert [misfit.code for misfit in misfits] == ["invalid-sample"] * 2
    assert [
        f"plans.jsonl:{line}:" in m.message
        for line, m in zip((2, 4), misfits, strict=True)
    ]
    path.write_text("\n")
    (misfit,) = JsonPlans(path=str(path)).check()
    assert misfit.code == "no-samples"
    path.write_text(GOOD)
    assert not list(JsonPlans(path=str(path)).check())
