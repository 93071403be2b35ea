"""Constraints: invalid and contradictory entries, probabilities against brute force, lookahead of realisability."""

import itertools
from itertools import product

import networkx
import numpy as np
import pytest
import torch

from dither.registry.config.errors import dotted
from dither.tasks.bubble_diagram.constraints.contradictions import feasible
from dither.tasks.bubble_diagram.constraints.guidance import ConstraintGuidance
from dither.tasks.bubble_diagram.constraints.probabilities import (
    BuildableProbability,
    contradictory,
    impossible_relations,
)
from dither.tasks.bubble_diagram.constraints.rules import (
    ALL,
    Adjacency,
    Buildable,
    Count,
    PairRelation,
    Reachable,
    RoomType,
)
from dither.tasks.bubble_diagram.constraints.table import Constraints
from dither.tasks.bubble_diagram.data.procedural import make_plans
from dither.tasks.bubble_diagram.geometry.realisability import realise
from dither.tasks.bubble_diagram.geometry.wall_constraints import OPEN
from dither.tasks.bubble_diagram.plans import Diagram, encode, real_edges
from dither.tasks.bubble_diagram.relations import exclusive
from dither.tasks.bubble_diagram.specs import BubbleDiagram, ProceduralPlans
from dither.tasks.bubble_diagram.validity import validity_levels
from dither.tasks.bubble_diagram.vocabulary import (
    EDGE_PAD,
    NO_EDGE,
    NODE_MASK,
    NODE_PAD,
    NODE_SIZE,
    RELATIONS,
    ROOMS,
    pairs,
)

torch.set_num_threads(1)

LIVING, KITCHEN, BATH, BALCONY = map(
    ROOMS.index, ("LivingRoom", "Kitchen", "Bathroom", "Balcony")
)
LEFT, RIGHT = RELATIONS.index("left-of"), RELATIONS.index("right-of")


def problems(constraints, slots=8):
    """Return code and text of each misfit by path."""
    misfits = constraints.check(slots)
    return {
        dotted(misfit.path): (misfit.code, f"{misfit.message} {misfit.help or ''}")
        for misfit in misfits
    }


def test_invalid_entries_are_reported_at_once():
    table = Constraints(
        rooms=[6, 5],
        types={"0": "LivingRom", "x": "Kitchen"},
        relations=[[0, 1, "left"], [2, 1, "above"], [0, 1], [1, 2, []]],
        counts={"Kitchn": 1, "Balcony": "at lest 1", "Storage": -1},
        adjacent=[["Kitchen"], ["Kitchen", "LivingRoom", "none"]],
        groups={"bedrooms": ["Kitchen"], "wet": []},
    )
    found = problems(table)
    expected = {
        "rooms": ("out-of-range", "6 and 5"),
        "types.0": ("unknown-value", 'did you mean "LivingRoom"?'),
        "types.x": ("wrong-type", "0 to 7"),
        "relations[0]": ("unknown-value", 'did you mean "left-of"?'),
        "relations[1]": ("invalid-value", "2, 1"),
        "relations[2]": ("wrong-type", "[i, j, relation]"),
        "relations[3]": ("invalid-value", "none"),
        "counts.Kitchn": ("unknown-value", 'did you mean "Kitchen"?'),
        "counts.Balcony": ("wrong-type", '"at lest 1"'),
        "counts.Storage": ("out-of-range", "-1 and -1"),
        "adjacent[0]": ("wrong-type", "LivingRoom"),
        "adjacent[1]": ("invalid-value", "apart"),
        "groups.bedrooms": ("duplicate", "bedrooms"),
        "groups.wet": ("invalid-value", "room type"),
    }
    assert {path: code for path, (code, _) in found.items()} == {
        path: code for path, (code, _) in expected.items()
    }
    for path, (_, text) in expected.items():
        assert text in found[path][1], path


