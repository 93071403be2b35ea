"""Losses on tokens: identities between published forms, and a bound whose parts add up to -log p(x_0) exactly."""

import itertools
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor

from dither.losses.tokens import masked_ce, score_entropy
from dither.processes.schedules.alpha import Cosine, LogLinear
from dither.processes.schedules.betas import LinearBeta
from dither.processes.schedules.sigma import Geometric
from dither.processes.tokens.prediction import log_leaving
from dither.processes.tokens.process import TokenProcess
from dither.registry.contracts.records import Clean, Measured, Noise, Noised, State
from dither.registry.contracts.spaces import Field, TokenSpace

TWO = TokenSpace((Field("nodes", 2, 6, mask=4, pad=5), Field("edges", 3, 4, pad=0)))
SCHEDULES = tuple(spec().build() for spec in (Geometric, LogLinear, Cosine, LinearBeta))


def text(length: int, ids: int) -> TokenSpace:
    return TokenSpace((Field("text", length, ids),))


def record(
    process: TokenProcess, x0: Tensor, x: Tensor, sigma: Tensor, rate: float = 1.0
) -> Noised:
    """The record that `corrupt` would make if the draw came out as x."""
    prior = process.prior_probs()
    target_mask = prior.expand(x.shape[1], -1)[torch.arange(x.shape[1]), x] > 0
    noise, fixed = (
        Noise(sigma, torch.full_like(sigma, rate)),
        torch.zeros_like(target_mask),
    )
    return Noised(x0, State.of(x), noise, target_mask, ~fixed, fixed, prior)


def clean_of(space: TokenSpace, rows: int) -> Clean:
    """Random clean ids with random padding and known positions."""
    odds = space.clean().double().expand(space.length, -1)
    x0 = torch.stack([torch.multinomial(odds, 1)[:, 0] for _ in range(rows)])
    valid, known = torch.rand(x0.shape) < 0.8, torch.rand(x0.shape) < 0.2
    pads = torch.cat([torch.full((f.length,), f.pad or 0) for f in space.fields])
    return Clean.of(torch.where(valid, x0, pads), valid, known)


