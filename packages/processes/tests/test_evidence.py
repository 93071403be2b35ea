"""Posterior, plug-in and score say the same: each against Bayes, each from the others, at any noise and vocabulary."""

import itertools

import pytest
import torch
from torch import Tensor

from dither.processes.tokens.posterior import Posterior
from dither.registry.flow.records import Noise, State
from dither.registry.flow.spaces import Field, TokenSpace

KINDS = ("absorbing", "uniform", "marginal")
DTYPES = (torch.float64, torch.float32)
TWO = TokenSpace((Field("nodes", 2, 5, mask=3, pad=4), Field("edges", 3, 4, pad=0)))


def noise_of(sigma: float, rows: int = 1) -> Noise:
    return Noise(torch.full((rows,), sigma, dtype=torch.float64), torch.ones(rows, dtype=torch.float64))


def context_of(clean: Tensor, spread: float = 1.0) -> Tensor:
    """A random log m over the clean ids, one row per position."""
    return (spread * torch.randn(clean.shape, dtype=torch.float64)).masked_fill(~clean, -torch.inf).log_softmax(-1)


@pytest.mark.parametrize("sigma", [1e-4, 0.1, 3.0])
@pytest.mark.parametrize("kind", KINDS)
def test_meanings_agree_with_bayes(process_of, transition, kind: str, sigma: float) -> None:
    """Posterior and score of a context, from the transition matrix alone; and back."""
    process = process_of(kind, TWO)
    table, clean = process.prior_probs(), process.space.clean()
    for ids in itertools.product(*[range(f.size) for f in process.space.fields]):
        x = torch.tensor([[ids[0]] * 2 + [ids[1]] * 3])
        if not ((clean | (table > 0)).gather(1, x.T)).all():
            continue  # PAD
        noise, log_m = noise_of(sigma), context_of(clean)[None]
        evidence = Posterior(x, noise, table, clean)
        for place in range(5):
            if evidence.determined[0, place]:
                continue
            matrix, m = transition(table[place], sigma), log_m[0, place].exp()
            joint = m * matrix[:, x[0, place]]
            later = m @ matrix
            torch.testing.assert_close(
                evidence.posterior(log_m)[0, place].exp(), joint / joint.sum(), rtol=1e-9, atol=0
            )
            score = evidence.score(log_m)[0, place]
            torch.testing.assert_close(score.exp(), later / later[x[0, place]], rtol=1e-9, atol=0)
            assert score[x[0, place]] == 0
            torch.testing.assert_close(evidence.context(evidence.posterior(log_m))[0, place], log_m[0, place])
            torch.testing.assert_close(
                evidence.context_of_score(evidence.score(log_m))[0, place], log_m[0, place], rtol=1e-9, atol=1e-9
            )


@pytest.mark.parametrize("kind", ["absorbing", "uniform"])
@pytest.mark.parametrize("vocab", [2, 15, 27, 4096, 50257])
@pytest.mark.parametrize("sigma", [1e-4, 1e-2, 1.0, 20.0])
def test_float32_conversions_are_stable(process_of, vocab: int, sigma: float, kind: str) -> None:
    process = process_of(kind, TokenSpace((Field("text", 2, vocab),)))
    x = torch.full((1, 2), vocab) if kind == "absorbing" else torch.tensor([[0, 1]])
    table, clean = process.prior_probs(), process.space.clean()
    exact, narrow = (Posterior(x, Noise(noise_of(sigma).sigma.to(d), torch.ones(1)), table, clean) for d in DTYPES)
    log_m = context_of(clean.expand(2, -1), 3.0)[None]
    score, posterior = narrow.score(log_m.float()), narrow.posterior(log_m.float())
    torch.testing.assert_close(score.double(), exact.score(log_m), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(posterior.double(), exact.posterior(log_m), rtol=1e-5, atol=3e-5)
    torch.testing.assert_close(narrow.context(posterior).double(), log_m, rtol=1e-5, atol=3e-5)
    back = narrow.context_of_score(score)
    torch.testing.assert_close(back.logsumexp(-1), torch.zeros(1, 2), rtol=0, atol=1e-5)
    assert not narrow.posterior(back).isnan().any()
    if kind == "absorbing" or sigma < 2:  # at sigma = 20 a context is below the rounding of its score in float32
        torch.testing.assert_close(back.exp().double(), log_m.exp(), rtol=1e-2, atol=1e-6)
    again = exact.context_of_score(exact.score(log_m))
    torch.testing.assert_close(again.exp(), log_m.exp(), rtol=1e-5, atol=1e-7 if sigma > 2 else 1e-12)


def test_equal_scores_are_an_even_context_at_any_noise(process_of) -> None:
    """What a zero-initialised head says: everything is as likely as x_t, also where the difference is all rounding."""
    process = process_of("uniform", TokenSpace((Field("text", 1, 27),)), "score")
    for sigma in (1e-4, 1.0, 20.0, 60.0):
        reading = process.read(
            torch.zeros(1, 1, 27), State.of(torch.tensor([[3]])), noise_of(sigma).apply(Tensor.float)
        )
        torch.testing.assert_close(reading.log_context().exp(), torch.full((1, 1, 27), 1 / 27), rtol=1e-3, atol=0)
