"""Estimators of the bound of an absorbing process, against every mask of a tiny graph."""

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import chisquare
from torch import Tensor

from dither.losses.reductions import PerSample
from dither.losses.tokens import masked_ce, score_entropy
from dither.processes.schedules.alpha import Cosine, LogLinear, Polynomial
from dither.processes.timestep_sampling import TimestepSampling
from dither.processes.tokens.nelbo import exact_nelbo, mask_at_least_one, place_times
from dither.processes.tokens.priors import mask_prior
from dither.processes.tokens.process import TokenProcess
from dither.registry.contracts.protocols import Schedule
from dither.registry.contracts.records import Clean, Noise, State
from dither.registry.contracts.spaces import Field, TokenSpace

LATE, COSINE = LogLinear(eps=1e-6).build(), Cosine(eps=1e-6).build()
GRAPH = TokenSpace(
    (Field("nodes", 3, 5, mask=3, pad=4), Field("edges", 3, 4, mask=2, pad=3))
)
"""Three rooms of three types, and the relations 01, 02, 12 of two sorts."""

X0 = torch.tensor([[0, 2, 1, 1, 0, 1], [1, 1, 4, 0, 3, 3]])
"""A graph of three rooms and one of two, whose tokens are two rooms and one relation."""

CLEAN = Clean.of(
    X0, torch.tensor([[True] * 6, [True, True, False, True, False, False]])
)


def process_of(
    estimator: Any = "time", schedule: Schedule | None = None, t_min: float = 1e-6
) -> TokenProcess:
    clock = TimestepSampling(schedule or LATE, t_min=t_min)
    return TokenProcess(GRAPH, mask_prior(GRAPH), clock, "posterior", estimator)


def denoiser(
    process: TokenProcess, looks_at_time: bool
) -> Callable[[State, Tensor], Any]:
    """A model: a fixed random function of the state, and of the time if it looks at it."""
    generator = torch.Generator().manual_seed(5)
    first, second = (
        torch.randn(30, 30, generator=generator, dtype=torch.float64) for _ in range(2)
    )

    def denoise(state: State, t: Tensor) -> Any:
        hidden = torch.nn.functional.one_hot(state.x, 5).double().flatten(1) @ first
        hidden = (hidden + looks_at_time * 3 * t.double()[:, None]).tanh()
        return process.read(
            (hidden @ second).unflatten(1, (6, 5)), state, process.schedule(t.double())
        )

    return denoise


def by_hand(
    process: TokenProcess, clean: Clean, row: int, looks_at_time: bool, nodes: int = 200
) -> Tensor:
    """The bound per position: the integral over 1 - alpha of sums over masks, straight from the definition."""
    free = (~clean.fixed[row]).nonzero()[:, 0].tolist()
    place, share = np.polynomial.legendre.leggauss(nodes if looks_at_time else 8)
    m = torch.from_numpy((1 + place) / 2)
    # log-linear with eps = 1e-6: 1 - alpha = (1 - eps) t
    times, total = (m / (1 - 1e-6)).clamp_max(1), torch.zeros(6, dtype=torch.float64)
    denoise, blank = denoiser(process, looks_at_time), process.prior(clean).x[row]
    for k in range(1, len(free) + 1):
        for chosen in itertools.combinations(free, k):
            x = clean.x0[row].clone()
            x[list(chosen)] = blank[list(chosen)]
            log_p = denoise(State.of(x.expand(len(m), -1)), times).log_clean()
            chance = (
                torch.from_numpy(share / 2) * m ** (k - 1) * (1 - m) ** (len(free) - k)
            )
            for place_ in chosen:
                total[place_] -= (
                    chance * log_p[:, place_, clean.x0[row, place_]]
                ).sum()
    return total


@pytest.mark.parametrize("looks_at_time", [False, True])
def test_exact_is_the_sum_over_masks(looks_at_time: bool) -> None:
    process = process_of()
    measured = exact_nelbo(process, CLEAN, denoiser(process, looks_at_time))
    for row in range(2):
        torch.testing.assert_close(
            measured.values[row],
            by_hand(process, CLEAN, row, looks_at_time),
            rtol=1e-4,
            atol=1e-6,
        )
    assert torch.equal(measured.weights.bool(), ~CLEAN.fixed)
    if not looks_at_time:  # the sum has a closed form
        free, x0 = list(range(6)), X0[0]
        blank, total = process.prior(CLEAN).x[0], 0.0
        for k in range(1, 7):
            for chosen in map(list, itertools.combinations(free, k)):
                x = x0.clone()
                x[chosen] = blank[chosen]
                log_p = denoiser(process, False)(
                    State.of(x[None]), torch.tensor([0.5])
                ).log_clean()[0]
                total -= float(log_p[chosen, x0[chosen]].sum()) / (k * math.comb(6, k))
        assert float(measured.values[0].sum()) == pytest.approx(total, rel=1e-12)