@pytest.mark.parametrize("space", [text(4, 5), TWO], ids=["one", "two"])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_masked_ce_is_score_entropy_of_an_absorbing_process(
    process_of, schedule, space: TokenSpace
) -> None:
    """The closed form of MDLM, term by term, with padding, known positions and fields of their own."""
    process = process_of("absorbing", space, "posterior", schedule)
    clean = clean_of(process.space, 64)
    noised = process.corrupt(clean, torch.linspace(1e-3, 1, 64, dtype=torch.float64))
    raw = torch.randn(
        64, space.length, process.space.vocab, dtype=torch.float64, requires_grad=True
    )
    pred = process.read(raw, noised.state, noised.noise)
    closed, general = masked_ce(pred, noised), score_entropy(pred, noised)
    torch.testing.assert_close(closed.values, general.values, rtol=1e-10, atol=1e-12)
    assert torch.equal(closed.weights, general.weights)
    assert torch.equal(closed.weights, (~clean.fixed).double())
    assert (closed.values[~noised.target_mask] == 0).all()
    assert (closed.values[noised.target_mask] > 0).all()
    grads = [
        torch.autograd.grad(m.total(), raw, retain_graph=True)[0]
        for m in (closed, general)
    ]
    torch.testing.assert_close(grads[0], grads[1], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("moved", [False, True])
@pytest.mark.parametrize("ids", [2, 5])
def test_score_entropy_is_the_formula_of_sedd(
    process_of, ids: int, moved: bool
) -> None:
    """mean_y s_y - s_x / V - (negative term) + (constant), as in the public code, with r = esigm1 / (esigm1 + V)."""
    process = process_of("uniform", text(1, ids), "score")
    x0, x, sigma = 0, int(moved), 0.9
    log_s = torch.randn(ids, dtype=torch.float64)
    log_s[x] = 0
    e = math.expm1(sigma)
    r = e / (e + ids)
    positive = log_s.exp().mean() - 1 / ids
    negative = log_s.mean() - log_s[x] / ids
    negative = negative + log_s[x0] / e if moved else r * negative
    constant = (
        ((-math.log(r) - 1) / r - (ids - 2)) / ids
        if moved
        else (ids - 1) / ids * r * (math.log(r) - 1)
    )
    sigmas = torch.tensor([sigma], dtype=torch.float64)
    noised = record(
        process, torch.tensor([[x0]]), torch.tensor([[x]]), sigmas, rate=2.0
    )
    got = score_entropy(
        process.read(log_s[None, None], noised.state, noised.noise), noised
    ).values
    torch.testing.assert_close(got.squeeze(), 2.0 * (positive - negative + constant))


JOINT = (
    torch.tensor(
        [[4.0, 1.0, 0.5], [0.3, 2.0, 1.0], [1.0, 0.2, 3.0]], dtype=torch.float64
    )
    / 13
)
SPACE = TokenSpace((Field("text", 2, 3),))


def table(process, t):
    """q(x_t = y | x_0 = id) of one position, `ids V`."""
    alpha = math.exp(
        -float(process.schedule(torch.tensor([t], dtype=torch.float64)).sigma)
    )
    ids, prior = len(JOINT), process.prior_probs()[0]
    return (
        alpha * torch.eye(len(prior), dtype=torch.float64)[:ids]
        + (1 - alpha) * prior.double()
    )


def law(process, t):
    """p(x_0, x_t) of both positions, `ids ids V V`."""
    q = table(process, t)
    return JOINT[:, :, None, None] * q[:, None, :, None] * q[None, :, None, :]


def denoiser(process):
    """The exact one, from the law alone: p(x_0 | x_t) and p_t(y) / p_t(x_t) at each position."""

    def denoise(state, t):
        both = law(process, float(t[0]))
        seen = both.sum((0, 1))
        a, b = state.x.T
        clean = (
            torch.stack([both.sum(1)[:, a, b].T, both.sum(0)[:, a, b].T], 1)
            / seen[a, b][:, None, None]
        )
        full = torch.zeros(*state.x.shape, len(seen), dtype=torch.float64)
        full[..., : clean.shape[-1]] = clean
        score = torch.stack([seen[:, b].T, seen[a]], 1) / seen[a, b][:, None, None]
        return SimpleNamespace(log_clean=full.log, log_score=score.log)

    return denoise


def states(process, x0, t):
    """Every state that x_0 can be in at t, one per row, with its chance."""
    q, prior = table(process, t), process.prior_probs()
    rows = torch.tensor(list(itertools.product(range(q.shape[1]), repeat=2)))
    chance = q[x0[0], rows[:, 0]] * q[x0[1], rows[:, 1]]
    rows, chance = rows[chance > 0], chance[chance > 0]
    fixed = torch.zeros(rows.shape, dtype=torch.bool)
    noise = process.schedule(torch.full((len(rows),), t, dtype=torch.float64))
    target_mask = prior[0][rows] > 0
    return Noised(
        torch.tensor(x0).expand(len(rows), -1),
        State.of(rows),
        noise,
        target_mask,
        ~fixed,
        fixed,
        prior,
    ), chance


def bound(process, x0, monkeypatch):
    """Nats of the three parts, in the mean over every state."""
    t_min, denoise = process.timesteps.t_min, denoiser(process)
    place, weight = np.polynomial.legendre.leggauss(80)
    diffusion = 0.0
    for t, share in zip(
        t_min + (1 - t_min) * (place + 1) / 2, (1 - t_min) * weight / 2, strict=True
    ):
        noised, chance = states(process, x0, float(t))
        values = score_entropy(denoise(noised.state, torch.tensor([t])), noised).values
        diffusion += share * float((chance[:, None] * values).sum())
    noised, chance = states(process, x0, t_min)
    monkeypatch.setattr(process, "corrupt", lambda clean, t: noised)
    per_position = torch.full(
        noised.x0.shape, diffusion / 2 / (1 - t_min), dtype=torch.float64
    )
    found = process.bound(
        Clean.of(noised.x0),
        Measured(per_position, torch.ones_like(per_position)),
        denoise,
    )
    mean = {
        name: float((chance[:, None] * part).sum())
        for name, part in found.parts.items()
    }
    return mean | {
        "diffusion": diffusion,
        "whole": float((chance[:, None] * found.values).sum()),
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "schedule"),
    [
        ("absorbing", LogLinear(eps=1e-9).build()),
        ("uniform", Geometric(sigma_min=1e-4, sigma_max=16).build()),
        ("marginal", Geometric(sigma_min=1e-4, sigma_max=16).build()),
        ("hybrid", Geometric(sigma_min=1e-4, sigma_max=16).build()),
    ],
)
def test_with_exact_scores_the_parts_add_up_to_the_likelihood(
    process_of, kind, schedule, monkeypatch
):
    """For every x_0, so that the mean over any data is its entropy + KL(data || model), to 1e-5."""
    process = process_of(kind, SPACE, schedule=schedule)
    data, mean = torch.full((3, 3), 1 / 9, dtype=torch.float64), 0.0
    for x0 in itertools.product(range(3), repeat=2):
        with monkeypatch.context() as patched:
            parts = bound(process, x0, patched)
        assert parts["whole"] == pytest.approx(-math.log(JOINT[x0]), abs=1e-5)
        assert parts["whole"] == pytest.approx(
            sum(parts[name] for name in ("prior", "diffusion", "reconstruction"))
        )
        assert min(parts["prior"], parts["reconstruction"]) >= 0
        mean += float(data[x0]) * parts["whole"]
    entropy, divergence = (
        -(data * data.log()).sum().item(),
        (data * (data / JOINT).log()).sum().item(),
    )
    assert mean == pytest.approx(entropy + divergence, abs=1e-5)


