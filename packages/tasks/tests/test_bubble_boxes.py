"""Boxes as tokens: round trips, levels against brute force, placement, refusals, and commands."""

import json
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
import torch

from dither.registry.config.errors import Refused
from dither.registry.contracts.spaces import Field
from dither.tasks.bubble_diagram.box_tokens import (
    decode_boxes,
    encode_boxes,
    legal_boxes,
    snap,
)
from dither.tasks.bubble_diagram.constraints.table import Constraints
from dither.tasks.bubble_diagram.data.procedural import make_plans
from dither.tasks.bubble_diagram.decoded_samples import box_metrics, decode_samples
from dither.tasks.bubble_diagram.plans import Diagram, Plans
from dither.tasks.bubble_diagram.relations import edges_of
from dither.tasks.bubble_diagram.specs import BubbleDiagram, JsonPlans, ProceduralPlans
from dither.tasks.bubble_diagram.validity import validity_levels
from dither.tasks.bubble_diagram.vocabulary import (
    BOX_MASK,
    BOX_PAD,
    EDGE_PAD,
    LIVING,
    NO_EDGE,
    NODE_PAD,
    ROOMS,
    SIDES,
    pairs,
)

torch.set_num_threads(1)

BASE = 36
PLANS = make_plans(5, 0, 80)
DATA = ProceduralPlans(train=60, valid=20, test=20)
QUICK = Path(__file__).parents[3] / "experiments/bubble_diagram/quick.toml"


@pytest.fixture(scope="module")
def task():
    return BubbleDiagram(data=DATA, boxes=True).build()


def test_boxes_are_four_fields_and_without_them_nothing_changes(task):
    plain = BubbleDiagram(data=DATA)
    graph = (Field("nodes", 8, 15, 13, 14), Field("edges", 28, 13, 11, 12))
    assert plain.space().fields == graph
    sides = tuple(Field(side, 8, 66, 64, 65) for side in SIDES)
    assert task.space.fields == (*graph, *sides)
    without = plain.build()
    rows = range(60)
    tokens = DATA.build().train.tokens(8)
    assert (without.batch("train", rows).x0.numpy() == tokens).all()
    # Types are as they were; relations are those of boxes on the grid.
    assert (task.batch("train", rows).x0[:, :8].numpy() == tokens[:, :8]).all()
    valid = task.batch("train", rows).valid
    assert (valid[:, BASE:] == valid[:, :8].repeat(1, 4)).all()


def test_boxes_return_from_tokens_within_half_a_bin():
    snapped = snap(PLANS)
    real = PLANS.types != NODE_PAD
    for rooms in (8, 11):
        boxes = decode_boxes(encode_boxes(snapped, rooms))
        assert (boxes[:, :8] == snapped.boxes).all()
        assert not boxes[:, 8:].any()
    for plan, moved, types in zip(PLANS.boxes, snapped.boxes, real, strict=True):
        origin = np.tile(plan[types, :2].min(0), 2)
        shift = moved[types] - (plan[types] - origin)
        assert shift.min() >= -1
        assert shift.max() <= 2
    # Walls of 4 pixels between rooms stay.
    assert (edges_of(snapped.boxes) == snapped.edges)[snapped.edges < EDGE_PAD].all()
    again = snap(snapped)
    assert (again.boxes == snapped.boxes).all()


def test_a_plan_at_the_edge_of_the_canvas_stays_on_it():
    plans = Plans.from_diagrams(
        [Diagram.from_boxes((LIVING, 2), [(0, 0, 128, 256), (128, 0, 256, 256)])], 8
    )
    assert snap(plans).boxes[0, :2].tolist() == [[2, 2, 130, 254], [130, 2, 254, 254]]


