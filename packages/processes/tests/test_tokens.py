"""Token processes on tiny spaces: posterior, plug-in and score against Bayes, and what must never change."""

import itertools

import pytest
import torch
from torch import Tensor

from dither.processes.schedules.alpha import LogLinear
from dither.processes.schedules.sigma import LinearSigma
from dither.processes.timestep_sampling import TimestepSampling
from dither.processes.tokens.posterior import Posterior
from dither.processes.tokens.priors import even_prior, frequency_prior, mask_prior
from dither.processes.tokens.process import TokenProcess
from dither.registry.contracts.records import Clean, Noise, State
from dither.registry.contracts.spaces import Field, TokenSpace

KINDS = ("absorbing", "uniform", "marginal", "hybrid")
MEANINGS = ("posterior", "plug-in", "score")
TWO = TokenSpace((Field("nodes", 2, 5, mask=3, pad=4), Field("edges", 3, 4, pad=0)))
ONE = TokenSpace((Field("text", 3, 4),))


def noise_of(sigma: float, rows: int = 1) -> Noise:
    return Noise(
        torch.full((rows,), sigma, dtype=torch.float64),
        torch.ones(rows, dtype=torch.float64),
    )


@pytest.mark.parametrize("meaning", MEANINGS)
def test_impossible_ids_and_carry_over(process_of, meaning: str) -> None:
    """SUBS: MASK, PAD and ids outside the field have probability 0; a token that is not masked predicts itself."""
    process = process_of("absorbing", TWO, meaning)
    space = process.space
    x = torch.tensor([[1, 3, 4, 2, 0]])  # node 1, MASK; MASK, edge 2, PAD
    raw = torch.randn(1, 5, space.vocab).masked_fill(~space.usable(), -torch.inf)
    raw[0, 4, 0] = -torch.inf  # a head may say so of PAD itself
    reading = process.read(raw, State.of(x), noise_of(0.5))
    log_p = reading.log_clean()
    assert log_p.exp()[0, 0].tolist() == [0, 1, 0, 0, 0]
    assert log_p.exp()[0, 3].tolist() == [0, 0, 1, 0, 0]
    torch.testing.assert_close(log_p.logsumexp(-1), torch.zeros(1, 5))
    assert log_p.exp()[0, 4].tolist() == [1, 0, 0, 0, 0]
    assert (log_p.isneginf() | space.clean())[0, :4].all()
    if meaning != "score":
        torch.testing.assert_close(log_p[0, 1, :3], raw[0, 1, :3].log_softmax(-1))
    assert (reading.log_score().gather(-1, x[..., None]) == 0).all()


@pytest.mark.parametrize(
    "dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64]
)
def test_reading_is_at_least_float32(process_of, dtype: torch.dtype) -> None:
    for meaning in MEANINGS:
        process = process_of("uniform", ONE, meaning)
        reading = process.read(
            torch.randn(2, 3, 4, dtype=dtype),
            State.of(torch.zeros(2, 3, dtype=torch.long)),
            noise_of(0.5, 2),
        )
        expected = torch.float64 if dtype == torch.float64 else torch.float32
        assert reading.log_clean().dtype == reading.log_score().dtype == expected


@pytest.mark.parametrize("kind", KINDS)
def test_no_signal_left_at_all(process_of, kind: str) -> None:
    """At sigma = 900 exp(-sigma) is 0: unmasked tokens stay, and nothing is NaN."""
    process = process_of(kind, ONE, schedule=LinearSigma(sigma_max=1000.0).build())
    like = Clean.of(torch.randint(0, 4, (50, 3)))
    now, then = (
        process.schedule(torch.full((50,), t, dtype=torch.float64)) for t in (0.9, 0.8)
    )
    state = State.of(like.x0)
    pred = process.read(torch.randn(50, 3, process.space.vocab), state, now)
    x = process.step(state, pred, now, then, like).x
    assert not pred.log_clean().isnan().any()
    assert torch.equal(x, like.x0) == (kind == "absorbing")


def test_plain_construction_refuses() -> None:
    clock = TimestepSampling(LogLinear().build())
    with pytest.raises(ValueError, match="sum to 1"):
        TokenProcess(ONE, 2 * even_prior(ONE), clock)
    with pytest.raises(ValueError, match="no MASK"):
        mask_prior(ONE)
    with pytest.raises(ValueError, match="needs 4 frequencies"):
        frequency_prior(ONE, {"text": [1.0]})


