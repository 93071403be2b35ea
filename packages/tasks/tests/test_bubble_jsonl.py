import json
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dither.registry.config.errors import Refused
from dither.tasks.bubble_diagram.data.procedural import make_plans
from dither.tasks.bubble_diagram.formats.jsonl import plan_line, read_plans, scan_plans
from dither.tasks.bubble_diagram.plans import Diagram

GOOD = '{"types": ["LivingRoom", "Kitchen"], "edges": [[0, 1, "left-of"]]}'


def read(tmp_path, *lines, most=8, name="plans.jsonl"):
    path = tmp_path / name
    path.write_bytes(b"\n".join(line if isinstance(line, bytes) else line.encode() for line in lines))
    return read_plans(path, most)


def problems(tmp_path, *lines, most=8):
    """Messages by line."""
    with pytest.raises(Refused) as caught:
        read(tmp_path, *lines, most=most)
    found = {}
    for problem in caught.value.problems:
        found.setdefault(problem.origin.line if problem.origin else None, []).append(problem.message)
        assert "plans.jsonl" in str(problem)
    return found


def test_plans_come_back_from_their_lines(tmp_path):
    plans = make_plans(0, 0, 50)
    diagrams = [plans.diagram(row) for row in range(50)]
    diagrams += [Diagram(d.types, d.edges, name=f"Wohnung № {k}") for k, d in enumerate(diagrams)]
    assert read(tmp_path, *map(plan_line, diagrams)) == diagrams


def test_both_forms(tmp_path):
    boxes = {"name": "a", "types": ["LivingRoom", "Kitchen"], "boxes": [[60, 60, 140, 160], [144, 60, 200, 110]]}
    first, second = read(tmp_path, json.dumps(boxes), GOOD)
    assert (first.name, first.types, first.edges) == ("a", (0, 2), ((0, 1, 2),))
    assert first.boxes == ((60, 60, 140, 160), (144, 60, 200, 110))
    assert (second.types, second.edges, second.boxes) == ((0, 2), ((0, 1, 2),), None)


def test_boxes_win_over_edges(tmp_path):
    for edges in ([[0, 1, "below"]], [[5, 1, "nonsense"]], "none"):
        plan = {"types": ["Kitchen", "Balcony"], "boxes": [[0, 0, 9, 9], [0, 12, 9, 20]], "edges": edges}
        (found,) = read(tmp_path, json.dumps(plan))
        assert found.edges == ((0, 1, 3),)


def test_blank_lines_marks_and_line_ends(tmp_path):
    assert len(read(tmp_path, b"\xef\xbb\xbf" + GOOD.encode() + b"\r", "", "   ", GOOD)) == 2


BOX = '"boxes": [[0, 0, 5, 5], [6, 0, 9, 9]]'
TWO = '"types": ["LivingRoom", "Kitchen"]'


def test_a_diagram_of_doors_comes_back(tmp_path):
    """Boxes would win over the relations, so they are left out where they say something else."""
    door = Diagram((0, 2), (), ((0, 0, 50, 50), (50, 0, 90, 50)), "two rooms without a door")
    assert "boxes" not in plan_line(door)
    (found,) = read(tmp_path, plan_line(door))
    assert (found.types, found.edges, found.name) == (door.types, door.edges, door.name)


