"""Sampling led to a goal: the law is the conditional one, and every sample meets the goal."""

from dataclasses import replace

import pytest
import torch

from dither.processes.samplers.constraint_smc import Guided
from dither.processes.tokens.specs import Absorbing
from dither.registry import Field, TokenSpace
from dither.registry.contracts.records import Clean
from dither.testing.toy_distributions import (
    IDS,
    OUTCOMES,
    PROBABILITIES,
    SPACE,
    OracleSession,
    assert_follows,
    blank_batch,
    outcome_index,
)

ROWS = 1500


class Outcomes:
    """The goal to come out as one of some outcomes of the tiny law; the chance is exact for independent tokens."""

    def __init__(self, wanted):
        self.wanted = wanted

    def satisfied(self, x, cond=None):
        number = outcome_index(x)
        return {"wanted": (number >= 0) & self.wanted[number.clamp_min(0)]}

    def log_prob(self, log_clean, at):
        p = log_clean.double().exp()
        both = torch.stack([p[:, 0, OUTCOMES[:, 0]], p[:, 1, OUTCOMES[:, 1]]], -1)
        rows = torch.arange(len(at))
        rest = both[rows, :, 1 - at] * self.wanted
        chance = torch.zeros(len(at), p.shape[-1], dtype=torch.float64)
        for v in range(IDS):
            chance[:, v] = (rest * (OUTCOMES.T[at] == v)).sum(1)
        return chance.log()


class Wrong(Outcomes):
    """The same, with a poor idea of its chances until the end: anything that can still be counts as likely."""

    def log_prob(self, log_clean, at):
        return torch.where(
            super().log_prob(log_clean, at) > -torch.inf, 0.0, -torch.inf
        ).double()


ALLOWED = torch.isin(OUTCOMES[:, 0], torch.tensor([0, 2])) & torch.isin(
    OUTCOMES[:, 1], torch.tensor([1, 2])
)
RISING = OUTCOMES[:, 1] >= OUTCOMES[:, 0]
"""Here the chance to meet the goal depends much on the first token."""
UNEQUAL = OUTCOMES[:, 0] != OUTCOMES[:, 1]


def conditional(wanted):
    return PROBABILITIES * wanted / (PROBABILITIES * wanted).sum()


def walk(sampler, like, process=None, session=OracleSession):
    process = process or Absorbing().build(SPACE)
    prior = process.corrupt(like[:1], torch.ones(1)).prior
    torch.manual_seed(4)
    return list(sampler(process, session(process, "posterior", prior), like))


@pytest.mark.parametrize(
    "goal", [Outcomes(ALLOWED), Outcomes(RISING), Wrong(ALLOWED), Wrong(RISING)]
)
def test_many_particles_have_the_conditional_law(goal):
    (*_, x) = walk(Guided(particles=60).build(), replace(blank_batch(ROWS), goal=goal))
    assert goal.satisfied(x)["wanted"].all()
    assert_follows(outcome_index(x), conditional(goal.wanted), "samples under a goal")


@pytest.mark.parametrize("particles", [1, 3])
def test_known_values_are_exact_with_any_number_of_particles_and_seen_from_the_first_call(
    particles,
):
    seen = []

    class Spy(OracleSession):
        def __call__(self, state, t, at=None):
            seen.append(state.x.clone())
            return super().__call__(state, t, at)

    known = torch.tensor([False, True]).expand(ROWS, 2)
    like = Clean.of(torch.full((ROWS, 2), 2), known=known)
    goal = Outcomes(OUTCOMES[:, 0] < 3)  # everything is allowed
    states = walk(
        Guided(particles=particles).build(), replace(like, goal=goal), session=Spy
    )
    assert all((x[:, 1] == 2).all() for x in [*seen, *states])
    assert_follows(
        outcome_index(states[-1]),
        conditional(OUTCOMES[:, 1] == 2),
        "samples with a known token",
    )


def test_the_fields_may_be_decided_one_after_the_other():
    space = TokenSpace((Field("first", 2, 3), Field("second", 2, 3)))
    process = Absorbing().build(space)

    class Same(OracleSession):
        def __call__(self, state, t):
            return self.process.read(
                torch.zeros(*state.x.shape, 4), state, self.process.schedule(t)
            )

    class Anything:
        def log_prob(self, log_clean, at):
            return torch.zeros(len(at), 4, dtype=torch.float64)

    like = Clean.of(torch.zeros(200, 4, dtype=torch.long))
    for order in ("fields", "random"):
        states = walk(
            Guided(particles=2, order=order).build(),
            replace(like, goal=Anything()),
            process,
            Same,
        )
        halfway = (states[1] < 3)[:, :2]
        assert bool(halfway.all()) == (order == "fields")
        assert 40 < (states[0][:, 0] < 3).sum() < 120, (
            "within a field any position may be next"
        )


def test_a_goal_that_the_choice_would_exclude_is_met_all_the_same():
    """The likeliest outcome by far is (0, 0); the nucleus of what is allowed is taken, not of what is not."""
    goal = Outcomes(UNEQUAL)
    for options in ({"temperature": 0.0}, {"top_p": 0.2}):
        (*_, x) = walk(
            Guided(particles=2, **options).build(), replace(blank_batch(200), goal=goal)
        )
        assert goal.satisfied(x)["wanted"].all()