def test_wrong_types_hide_no_other_mistakes():
    table = {"rooms": "five", "types": {"0": 3, "1": "Kitchn"}, "relations": [[0, 1, 2], "near", [0, 1, "lft-of"]],
             "counts": {"Kitchen": [1, "2"]}, "adjacent": [["Kitchen", ["Bath"]], {}], "apart": "all",
             "buildable": 1, "groups": {"wet": "Kitchen", "dry": ["Kitchen", 5]}}  # fmt: skip
    codes = {path: code for path, (code, _) in problems(Constraints(**table)).items()}
    wrong = (
        "rooms",
        "types.0",
        "relations[0]",
        "relations[1]",
        "counts.Kitchen",
        "adjacent[1]",
        "apart",
        "buildable",
    )
    assert codes == dict.fromkeys(
        ("types.1", "relations[2]", "adjacent[0]"), "unknown-value"
    ) | dict.fromkeys((*wrong, "groups.wet", "groups.dry"), "wrong-type")
    for text, bounds in {"at least 5": (5, 8), "at most 7": (1, 7)}.items():
        (rule,) = Constraints(rooms=text).goal(8).rules
        assert (rule.low, rule.high) == bounds


CONTRADICTIONS = [
    ({"rooms": 4, "counts": {"bedrooms": 3, "Bathroom": 2, "Storage": 0}},
     "counts.Bathroom", "rooms = 4, counts.bedrooms = 3"),
    ({"counts": {"Kitchen": 0}, "adjacent": [["Kitchen", "LivingRoom"]]}, "adjacent[0]", "counts.Kitchen = 0"),
    ({"types": {"1": "Storage"}, "counts": {"Storage": 0}}, "counts.Storage", 'types.1 = "Storage"'),
    ({"types": {"5": "Storage"}, "rooms": 5}, "types.5", "rooms = 5"),
    ({"relations": [[0, 1, "above"], [0, 1, "below"]]}, "relations[1]", 'relations[0] = [0, 1, "above"]'),
    ({"relations": [[0, 1, "inside"]], "forbidden": [[0, 1, "near"]]}, "forbidden[0]", "relations[0]"),
    ({"adjacent": [["Kitchen", "bedrooms"]], "apart": [["bedrooms", "Kitchen"]]}, "apart[0]", "adjacent[0]"),
    ({"types": {"0": "Kitchen", "1": "Bathroom"}, "relations": [[0, 1, "near"]], "apart": [["Bathroom", "Kitchen"]]},
     "apart[0]", "types.0, types.1, relations[0]"),
    ({"counts": {"Kitchen": 9}}, "counts.Kitchen", "8 room slots"),
    ({"counts": {"Kitchen": 1}, "buildable": True, "apart": [["Kitchen", [*ROOMS]]]},
     "buildable", "counts.Kitchen, apart[0]"),
    ({"counts": {"Kitchen": 2, "MasterRoom": 2, "bedrooms": "at most 1"}}, "counts.bedrooms", "counts.MasterRoom = 2"),
]  # fmt: skip


@pytest.mark.parametrize(("options", "place", "others"), CONTRADICTIONS)
def test_contradictions_name_all_participants(options, place, others):
    constraints = Constraints(**options)
    ((path, (code, text)),) = problems(constraints).items()
    assert (path, code) == (place, "contradiction")
    participants = [others] if "[0, 1" in others else others.split(", ")
    assert all(participant in text for participant in participants)
    assert "counts.Kitchen = 2" not in text
    assert "counts.Storage = 0" not in text or "counts.Storage = 0" in others
    with pytest.raises(ValueError, match=place.split("[")[0]):
        constraints.goal(8)


SOME_TYPES, SOME_RELATIONS = (LIVING, KITCHEN, BATH, BALCONY), (LEFT, RIGHT, 3, NO_EDGE)


def some_rules(random):
    """Random rules for diagrams of up to three rooms."""

    def pick(*choices):
        return choices[int(torch.randint(len(choices), (), generator=random))]

    sets = [
        frozenset({LIVING}),
        frozenset({KITCHEN}),
        frozenset({LIVING, BATH}),
        frozenset({KITCHEN, BATH}),
    ]
    near = frozenset(range(NO_EDGE))
    relations = [near, frozenset({LEFT}), frozenset({NO_EDGE}), near - {LEFT}]
    makers = [
        lambda at: Count((at,), ALL, *pick((1, 2), (3, 3), (2, 3))),
        lambda at: RoomType((at,), pick(0, 1, 2), pick(*sets)),
        lambda at: PairRelation((at,), *pick((0, 1), (1, 2), (0, 2)), pick(*relations)),
        lambda at: Count(
            (at,), pick(*sets), *pick((0, 0), (1, 1), (2, 3), (0, 1), (3, 3))
        ),
        lambda at: Adjacency(
            (at,), pick(*sets), pick(*sets), pick(*relations[:2]), pick(True, False)
        ),
    ]
    return [
        pick(*makers)(at)
        for at in range(int(torch.randint(2, 6, (), generator=random)))
    ]


