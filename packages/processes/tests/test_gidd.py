"""GIDD against its paper: q(x_t | x_0), the integrand of the bound, and the whole bound by quadrature."""

import numpy as np
import pytest
import torch

from dither.losses.tokens import score_entropy
from dither.processes.samplers.predictor_corrector import PredictorCorrector
from dither.processes.schedules.alpha import LogLinear
from dither.processes.tokens.specs import GIDD
from dither.registry.contracts.records import Clean, State
from dither.registry.contracts.spaces import Field, TokenSpace
from dither.testing.toy_distributions import (
    PROBABILITIES,
    OracleSession,
    blank_batch,
    chi_square_p,
    outcome_index,
)
from dither.testing.toy_distributions import SPACE as TOY

IDS = 3
SHARE = 0.3
SPACE = TokenSpace((Field("text", 1, IDS),))
TIMES = np.linspace(0.02, 0.98, 9)


def paper(t: float) -> tuple[float, np.ndarray]:
    """Return alpha and beta pi of von Ruette et al. 2025, with gamma = 1."""
    scale = 2 * SHARE / (1 - SHARE)
    wrong = scale * np.sqrt(t * (1 - t))
    parts = np.append(np.full(IDS, wrong / IDS), t)
    return (1 - t) / (1 + wrong), parts / (1 + wrong)


def paper_loss(t: float, model: np.ndarray) -> np.ndarray:
    """Return the integrand of the bound for every x_0 and x_t: w (KL + Itakura-Saito), model[x_t] = p(x_0)."""
    alpha, noise = paper(t)
    step = 1e-6
    alpha_late, noise_late = paper(t + step)
    alpha_early, noise_early = paper(t - step)
    slope = (alpha_late - alpha_early) / (2 * step)
    forward = (noise_late - noise_early) / (2 * step) - slope / alpha * noise

    losses = np.zeros((IDS, IDS + 1))
    for x0 in range(IDS):
        q = noise.copy()
        q[x0] += alpha
        for x, p in enumerate(model):
            predicted = noise + alpha * np.append(p, 0.0)
            ratio = q[x] / predicted[x]
            divergence = (q * np.log(q / predicted)).sum() + ratio - np.log(ratio) - 1
            losses[x0, x] = forward[x] / q[x] * divergence
    return losses


@pytest.fixture
def process():
    spec = GIDD(uniform=SHARE, predict="plug-in", schedule=LogLinear(eps=1e-12))
    return spec.build(SPACE)


@pytest.fixture
def pairs() -> Clean:
    """Every clean id, with every noised one below it."""
    return Clean.of(torch.arange(IDS).repeat_interleave(IDS + 1)[:, None])


STATES = torch.arange(IDS + 1).repeat(IDS)[:, None]


def denoiser(process, logits):
    def denoise(state: State, t):
        raw = torch.nn.functional.pad(logits[state.x], (0, 1))
        return process.read(raw, state, process.schedule(t))

    return denoise


def test_noise_is_that_of_the_paper(process) -> None:
    t = torch.tensor(TIMES)
    noise = process.schedule(t)
    alpha = (-noise.sigma).exp().numpy()
    replaced = (1 - alpha)[:, None] * process.prior_at(noise)[:, 0].numpy()
    for i, time in enumerate(TIMES):
        expected_alpha, expected = paper(time)
        np.testing.assert_allclose(alpha[i], expected_alpha, rtol=1e-9)
        np.testing.assert_allclose(replaced[i], expected, rtol=1e-9)

    # Between two times: what was replaced by the later one and not yet by the earlier one.
    early = process.schedule(t[:-1])
    late = process.schedule(t[1:])
    kept = (early.sigma - late.sigma).exp()[:, None].numpy()
    expected = replaced[1:] - kept * replaced[:-1]
    between = (1 - kept) * process.prior_at(late, early)[:, 0].numpy()
    np.testing.assert_allclose(between, expected, rtol=1e-6)


def test_loss_is_the_integrand_of_the_paper(process, pairs) -> None:
    logits = torch.randn(IDS + 1, IDS, dtype=torch.float64)
    denoise = denoiser(process, logits)
    for time in TIMES:
        t = torch.full((len(STATES),), time, dtype=torch.float64)
        noised = process.noised(pairs, STATES, process.schedule(t))
        values = score_entropy(denoise(noised.state, t), noised).values
        expected = paper_loss(time, logits.softmax(-1).numpy())
        np.testing.assert_allclose(values.view(IDS, -1), expected, rtol=1e-5)


def test_bound_is_complete(process, pairs) -> None:
    """The draws that `evaluate` averages have the mean of the quadrature of the paper's bound, ends included."""
    logits = torch.randn(IDS + 1, IDS, dtype=torch.float64)
    model = logits.softmax(-1).numpy()
    # Even in the root of t, as the integrand has a root at 0
    roots, weights = np.polynomial.legendre.leggauss(200)
    t_min = 1e-3
    low = np.sqrt(t_min)
    roots = low + (1 - low) * (roots + 1) / 2
    expected = np.zeros(IDS)
    for root, weight in zip(roots, weights * (1 - low) / 2, strict=True):
        alpha, noise = paper(root**2)
        q = alpha * np.eye(IDS, IDS + 1) + noise
        expected += 2 * root * weight * (q * paper_loss(root**2, model)).sum(1)
    # The reconstruction at t_min: p(x_0 | x_t) is the prediction times q(x_t | x_0).
    alpha, noise = paper(t_min)
    q = alpha * np.eye(IDS, IDS + 1) + noise
    posterior = model.T * q
    posterior = posterior / posterior.sum(0)
    expected -= (q * np.log(posterior)).sum(1)

    draws = 1500
    clean = Clean.of(torch.arange(IDS).repeat_interleave(draws)[:, None])
    t = t_min + (1 - t_min) * torch.rand(len(clean.x0), dtype=torch.float64)
    denoise = denoiser(process, logits)
    nats = process.draw_diffusion(clean, t, score_entropy, denoise).values
    nats = nats + sum(process.draw_ends(clean, denoise).values())
    values = nats.view(IDS, draws)
    error = values.std(1) / draws**0.5
    z = (values.mean(1) - torch.tensor(expected)) / error
    assert z.abs().max() < 4.5, z
    assert (error / values.mean(1)).max() < 0.04


def test_gibbs_corrections_keep_the_exact_distribution() -> None:
    """Few steps with many corrections follow the distribution of an exact model; without them they do not."""
    process = GIDD(uniform=SHARE).build(TOY)
    session = OracleSession(process, "plug-in", process.prior_probs())

    def p_value(corrections: int) -> float:
        torch.manual_seed(0)
        options = {"steps": 3, "corrector": "gibbs", "corrections": corrections}
        sampler = PredictorCorrector(**options).build()
        (*_, x) = sampler(process, session, blank_batch(6000))
        counts = torch.bincount(outcome_index(x), minlength=9).double()
        return chi_square_p(counts, PROBABILITIES * len(x), 9)

    assert p_value(corrections=0) < 1e-6
    assert p_value(corrections=12) > 1e-3