def test_exact_conditions_on_what_is_known() -> None:
    process = process_of()
    known = torch.zeros(2, 6, dtype=torch.bool)
    known[0, [0, 3, 4]] = True
    clean = Clean(X0, CLEAN.valid, known)
    measured = exact_nelbo(process, clean, denoiser(process, False))
    torch.testing.assert_close(
        measured.values[0], by_hand(process, clean, 0, False), rtol=1e-9, atol=1e-12
    )
    assert not measured.values[0, [0, 3, 4]].any()


@pytest.mark.parametrize(
    ("schedule", "loss"),
    [(LATE, masked_ce), (COSINE, score_entropy), (COSINE, PerSample(masked_ce))],
)
@pytest.mark.parametrize("estimator", ["time", "importance", "mask-count"])
def test_estimators_agree_with_the_exact_bound(
    estimator: str, loss: Any, schedule: Schedule
) -> None:
    """Nodes and edges apart, in a batch of graphs of two sizes; all of the bound, ends included."""
    n, t_min = 8000, 1e-3
    process = process_of(estimator, schedule, t_min)
    denoise = denoiser(process, True)
    exact = exact_nelbo(process, CLEAN, denoise).values
    clean = CLEAN.apply(lambda value: value.repeat(n, 1))
    times = process.times(2 * n)[torch.randperm(2 * n)]
    t, noised = process.estimate(clean, times)
    bound = process.bound(clean, loss(denoise(noised.state, t), noised), denoise)
    assert torch.equal(bound.weights.bool(), ~clean.fixed)
    parts = GRAPH.split(bound.values.double() * bound.weights)
    for name, whole in GRAPH.split(exact).items():
        per_graph = parts[name].sum(1)
        for row in range(2):
            error = float(per_graph[row::2].std()) / math.sqrt(n)
            assert (
                abs(float(per_graph[row::2].mean()) - float(whole[row].sum()))
                < 4 * error + 1e-4
            )
            assert error < 0.1 * float(whole[row].sum())


@pytest.mark.parametrize(
    ("schedule", "t_min", "looks_at_time"),
    [
        (LATE, 1e-3, True),
        (COSINE, 1e-3, True),
        # The ends would be a third of the bound.
        (LogLinear(eps=0.2).build(), 0.2, False),
    ],
)
def test_a_draw_of_the_whole_bound_has_the_exact_mean(
    schedule: Schedule, t_min: float, looks_at_time: bool
) -> None:
    """Per graph, with padding and known values, of one call of the model a draw."""
    torch.manual_seed(0)
    n = 20_000
    process = process_of("time", schedule, t_min)
    denoise = denoiser(process, looks_at_time)
    known = torch.zeros(2, 6, dtype=torch.bool)
    known[0, [0, 4]] = True
    one = Clean(X0, CLEAN.valid, known)
    exact = exact_nelbo(process, one, denoise).values.sum(1)
    clean = one.apply(lambda value: value.repeat(n, 1))
    times = process.times(2 * n)[torch.randperm(2 * n)]
    seen = []

    def watched(state: State, t: Tensor) -> Any:
        seen.append(t)
        return denoise(state, t)

    nats = process.draw_whole_bound(clean, times, watched)
    # Training has no smaller times.
    (called,) = seen
    assert called.min() >= t_min * (1 - 1e-6)
    assert not nats[clean.fixed].any()
    draws = nats.sum(1).view(n, 2)
    error = draws.std(0) / math.sqrt(n)
    assert ((draws.mean(0) - exact).abs() < 4 * error + 1e-4).all()
    assert (error < 0.02 * exact).all()