def every_diagram():
    """All diagrams of one to three rooms, of the types and relations that `some_rules` distinguishes."""
    rows = []
    for rooms in (1, 2, 3):
        real = [j < rooms for _, j in pairs(3)]
        for types in itertools.product(SOME_TYPES, repeat=rooms):
            for relations in itertools.product(SOME_RELATIONS, repeat=sum(real)):
                left = iter(relations)
                rows.append(
                    [
                        *types,
                        *[NODE_PAD] * (3 - rooms),
                        *(next(left) if r else EDGE_PAD for r in real),
                    ]
                )
    return torch.tensor(rows)


def test_feasible_agrees_with_enumeration():
    random = torch.Generator().manual_seed(0)
    every, answers = every_diagram(), []
    for _ in range(40):
        rules = some_rules(random)
        met = ConstraintGuidance(rules, 3).satisfied(every)
        answers.append(feasible(rules, 3))
        assert answers[-1] == bool(torch.stack(list(met.values())).all(0).any()), rules
    assert 8 < sum(answers) < 32, "both answers are tested"


@pytest.mark.parametrize(
    "whole",
    [Buildable(("whole",)), Reachable(("whole",))],
    ids=["buildable", "reachable"],
)
def test_rooms_that_nothing_joins_are_refused(whole):
    random, answers = np.random.default_rng(0), []
    for _ in range(16):
        close = [pair for pair in pairs(4) if random.random() < 0.4]
        graph = networkx.Graph(close)
        graph.add_nodes_from(range(4))
        apart = [
            PairRelation((str(pair),), *pair, frozenset({NO_EDGE}))
            for pair in pairs(4)
            if pair not in close
        ]
        answers.append(feasible([whole, Count(("rooms",), ALL, 4, 4), *apart], 6))
        assert answers[-1] == networkx.is_connected(graph), close
    assert 3 < sum(answers) < 13


def sparse_probs(rooms, seed):
    """Random token probabilities with few non-zero entries, so that all diagrams can be enumerated."""
    random = torch.Generator().manual_seed(seed)
    p = torch.zeros(6, NODE_SIZE, dtype=torch.float64)
    for slot in range(3):
        p[slot, list(SOME_TYPES)] = torch.rand(4, generator=random, dtype=torch.float64)
    for pair, (_, j) in enumerate(pairs(3)):
        p[3 + pair, list(SOME_RELATIONS)] = torch.rand(
            4, generator=random, dtype=torch.float64
        )
        if j >= rooms:
            p[3 + pair] = torch.eye(NODE_SIZE)[EDGE_PAD]
    p[rooms:3] = torch.eye(NODE_SIZE)[NODE_PAD]
    return p / p.sum(1, keepdim=True)


def truth(goal, p, at):
    """Probability for each id of token `at`, by enumeration."""
    every = every_diagram()
    met = torch.stack(list(goal.satisfied(every).values())).all(0)
    probs = p[torch.arange(6), every]
    probs[:, at] = 1
    weight = probs.prod(1) * met
    return torch.zeros(NODE_SIZE, dtype=torch.float64).index_add(
        0, every[:, at], weight
    )


@pytest.mark.parametrize("rooms", [2, 3])
def test_allowed_ids_and_counts_are_exact(rooms):
    rules = [
        RoomType(("a",), 1, frozenset({KITCHEN, BATH})),
        PairRelation(("b",), 0, 1, frozenset({LEFT, NO_EDGE})),
        Count(("c",), frozenset({LIVING, KITCHEN}), 1, 2),
        Count(("d",), frozenset({KITCHEN}), 1, 3),
        Count(("e",), frozenset({BATH, BALCONY}), 0, 1),
    ]
    goal, p = ConstraintGuidance(rules, 3), sparse_probs(rooms, 1)
    for at in (0, 1, 3):
        found = goal.log_prob(p.log()[None], torch.tensor([at]))[0].exp()
        expected = truth(goal, p, at)
        possible = p[at] > 0
        torch.testing.assert_close(found[possible], expected[possible])
        assert expected[possible].max() > 0.01


