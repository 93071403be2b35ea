"""Steps against brute force, and samplers with an exact denoiser: samples must have the law of the data."""

from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from dither.processes.samplers.first_hitting import FirstHitting
from dither.processes.samplers.predictor_corrector import PredictorCorrector
from dither.processes.schedules.alpha import Cosine, LogLinear
from dither.processes.schedules.sigma import Geometric
from dither.processes.timestep_sampling import time_of
from dither.processes.tokens.prediction import CategoricalPrediction
from dither.processes.tokens.process import TokenProcess
from dither.registry.contracts.records import Clean, Noise, State, TokenPrediction

KINDS = ("absorbing", "uniform", "marginal", "hybrid")


def noise_of(sigma: float, rows: int) -> Noise:
    return Noise(
        torch.full((rows,), sigma, dtype=torch.float64),
        torch.ones(rows, dtype=torch.float64),
    )


class Foreign(TokenPrediction):
    """A third-party prediction with only the members of the protocol."""

    def __init__(self, pred: CategoricalPrediction) -> None:
        self.pred = pred

    def log_clean(self) -> Tensor:
        return self.pred.log_clean()

    def log_score(self) -> Tensor:
        return self.pred.log_score()


@pytest.mark.parametrize("meaning", ["posterior", "plug-in", "score"])
@pytest.mark.parametrize(("sigma", "earlier"), [(0.05, 0.01), (9.0, 0.0)])
@pytest.mark.parametrize("kind", KINDS)
def test_step_and_finish_are_bayes(
    text_process, likely, transition, kind: str, sigma: float, earlier: float, meaning
) -> None:
    """x_s has the law sum over x_0 of p(x_0 | x_t) q(x_s | x_t, x_0), with q from transition matrices alone."""
    n, ids = 8_000, 3
    process = text_process(kind, 1, ids, predict=meaning, schedule="log-linear")
    prior, now, then = (
        process.prior_probs()[0],
        noise_of(sigma, n),
        noise_of(earlier, n),
    )
    context = torch.zeros(process.space.vocab, dtype=torch.float64)
    context[:ids] = torch.rand(ids, dtype=torch.float64) + 0.05
    context /= context.sum()
    whole, first, second = (
        transition(prior, sigma),
        transition(prior, earlier),
        transition(prior, sigma - earlier),
    )
    like = Clean.of(torch.zeros(n, 1, dtype=torch.long))
    for x_t in range(process.space.vocab):
        joint = context * whole[:, x_t]
        posterior = joint / joint.sum()
        state = State.of(torch.full((n, 1), x_t))
        ratio = (context @ whole) / (context @ whole)[x_t]
        raw = {"posterior": posterior, "plug-in": context, "score": ratio}[
            meaning
        ].log()
        pred = process.read(raw.expand(n, 1, -1), state, now)
        bridge = first * second[:, x_t] / whole[:, x_t, None]  # row x_0, column x_s
        law = (posterior[:, None] * bridge.nan_to_num(0)).sum(0).clamp_min(0)
        torch.testing.assert_close(law.sum().item(), 1.0)
        law = law.where(law > 1e-12, 0)
        for said in (pred, Foreign(pred)):
            assert likely(process.step(state, said, now, then, like).x, law) > 1e-4
        assert (
            likely(
                process.finish(state, pred, like), posterior.where(posterior > 1e-12, 0)
            )
            > 1e-4
        )


def sample(sampler: Any, process: TokenProcess, session: Any, like: Clean) -> Tensor:
    *_, last = sampler(process, session, like)
    return last


@pytest.mark.parametrize("steps", [1, 2, 8])
def test_ancestral_absorbing_is_wrong_by_exactly_its_step(
    part, text_process, likely, oracle, steps: int
) -> None:
    """Of two equal bits, those unmasked in the same step are drawn apart: they differ half of the time."""
    n, t_min = 20_000, 1e-3
    process = text_process("absorbing", 2, 2, schedule="log-linear")
    session = oracle(process, torch.eye(2))
    x = sample(
        part("sampler", "ancestral", steps=steps, t_min=t_min).build(),
        process,
        session,
        Clean.of(torch.zeros(n, 2).long()),
    )
    left = [
        *torch.linspace(1, t_min, steps + 1).tolist(),
        0.0,
    ]  # share still masked: (1 - alpha(t)) / (1 - alpha(1)) = t
    together = sum((a - b) ** 2 for a, b in pairwise(left))
    assert session.calls == steps + 1
    differs = (x[:, 0] != x[:, 1]).long()
    assert likely(differs, torch.tensor([1 - together / 2, together / 2])) > 1e-3


def test_euler_leaves_with_one_minus_exp_of_the_rate(
    part, text_process, likely
) -> None:
    """With scores 1, 2, 3 relative to x the rate is sigma(1) - sigma(t_min) times prior(x) times their sum."""
    n, process = (
        20_000,
        text_process(
            "uniform", 1, 3, schedule={"use": "linear-sigma", "sigma_max": 1.5}
        ),
    )
    seen: list[Tensor] = []

    def session(state: State, t: Tensor, at: Tensor) -> CategoricalPrediction:
        seen.append(state.x)
        score = (1.0 + (torch.arange(3) - state.x[..., None]) % 3).log()
        return process.read(score, state, process.schedule(t)).at(at)

    list(
        part("sampler", "euler", steps=1, t_min=1e-9).build()(
            process, session, Clean.of(torch.zeros(n, 1).long())
        )
    )
    stay = torch.tensor(-1.5 / 3 * (2 + 3)).exp()
    assert (
        likely(
            (seen[1] - seen[0]) % 3,
            torch.stack([stay, (1 - stay) * 2 / 5, (1 - stay) * 3 / 5]),
        )
        > 1e-3
    )