def test_levels_of_boxes_agree_with_brute_force():
    """Each level by its definition, of plans whose relations, and then boxes, are those of others."""
    plans = snap(PLANS)
    counts = plans.rooms
    tokens = plans.tokens(8)
    rows = np.flatnonzero(counts == 7)[:12]
    boxes = []
    graphs = []
    for i, j in combinations(rows.tolist(), 2):
        boxes.append(plans.boxes[j])
        graphs.append(tokens[i])
    # Plans with a room that is moved by a wall or over another one.
    for row in rows.tolist():
        for step in (8, 40):
            moved = plans.boxes[row].copy()
            moved[1] += (step, 0, step, 0)
            boxes.append(moved)
            shown = Plans.from_boxes(plans.types[row : row + 1], moved[None])
            graphs.append(shown.tokens(8)[0])
            boxes.append(moved)
            graphs.append(tokens[row])
    levels = validity_levels(np.array(graphs), 8, boxes=np.array(boxes), search=False)
    seen = set()
    for number, (graph, places) in enumerate(zip(graphs, boxes, strict=True)):
        if not levels.structure.order[number]:
            assert not levels.edges[number]
            continue
        shows = True
        no_other = True
        apart = True
        for place, (i, j) in enumerate(pairs(8)):
            relation = graph[8 + place]
            if relation == EDGE_PAD:
                continue
            shown = int(edges_of(places[[i, j]])[0])
            shows &= relation in (NO_EDGE, shown)
            no_other &= relation != NO_EDGE or shown == NO_EDGE
            u, v = places[[i, j]].tolist()
            share = u[0] < v[2] and v[0] < u[2] and u[1] < v[3] and v[1] < u[3]
            if share and LIVING not in graph[[i, j]] and shown not in (4, 5):
                apart = False
        expected = (shows, shows and no_other, shows and no_other and apart)
        found = (levels.edges, levels.realisable, levels.buildable)
        assert tuple(level[number] for level in found) == expected
        seen.add(expected)
    assert {(False,) * 3, (True, True, False), (True,) * 3} <= seen
    assert not levels.unknown.any()


def test_samples_are_placed_at_their_boxes(task):
    x0 = task.batch("test", range(20)).x0
    like = task.like(20, 0)
    tokens = x0.numpy()
    boxes = decode_boxes(tokens[:, BASE:])
    for diagram, places in zip(task.decode(x0, like), boxes, strict=True):
        count = len(diagram.types)
        assert np.array_equal(diagram.boxes, places[:count])
        assert np.array_equal(edges_of(places[:count]), diagram.relations)
    samples = [*decode_samples(tokens[:, :BASE], 8, boxes=boxes)]
    for sample in samples:
        assert sample.level >= 5
        own = boxes[sample.number, : len(sample.placement.boxes)]
        # Placements begin at the origin, and plans on the grid in the middle of a bin.
        assert (sample.placement.boxes == own - 2).all()
    metrics = task.sample_metrics(x0, like)
    assert metrics["boxes_legal"] == metrics["boxes_disjoint"] == 1
    assert metrics["relations_shown"] == metrics["level_5"] == 1
    dwellings = sum(sample.level == 6 for sample in samples) / 20
    assert 0 < metrics["level_6"] == metrics["boxes_dwelling"] == dwellings < 1


def test_contradictions_of_relations_and_boxes_are_counted(task):
    """Of relations that are wrong one by one, and boxes without sides, undecided, or of no room."""
    x0 = task.batch("test", range(20)).x0
    like = task.like(20, 0)
    related = x0[:, 8:BASE] < NO_EDGE
    wrong = x0.clone()
    first = 8 + related.int().argmax(1)
    rows = torch.arange(20)
    wrong[rows, first] = (wrong[rows, first] + 1) % NO_EDGE
    metrics = task.sample_metrics(wrong, like)
    assert metrics["relations_shown"] == pytest.approx(1 - 20 / int(related.sum()))
    assert metrics["level_4"] == metrics["level_6"] == 0
    assert metrics["boxes_disjoint"] == 1
    assert metrics["boxes_dwelling"] > 0

    left, _, right, _ = (BASE + 8 * side for side in range(4))
    broken = x0.clone()
    broken[0, right] = broken[0, left]
    broken[1, right] = BOX_MASK
    broken[2, left] = BOX_PAD
    small = int((x0[:, 7] == NODE_PAD).nonzero()[-1])
    assert small > 2
    broken[small, left + 7] = 3
    expected = [number not in (0, 1, 2, small) for number in range(20)]
    boxes = decode_boxes(broken[:, BASE:].numpy())
    assert legal_boxes(boxes, broken[:, :8].numpy()).tolist() == expected
    assert [d is not None for d in task.decode(broken, like)] == expected
    metrics = task.sample_metrics(broken, like)
    assert metrics["boxes_legal"] == metrics["level_0"] == metrics["level_5"] == 0.8
    samples = decode_samples(broken[:, :BASE].numpy(), 8, boxes=boxes)
    unreadable = {
        sample.number: sample.errors for sample in samples if sample.level < 0
    }
    assert set(unreadable) == {0, 1, 2, small}
    assert all(unreadable.values())

    # A room over another one, whose relations are those of the boxes.
    types = np.full((1, 8), NODE_PAD, np.int8)
    types[0, :3] = (LIVING, 1, 2)
    places = np.zeros((1, 8, 4), np.int16)
    places[0, :3] = [(2, 2, 90, 90), (94, 2, 150, 90), (130, 2, 190, 90)]
    plan = Plans.from_boxes(types, places)
    metrics = box_metrics(plan.tokens(8), 8, plan.boxes, 1)
    assert metrics == {
        "boxes_legal": 1,
        "boxes_disjoint": 0,
        "boxes_dwelling": 0,
        "relations_shown": 1,
    }