def test_satisfied_constraints_of_a_plan():
    boxes = [(20, 20, 100, 160), (104, 20, 160, 120), (104, 124, 160, 160)]
    diagram = Diagram.from_boxes([LIVING, KITCHEN, BATH], boxes)
    x = torch.from_numpy(encode(diagram, 8)).long()[None]
    goal = Constraints(
        rooms=[3, 5],
        counts={"Kitchen": 1, "bedrooms": "at least 1"},
        adjacent=[
            ["LivingRoom", "Kitchen", "left-of"],
            ["Kitchen", "LivingRoom", "right-of"],
            ["Balcony", "Kitchen"],
        ],
        apart=[["Bathroom", "Kitchen"], ["Bathroom", "bedrooms"]],
        relations=[[1, 2, "above"]],
    ).goal(8)
    broken = {key for key, value in goal.satisfied(x).items() if not value}
    assert broken == {"counts.bedrooms", "adjacent[2]", "apart[0]"}
    assert len(goal.satisfied(x)) == 9
    x[0, 1] = NODE_MASK
    assert not goal.satisfied(x)["counts.Kitchen"]


DATA = ProceduralPlans(train=600, valid=100, test=50)


def test_sampling_starts_with_known_tokens():
    constraints = Constraints(
        types={"0": "LivingRoom", "5": ["Kitchen", "Bathroom"]},
        relations=[[0, 1, "left-of"]],
        counts={"Storage": 0},
    )
    like = BubbleDiagram(data=DATA, constraints=constraints).build().like(200, 3)
    free = BubbleDiagram(data=DATA).build().like(200, 3)
    rooms = like.valid[:, :8].sum(1)
    assert rooms.min() == 6, (
        "room 5 exists, and the numbers of rooms are those of the data"
    )
    assert set(rooms.tolist()) == {6, 7, 8}
    assert free.valid[:, :8].sum(1).min() < 6
    assert like.known.sum(1).tolist() == [2] * 200
    assert (like.x0[:, 0] == LIVING).all()
    assert (like.x0[:, 8] == LEFT).all()
    assert free.goal is None
    assert like[3:5].to("cpu").goal is like.goal


def test_types_that_counts_imply_are_known():
    """Given the number of rooms: all closets, or all that is left of a room with a stated type; else none."""
    closet, kitchen = ROOMS.index("Wall-in"), ROOMS.index("Kitchen")
    cases = [
        ({"rooms": 8, "counts": {"Wall-in": 8}}, [closet] * 8),
        ({"rooms": 4, "types": {"0": "Kitchen"}, "counts": {"Wall-in": 3}}, [kitchen, *[closet] * 3]),
        ({"rooms": 3, "types": {"1": ["Kitchen", "Storage"]}, "counts": {"Wall-in": 2, "Kitchen": 1}},
         [closet, kitchen, closet]),
        ({"rooms": 3, "counts": dict.fromkeys({*ROOMS} - {"Kitchen"}, 0)}, [kitchen] * 3),
        ({"rooms": 2, "counts": {"Wall-in": 1, "Kitchen": 1}}, [None] * 2),
        ({"rooms": 3, "counts": {"Wall-in": "at least 2"}}, [None] * 3),
    ]  # fmt: skip
    for options, types in cases:
        like = (
            BubbleDiagram(data=DATA, constraints=Constraints(**options))
            .build()
            .like(2, 0)
        )
        known = like.known[1, :8].tolist()[: len(types)]
        tokens = like.x0[1].tolist()
        assert [tokens[k] if known[k] else None for k in range(len(types))] == types


def test_unseen_numbers_of_rooms_are_uniform():
    goal = Constraints(rooms=[2, 3]).goal(8)
    assert goal.room_counts(
        torch.tensor([0, 0, 0, 0, 1, 2, 3, 4, 5]).numpy()
    ).tolist() == [
        0,
        0,
        1,
        1,
        0,
        0,
        0,
        0,
        0,
    ]


def partially_decided(plans, random, share):
    """Return relations of plans with some of them open, and a pair of rooms of each plan."""
    real = real_edges(plans.types != NODE_PAD)
    at = np.array([random.choice(np.flatnonzero(row)) for row in real])
    shown = real & (random.random(real.shape) < share)
    return np.where(shown, plans.edges, OPEN), at