DTYPES = (torch.float64, torch.float32)


def context_of(clean: Tensor, spread: float = 1.0) -> Tensor:
    """A random log m over the clean ids, one row per position."""
    return (
        (spread * torch.randn(clean.shape, dtype=torch.float64))
        .masked_fill(~clean, -torch.inf)
        .log_softmax(-1)
    )


@pytest.mark.parametrize("sigma", [1e-4, 0.1, 3.0])
@pytest.mark.parametrize("kind", KINDS[:3])
def test_meanings_agree_with_bayes(
    process_of, transition, kind: str, sigma: float
) -> None:
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
                evidence.posterior(log_m)[0, place].exp(),
                joint / joint.sum(),
                rtol=1e-9,
                atol=0,
            )
            score = evidence.score(log_m)[0, place]
            torch.testing.assert_close(
                score.exp(), later / later[x[0, place]], rtol=1e-9, atol=0
            )
            assert score[x[0, place]] == 0
            torch.testing.assert_close(
                evidence.context(evidence.posterior(log_m))[0, place], log_m[0, place]
            )
            torch.testing.assert_close(
                evidence.context_of_score(evidence.score(log_m))[0, place],
                log_m[0, place],
                rtol=1e-9,
                atol=1e-9,
            )


@pytest.mark.parametrize("kind", ["absorbing", "uniform"])
@pytest.mark.parametrize("vocab", [2, 15, 27, 4096, 50257])
@pytest.mark.parametrize("sigma", [1e-4, 1e-2, 1.0, 20.0])
def test_float32_conversions_are_stable(
    process_of, vocab: int, sigma: float, kind: str
) -> None:
    process = process_of(kind, TokenSpace((Field("text", 2, vocab),)))
    x = torch.full((1, 2), vocab) if kind == "absorbing" else torch.tensor([[0, 1]])
    table, clean = process.prior_probs(), process.space.clean()
    exact, narrow = (
        Posterior(x, Noise(noise_of(sigma).sigma.to(d), torch.ones(1)), table, clean)
        for d in DTYPES
    )
    log_m = context_of(clean.expand(2, -1), 3.0)[None]
    score, posterior = narrow.score(log_m.float()), narrow.posterior(log_m.float())
    torch.testing.assert_close(score.double(), exact.score(log_m), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(
        posterior.double(), exact.posterior(log_m), rtol=1e-5, atol=2e-4
    )
    torch.testing.assert_close(
        narrow.context(posterior).double(), log_m, rtol=1e-5, atol=3e-5
    )
    back = narrow.context_of_score(score)
    torch.testing.assert_close(back.logsumexp(-1), torch.zeros(1, 2), rtol=0, atol=1e-5)
    assert not narrow.posterior(back).isnan().any()
    if (
        kind == "absorbing" or sigma < 2
    ):  # at sigma = 20 a context is below the rounding of its score in float32
        torch.testing.assert_close(
            back.exp().double(), log_m.exp(), rtol=1e-2, atol=1e-6
        )
    again = exact.context_of_score(exact.score(log_m))
    torch.testing.assert_close(
        again.exp(), log_m.exp(), rtol=1e-5, atol=1e-7 if sigma > 2 else 1e-12
    )


def test_contexts_of_a_large_vocabulary_lose_only_the_rounding_of_scores(
    process_of,
) -> None:
    process = process_of("uniform", TokenSpace((Field("text", 1, 50257),)))
    evidence = Posterior(
        torch.tensor([[3]]), noise_of(3.0), process.prior_probs(), process.space.clean()
    )
    score = evidence.score(context_of(process.space.clean())[None]).float()
    narrow, exact = (
        evidence.context_of_score(given).double() for given in (score, score.double())
    )
    torch.testing.assert_close(narrow, exact, rtol=0, atol=1e-4)


def test_equal_scores_are_an_even_context_at_any_noise(process_of) -> None:
    """What a zero-initialised head says: everything is as likely as x_t, also where the difference is all rounding."""
    process = process_of("uniform", TokenSpace((Field("text", 1, 27),)), "score")
    for sigma in (1e-4, 1.0, 20.0, 60.0):
        reading = process.read(
            torch.zeros(1, 1, 27),
            State.of(torch.tensor([[3]])),
            noise_of(sigma).apply(Tensor.float),
        )
        torch.testing.assert_close(
            reading.log_context().exp(),
            torch.full((1, 1, 27), 1 / 27),
            rtol=1e-3,
            atol=0,
        )
