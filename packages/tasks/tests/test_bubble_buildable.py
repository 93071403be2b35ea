"""Realisability as a constraint: lookahead is sound, and the last token is decided exactly."""

from itertools import product

import numpy as np
import torch

from dither.tasks.bubble_diagram.constraints.guidance import BuildableProbability
from dither.tasks.bubble_diagram.constraints.lookahead import contradictory, impossible_relations
from dither.tasks.bubble_diagram.constraints.rules import Buildable
from dither.tasks.bubble_diagram.constraints.table import Constraints
from dither.tasks.bubble_diagram.data.procedural import make_plans
from dither.tasks.bubble_diagram.geometry.realisability import realise
from dither.tasks.bubble_diagram.geometry.wall_constraints import OPEN
from dither.tasks.bubble_diagram.plans import real_edges
from dither.tasks.bubble_diagram.relations import exclusive
from dither.tasks.bubble_diagram.validity import validity_levels
from dither.tasks.bubble_diagram.vocabulary import NO_EDGE, NODE_PAD, NODE_SIZE, RELATIONS, ROOM_IDS

torch.set_num_threads(1)

LIVING, KITCHEN = ROOM_IDS["LivingRoom"], ROOM_IDS["Kitchen"]


def partially_decided(plans, random, share):
    """Return relations of plans with some of them open, and a pair of rooms of each plan."""
    real = real_edges(plans.types != NODE_PAD)
    at = np.array([random.choice(np.flatnonzero(row)) for row in real])
    shown = real & (random.random(real.shape) < share)
    return np.where(shown, plans.edges, OPEN), at


def test_lookahead_never_refutes_a_relation_of_the_plan():
    random = np.random.default_rng(0)
    for most, share in ((8, 0.3), (8, 0.8), (8, 1.0), (14, 0.9)):
        plans = make_plans(3, 0, 150 if most == 8 else 40, most)
        relations, at = partially_decided(plans, random, share)
        rows = np.arange(len(at))
        gone = impossible_relations(relations, at, most)
        assert not gone[rows, plans.edges[rows, at]].any()
        assert gone.mean() > {0.3: 0.03, 0.8: 0.3, 0.9: 0.35, 1.0: 0.43}[share], "most impossible relations are refuted"


def test_lookahead_agrees_with_the_exact_search():
    """Three rooms with two decided relations."""
    decided = np.array(list(product(range(0, NO_EDGE + 1), repeat=2)))[::3]
    relations = np.column_stack([decided, np.full(len(decided), OPEN)])
    gone = impossible_relations(relations, np.full(len(decided), 2), 3)
    truth = np.array(
        [[realise(np.array([*row, way]), 3).boxes is None for way in range(NO_EDGE + 1)] for row in decided]
    )
    assert not (gone & ~truth).any()
    assert gone.sum() > 0.95 * truth.sum() > 0


def test_lookahead_foresees_overlap():
    plans, random = make_plans(3, 0, 150), np.random.default_rng(1)
    relations, at = partially_decided(plans, random, 0.8)
    rows, disjoint = np.arange(len(at)), exclusive(plans.types)
    loose, strict = impossible_relations(relations, at, 8), impossible_relations(relations, at, 8, disjoint)
    assert not strict[rows, plans.edges[rows, at]].any()
    assert (loose <= strict).all()
    assert strict.sum() > 1.02 * loose.sum()
    assert not contradictory(relations, 8, disjoint).any()


def test_room_types_are_foreseen():
    """Three relations that only overlapping boxes show: room 2 is the living room, while another relation is open."""
    none, one = np.zeros((1, 3), bool), np.array([[True, False, False]])
    edges = next(
        way
        for way in product(range(NO_EDGE), repeat=3)
        if contradictory(np.array([way]), 3, ~none)[0] and realise(np.array(way), 3, disjoint=one[0]).boxes is not None
    )
    probs = torch.zeros(1, 10, NODE_SIZE, dtype=torch.float64)
    probs[0, [0, 1, 3], KITCHEN] = 1
    probs[0, 2, : len(ROOM_IDS)] = 1 / len(ROOM_IDS)
    probs[0, [4, 5, 7], list(edges)] = 1
    probs[0, [8, 9], NO_EDGE] = 1
    probs[0, 6, : NO_EDGE + 1] = 1 / 11
    prob = BuildableProbability(4).log_prob(probs, torch.tensor([2]))[0, : len(ROOM_IDS)].exp()
    assert prob.nonzero().flatten().tolist() == [LIVING]


def certain(rows):
    return torch.nn.functional.one_hot(torch.from_numpy(rows).long(), NODE_SIZE).double()


def test_the_last_token_is_decided_exactly():
    plans = make_plans(5, 0, 6)
    tokens = plans.tokens(8)
    for at in (0, 3, 8, 12):
        probs = certain(tokens)
        probs[:, at] = 1 / NODE_SIZE
        prob = BuildableProbability(8).log_prob(probs, torch.full((6,), at)).exp()
        for way in range(13 if at < 8 else 11):
            changed = tokens.copy()
            changed[:, at] = way
            assert prob[:, way].bool().tolist() == validity_levels(changed, 8).buildable.tolist()


def test_buildable_constraint_requires_level_5():
    constraints = Constraints(buildable=True, counts={"Kitchen": 1})
    goal = constraints.goal(8)
    assert goal.rules[-1] == Buildable(("buildable",))
    tokens = make_plans(7, 0, 3).tokens(8)
    wrong, two = tokens.copy(), tokens.copy()
    wrong[:, 8:11] = [[RELATIONS.index(name) for name in ("left-of", "inside", "right-of")]] * 3
    wrong[:, 15] = RELATIONS.index("surrounding")
    two[:, 1] = two[:, 2] = LIVING
    held = [goal.satisfied(torch.from_numpy(rows).long())["buildable"].tolist() for rows in (tokens, wrong, two)]
    assert held == [[True] * 3, [False] * 3, [False] * 3]
    assert not Constraints(counts={"Kitchen": 1}).goal(8).satisfied(torch.from_numpy(tokens).long()).keys() & {
        "buildable"
    }


def test_buildable_implies_one_living_room():
    goal, p = Constraints(buildable=True).goal(4), torch.full((1, 10, NODE_SIZE), 1e-9)
    p[0, 0, LIVING] = 1
    p[0, 1:4, :13] = 1 / 13
    p[0, 4:, : NO_EDGE + 1] = 1 / 11
    log_prob = goal.log_prob(p.log(), torch.tensor([1]))[0]
    assert log_prob[LIVING] < log_prob[KITCHEN] - 5
    (misfit,) = Constraints(buildable=True, counts={"LivingRoom": 2}).check(8)
    assert (misfit.code, misfit.path, misfit.related[-1]) == ("contradiction", ("buildable",), "LivingRoom")


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
    (message,) = messages([[0, 1, "left-of"], [1, 2, "left-above"], [0, 2, "right-of"], [4, 5, "above"]])
    assert "relations[0]" in message
    assert "relations[1]" in message
