"""The integral of a loss over time is a bound on -log p(x_0), and with exact predictions it is -log p(x_0) itself."""

import itertools
import math

import numpy as np
import pytest
import torch
from torch import Tensor

from dither.losses.flow import flow_kl
from dither.losses.tokens import masked_ce, score_entropy
from dither.processes.schedules.alpha import cosine_squared, log_linear
from dither.processes.schedules.sigma import geometric
from dither.processes.tokens.posterior import Posterior
from dither.processes.tokens.prediction import CategoricalPrediction
from dither.processes.tokens.process import TokenProcess
from dither.registry.flow.records import Noise, Noised, State
from dither.registry.flow.spaces import Field, TokenSpace

KINDS = ("absorbing", "uniform", "marginal", "hybrid")
JOINT = torch.tensor([[4.0, 1.0, 0.5], [0.3, 2.0, 1.0], [1.0, 0.2, 3.0]], dtype=torch.float64) / 13


def nodes(n: int, low: float = 0.0, high: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """Gauss-Legendre on [low, high]."""
    place, weight = np.polynomial.legendre.leggauss(n)
    return low + (high - low) * (place + 1) / 2, (high - low) * weight / 2


def states(process: TokenProcess, x0: tuple[int, ...], noise: Noise) -> tuple[Noised, Tensor]:
    """Every state that x_0 can be in, one per row, with its probability."""
    prior = process.prior_probs()
    rows = torch.tensor(list(itertools.product(range(process.space.vocab), repeat=len(x0))))
    alpha = (-noise.sigma).exp()
    clean = torch.tensor(x0)
    chance = (alpha * (rows == clean) + (1 - alpha) * prior[0][rows]).prod(1)
    rows, chance = rows[chance > 0], chance[chance > 0]
    target_mask, fixed = prior[0][rows] > 0, torch.zeros(rows.shape, dtype=torch.bool)
    noise = Noise(noise.sigma.expand(len(rows)), noise.rate.expand(len(rows)))
    return Noised(clean.expand(len(rows), -1), State.of(rows), noise, target_mask, ~fixed, fixed, prior), chance


def at(process: TokenProcess, t: float) -> Noise:
    return process.schedule(torch.tensor([t], dtype=torch.float64))


def exact(process: TokenProcess, noised: Noised, joint: Tensor) -> CategoricalPrediction:
    """p(x_0 | x_t) of each position by Bayes, for a joint over two positions."""
    evidence = Posterior(noised.state.x, noised.noise, process.prior_probs(), process.clean.on("cpu"))
    ids, x, alpha = len(joint), noised.state.x, (-noised.noise.sigma).exp()[:, None, None]
    likelihood = alpha * (torch.arange(ids) == x[..., None])
    likelihood = likelihood + (1 - alpha) * process.prior_probs()[0][x][..., None]
    both = joint * likelihood[:, 0, :, None] * likelihood[:, 1, None, :]
    clean = torch.zeros(*x.shape, process.space.vocab, dtype=torch.float64)
    clean[:, 0, :ids], clean[:, 1, :ids] = both.sum(2), both.sum(1)
    return CategoricalPrediction((clean / clean.sum(-1, keepdim=True)).log(), "posterior", evidence)


@pytest.mark.parametrize("schedule", [log_linear(1e-3), geometric(1e-4, 20), cosine_squared(0.01)])
@pytest.mark.parametrize("ids", [2, 5])
def test_an_untrained_absorbing_model(process_of, ids: int, schedule) -> None:
    """Even logits, MASK and PAD excluded: log V per token, times the share of tokens that are ever masked."""
    process = process_of("absorbing", TokenSpace((Field("text", 2, ids),)), "posterior", schedule)
    total = 0.0
    for t, weight in zip(*nodes(200), strict=True):
        noised, chance = states(process, (0, 1), at(process, t))
        raw = torch.zeros(*noised.x0.shape, process.space.vocab)
        values = masked_ce(process.read(raw, noised.state, noised.noise), noised).values
        total += weight * (chance[:, None] * values).sum().item() / 2
    first, last = (math.exp(-at(process, t).sigma.item()) for t in (0.0, 1.0))
    assert total == pytest.approx(math.log(ids) * (first - last), rel=1e-6)


def test_exact_predictions_give_the_likelihood_of_an_absorbing_process(process_of) -> None:
    process = process_of("absorbing", TokenSpace((Field("text", 2, 3),)), "posterior", log_linear(1e-9))
    for x0 in itertools.product(range(3), repeat=2):
        total = 0.0
        for t, weight in zip(*nodes(20), strict=True):
            noised, chance = states(process, x0, at(process, t))
            values = masked_ce(exact(process, noised, JOINT), noised).values
            torch.testing.assert_close(flow_kl(exact(process, noised, JOINT), noised).values, values)
            total += weight * (chance[:, None] * values).sum().item()
        assert total == pytest.approx(-math.log(JOINT[x0]), rel=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_the_exact_score_is_the_best(process_of, kind: str) -> None:
    """Averaged over x_0, the loss has its minimum at the score of the data: its gradient there is 0."""
    process = process_of(kind, TokenSpace((Field("text", 2, 3),)), "score")
    gradient: dict[tuple[int, ...], Tensor] = {}
    for x0 in itertools.product(range(3), repeat=2):
        noised, chance = states(process, x0, at(process, 0.9))
        raw = exact(process, noised, JOINT).log_score().detach().requires_grad_()
        values = score_entropy(process.read(raw, noised.state, noised.noise), noised).values
        (grad,) = torch.autograd.grad((float(JOINT[x0]) * chance[:, None] * values).sum(), raw)
        for row, x in enumerate(noised.state.x.tolist()):
            gradient[tuple(x)] = gradient.get(tuple(x), torch.zeros_like(grad[0])) + grad[row]
    largest = max(float(grad.abs().max()) for grad in gradient.values())
    assert largest < 1e-9
