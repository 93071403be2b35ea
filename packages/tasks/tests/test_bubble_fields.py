"""Doors and areas: tokens, generator, files, constraints against enumeration, layouts, exports, edits."""

import itertools
import json

import networkx
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dither.registry.config.errors import Refused, dotted
from dither.tasks.bubble_diagram.constraints.contradictions import feasible
from dither.tasks.bubble_diagram.constraints.guidance import ConstraintGuidance
from dither.tasks.bubble_diagram.constraints.rules import (
    FRONT,
    Adjacency,
    Area,
    PairRelation,
    Reachable,
    RoomType,
)
from dither.tasks.bubble_diagram.constraints.table import Constraints
from dither.tasks.bubble_diagram.data.procedural import make_plans
from dither.tasks.bubble_diagram.decoded_samples import (
    decode_samples,
    layout_area_error,
)
from dither.tasks.bubble_diagram.export import geojson_plan, housegan_plan
from dither.tasks.bubble_diagram.formats.entries import ReadOptions
from dither.tasks.bubble_diagram.formats.housegan import read_housegan
from dither.tasks.bubble_diagram.formats.jsonl import plan_line, read_plans
from dither.tasks.bubble_diagram.geometry.boundary import pack_boundary
from dither.tasks.bubble_diagram.geometry.floor_plan import _paint, floor_plan
from dither.tasks.bubble_diagram.geometry.placement import area_errors
from dither.tasks.bubble_diagram.plans import (
    Diagram,
    Plans,
    area_bins,
    decode,
    sort_doors,
    split_fields,
)
from dither.tasks.bubble_diagram.relations import net_areas
from dither.tasks.bubble_diagram.specs import BubbleDiagram, JsonPlans, ProceduralPlans
from dither.tasks.bubble_diagram.validity import is_reachable
from dither.tasks.bubble_diagram.vocabulary import (
    AREAS,
    DOOR_MASK,
    LIVING,
    METRES,
    NO_EDGE,
    NODE_SIZE,
    ROOM_IDS,
    area_text,
    door_ends,
    parse_area,
)  # fmt: skip

torch.set_num_threads(1)

KITCHEN, BATH = ROOM_IDS["Kitchen"], ROOM_IDS["Bathroom"]
PLANS = make_plans(4, 0, 60)
DATA = ProceduralPlans(train=60, valid=20, test=20)


@pytest.mark.parametrize("most", [8, 14])
def test_generated_doors_are_a_spanning_tree_of_close_rooms(most):
    plans = make_plans(4, 0, 60, most)
    assert is_reachable(plans.tokens(most, doors=True), most).all()
    for diagram in map(plans.diagram, range(60)):
        inner = [ends for ends in diagram.doors if ends[1] is not None]
        assert len(inner) == len(diagram.types) - 1
        assert networkx.is_tree(networkx.Graph(inner))
        assert {*inner} <= {edge[:2] for edge in diagram.edges}


@st.composite
def with_doors(draw):
    rooms = draw(st.integers(2, 5))
    ends = [(i, j if j < rooms else None) for i, j in door_ends(rooms)]
    chosen = draw(st.lists(st.sampled_from(ends), unique=True))
    return Diagram((0,) * rooms, ((0, 1, 2),), doors=sort_doors(chosen))