def test_options_that_need_a_layout_are_refused_by_name(task, tmp_path):
    spec = BubbleDiagram(
        data=DATA,
        boxes=True,
        boundary=True,
        doors=True,
        areas=True,
        constraints=Constraints(counts={"Kitchen": 1}),
    )
    misfits = [misfit for misfit in spec.check() if misfit.related]
    assert {misfit.code for misfit in misfits} == {"misfit"}
    named = ["boundary", "doors", "areas", "constraints"]
    assert [misfit.path[0] for misfit in misfits] == named
    assert {misfit.related for misfit in misfits} == {("task", "boxes")}
    assert not [*BubbleDiagram(data=DATA, boxes=True).check()]
    with pytest.raises(Refused) as caught:
        task.edit(PLANS.diagram(0), keep=[0])
    (problem,) = caught.value.problems
    assert (problem.code, problem.path) == ("misfit", ("task", "boxes"))

    file = tmp_path / "plans.jsonl"
    lines = []
    for name in ROOMS:
        # Isomorphic plans would share a split.
        plan = {"types": ["LivingRoom", name], "edges": [[0, 1, "left-of"]]}
        lines.append(json.dumps(plan) + "\n")
    file.write_text("".join(lines))
    data = JsonPlans(path=str(file), valid=0.4)
    with pytest.raises(Refused) as caught:
        BubbleDiagram(data=data, boxes=True).build()
    (problem,) = caught.value.problems
    assert (problem.code, problem.path) == ("misfit", ("task", "boxes"))


def test_exports_have_the_relations_that_the_boxes_show(task, tmp_path):
    x0 = task.batch("test", range(4)).x0
    x0[0, 8] = (x0[0, 8] + 1) % NO_EDGE
    like = task.like(4, 0)
    (file,), notes = task.export(x0, like, "jsonl", tmp_path)
    assert len(notes) == 1
    boxes = decode_boxes(x0[:, BASE:].numpy())
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    for line, places in zip(lines, boxes, strict=True):
        assert line["boxes"] == places[: len(line["types"])].tolist()
    path = torch.stack([like.x0, x0])
    assert {picture.name for picture in task.trajectory_plots(path, like)} == {"path"}
    names = {picture.name for picture in task.plots(x0, like)}
    assert {"diagram", "floorplan", "gallery", "diagrams"} <= names


@pytest.mark.slow
@pytest.mark.parametrize(
    "process",
    [
        "",
        "process=uniform loss=score-entropy sampler=ancestral",
        "process=marginal loss=score-entropy sampler=ancestral",
        "process=hybrid loss=score-entropy sampler=ancestral",
        "process=gidd loss=score-entropy sampler=ancestral",
    ],
)
def test_a_run_is_resumed_sampled_and_exported(process, cli, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    changes = [
        *process.split(),
        "task.boxes=true",
        "task.data.train=60",
        "task.data.valid=20",
        "task.data.test=20",
        "train.device=cpu",
        "evaluate.samples=4",
        "sample.count=2",
        "train.steps=3",
        "evaluate.every=3",
    ]
    cli("run", str(QUICK), "--runs", "runs", *changes)
    run = str((tmp_path / "runs/latest").resolve())
    cli("run", "--resume", run, "train.steps=5")
    out = tmp_path / "samples"
    words = ["--count", "3", "--out", str(out), "--export", "jsonl"]
    cli("sample", run, *words)
    assert [*out.rglob("plans.jsonl")]
    flat = QUICK.parents[2] / "docs/examples/flat_constraints.toml"
    message = cli("sample", run, "--constraints", str(flat), code=2).err
    assert "[misfit]" in message


def test_no_samples_decode_to_no_plans(task):
    nothing = task.batch("valid", range(2)).x0[:0]
    assert task.decode(nothing, task.like(0, 0)) == []
    assert decode_boxes(np.zeros((0, 32), np.int64)).shape == (0, 8, 4)


def test_baselines_without_boxes_have_no_levels_of_boxes(task):
    names = task.baselines()
    assert "level_5/real" in names
    assert "level_2/shuffled" in names
    assert not {"level_3/unigram", "level_5/unigram", "level_5/shuffled"} & set(names)
