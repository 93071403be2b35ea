"""Losses on tokens: identities between published forms, the truth at 0, stability, gradients."""

import math

import pytest
import torch
from torch import Tensor

from dither.losses.tokens import masked_ce, score_entropy
from dither.processes.schedules.alpha import cosine, log_linear
from dither.processes.schedules.betas import LinearBeta
from dither.processes.schedules.sigma import geometric
from dither.processes.tokens.process import TokenProcess
from dither.registry.flow.records import Clean, Noise, Noised, State
from dither.registry.flow.spaces import Field, TokenSpace

TWO = TokenSpace((Field("nodes", 2, 6, mask=4, pad=5), Field("edges", 3, 4, pad=0)))
SCHEDULES = (geometric(1e-4, 20), log_linear(1e-3), cosine(1e-3), LinearBeta().build())


def text(length: int, ids: int) -> TokenSpace:
    return TokenSpace((Field("text", length, ids),))


def record(process: TokenProcess, x0: Tensor, x: Tensor, sigma: Tensor, rate: float = 1.0) -> Noised:
    """The record that `corrupt` would make if the draw came out as x."""
    prior = process.prior_probs()
    target_mask = prior.expand(x.shape[1], -1)[torch.arange(x.shape[1]), x] > 0
    noise, fixed = Noise(sigma, torch.full_like(sigma, rate)), torch.zeros_like(target_mask)
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
def test_masked_ce_is_score_entropy_of_an_absorbing_process(process_of, schedule, space: TokenSpace) -> None:
    """The closed form of MDLM, term by term, with padding, known positions and fields of their own."""
    process = process_of("absorbing", space, "posterior", schedule)
    clean = clean_of(process.space, 64)
    noised = process.corrupt(clean, torch.linspace(1e-3, 1, 64, dtype=torch.float64))
    raw = torch.randn(64, space.length, process.space.vocab, dtype=torch.float64, requires_grad=True)
    pred = process.read(raw, noised.state, noised.noise)
    closed, general = masked_ce(pred, noised), score_entropy(pred, noised)
    torch.testing.assert_close(closed.values, general.values, rtol=1e-10, atol=1e-12)
    assert torch.equal(closed.weights, general.weights)
    assert torch.equal(closed.weights, (~clean.fixed).double())
    assert (closed.values[~noised.target_mask] == 0).all()
    assert (closed.values[noised.target_mask] > 0).all()
    grads = [torch.autograd.grad(m.total(), raw, retain_graph=True)[0] for m in (closed, general)]
    torch.testing.assert_close(grads[0], grads[1], rtol=1e-9, atol=1e-12)


def test_masked_ce_weight_by_hand(process_of) -> None:
    process = process_of("absorbing", text(2, 3), "posterior", log_linear(1e-3))
    noised = record(process, torch.tensor([[0, 2]]), torch.tensor([[3, 2]]), torch.tensor([0.7]), rate=2.0)
    raw = torch.tensor([[[1.0, 2.0, 0.5, 9.0], [0.0, 0.0, 0.0, 0.0]]])
    measured = masked_ce(process.read(raw, noised.state, noised.noise), noised)
    log_p = 1.0 - math.log(math.exp(1) + math.exp(2) + math.exp(0.5))  # MASK has no part in it
    torch.testing.assert_close(measured.values, torch.tensor([[-log_p * 2.0 / math.expm1(0.7), 0.0]]))
    assert measured.weights.tolist() == [[1, 1]]


@pytest.mark.parametrize("moved", [False, True])
@pytest.mark.parametrize("ids", [2, 5])
def test_score_entropy_is_the_formula_of_sedd(process_of, ids: int, moved: bool) -> None:
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
    constant = ((-math.log(r) - 1) / r - (ids - 2)) / ids if moved else (ids - 1) / ids * r * (math.log(r) - 1)
    sigmas = torch.tensor([sigma], dtype=torch.float64)
    noised = record(process, torch.tensor([[x0]]), torch.tensor([[x]]), sigmas, rate=2.0)
    got = score_entropy(process.read(log_s[None, None], noised.state, noised.noise), noised).values
    torch.testing.assert_close(got.squeeze(), 2.0 * (positive - negative + constant))


def test_masked_ce_of_scores_is_that_of_plug_in_and_leaves_their_scale_untrained(process_of) -> None:
    """Why `MaskedCE.check` refuses scores: adding log 2 to all changes rates of jumps, but not the loss."""
    processes = {name: process_of("absorbing", text(4, 5), name, SCHEDULES[1]) for name in ("plug-in", "score")}
    clean = clean_of(processes["score"].space, 8)
    noised = processes["score"].corrupt(clean, torch.linspace(0.1, 1, 8, dtype=torch.float64))
    raw = torch.randn(8, 4, processes["score"].space.vocab, dtype=torch.float64)
    plain, scores, scaled = (
        processes[name].read(raw + math.log(scale), noised.state, noised.noise)
        for name, scale in (("plug-in", 1), ("score", 1), ("score", 2))
    )
    for pred in (scores, scaled):
        torch.testing.assert_close(masked_ce(pred, noised).values, masked_ce(plain, noised).values)
    masked = noised.target_mask
    torch.testing.assert_close(scaled.log_leaving()[masked], scores.log_leaving()[masked] + math.log(2))
