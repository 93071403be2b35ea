import json
import shlex
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dither.engine.cli import main
from dither.registry.config.errors import Refused
from dither.tasks.bubble_diagram.data import prepare as prepared
from dither.tasks.bubble_diagram.data.prepare import prepare_plans
from dither.tasks.bubble_diagram.data.procedural import make_plans
from dither.tasks.bubble_diagram.formats.common import Entry, Fault
from dither.tasks.bubble_diagram.formats.jsonl import plan_line
from dither.tasks.bubble_diagram.plans import Diagram, Plans
from dither.tasks.bubble_diagram.specs import BubbleDiagram, PlanFiles


def some_plans(count, seed=0):
    plans = make_plans(seed, 0, count)
    return [plans.diagram(row) for row in range(count)]


def entries(diagrams):
    return [Entry(Path("plans.jsonl"), f"line {n}", diagram) for n, diagram in enumerate(diagrams, 1)]


def write_plans(path, diagrams, *more):
    path.write_text("".join(line + "\n" for line in [*map(plan_line, diagrams), *more]), encoding="utf-8")
    return path


def rows(plans):
    return {row.tobytes() for row in plans.tokens(8)}


def turned(diagram):
    """Rooms in another order."""
    return Diagram.from_boxes(diagram.types[::-1], diagram.boxes[::-1])


def test_copies_are_dropped_and_named():
    some = some_plans(40)
    done = prepare_plans(entries([*some, turned(some[3]), some[7]]), most=8, valid=0.1, test=0.1)
    assert len(done.plans) == 40
    assert [(entry.plan, entry.faults) for entry in done.left_out] == [
        ("line 41", (Fault("duplicate", "is the same plan as plans.jsonl, line 4"),)),
        ("line 42", (Fault("duplicate", "is the same plan as plans.jsonl, line 8"),)),
    ]
    assert np.bincount(done.split).tolist() == [32, 4, 4]
    report = done.report()
    assert report.splitlines()[0] == "40 plans: 32 to train on, 4 for validation, 4 for testing"
    assert "  2 the same as others" in report


def test_copies_that_are_kept_share_a_split():
    some = some_plans(60)
    copies = [turned(diagram) for diagram in some]
    done = prepare_plans(entries([*some, *copies]), most=8, valid=0.2, test=0.2, duplicates="keep")
    assert not done.left_out
    assert (done.split[:60] == done.split[60:]).all()
    assert len(done.plans) == 120


def test_nothing_is_lost_in_silence():
    """What is read is taken or listed."""
    some = some_plans(30)
    bad = [Entry(Path("a.png"), "", None, (Fault("file", f"wrong {n}"),)) for n in range(10)]
    done = prepare_plans([*entries([*some, some[0]]), *bad], most=8, valid=0.1, test=0.1)
    assert len(done.plans) + len(done.left_out) == 41
    report = done.report()
    assert "11 left out:\n  10 cannot be read\n    a.png: wrong 0\n" in report
    assert "    ... and 7 more\n  1 the same as others" in report
    assert "wrong 3" not in report


def test_rooms_that_lie_in_each_other():
    """Two boxes alike cannot be; two rooms deep in each other are noted; around a living room they are usual."""
    rest = some_plans(10)
    alike = Diagram.from_boxes((0, 2, 3), [(0, 0, 50, 50), (60, 0, 90, 30), (60, 0, 90, 30)])
    deep = Diagram.from_boxes((0, 2, 3), [(0, 0, 50, 50), (52, 0, 90, 30), (52, 0, 90, 20)])
    usual = Diagram.from_boxes((0, 2, 3), [(0, 0, 90, 50), (52, 0, 90, 30), (52, 31, 90, 40)])
    beside = Diagram.from_boxes((0, 2, 3), [(0, 0, 50, 50), (52, 0, 90, 30), (80, 0, 120, 30)])
    done = prepare_plans(entries([*rest, alike, deep, usual, beside]), most=8, valid=0.1, test=0.1)
    assert [entry.faults[0].message for entry in done.left_out] == ["rooms 1 and 2 have the same box [60, 0, 90, 30]"]
    assert [(entry.plan, entry.faults[0].message) for entry in done.noted] == [
        ("line 12", "room 1 (Kitchen) and room 2 (Bathroom) overlap by more than half")
    ]
    assert len(done.plans) == 13
    assert "1 taken that are odd:\n  1 with rooms that lie in each other" in done.report()


def test_too_little_to_divide():
    some = some_plans(2)
    with pytest.raises(Refused, match="3 splits need 3 different plans or more, here are 2") as caught:
        prepare_plans(entries([*some, some[0]]), most=8, valid=0.1, test=0.1)
    assert "line 3: is the same plan as" in str(caught.value)


