"""The parts of the whole bound: what each end costs, and that they add up to -log p(x_0) exactly, state by state."""

import itertools
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from dither.losses.tokens import score_entropy
from dither.processes.schedules.alpha import log_linear
from dither.processes.schedules.sigma import geometric
from dither.registry.flow.records import Clean, Measured, Noised, State
from dither.registry.flow.spaces import Field, TokenSpace

JOINT = torch.tensor([[4.0, 1.0, 0.5], [0.3, 2.0, 1.0], [1.0, 0.2, 3.0]], dtype=torch.float64) / 13
SPACE = TokenSpace((Field("text", 2, 3),))


def table(process, t):
    """q(x_t = y | x_0 = id) of one position, `ids V`."""
    alpha = math.exp(-float(process.schedule(torch.tensor([t], dtype=torch.float64)).sigma))
    ids, prior = len(JOINT), process.prior_probs()[0]
    return alpha * torch.eye(len(prior), dtype=torch.float64)[:ids] + (1 - alpha) * prior.double()


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
        clean = torch.stack([both.sum(1)[:, a, b].T, both.sum(0)[:, a, b].T], 1) / seen[a, b][:, None, None]
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
        torch.tensor(x0).expand(len(rows), -1), State.of(rows), noise, target_mask, ~fixed, fixed, prior
    ), chance


def bound(process, x0, monkeypatch):
    """Nats of the three parts, in the mean over every state."""
    t_min, denoise = process.timesteps.t_min, denoiser(process)
    place, weight = np.polynomial.legendre.leggauss(80)
    diffusion = 0.0
    for t, share in zip(t_min + (1 - t_min) * (place + 1) / 2, (1 - t_min) * weight / 2, strict=True):
        noised, chance = states(process, x0, float(t))
        values = score_entropy(denoise(noised.state, torch.tensor([t])), noised).values
        diffusion += share * float((chance[:, None] * values).sum())
    noised, chance = states(process, x0, t_min)
    monkeypatch.setattr(process, "corrupt", lambda clean, t: noised)
    per_position = torch.full(noised.x0.shape, diffusion / 2 / (1 - t_min), dtype=torch.float64)
    found = process.bound(Clean.of(noised.x0), Measured(per_position, torch.ones_like(per_position)), denoise)
    mean = {name: float((chance[:, None] * part).sum()) for name, part in found.parts.items()}
    return mean | {"diffusion": diffusion, "whole": float((chance[:, None] * found.values).sum())}


@pytest.mark.parametrize(
    ("kind", "schedule"),
    [
        ("absorbing", log_linear(1e-9)),
        ("uniform", geometric(1e-4, 16)),
        ("marginal", geometric(1e-4, 16)),
        ("hybrid", geometric(1e-4, 16)),
    ],
)
def test_with_exact_scores_the_parts_add_up_to_the_likelihood(process_of, kind, schedule, monkeypatch):
    """For every x_0, so that the mean over any data is its entropy + KL(data || model), to 1e-5."""
    process = process_of(kind, SPACE, schedule=schedule)
    data, mean = torch.full((3, 3), 1 / 9, dtype=torch.float64), 0.0
    for x0 in itertools.product(range(3), repeat=2):
        with monkeypatch.context() as patched:
            parts = bound(process, x0, patched)
        assert parts["whole"] == pytest.approx(-math.log(JOINT[x0]), abs=1e-5)
        assert parts["whole"] == pytest.approx(sum(parts[name] for name in ("prior", "diffusion", "reconstruction")))
        assert min(parts["prior"], parts["reconstruction"]) >= 0
        mean += float(data[x0]) * parts["whole"]
    entropy, divergence = -(data * data.log()).sum().item(), (data * (data / JOINT).log()).sum().item()
    assert mean == pytest.approx(entropy + divergence, abs=1e-5)


@pytest.mark.parametrize("kind", ["uniform", "marginal"])
def test_a_schedule_that_ends_early_costs_what_is_left(process_of, kind, monkeypatch):
    """With sigma_max = 1 the bound is -log p(x_0) plus, in the mean, KL(p_1 || prior): no denoiser can take it away."""
    process = process_of(kind, SPACE, schedule=geometric(1e-4, 1.0))
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


@pytest.mark.parametrize(("low", "high", "nats"), [(1e-3, 1.0, 3.32), (1e-3, 2.0, 1.07), (1e-4, 20.0, 0.0)])
def test_what_the_seeds_schedule_costs_with_the_vocabulary_of_gpt2(process_of, low, high, nats):
    """KL(alpha on x_0 and (1 - alpha) even || even) in closed form: 3.32 nats a token at sigma_max = 1."""
    ids = 50_257
    process = process_of("uniform", TokenSpace((Field("text", 2, ids),)), schedule=geometric(low, high))
    clean = Clean.of(torch.tensor([[7, 50_256]]))
    even = SimpleNamespace(log_clean=lambda: torch.full((1, 2, ids), -math.log(ids)))
    measured = Measured(torch.zeros(1, 2), torch.ones(1, 2))
    found = process.bound(clean, measured, lambda state, t: even).parts["prior"]
    alpha = math.exp(-high)
    stays = alpha + (1 - alpha) / ids
    closed = stays * math.log(ids * stays) + (ids - 1) * (1 - alpha) / ids * math.log1p(-alpha)
    assert found.tolist() == [[pytest.approx(closed, abs=1e-6)] * 2]
    assert closed == pytest.approx(nats, abs=0.01)


def test_parts_are_zero_where_nothing_is_predicted(process_of):
    process = process_of("uniform", SPACE, schedule=geometric(0.5, 1.0))
    fixed = torch.tensor([[True, False]])
    clean = Clean.of(torch.tensor([[0, 1]] * 2), ~fixed.expand(2, 2))
    found = process.bound(clean, Measured(torch.zeros(2, 2), (~clean.fixed).float()), denoiser(process))
    for part in found.parts.values():
        assert part[:, 0].tolist() == [0, 0]
    assert (found.parts["prior"][:, 1] > 0).all()
    half = Measured(found.values, found.weights, parts=found.parts)[:1]
    assert {name: part.shape for name, part in half.parts.items()} == {"prior": (1, 2), "reconstruction": (1, 2)}
