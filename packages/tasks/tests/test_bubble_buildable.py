"""Only diagrams that can be built: what is foreseen is never wrong, and what is decided at the end is exact."""

from itertools import product

import numpy as np
import torch

from dither.tasks.bubble_diagram.constraints import contradictions
from dither.tasks.bubble_diagram.constraints.guidance import RealisabilityProbability
from dither.tasks.bubble_diagram.constraints.lookahead import OPEN, refuted
from dither.tasks.bubble_diagram.constraints.rules import Buildable
from dither.tasks.bubble_diagram.constraints.table import Constraints
from dither.tasks.bubble_diagram.data.procedural import make_plans
from dither.tasks.bubble_diagram.geometry.realisability import realise
from dither.tasks.bubble_diagram.plans import real_edges
from dither.tasks.bubble_diagram.validity import is_realisable, validity_levels
from dither.tasks.bubble_diagram.vocabulary import EDGE_PAD, NO_EDGE, NODE_PAD, NODE_SIZE, RELATIONS, ROOMS

torch.set_num_threads(1)


def half_decided(plans, random, share):
    """Relations of plans, some of them open, and in each plan a pair of rooms that is to be decided next."""
    real = real_edges(plans.types != NODE_PAD)
    at = np.array([random.choice(np.flatnonzero(row)) for row in real])
    shown = real & (random.random(real.shape) < share)
    return np.where(shown, plans.edges, OPEN), at


def test_what_a_plan_shows_is_never_refuted():
    random = np.random.default_rng(0)
    for most, share in ((8, 0.3), (8, 0.8), (8, 1.0), (14, 0.9)):
        plans = make_plans(3, 0, 150 if most == 8 else 40, most)
        relations, at = half_decided(plans, random, share)
        rows = np.arange(len(at))
        gone = refuted(relations, at, most)
        assert not gone[rows, plans.edges[rows, at]].any()
        assert gone.mean() > {0.3: 0.03, 0.8: 0.3, 0.9: 0.35, 1.0: 0.43}[share], "most of what cannot be is seen"


def test_what_is_refuted_is_impossible():
    """Three rooms, two relations of which are decided, against the exact search."""
    decided = np.array(list(product(range(0, NO_EDGE + 1), repeat=2)))[::3]
    relations = np.column_stack([decided, np.full(len(decided), OPEN)])
    gone = refuted(relations, np.full(len(decided), 2), 3)
    truth = np.array(
        [[realise(np.array([*row, way]), 3).boxes is None for way in range(NO_EDGE + 1)] for row in decided]
    )
    assert not (gone & ~truth).any()
    assert gone.sum() > 0.95 * truth.sum() > 0


def certain(rows):
    return torch.nn.functional.one_hot(torch.from_numpy(rows).long(), NODE_SIZE).double()


def test_the_last_token_is_decided_exactly():
    plans = make_plans(5, 0, 6)
    tokens = plans.tokens(8)
    for at in (0, 3, 8, 12):
        believed = certain(tokens)
        believed[:, at] = 1 / NODE_SIZE
        chance = RealisabilityProbability(8).log_prob(believed, torch.full((6,), at)).exp()
        for way in range(13 if at < 8 else 11):
            changed = tokens.copy()
            changed[:, at] = way
            assert chance[:, way].bool().tolist() == validity_levels(changed, 8).realisable.tolist()


def test_levels_and_what_can_be_built_agree_where_types_and_tokens_are_wrong():
    tokens = make_plans(6, 0, 40).tokens(8)
    random = np.random.default_rng(1)
    tokens[np.arange(40), random.integers(0, 12, 40)] = random.integers(0, NODE_SIZE, 40)
    found = is_realisable(tokens, 8)
    assert found.tolist() == validity_levels(tokens, 8).realisable.tolist()
    assert 0 < found.sum() < 40


def test_constraints_ask_for_diagrams_that_can_be_built():
    constraints = Constraints(buildable=True, counts={"Kitchen": 1})
    goal = constraints.goal(8)
    assert goal.rules[-1] == Buildable(("buildable",))
    tokens = make_plans(7, 0, 3).tokens(8)
    wrong, two = tokens.copy(), tokens.copy()
    wrong[:, 8:11] = [[RELATIONS.index(name) for name in ("left-of", "inside", "right-of")]] * 3
    wrong[:, 15] = RELATIONS.index("surrounding")
    two[:, 1] = two[:, 2] = ROOMS.index("LivingRoom")
    held = [goal.satisfied(torch.from_numpy(rows).long())["buildable"].tolist() for rows in (tokens, wrong, two)]
    assert held == [[True] * 3, [False] * 3, [False] * 3]
    assert not Constraints(counts={"Kitchen": 1}).goal(8).satisfied(torch.from_numpy(tokens).long()).keys() & {
        "buildable"
    }


def test_one_living_room_is_foreseen_and_a_second_contradicts():
    goal, p = Constraints(buildable=True).goal(4), torch.full((1, 10, NODE_SIZE), 1e-9)
    p[0, 0, ROOMS.index("LivingRoom")] = 1
    p[0, 1:4, :13] = 1 / 13
    p[0, 4:, : NO_EDGE + 1] = 1 / 11
    chance = goal.log_prob(p.log(), torch.tensor([1]))[0]
    assert chance[ROOMS.index("LivingRoom")] < chance[ROOMS.index("Kitchen")] - 5
    (misfit,) = Constraints(buildable=True, counts={"LivingRoom": 2}).check(8)
    assert (misfit.message, misfit.path) == ("contradicts counts.LivingRoom = 2", ("buildable",))


def test_fixed_relations_that_no_boxes_show_are_named(monkeypatch):
    def said(relations):
        return [misfit.message for misfit in Constraints(relations=relations).check(8)]

    inner = [[0, 4, "surrounding"], [4, 7, "surrounding"]]
    assert said([*inner, [0, 7, "surrounding"], [1, 2, "above"]]) == []
    (message,) = said([[1, 2, "above"], *inner, [0, 7, "none"]])
    assert message.startswith("cannot be built together with relations[1]")
    assert "relations[2]" in message
    assert "relations[0]" not in message
    monkeypatch.setattr(contradictions, "SHRINKING", 0.0)
    (message,) = said([[1, 2, "above"], *inner, [0, 7, "none"]])
    assert "relations[0]" in message


def test_rooms_that_are_not_there_demand_nothing():
    tokens = np.full((1, 10), EDGE_PAD)
    tokens[0, :4] = (ROOMS.index("LivingRoom"), ROOMS.index("Kitchen"), NODE_PAD, NODE_PAD)
    tokens[0, 4] = 3
    p = certain(tokens)
    p[0, 1, :13], p[0, 4, :11] = 1 / 13, 1 / 11
    assert (RealisabilityProbability(4).log_prob(p, torch.tensor([4]))[0, :11] == 0).all()