def test_where_nothing_can_be_taken_each_reason_is_told(tmp_path):
    for number in range(5):
        (tmp_path / f"{number}.pkl").write_bytes(b"no matter what")
    with pytest.raises(Refused) as caught:
        PlanFiles(source=str(tmp_path), format="msd", destination=str(tmp_path / "out")).prepare()
    said = str(caught.value)
    assert "no plan can be taken; 5 left out:" in said
    assert f"{tmp_path / '0.pkl'}: is a pickle. A pickle is a program" in said
    assert "... and 2 more" in said


def test_few_plans_held_out_are_told():
    done = prepare_plans(entries(some_plans(40)), most=8, valid=0.1, test=0.2)
    assert done.report().splitlines()[1] == (
        "few are held out: samples are compared with 4 plans, and their noise floor rests on 8; "
        "below 500 these figures are coarse"
    )
    split = np.repeat([0, 1, 2], [1, 500, 500])
    assert "few are held out" not in replace(done, split=split).report()
    assert "few are held out" in replace(done, split=split[1:-1]).report()


def test_from_files_to_plans(tmp_path):
    some = some_plans(50)
    wrong = '{"types": ["Kitchen", "Bathrom"], "boxes": [[0, 0, 5, 5], [9, 0, 6, 9]]}'
    write_plans(tmp_path / "own.jsonl", some, wrong, plan_line(some[0]))
    part = PlanFiles(source=str(tmp_path), destination=str(tmp_path / "out"))
    said = part.prepare()
    assert said.startswith(f"1 file of {tmp_path} (jsonl)\n50 plans: 40 to train on, 5 for validation, 5 for testing\n")
    assert 'own.jsonl, line 51: types[1]: "Bathrom" is no type of room; did you mean "Bathroom"? (and 1 more)' in said
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert report["taken"] == 50
    assert [entry["plan"] for entry in report["left_out"]] == ["line 51", "line 52"]
    assert len(report["left_out"][0]["why"]) == 2
    splits = part.build()
    assert [len(p) for p in (splits.train, splits.valid, splits.test)] == [40, 5, 5]
    found = [splits.train.diagram(0), splits.test.diagram(0)]
    assert all(any((d.types, d.edges, d.boxes) == (s.types, s.edges, s.boxes) for s in some) for d in found)
    assert rows(splits.train) | rows(splits.valid) | rows(splits.test) == rows(Plans.from_diagrams(some, 8))
    task = BubbleDiagram(data=part)
    assert not list(task.check())
    assert task.build().size("train") == 40


def test_splits_do_not_depend_on_names_or_order(tmp_path):
    some = some_plans(50)
    splits = []
    for name, plans in (("a", some), ("b", [turned(diagram) for diagram in some[::-1]])):
        write_plans(tmp_path / f"{name}.jsonl", plans)
        done = PlanFiles(source=str(tmp_path / f"{name}.jsonl"), destination=str(tmp_path / name))
        done.prepare()
        splits.append(done.build())
    areas = [sorted(plans.boxes.astype(int).prod(-1).sum(1).tolist()) for plans in (splits[0].test, splits[1].test)]
    assert areas[0] == areas[1]


def test_plans_that_are_not_prepared_say_how(tmp_path):
    write_plans(tmp_path / "it's.jsonl", some_plans(20))
    part = PlanFiles(source=str(tmp_path / "it's.jsonl"), most=7, pickles=True, destination=str(tmp_path / "out"))
    (misfit,) = part.check()
    assert "have not been prepared" in misfit.message
    with pytest.raises(Refused, match="have not been prepared") as caught:
        part.build()
    assert misfit.help in str(caught.value)
    words = shlex.split(misfit.help.removeprefix("run: "))
    assert words[:3] == ["dither", "prepare", "plans"]
    assert main(words[1:]) == 0, "the command that is named does not do it"
    assert not list(part.check())
    assert len(part.build().train) > 5


def test_a_source_or_an_option_that_has_changed(tmp_path):
    path = write_plans(tmp_path / "a.jsonl", some_plans(20))
    out = str(tmp_path / "out")
    part = PlanFiles(source=str(path), destination=out)
    part.prepare()
    with pytest.raises(Refused, match="was prepared from something else: valid changed"):
        PlanFiles(source=str(path), destination=out, valid=0.2).build()
    write_plans(path, some_plans(21))
    with pytest.raises(Refused, match="files changed"):
        part.build()
    path.unlink()
    assert len(part.build().train) == 16, "prepared plans stand without their source"


