"""The integral of a loss over time is a bound on -log p(x_0), and with exact predictions it is -log p(x_0) itself."""

import itertools
import math

import numpy as np
import pytest
import torch
from torch import Tensor

from dither.losses.tokens import masked_ce, score_entropy
from dither.processes.schedules.alpha import cosine_squared, log_linear, polynomial
from dither.processes.schedules.sigma import geometric
from dither.processes.tokens.posterior import Posterior
from dither.processes.tokens.prediction import CategoricalPrediction
from dither.processes.tokens.process import TokenProcess
from dither.registry.flow.records import Noise, Noised, State
from dither.registry.flow.spaces import Field, TokenSpace

KINDS = ("absorbing", "uniform", "marginal")
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


@pytest.mark.parametrize("ids", [2, 5, 9])
@pytest.mark.parametrize("sigma", [0.01, 1.0, 6.0])
def test_an_untrained_uniform_model(process_of, ids: int, sigma: float) -> None:
    """Scores of 1: rate / V times (V - 1) [1 - r + r log r] if x = x_0, and so on; r is never 0."""
    process = process_of("uniform", TokenSpace((Field("text", 1, ids),)), "score")
    noise = Noise(torch.tensor([sigma], dtype=torch.float64), torch.tensor([2.0], dtype=torch.float64))
    noised, _ = states(process, (0,), noise)
    values = score_entropy(process.read(torch.zeros(ids, 1, ids), noised.state, noised.noise), noised).values[:, 0]
    r = math.expm1(sigma) / (math.expm1(sigma) + ids)
    same, moved = 1 - r + r * math.log(r), 1 - 1 / r - math.log(r) / r
    expected = torch.tensor([(ids - 1) * same] + [moved] * (ids - 1)) * 2.0 / ids
    torch.testing.assert_close(values.float(), expected, rtol=1e-5, atol=1e-6)


def test_the_bound_is_the_mean_over_all_orders(process_of) -> None:
    """Of any model, a table of logits by state: the integral, the sum over masks, and the mean over orders agree."""
    process = process_of("absorbing", TokenSpace((Field("text", 3, 2),)), "posterior", polynomial(2.0, 1e-12))
    logits = torch.randn(3, 3, 3, 3, 3, dtype=torch.float64)  # a state of three ids (2 is MASK) -> L V
    x0 = (0, 1, 1)

    def said(noised: Noised) -> Tensor:
        x = noised.state.x
        return logits[x[:, 0], x[:, 1], x[:, 2]]

    def nats(masked: frozenset[int], place: int) -> float:
        x = tuple(2 if i in masked else x0[i] for i in range(3))
        return -float(logits[x][place, :2].log_softmax(-1)[x0[place]])

    integral = 0.0
    for t, weight in zip(*nodes(40), strict=True):
        noised, chance = states(process, x0, at(process, t))
        values = masked_ce(process.read(said(noised), noised.state, noised.noise), noised).values
        integral += weight * (chance[:, None] * values).sum().item()
    masks = [frozenset(m) for k in (1, 2, 3) for m in itertools.combinations(range(3), k)]
    by_mask = sum(nats(m, i) / (len(m) * math.comb(3, len(m))) for m in masks for i in m)
    orders = list(itertools.permutations(range(3)))
    by_order = sum(nats(frozenset(order[i:]), order[i]) for order in orders for i in range(3)) / len(orders)
    assert integral == pytest.approx(by_mask, rel=1e-9)
    assert by_order == pytest.approx(by_mask, rel=1e-12)


def bound(process: TokenProcess, x0: tuple[int, int], joint: Tensor, first: float, last: float) -> float:
    """KL(q(x_1 | x_0) || prior) + integral of the loss + E[-log p(x_0 | x_first)], with the predictions of `joint`."""
    prior = process.prior_probs()[0]
    noised, chance = states(process, x0, at(process, last))
    ends = (chance * (chance / prior[noised.state.x].prod(1)).log()).sum().item()
    noised, chance = states(process, x0, at(process, first))
    alpha = (-noised.noise.sigma[:1]).exp()
    likelihood = alpha * torch.eye(len(prior), dtype=torch.float64)[: len(joint)] + (1 - alpha) * prior
    q = likelihood[:, noised.state.x]  # id, row, place: q(x_t | x_0 = id)
    evidence = torch.einsum("ij,in,jn->n", joint, q[..., 0], q[..., 1])
    ends -= (chance * (joint[x0] * q[x0[0], :, 0] * q[x0[1], :, 1] / evidence).log()).sum().item()
    total = 0.0
    for t, weight in zip(*nodes(60, first, last), strict=True):
        noised, chance = states(process, x0, at(process, t))
        values = score_entropy(exact(process, noised, joint), noised).values
        total += weight * (chance[:, None] * values).sum().item()
    return ends + total


@pytest.mark.parametrize("kind", ["uniform", "marginal"])
def test_exact_scores_give_the_likelihood(process_of, kind: str) -> None:
    """For every x_0 the bound is -log p(x_0): its mean over data is entropy + KL(data || model)."""
    process = process_of(kind, TokenSpace((Field("text", 2, 3),)), "posterior", geometric(1e-3, 16))
    data = torch.full((3, 3), 1 / 9, dtype=torch.float64)
    mean = 0.0
    for x0 in itertools.product(range(3), repeat=2):
        nats = bound(process, x0, JOINT, 0.0, 1.0)
        assert nats == pytest.approx(-math.log(JOINT[x0]), rel=2e-5)
        mean += float(data[x0]) * nats
    entropy, divergence = -(data * data.log()).sum().item(), (data * (data / JOINT).log()).sum().item()
    assert mean == pytest.approx(entropy + divergence, rel=2e-5)


def test_exact_predictions_give_the_likelihood_of_an_absorbing_process(process_of) -> None:
    process = process_of("absorbing", TokenSpace((Field("text", 2, 3),)), "posterior", log_linear(1e-9))
    for x0 in itertools.product(range(3), repeat=2):
        total = 0.0
        for t, weight in zip(*nodes(20), strict=True):
            noised, chance = states(process, x0, at(process, t))
            values = masked_ce(exact(process, noised, JOINT), noised).values
            total += weight * (chance[:, None] * values).sum().item()
        assert total == pytest.approx(-math.log(JOINT[x0]), rel=1e-6)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("meaning", ["posterior", "plug-in", "score"])
def test_the_meaning_does_not_change_the_bound(process_of, kind: str, meaning: str) -> None:
    """The same belief, said as posterior, as clean token to plug in or as score, costs the same."""
    process = process_of(kind, TokenSpace((Field("text", 2, 3),)), meaning)
    noised, _ = states(process, (0, 2), at(process, 0.9))
    belief = exact(process, noised, JOINT)
    raw = {"posterior": belief.log_clean, "plug-in": belief.log_context, "score": belief.log_score}[meaning]()
    told = score_entropy(process.read(raw, noised.state, noised.noise), noised).values
    torch.testing.assert_close(told, score_entropy(belief, noised).values, rtol=1e-7, atol=1e-10)


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