def test_a_scan_goes_on_behind_a_wrong_line(tmp_path):
    (tmp_path / "plans.jsonl").write_text(f"{GOOD}\nnonsense\n\n{GOOD}\n")
    found = list(scan_plans(tmp_path / "plans.jsonl", 8))
    assert [(entry.plan, entry.diagram is None) for entry in found] == [
        ("line 1", False),
        ("line 2", True),
        ("line 4", False),
    ]
    assert found[1].faults[0].sort == "text"
    (missing,) = scan_plans(tmp_path / "other.jsonl", 8)
    assert "there is no file" in missing.faults[0].message


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("{", "is not JSON: Expecting property name enclosed in double quotes at column 2"),
        ('{"types": ["Living', "is not JSON: Unterminated string starting at at column 12"),
        (b'{"name": "\xff"}', "is not UTF-8: byte 0xff at column 11"),
        ("[" * 100_000, "is not JSON that can be read"),
        ('{"types": ' + "1" * 10_000 + "}", "is not JSON that can be read"),
        ("[1, 2]", "is no table"),
        ("{}", "types: missing"),
        ('{"types": 3}', "types: expected a list of room types, got 3"),
        ('{"types": ["Kitchen"], "edges": []}', "types: a plan has 2 to 8 rooms here, this one has 1"),
        (
            '{"types": ["Kitchen", "Bathrom"], "edges": []}',
            'types[1]: "Bathrom" is no type of room; did you mean "Bathroom"?',
        ),
        ('{"types": ["Kitchen", null], "edges": []}', "types[1]: null is no type of room; allowed are LivingRoom"),
        ("{" + TWO + "}", "there are neither boxes nor edges"),
        ("{" + TWO + ', "name": 3, "edges": []}', "name: expected a string, got 3"),
        ("{" + TWO + ', "edge": [], "edges": []}', 'unknown key "edge"; did you mean "edges"?'),
        ("{" + TWO + ', "boxes": [[0, 0, 5, 5]]}', "boxes: expected a list of 2 boxes, one for each room, got 1 boxes"),
        ("{" + TWO + ', "boxes": {}}', "boxes: expected a list of 2 boxes, one for each room, got {}"),
        ("{" + TWO + ', "boxes": [[0, 0, 5, 5], [1, 2, 3]]}', "boxes[1]: expected four whole numbers"),
        ("{" + TWO + ', "boxes": [[0, 0, 5, 5], [1, 2, 3.5, 9]]}', "boxes[1]: expected four whole numbers"),
        ("{" + TWO + ', "boxes": [[0, 0, 5, 5], [1, 2, true, 9]]}', "boxes[1]: expected four whole numbers"),
        ("{" + TWO + ', "boxes": [[0, 0, 5, 5], [9, 0, 6, 9]]}', "boxes[1]: [9, 0, 6, 9] is empty or inverted"),
        ("{" + TWO + ', "boxes": [[0, 0, 5, 5], [6, 9, 7, 9]]}', "boxes[1]: [6, 9, 7, 9] is empty or inverted"),
        ("{" + TWO + ', "boxes": [[0, 0, 5, 5], [6, 0, 257, 9]]}', "boxes[1]: [6, 0, 257, 9] reaches beyond"),
        ("{" + TWO + ', "boxes": [[-1, 0, 5, 5], [6, 0, 25, 9]]}', "boxes[0]: [-1, 0, 5, 5] reaches beyond"),
        ("{" + TWO + ', "edges": 5}', "edges: expected a list of [i, j, relation], got 5"),
        ("{" + TWO + ', "edges": [[0, 1]]}', "edges[0]: expected [i, j, relation], got [0, 1]"),
        ("{" + TWO + ', "edges": [[0, 1, "leftof"]]}', 'edges[0]: "leftof" is no relation; did you mean "left-of"?'),
        ("{" + TWO + ', "edges": [[0, 2, "above"]]}', 'edges[0]: rooms are numbered 0..1, got [0, 2, "above"]'),
        ("{" + TWO + ', "edges": [[1, 1, "above"]]}', "edges[0]: room 1 has no relation to itself"),
        ("{" + TWO + ', "edges": [[1, 0, "above"]]}', "edges[0]: give how room 0 lies to room 1; it does not follow"),
        (
            "{" + TWO + ', "edges": [[0, 1, "above"], [0, 1, "above"]]}',
            "edges[1]: rooms 0 and 1 have a relation already",
        ),
    ],
)
def test_each_wrong_line_is_named(tmp_path, line, expected):
    found = problems(tmp_path, GOOD, line, GOOD)
    assert list(found) == [2]
    assert found[2][0].startswith(expected)


def test_all_that_is_wrong_is_said_at_once(tmp_path):
    both = '{"types": ["Kitchen", "Bad"], "boxes": [[5, 0, 1, 9], [0, 0, 300, 9]], "x": 1}'
    found = problems(tmp_path, both, GOOD, "nonsense")
    assert len(found[1]) == 4
    assert list(found) == [1, 3]


def test_a_flood_is_counted(tmp_path):
    found = problems(tmp_path, GOOD, *["{}"] * 100)
    assert list(found) == [*range(2, 22), None]
    assert found[None] == [f"{tmp_path}/plans.jsonl: 80 more lines are wrong"]


def test_plans_that_are_too_large(tmp_path):
    rooms = ["Kitchen"] * 9
    line = json.dumps({"types": rooms, "edges": []})
    assert problems(tmp_path, line)[1] == ["types: a plan has 2 to 8 rooms here, this one has 9"]
    assert len(read(tmp_path, line, most=9)) == 1


def test_files_that_cannot_be_read(tmp_path):
    (tmp_path / "plan.jsonl").write_text(GOOD)
    with pytest.raises(Refused, match=r"there is no file .*plans\.jsonl") as caught:
        read_plans(tmp_path / "plans.jsonl", 8)
    assert 'did you mean "plan.jsonl"?' in str(caught.value)
    with pytest.raises(Refused, match="is no plain file"):
        read_plans(tmp_path, 8)
    for content in ("", "\n \n"):
        (tmp_path / "empty.jsonl").write_text(content)
        with pytest.raises(Refused, match="holds no plan"):
            read_plans(tmp_path / "empty.jsonl", 8)


LEAF = st.one_of(st.none(), st.booleans(), st.integers(-3, 300), st.floats(), st.sampled_from(["Kitchen", "above", ""]))
KEY = st.sampled_from(["types", "boxes", "edges", "name", "q"])
JSON = st.recursive(
    LEAF, lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(KEY, inner)), max_leaves=12
)
KITCHEN = st.just(["Kitchen", "Balcony"])
PLAN = [st.fixed_dictionaries({"types": KITCHEN, key: JSON}) for key in ("boxes", "edges")]


@given(st.one_of(JSON, *PLAN))
def test_no_line_of_json_ends_in_a_traceback(tmp_path_factory, value):
    path = tmp_path_factory.getbasetemp() / "fuzz.jsonl"
    path.write_text(json.dumps(value))
    with suppress(Refused):
        assert isinstance(read_plans(path, 8)[0], Diagram)
