import json
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dither.registry.config.errors import Refused
from dither.tasks.bubble_diagram.formats.entries import ReadOptions
from dither.tasks.bubble_diagram.formats.jsonl import SHOWN, plan_line, read_plans, scan_plans
from dither.tasks.bubble_diagram.plans import Diagram

GOOD = '{"types": ["LivingRoom", "Kitchen"], "edges": [[0, 1, "left-of"]]}'


def read(folder, *lines, most=8):
    path = folder / "plans.jsonl"
    path.write_bytes(b"\n".join(line if isinstance(line, bytes) else line.encode() for line in lines))
    return read_plans(path, most)


def problems(folder, *lines, most=8):
    """Return messages by line."""
    with pytest.raises(Refused) as info:
        read(folder, *lines, most=most)
    messages = {}
    for problem in info.value.problems:
        assert problem.code == ("invalid-sample" if problem.origin else "more-problems")
        messages.setdefault(problem.origin.line if problem.origin else None, []).append(problem.message)
        assert "plans.jsonl" in str(problem)
    return messages


def test_round_trip(tmp_path, make_diagrams):
    diagrams = make_diagrams(50)
    diagrams += [Diagram(d.types, d.edges, name=f"Wohnung № {k}") for k, d in enumerate(diagrams)]
    assert read(tmp_path, *map(plan_line, diagrams)) == diagrams


def test_door_relations_are_written_without_boxes(tmp_path):
    door = Diagram((0, 2), (), ((0, 0, 50, 50), (50, 0, 90, 50)), "two rooms without a door")
    assert "boxes" not in plan_line(door)
    (diagram,) = read(tmp_path, plan_line(door))
    assert (diagram.types, diagram.edges, diagram.name) == (door.types, door.edges, door.name)


def test_blank_lines_bom_and_crlf(tmp_path):
    assert len(read(tmp_path, b"\xef\xbb\xbf" + GOOD.encode() + b"\r", "", "   ", GOOD)) == 2


TWO = '{"types": ["LivingRoom", "Kitchen"], '


@pytest.mark.parametrize(
    ("line", "sort", "text"),
    [
        ("{", "text", "column 1"),
        (b'{"name": "\xff"}', "text", "column 11"),
        ("[" * 100_000, "text", ""),
        ('{"types": ' + "1" * 10_000 + "}", "text", ""),
        ("[1, 2]", "text", ""),
        ("{}", "types", "types"),
        ('{"types": 3}', "types", "types"),
        ('{"types": ["Kitchen"], "edges": []}', "rooms", "1 rooms"),
        ('{"types": ["Kitchen", "Bathrom"], "edges": []}', "types", 'did you mean "Bathroom"?'),
        ('{"types": ["Kitchen", null], "edges": []}', "types", "types[1]"),
        (TWO[:-2] + "}", "boxes", ""),
        (TWO + '"name": 3, "edges": []}', "text", "name"),
        (TWO + '"edge": [], "edges": []}', "text", 'did you mean "edges"?'),
        (TWO + '"boxes": [[0, 0, 5, 5]]}', "boxes", "(1, 4)"),
        (TWO + '"boxes": [[0, 0, 5, 5], [1, 2, 3]]}', "boxes", "boxes[1]"),
        (TWO + '"boxes": [[0, 0, 5, 5], [1, 2, 3.5, 9]]}', "boxes", "boxes[1]"),
        (TWO + '"boxes": [[0, 0, 5, 5], [1, 2, true, 9]]}', "boxes", "boxes[1]"),
        (TWO + '"boxes": [[0, 0, 5, 5], [9, 0, 6, 9]]}', "boxes", "room 1 (Kitchen): [9, 0, 6, 9]"),
        (TWO + '"boxes": [[0, 0, 5, 5], [6, 0, 257, 9]]}', "boxes", "256"),
        (TWO + '"boxes": [[-1, 0, 5, 5], [6, 0, 25, 9]]}', "boxes", "room 0 (LivingRoom): [-1, 0, 5, 5]"),
        (TWO + '"edges": 5}', "edges", "edges"),
        (TWO + '"edges": [[0, 1]]}', "edges", "edges[0]"),
        (TWO + '"edges": [[0, 1, "leftof"]]}', "edges", 'did you mean "left-of"?'),
        (TWO + '"edges": [[0, 2, "above"]]}', "edges", "0..1"),
        (TWO + '"edges": [[1, 1, "above"]]}', "edges", "rooms 1 and 1"),
        (TWO + '"edges": [[1, 0, "above"]]}', "edges", "rooms 1 and 0"),
        (TWO + '"edges": [[0, 1, "above"], [0, 1, "below"]]}', "edges", "rooms 0 and 1"),
    ],
)
def test_invalid_lines(tmp_path, line, sort, text):
    messages = problems(tmp_path, GOOD, line, GOOD)
    assert list(messages) == [2]
    assert text in messages[2][0]
    entry = list(scan_plans(tmp_path / "plans.jsonl", ReadOptions()))[1]
    assert entry.faults[0].sort == sort


def test_many_problems_are_reported_at_once_and_counted(tmp_path):
    invalid = '{"types": ["Kitchen", "Bad"], "boxes": [[5, 0, 1], [0, 0, 300, 9]], "x": 1}'
    messages = problems(tmp_path, invalid, GOOD, "nonsense", *["{}"] * 100)
    assert [len(messages[line]) for line in (1, 3)] == [3, 1]
    assert list(messages) == [1, *range(3, SHOWN), None]
    assert "84" in messages[None][0]


def test_unreadable_files(tmp_path):
    (tmp_path / "plan.jsonl").write_text(GOOD)
    (tmp_path / "empty.jsonl").write_text("\n \n")
    for path, code in (("plans.jsonl", "file-not-found"), ("", "unreadable-file"), ("empty.jsonl", "no-samples")):
        with pytest.raises(Refused) as info:
            read_plans(tmp_path / path, 8)
        assert info.value.codes == [code]
        assert (info.value.problems[0].help == 'did you mean "plan.jsonl"?') == (code == "file-not-found")


LEAF = st.one_of(st.none(), st.booleans(), st.integers(-3, 300), st.floats(), st.sampled_from(["Kitchen", "above", ""]))
KEY = st.sampled_from(["types", "boxes", "edges", "name", "q"])
JSON = st.recursive(
    LEAF, lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(KEY, inner)), max_leaves=12
)
KITCHEN = st.just(["Kitchen", "Balcony"])
PLAN = [st.fixed_dictionaries({"types": KITCHEN, key: JSON}) for key in ("boxes", "edges")]


@given(st.one_of(JSON, *PLAN))
def test_any_json_is_read_or_refused(tmp_path_factory, value):
    path = tmp_path_factory.getbasetemp() / "fuzz.jsonl"
    path.write_text(json.dumps(value))
    with suppress(Refused):
        assert isinstance(read_plans(path, 8)[0], Diagram)
