"""Predictor and corrector: noise back up is q(x_t | x_s), an exact correction keeps the law, a coarse walk gains."""

from typing import Any

import pytest
import torch

from dither.processes.samplers.predictor_corrector import PredictorCorrector
from dither.processes.tokens.process import TokenProcess
from dither.registry.flow.records import Clean, Noise, State
from dither.registry.flow.spaces import FeatureSpace, Field, TokenSpace
from dither.registry.kinds import ModelFacts

KINDS = ("absorbing", "uniform", "marginal")


def build(part: Any, kind: str, length: int, ids: int) -> TokenProcess:
    options = {"frequencies": {"text": [1.0 + i for i in range(ids)]}} if kind == "marginal" else {}
    space = TokenSpace((Field("text", length, ids),))
    process: TokenProcess = part("process", kind, schedule="log-linear", **options).build(space)
    return process


@pytest.mark.parametrize("kind", KINDS)
def test_noise_between_two_times_is_the_chain(part, likely, transition, kind: str) -> None:
    process, n, gap = build(part, kind, 1, 3), 10_000, 0.7
    law = transition(process.prior_probs()[0], gap)
    noise = Noise(torch.full((n,), gap), torch.ones(n))
    for x in range(process.space.vocab):
        state = State.of(torch.full((n, 1), x))
        moved = process.renoise(state, noise, Clean.of(torch.zeros(n, 1).long())).x
        assert likely(moved, law[x].where(law[x] > 1e-12, 0)) > 1e-3
    known = Clean.of(torch.zeros(n, 1).long(), known=torch.ones(n, 1, dtype=torch.bool))
    assert torch.equal(process.renoise(state, noise, known).x, state.x)


@pytest.mark.parametrize("kind", KINDS)
def test_one_position_is_exact_with_any_corrections(part, likely, oracle, kind: str) -> None:
    process, law = build(part, kind, 1, 3), torch.tensor([0.05, 0.25, 0.7])
    like = Clean.of(torch.zeros(10_000, 1).long())
    session = oracle(process, law)
    states = list(PredictorCorrector(steps=3, corrections=2, reach=0.4, t_min=0.2).build()(process, session, like))
    assert session.calls == 3 * 3 + 1
    assert len(states) == 3 + 1
    assert likely(states[-1], law) > 1e-3


def far(x: torch.Tensor, joint: torch.Tensor) -> float:
    """Total variation between samples of two bits and their joint."""
    found = torch.bincount(x[:, 0] * 2 + x[:, 1], minlength=4) / len(x)
    return float((found - joint.flatten()).abs().sum() / 2)


@pytest.mark.parametrize("kind", KINDS)
def test_corrections_bring_a_coarse_walk_nearer(part, oracle, kind: str) -> None:
    joint, n = torch.tensor([[0.48, 0.02], [0.02, 0.48]]).double(), 8_000
    process, like = build(part, kind, 2, 2), Clean.of(torch.zeros(n, 2).long())
    walks = (
        PredictorCorrector(steps=6, corrections=0).build(),
        PredictorCorrector(steps=6, corrections=8, reach=0.25).build(),
        PredictorCorrector(steps=6, corrections=8, reach=1.0).build(),
    )
    wrong, short, long = (far(list(walk(process, oracle(process, joint), like))[-1], joint) for walk in walks)
    assert short < 0.5 * wrong
    assert short < long
    assert wrong > 0.05


def test_it_is_for_tokens(part) -> None:
    gaussian = part("process", "gaussian")
    facts = gaussian.facts(FeatureSpace(2, 3))
    (misfit,) = part("sampler", "predictor-corrector").check(facts, ModelFacts())
    assert (misfit.code, misfit.related) == ("process-mismatch", ("process",))
    with pytest.raises(TypeError, match="TokenProcess"):
        next(PredictorCorrector().build()(gaussian.build(FeatureSpace(2, 3)), None, Clean.of(torch.zeros(1, 2, 3))))