def test_lookahead_never_refutes_a_relation_of_the_plan():
    random = np.random.default_rng(0)
    for most, share in ((8, 0.3), (8, 0.8), (8, 1.0), (14, 0.9)):
        plans = make_plans(3, 0, 60 if most == 8 else 10, most)
        relations, at = partially_decided(plans, random, share)
        rows, disjoint = np.arange(len(at)), exclusive(plans.types)
        loose, strict = (
            impossible_relations(relations, at, most),
            impossible_relations(relations, at, most, disjoint),
        )
        assert not strict[rows, plans.edges[rows, at]].any()
        assert (loose <= strict).all()
        assert loose.mean() > {0.3: 0.02, 0.8: 0.27, 0.9: 0.3, 1.0: 0.4}[share], (
            "most impossible ones are refuted"
        )
        assert share != 0.8 or strict.sum() > 1.02 * loose.sum(), "overlap is foreseen"
        assert not contradictory(relations, most, disjoint).any()


def test_lookahead_agrees_with_the_exact_search():
    """Three rooms with two decided relations."""
    decided = np.array(list(product(range(0, NO_EDGE + 1), repeat=2)))[::7]
    relations = np.column_stack([decided, np.full(len(decided), OPEN)])
    gone = impossible_relations(relations, np.full(len(decided), 2), 3)
    truth = np.array(
        [
            [
                realise(np.array([*row, way]), 3).boxes is None
                for way in range(NO_EDGE + 1)
            ]
            for row in decided
        ]
    )
    assert not (gone & ~truth).any()
    assert gone.sum() > 0.95 * truth.sum() > 0


def test_the_last_token_is_decided_exactly():
    tokens = make_plans(5, 0, 4).tokens(8)
    for at in (0, 12):
        probs = torch.nn.functional.one_hot(
            torch.from_numpy(tokens).long(), NODE_SIZE
        ).double()
        probs[:, at] = 1 / NODE_SIZE
        prob = BuildableProbability(8).log_prob(probs, torch.full((4,), at)).exp()
        for way in range(13 if at < 8 else 11):
            changed = tokens.copy()
            changed[:, at] = way
            assert (
                prob[:, way].bool().tolist()
                == validity_levels(changed, 8).buildable.tolist()
            )


def test_buildable_constraint_requires_level_5():
    constraints = Constraints(buildable=True, counts={"Kitchen": 1})
    goal = constraints.goal(8)
    assert goal.rules[-1] == Buildable(("buildable",))
    tokens = make_plans(7, 0, 3).tokens(8)
    wrong, two = tokens.copy(), tokens.copy()
    wrong[:, 8:11] = [
        [RELATIONS.index(name) for name in ("left-of", "inside", "right-of")]
    ] * 3
    wrong[:, 15] = RELATIONS.index("surrounding")
    two[:, 1] = two[:, 2] = LIVING
    held = [
        goal.satisfied(torch.from_numpy(rows).long())["buildable"].tolist()
        for rows in (tokens, wrong, two)
    ]
    assert held == [[True] * 3, [False] * 3, [False] * 3]
    assert not Constraints(counts={"Kitchen": 1}).goal(8).satisfied(
        torch.from_numpy(tokens).long()
    ).keys() & {"buildable"}


def test_buildable_implies_one_living_room():
    (misfit,) = Constraints(buildable=True, counts={"LivingRoom": 2}).check(8)
    assert (misfit.code, misfit.path, misfit.related[-1]) == (
        "contradiction",
        ("buildable",),
        "LivingRoom",
    )


def test_unrealisable_relations_are_contradictions():
    def messages(relations):
        misfits = list(Constraints(relations=relations).check(8))
        assert {misfit.code for misfit in misfits} <= {"contradiction"}
        return [misfit.message for misfit in misfits]

    inner = [[0, 4, "surrounding"], [4, 7, "surrounding"]]
    assert messages([*inner, [0, 7, "surrounding"], [1, 2, "above"]]) == []
    (message,) = messages([[1, 2, "above"], *inner, [0, 7, "none"]])
    assert "relations[1]" in message
    assert "relations[2]" in message
    assert "relations[0]" not in message
    (message,) = messages(
        [[0, 1, "left-of"], [1, 2, "left-above"], [0, 2, "right-of"], [4, 5, "above"]]
    )
    assert "relations[0]" in message
    assert "relations[1]" in message