def test_euler_is_stable_where_plain_euler_is_not(part, text_process) -> None:
    """At sigma = 20 and few steps the plain rule leaves with a probability above 1 (and scores may overflow exp)."""
    process = text_process("uniform", 4, 5, schedule={"use": "geometric"})
    like = Clean.of(torch.randint(0, 5, (3, 4)), known=torch.rand(3, 4) < 0.5)

    def session(state: State, t: Tensor, at: Tensor) -> CategoricalPrediction:
        return process.read(90.0 * torch.randn(3, 4, 5), state, process.schedule(t)).at(
            at
        )

    states = list(part("sampler", "euler", steps=4).build()(process, session, like))
    assert len(states) == 5
    for x in states:
        assert torch.equal(x[like.known], like.x0[like.known])
        assert x.min() >= 0
        assert x.max() < 5


def test_first_hitting_order_and_times(text_process) -> None:
    """One position per call and row, evenly chosen, at the times of n exponential clocks; ragged rows finish early."""
    n = 10_000
    process = text_process("absorbing", 3, 2, schedule="cosine")
    known = torch.zeros(n, 3, dtype=torch.bool)
    known[1::2, 0] = True
    like = Clean.of(torch.zeros(n, 3, dtype=torch.long), known=known)
    seen, times = [process.prior(like).x], []

    def session(state: State, t: Tensor, at: Tensor) -> CategoricalPrediction:
        assert torch.equal(state.x, seen[-1])
        times.append(t)
        return process.read(torch.zeros(n, 3, 3), state, process.schedule(t)).at(at)

    for x in FirstHitting().build()(process, session, like):
        seen.append(x)
    masked = torch.stack([(x == 2).sum(1) for x in seen])
    assert masked[:, 0].tolist() == [3, 2, 1, 0]
    assert masked[:, 1].tolist() == [2, 1, 0, 0]
    first = (seen[0] != seen[1])[0::2].float().mean(0)
    torch.testing.assert_close(first, torch.full((3,), 1 / 3), rtol=0, atol=0.03)
    assert (times[0] > times[1]).all()
    assert (times[1] > times[2])[0::2].all()
    # Three clocks ring at even levels 1 - alpha in [0, 1]: the first to ring has the law of their maximum.
    lost = 1 - (-process.schedule(times[0][0::2].double()).sigma).exp()
    for level in (0.5, 0.8, 0.95):
        assert (lost < level).double().mean().item() == pytest.approx(
            level**3, abs=0.03
        )


@pytest.mark.parametrize(
    "schedule", [spec().build() for spec in (LogLinear, Cosine, Geometric)]
)
def test_time_of_inverts_the_schedule(schedule) -> None:
    t = torch.tensor([0.01, 0.3, 0.9], dtype=torch.float64)
    torch.testing.assert_close(time_of(schedule, -(-schedule(t).sigma).expm1()), t)


@pytest.mark.parametrize("kind", KINDS)
def test_noise_between_two_times_is_the_chain(
    text_process, likely, transition, kind: str
) -> None:
    process, n, gap = text_process(kind, 1, 3, schedule="log-linear"), 10_000, 0.7
    law = transition(process.prior_probs()[0], gap)
    noise = Noise(torch.full((n,), gap), torch.ones(n))
    nothing = Noise(torch.zeros(n), torch.ones(n))
    for x in range(process.space.vocab):
        state = State.of(torch.full((n, 1), x))
        like = Clean.of(torch.zeros(n, 1).long())
        moved = process.renoise(state, noise, nothing, like).x
        assert likely(moved, law[x].where(law[x] > 1e-12, 0)) > 1e-3
    known = Clean.of(torch.zeros(n, 1).long(), known=torch.ones(n, 1, dtype=torch.bool))
    assert torch.equal(process.renoise(state, noise, nothing, known).x, state.x)


def far(x: torch.Tensor, joint: torch.Tensor) -> float:
    """Total variation between samples of two bits and their joint."""
    found = torch.bincount(x[:, 0] * 2 + x[:, 1], minlength=4) / len(x)
    return float((found - joint.flatten()).abs().sum() / 2)


@pytest.mark.parametrize("kind", KINDS)
def test_corrections_bring_a_coarse_walk_nearer(
    text_process, oracle, kind: str
) -> None:
    joint, n = torch.tensor([[0.48, 0.02], [0.02, 0.48]]).double(), 4_000
    process, like = (
        text_process(kind, 2, 2, schedule="log-linear"),
        Clean.of(torch.zeros(n, 2).long()),
    )
    walks = (
        PredictorCorrector(steps=6, corrections=0).build(),
        PredictorCorrector(steps=6, corrections=8, reach=0.25).build(),
        PredictorCorrector(steps=6, corrections=8, reach=1.0).build(),
    )
    wrong, short, long = (
        far(list(walk(process, oracle(process, joint), like))[-1], joint)
        for walk in walks
    )
    assert short < 0.5 * wrong
    assert short < long
    assert wrong > 0.05
