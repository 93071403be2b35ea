"""Predictor and corrector: noise back up is q(x_t | x_s), an exact correction keeps the law, a coarse walk gains."""

from typing import Any

import pytest
import torch

from dither.processes.samplers.predictor_corrector import PredictorCorrector
from dither.processes.tokens.process import TokenProcess
from dither.registry.flow.records import Clean, Noise, State
from dither.registry.flow.spaces import Field, TokenSpace

KINDS = ("absorbing", "uniform", "marginal", "hybrid")


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


def far(x: torch.Tensor, joint: torch.Tensor) -> float:
    """Total variation between samples of two bits and their joint."""
    found = torch.bincount(x[:, 0] * 2 + x[:, 1], minlength=4) / len(x)
    return float((found - joint.flatten()).abs().sum() / 2)


@pytest.mark.parametrize("kind", KINDS)
def test_corrections_bring_a_coarse_walk_nearer(part, oracle, kind: str) -> None:
    joint, n = torch.tensor([[0.48, 0.02], [0.02, 0.48]]).double(), 4_000
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