def test_without_a_destination_it_is_the_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("DITHER_DATA", str(tmp_path / "cache"))
    path = write_plans(tmp_path / "a.jsonl", some_plans(20))
    PlanFiles(source=str(path)).prepare()
    (folder,) = (tmp_path / "cache" / "plans").iterdir()
    assert sorted(file.name for file in folder.iterdir()) == ["plans.npz", "report.json"]
    assert len(PlanFiles(source=str(path)).build().train) == 16
    assert list(PlanFiles(source=str(path), most=7).check()), "other options have a place of their own"


def test_where_converted_plans_may_go(tmp_path):
    """Beside the source, in it, around it; not on it."""
    source = tmp_path / "source"
    source.mkdir()
    write_plans(source / "a.jsonl", some_plans(20))
    for folder in (tmp_path / "out", source / "out", tmp_path):
        part = PlanFiles(source=str(source), destination=str(folder), format="jsonl")
        for _ in range(2):
            assert part.prepare().startswith("1 file of")
        assert len(part.build().train) == 16
    with pytest.raises(Refused, match="need a folder of their own"):
        PlanFiles(source=str(source), destination=str(source)).prepare()


def test_damaged_arrays_are_named(tmp_path):
    part = PlanFiles(source=str(write_plans(tmp_path / "a.jsonl", some_plans(20))), destination=str(tmp_path / "out"))
    part.prepare()
    file = tmp_path / "out" / "plans.npz"
    whole = file.read_bytes()
    for content in (whole[: len(whole) // 2], b"", b"nonsense"):
        file.write_bytes(content)
        with pytest.raises(Refused, match=r"plans.npz is damaged"):
            part.build()


def test_a_preparation_that_fails_leaves_the_old_one(tmp_path, monkeypatch):
    path = write_plans(tmp_path / "a.jsonl", some_plans(20))
    part = PlanFiles(source=str(path), destination=str(tmp_path / "out"))
    part.prepare()
    before = (tmp_path / "out" / "plans.npz").read_bytes()

    def fail(file, **arrays):
        Path(file).write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(prepared.np, "savez_compressed", fail)
    with pytest.raises(OSError, match="No space"):
        part.prepare()
    assert (tmp_path / "out" / "plans.npz").read_bytes() == before
    assert sorted(file.name for file in (tmp_path / "out").iterdir()) == ["plans.npz", "report.json"]


def test_doors_survive(tmp_path):
    """Relations of doors do not follow from boxes, and are kept as they are."""
    for n in range(8):
        boxes = [[10, 10, 59, 59], [64, 10, 110 + n, 59], [10, 64, 59, 110]]
        plan = {"room_type": [1, 2, 4], "boxes": boxes, "edges": [], "ed_rm": [[0, 1], [0], [2]]}
        (tmp_path / f"{n}.json").write_text(json.dumps(plan))
    part = PlanFiles(source=str(tmp_path), destination=str(tmp_path / "out"), adjacency="door", duplicates="keep")
    with pytest.raises(Refused, match="here are 1"):
        part.prepare()  # the same two rooms with the same door, eight times
    for n in range(8):
        plan = json.loads((tmp_path / f"{n}.json").read_text())
        plan["ed_rm"] = [[[0], [1]], [[0, 1]], [[0, 2]], [[1, 2]]][n % 4]
        (tmp_path / f"{n}.json").write_text(json.dumps(plan))
    part.prepare()
    splits = part.build()
    edges = [splits_.diagram(row).edges for splits_ in vars(splits).values() for row in range(len(splits_))]
    assert sorted(len(some) for some in edges) == [0, 0, 1, 1, 1, 1, 1, 1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"valid": 0.6, "test": 0.4}, "leave nothing to train on"),
        ({"adjacency": "door", "format": "rplan-png"}, "rplan-png knows no doors"),
    ],
)
def test_options_that_do_not_fit(options, message):
    with pytest.raises(ValueError, match=message):
        PlanFiles(source="a", **options)


def test_doors_are_for_files_that_know_them(tmp_path):
    path = write_plans(tmp_path / "a.jsonl", some_plans(20))
    with pytest.raises(Refused, match="jsonl knows no doors"):
        PlanFiles(source=str(path), adjacency="door").prepare()


def test_the_command_line(tmp_path, capsys):
    path = write_plans(tmp_path / "a.jsonl", some_plans(20), "nonsense")
    given = ["--set", f"source={path}", "--set", f"destination={tmp_path / 'out'}"]
    assert main(["prepare", "plans", *given]) == 0
    assert "a.jsonl, line 21: is not JSON" in capsys.readouterr().out
    (tmp_path / "empty").mkdir()
    assert main(["prepare", "plans", "--set", f"source={tmp_path / 'empty'}"]) == 2
    assert "is empty" in capsys.readouterr().err