@given(with_doors(), st.integers(5, 7))
def test_doors_round_trip(diagram, rooms):
    plans = Plans.from_diagrams([diagram, Diagram((0, 1), ())], 5)
    assert plans.diagram(0) == diagram
    assert plans.diagram(1).doors is None
    tokens = plans[:1].tokens(rooms, doors=True)[0]
    assert decode(tokens, rooms) == diagram
    assert split_fields(tokens, rooms).areas is None
    tokens[rooms * (rooms + 1) // 2] = DOOR_MASK
    with pytest.raises(Refused, match="door 0, 1"):
        decode(tokens, rooms)


def test_areas_are_those_of_painted_boxes():
    for row, diagram in enumerate(map(PLANS.diagram, range(60))):
        boxes = np.array(diagram.boxes)
        order = sorted(
            np.argsort(-(boxes[:, 2:] - boxes[:, :2]).prod(1), kind="stable"),
            key=lambda k: diagram.types[k] != 0,
        )
        painted = np.bincount(_paint(boxes, order).ravel() + 1)[1:]
        assert (net_areas(np.array(diagram.types), boxes) == painted).all()
        areas = decode(PLANS.tokens(8, areas=True)[row], 8).areas
        assert all(
            low <= area < high
            for (low, high), area in zip(areas, painted * METRES**2, strict=True)
        )
    assert area_bins(np.array([0.1, 2, 9.99, 10, 44, 1000])).tolist() == [
        0,
        1,
        5,
        6,
        10,
        11,
    ]


def test_bounds_of_areas():
    texts = {
        "8 to 10 m2": (8, 10),
        "at least 20 m²": (20, AREAS[-1]),
        "at most 8.5 m2": (0, 8.5),
        "9 to 8 m2": None,
    }
    assert {text: parse_area(text) for text in texts} == texts
    assert [parse_area(bad) for bad in (8, None, "8 m2", "8 to 10")] == [None] * 4
    assert all(
        parse_area(area_text(bounds)) == bounds for bounds in itertools.pairwise(AREAS)
    )
    bins = {
        bounds: sorted(Area((), 0, frozenset(), *bounds).bins)
        for bounds in ((8, 10), (9, 11), (0, 2.5), (50, 90))
    }
    assert bins == {(8, 10): [5], (9, 11): [5, 6], (0, 2.5): [0, 1], (50, 90): [11]}


def test_invalid_entries_and_missing_fields():
    table = Constraints(
        doors=[
            [0, "Kitchen"],
            [1, 0],
            ["Kitchn", "LivingRoom"],
            [0, "outsid"],
            [0, 9],
            [0, "outside"],
        ],
        no_doors=[["Kitchen"], ["outside", "Kitchen"]],
        areas={"Kitchn": "8 to 10 m2", "0": "8", "9": "8 to 9 m2", "Kitchen": 8},
        reachable=1,
    )
    found = {
        (dotted(misfit.path), misfit.code)
        for misfit in table.check(8, doors=True, areas=True)
    }
    assert found == {
        ("doors[0]", "wrong-type"), ("doors[1]", "invalid-value"), ("doors[2]", "unknown-value"),
        ("doors[3]", "wrong-type"), ("doors[4]", "out-of-range"), ("no_doors[0]", "wrong-type"),
        ("no_doors[1]", "unknown-value"), ("areas.Kitchn", "unknown-value"), ("areas.0", "wrong-type"),
        ("areas.9", "out-of-range"), ("areas.Kitchen", "wrong-type"), ("reachable", "wrong-type"),
    }  # fmt: skip
    valid = Constraints(doors=[[0, 1]], areas={"0": "8 to 10 m2"})
    assert {
        misfit.code for misfit in BubbleDiagram(data=DATA, constraints=valid).check()
    } == {"misfit"}


def test_plans_without_doors_or_boxes_are_refused(tmp_path, refusal):
    path = tmp_path / "plans.jsonl"
    lines = [
        {"types": ["LivingRoom", kind], "edges": [[0, 1, "above"]]}
        for kind in ("Kitchen", "Bathroom", "Storage")
    ]
    path.write_text("\n".join(map(json.dumps, lines)))
    for option in ("doors", "areas"):
        spec = BubbleDiagram.model_validate(
            {"data": JsonPlans(path=str(path), valid=0.4, test=0.0), option: True}
        )
        refused = refusal(spec.build)
        assert (refused.codes, refused.problems[0].path) == (
            ["misfit"],
            ("task", option),
        )
    for extra in (
        {"doors": [[1, 0]]},
        {"doors": [[0, "out"]]},
        {"areas": ["8 m2", "9 m2"]},
        {"areas": ["8 to 9 m2"]},
    ):
        path.write_text(json.dumps(lines[0] | extra))
        refusal(read_plans, path, 8)


SOME = {
    "types": (LIVING, KITCHEN),
    "edges": (2, NO_EDGE),
    "doors": (0, 1),
    "areas": (4, 5),
}
EVERY = torch.tensor(
    list(
        itertools.product(
            *[SOME["types"]] * 2,
            SOME["edges"],
            *[SOME["doors"]] * 3,
            *[SOME["areas"]] * 2,
        )
    )
)
"""All diagrams of two rooms with some ids: types, relation, doors, areas."""

RULES = [
    Area(("a",), None, frozenset({KITCHEN}), 8, 10),
    Area(("b",), 1, frozenset(), 6, 8),
    Adjacency(
        ("c",),
        frozenset({KITCHEN}),
        frozenset({LIVING}),
        frozenset({1}),
        True,
        doors=True,
    ),
    Adjacency(
        ("d",),
        frozenset({KITCHEN, LIVING}),
        frozenset({KITCHEN}),
        frozenset({1}),
        False,
        doors=True,
    ),
    Adjacency(("e",), frozenset({KITCHEN}), FRONT, frozenset({1}), True, doors=True),
    Adjacency(("f",), frozenset({KITCHEN}), FRONT, frozenset({1}), False, doors=True),
    Adjacency(("j",), frozenset({KITCHEN}), frozenset({LIVING}), frozenset({2}), True),
    Adjacency(
        ("k",),
        frozenset({KITCHEN, LIVING}),
        frozenset({KITCHEN}),
        frozenset({7}),
        False,
    ),
    PairRelation(("g",), 0, 1, frozenset({0}), doors=True),
    PairRelation(("h",), 1, None, frozenset({1}), doors=True),
]


@pytest.fixture(params=["tokens", pytest.param("drawn", marks=pytest.mark.slow)])
def areas_of(request, monkeypatch):
    """Areas as the tokens say, or also as they are drawn: every sample is then laid out, which is slow."""
    if request.param == "tokens":
        monkeypatch.setattr(ConstraintGuidance, "_check_drawn", lambda *_, **__: None)
    return request.param


@pytest.mark.parametrize(
    "rule", [*RULES, Reachable(("i",))], ids=lambda rule: rule.path[0]
)
def test_probabilities_equal_enumeration(rule, areas_of):
    """Exact for independent tokens; for reachability only where it is impossible, and at the end."""
    goal, columns = (
        ConstraintGuidance([rule], 2, doors=True, areas=True),
        torch.arange(8),
    )
    met = goal.satisfied(EVERY)[rule.path[0]]
    for seed in range(6 if areas_of == "tokens" else 2):
        random = torch.Generator().manual_seed(seed)
        p = torch.zeros(8, NODE_SIZE, dtype=torch.float64)
        weight = torch.rand(8, NODE_SIZE, generator=random, dtype=torch.float64)
        weight *= (
            torch.rand(8, NODE_SIZE, generator=random) > 0.3
        )  # some ids are impossible
        for column in range(8):
            ids = EVERY[:, column].unique()
            p[column, ids] = weight[column, ids] if weight[column, ids].any() else 1.0
        p /= p.sum(1, keepdim=True)
        for at in range(8):
            probs = p[columns, EVERY]
            probs[:, at] = 1
            truth = torch.zeros(NODE_SIZE, dtype=torch.float64).index_add(
                0, EVERY[:, at], probs.prod(1) * met
            )
            found, possible = (
                goal.log_prob(p.log()[None], torch.tensor([at]))[0].exp(),
                p[at] > 0,
            )
            if isinstance(rule, Reachable):
                assert torch.equal(found[possible] > 0, truth[possible] > 0)
            else:
                torch.testing.assert_close(found[possible], truth[possible])
    certain = torch.nn.functional.one_hot(EVERY, NODE_SIZE).double().log()
    for at in range(8):
        found = goal.log_prob(certain, torch.full((len(EVERY),), at)).gather(
            1, EVERY[:, at, None]
        )[:, 0]
        assert torch.equal(found.exp(), met.double())


def test_feasible_agrees_with_enumeration(areas_of):
    types = [RoomType((str(room),), room, frozenset(SOME["types"])) for room in (0, 1)]
    limits = [Area(("x",), None, frozenset(SOME["types"]), 6, 10)]
    answers = []
    rules_of_all = [
        *RULES,
        Reachable(("i",)),
        PairRelation(("l",), 0, 1, frozenset({NO_EDGE})),
    ]
    triples = list(itertools.combinations(rules_of_all, 3))
    for rules in triples if areas_of == "tokens" else triples[::5]:
        met = ConstraintGuidance(rules, 2, doors=True, areas=True).satisfied(EVERY)
        answers.append(feasible([*rules, *types, *limits], 2))
        assert answers[-1] == bool(torch.stack(list(met.values())).all(0).any()), rules
    assert len(answers) / 10 < sum(answers) < len(answers) * 9 / 10


def test_sampling_honours_allowed_ids_and_edits_keep_doors_and_areas():
    constraints = Constraints(
        areas={"Kitchen": "8 to 9 m2", "1": "10 to 12 m2"},
        doors=[[0, 1]],
        reachable=True,
    )
    task = BubbleDiagram(
        data=DATA, doors=True, areas=True, constraints=constraints
    ).build()
    like = task.like(3, 0)
    first = task.rooms * (task.rooms + 1) // 2
    assert like.x0[:, first].tolist() == [1] * 3
    assert like.x0[:, 2 * first + 1].tolist() == [6] * 3
    kitchen = Diagram((KITCHEN, LIVING), (), areas=((8.0, 10.0), (10.0, 12.0)))
    assert task._goal.narrow(kitchen).areas == ((8.0, 9.0), (10.0, 12.0))
    free = BubbleDiagram(data=DATA, doors=True, areas=True).build()
    plan = decode(PLANS.tokens(8, doors=True, areas=True)[3], 8)
    like = free.edit(plan, keep=[0, 2, 3], redraw=2)
    assert like.known[:, :8].sum() == 3
    assert (
        like.known[:, first : 2 * first].sum() == like.known[:, 8:first].sum() + 3 == 6
    )
    tokens = torch.where(like.known, like.x0, 0)[0].tolist()
    assert [AREAS[tokens[2 * first + room]] for room in range(3)] == [
        plan.areas[room][0] for room in (0, 2, 3)
    ]


@pytest.mark.slow
def test_drawn_areas_are_those_of_the_tokens():
    """In every plan that is laid out from its own tokens; another sample is marked, and not satisfied."""
    tokens = PLANS[:12].tokens(8, doors=True, areas=True)
    for sample in decode_samples(tokens, 8):
        placement = sample.placement
        assert placement.exact
        assert not placement.unmet
        low, high = np.array(placement.diagram.areas).T
        label = floor_plan(placement.diagram.types, placement.boxes).label
        drawn = np.bincount(label[label >= 0]) * METRES**2
        assert ((drawn >= low) | (low <= AREAS[0])).all()
        assert ((drawn <= high) | (high >= AREAS[-1])).all()


@pytest.mark.slow
def test_areas_that_cannot_be_drawn_are_not_satisfied():
    rule = Area(("areas", "LivingRoom"), None, frozenset({LIVING}), 20.0, 90.0)
    goal = ConstraintGuidance([rule], 8, areas=True)
    tokens = PLANS[:8].tokens(8, areas=True)
    large = AREAS.index(20.0)
    tokens[:, -8:] = np.where(tokens[:, :8] == LIVING, large, tokens[:, -8:])
    x = torch.from_numpy(tokens).long()
    assert goal.satisfied(x)["areas.LivingRoom"].all()
    # A living room of 20 m2 in a flat of 4 x 4 m
    boundary = np.array(pack_boundary([(0, 0), (57, 0), (57, 57), (0, 57)]))
    cond = {"boundary": torch.from_numpy(np.tile(boundary.reshape(1, -1), (8, 1)))}
    assert not goal.satisfied(x, cond)["areas.LivingRoom"].any()
    boundaries = np.tile(boundary, (8, 1, 1))
    for sample in decode_samples(tokens, 8, boundaries, goal.narrow):
        assert sample.placement.unmet


@pytest.mark.slow
def test_samples_are_laid_out_and_exported_with_their_doors_and_areas(tmp_path):
    """Doors are those of the tokens in plans and files; nearly all boxes have the areas of the tokens."""
    tokens = PLANS[:6].tokens(8, doors=True, areas=True)
    samples = list(decode_samples(tokens, 8))
    for sample in decode_samples(
        PLANS[np.array([12, 16, 19])].tokens(8, doors=True, areas=True), 8
    ):
        plan = floor_plan(
            sample.placement.diagram.types,
            sample.placement.boxes,
            doors=sample.placement.diagram.doors,
        )
        assert all(door.depth >= 0 for door in plan.doors), (
            "the last boxes of the layout lack a wall for one"
        )
    errors = layout_area_error(samples)
    assert errors["area_kept"] > 0.75
    assert errors["area_error"] < 0.05
    for sample, row in zip(samples[:4], range(4), strict=True):
        placement, diagram = sample.placement, sample.placement.diagram
        assert placement.exact
        assert diagram.doors == PLANS.diagram(row).doors
        plan = floor_plan(diagram.types, placement.boxes, doors=diagram.doors)
        assert {
            (min(d.i, d.j), max(d.i, d.j)) if d.j is not None else (d.i, None)
            for d in plan.doors
        } == {*diagram.doors}
        exported = Diagram.from_boxes(
            diagram.types, [tuple(box) for box in placement.boxes.tolist()]
        )
        exported = Diagram(
            diagram.types,
            diagram.edges,
            exported.boxes,
            "a",
            doors=diagram.doors,
            areas=diagram.areas,
        )
        (tmp_path / "a.json").write_text(json.dumps(housegan_plan(exported)))
        assert (
            next(read_housegan(tmp_path / "a.json", ReadOptions())).diagram.doors
            == diagram.doors
        )
        (tmp_path / "a.jsonl").write_text(plan_line(exported))
        assert read_plans(tmp_path / "a.jsonl", 8) == [exported]
        shapes = [shape["properties"] for shape in geojson_plan(exported)["features"]]
        ends = {
            (min(s["room"], s["to"]), max(s["room"], s["to"]))
            for s in shapes
            if s["layer"] == "doors"
        }
        assert ends == {ends for ends in diagram.doors if ends[1] is not None}
    assert area_errors(
        Diagram((0,), (), areas=((8.0, 10.0),)), np.array([[0, 0, 30, 30]])
    ) == pytest.approx([1 - 900 * METRES**2 / 8])