@pytest.mark.parametrize("kind", ["uniform", "marginal"])
def test_a_schedule_that_ends_early_costs_what_is_left(process_of, kind, monkeypatch):
    """With sigma_max = 1 the bound is -log p(x_0) plus, in the mean, KL(p_1 || prior): no denoiser can take it away."""
    process = process_of(
        kind, SPACE, schedule=Geometric(sigma_min=1e-4, sigma_max=1.0).build()
    )
    lost, prior_part = 0.0, 0.0
    for x0 in itertools.product(range(3), repeat=2):
        with monkeypatch.context() as patched:
            parts = bound(process, x0, patched)
        lost += float(JOINT[x0]) * (parts["whole"] + math.log(JOINT[x0]))
        prior_part += float(JOINT[x0]) * parts["prior"]
    end, prior = law(process, 1.0).sum((0, 1)), process.prior_probs()[0].double()
    expected = float((end * (end / (prior[:, None] * prior)).log()).sum())
    assert lost == pytest.approx(expected, abs=1e-5)
    assert prior_part > lost > 0.01


def test_parts_are_zero_where_nothing_is_predicted(process_of):
    process = process_of(
        "uniform", SPACE, schedule=Geometric(sigma_min=0.5, sigma_max=1.0).build()
    )
    fixed = torch.tensor([[True, False]])
    clean = Clean.of(torch.tensor([[0, 1]] * 2), ~fixed.expand(2, 2))
    found = process.bound(
        clean, Measured(torch.zeros(2, 2), (~clean.fixed).float()), denoiser(process)
    )
    for part in found.parts.values():
        assert part[:, 0].tolist() == [0, 0]
    assert (found.parts["prior"][:, 1] > 0).all()
    half = Measured(found.values, found.weights, parts=found.parts)[:1]
    assert {name: part.shape for name, part in half.parts.items()} == {
        "prior": (1, 2),
        "reconstruction": (1, 2),
    }


@pytest.mark.parametrize("kind", ["absorbing", "uniform", "marginal", "hybrid"])
def test_the_exact_score_is_the_best(process_of, kind):
    """Averaged over x_0, the loss has its minimum at the score of the data: its gradient there is 0."""
    process, gradient = process_of(kind, SPACE, "score"), {}
    for x0 in itertools.product(range(3), repeat=2):
        noised, chance = states(process, x0, 0.9)
        raw = (
            denoiser(process)(noised.state, torch.tensor([0.9]).double())
            .log_score()
            .requires_grad_()
        )
        values = score_entropy(
            process.read(raw, noised.state, noised.noise), noised
        ).values
        (grad,) = torch.autograd.grad(
            (float(JOINT[x0]) * chance[:, None] * values).sum(), raw
        )
        for row, x in enumerate(noised.state.x.tolist()):
            gradient[tuple(x)] = gradient.get(tuple(x), 0.0) + grad[row]
    assert max(float(grad.abs().max()) for grad in gradient.values()) < 1e-6


def test_masked_ce_of_scores_is_that_of_plug_in_and_leaves_their_scale_untrained(
    process_of,
) -> None:
    """Why `MaskedCE.check` refuses scores: adding log 2 to all changes rates of jumps, but not the loss."""
    processes = {
        name: process_of("absorbing", text(4, 5), name, SCHEDULES[1])
        for name in ("plug-in", "score")
    }
    clean = clean_of(processes["score"].space, 8)
    noised = processes["score"].corrupt(
        clean, torch.linspace(0.1, 1, 8, dtype=torch.float64)
    )
    raw = torch.randn(8, 4, processes["score"].space.vocab, dtype=torch.float64)
    plain, scores, scaled = (
        processes[name].read(raw + math.log(scale), noised.state, noised.noise)
        for name, scale in (("plug-in", 1), ("score", 1), ("score", 2))
    )
    for pred in (scores, scaled):
        torch.testing.assert_close(
            masked_ce(pred, noised).values, masked_ce(plain, noised).values
        )
    masked = noised.target_mask
    leaving, twice = (
        log_leaving(pred, noised.state.x)[masked] for pred in (scores, scaled)
    )
    torch.testing.assert_close(twice, leaving + math.log(2))