def test_scores_and_enumerated_bounds_are_not_drawn_whole() -> None:
    process = process_of("exact")
    times = torch.full((2,), 0.5)
    assert process.draw_whole_bound(CLEAN, times, denoiser(process, True)) is None
    timesteps = TimestepSampling(LATE)
    scores = TokenProcess(GRAPH, mask_prior(GRAPH), timesteps, "score", "time")
    assert scores.draw_whole_bound(CLEAN, times, denoiser(scores, True)) is None


@pytest.mark.parametrize("method", ["draw_diffusion", "draw_ends"])
def test_a_subclass_with_draws_of_its_own_has_no_whole_bound(method: str) -> None:
    """Evaluation would otherwise report the bound of the parent class."""

    def own(self: Any, *given: Any) -> Any:
        raise AssertionError("called")

    process = process_of("time")
    assert (
        process.draw_whole_bound(CLEAN, torch.rand(2), denoiser(process, True))
        is not None
    )
    process.__class__ = type("Own", (TokenProcess,), {method: own})
    assert (
        process.draw_whole_bound(CLEAN, torch.rand(2), denoiser(process, True)) is None
    )


def test_masks_for_sure_have_their_law_and_weight() -> None:
    """P(M) = (k / N) m^(k-1) (1 - m)^(N-k) for each of the 7 masks of 3 tokens, at weight N m / k."""
    n, m = 20_000, 0.3
    free = torch.tensor([True, False, True, True]).expand(n, 4)
    noise = Noise(
        torch.full((n,), -math.log1p(-m)).double(), torch.full((n,), 2.0).double()
    )
    moved, weighed = mask_at_least_one((torch.rand(n, 4) < m) & free, free, noise)
    assert not moved[:, 1].any()
    code = (moved[:, [0, 2, 3]] * torch.tensor([1, 2, 4])).sum(1)
    k = torch.tensor([number.bit_count() for number in range(1, 8)]).double()
    expected = k / 3 * m ** (k - 1) * (1 - m) ** (3 - k)
    counts = torch.bincount(code, minlength=8)
    assert counts[0] == 0
    assert expected.sum() == pytest.approx(1)
    assert chisquare(counts[1:].numpy(), (n * expected).numpy()).pvalue > 1e-3
    torch.testing.assert_close(weighed.rate, 2.0 * 3 * m / moved.sum(1).double())
    torch.testing.assert_close(weighed.sigma, noise.sigma)


def test_mask_count_averages_the_weights_over_times() -> None:
    """Rao-Blackwell: N / k is the mean weight of the other estimators over the times that give k of N masks."""
    n, rows = 8_000, Clean.of(X0[:1])
    for estimator in ("time", "importance", "mask-count"):
        process = process_of(estimator, COSINE, 1e-5)
        _, noised = process.estimate(
            rows.apply(lambda value: value.expand(n, -1)), process.times(n)
        )
        weight = (noised.noise.rate / noised.noise.sigma.expm1()).double()
        k = noised.target_mask.sum(1)
        for count in range(
            1, 7
        ):  # over all draws, as k has another distribution under each
            part = torch.where(k == count, weight, 0.0)
            assert (
                abs(float(part.mean()) - 1 / count)
                < 4 * float(part.std()) / math.sqrt(n) + 1e-3
            )
        if estimator == "mask-count":
            torch.testing.assert_close(weight, 6 / k.double(), rtol=1e-3, atol=0)


@pytest.mark.parametrize(
    "schedule", [spec().build() for spec in (LogLinear, Cosine, Polynomial)]
)
@pytest.mark.parametrize("estimator", ["time", "importance", "mask-count"])
def test_times_are_weighed_by_their_density(estimator: str, schedule: Schedule) -> None:
    """The mean over even t of rate f is the integral of f over sigma, divided by 1 - t_min, wherever times are put."""
    t_min = 0.01
    clock = TimestepSampling(schedule, t_min=t_min)
    node, share = np.polynomial.legendre.leggauss(400)
    even = torch.from_numpy(t_min + (1 - t_min) * (1 + node) / 2)
    t, noise = place_times(clock, estimator, even)
    torch.testing.assert_close(noise.sigma, schedule(t).sigma)
    mean = float(
        (torch.from_numpy(share / 2) * noise.rate * (-noise.sigma).exp()).sum()
    )
    first, last = (
        (-schedule(torch.tensor([end]).double()).sigma).exp() for end in (t_min, 1.0)
    )
    assert mean * (1 - t_min) == pytest.approx(float(first - last), rel=1e-6)
