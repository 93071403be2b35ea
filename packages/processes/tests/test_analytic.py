"""The analytic steps: rows that sum to 1 for any score, and ancestral sampling for scores that a law has."""

import pytest
import torch
from torch import Tensor

from dither.processes.samplers.analytic import Analytic, step_odds
from dither.processes.tokens.prediction import CategoricalPrediction
from dither.processes.tokens.process import TokenProcess
from dither.registry.contracts.records import Clean, Noise, State
from dither.registry.contracts.spaces import Field, TokenSpace

KINDS = ("absorbing", "uniform", "marginal", "hybrid")
IDS = 4


def whole(process: TokenProcess, log_score: Tensor, x: Tensor, gap: float) -> Tensor:
    """P(x_s = y | x_t = x), with its factor e^d S."""
    d = torch.full((len(x),), gap, dtype=torch.float64)
    total = log_score.exp().sum(-1, keepdim=True)
    return step_odds(log_score, x, process.prior_probs(), d) * total * d.exp()[:, None]


@pytest.mark.parametrize("gap", [1e-4, 0.3, 5.0])
@pytest.mark.parametrize("kind", KINDS)
def test_rows_sum_to_one_for_any_score(process_of, kind: str, gap: float) -> None:
    process = process_of(kind, TokenSpace((Field("text", 1, IDS),)), "score")
    x = torch.where(process.prior_probs()[0] > 0)[0].repeat(50)
    log_score = 2 * torch.randn(len(x), process.space.vocab, dtype=torch.float64)
    log_score.scatter_(-1, x[:, None], 0.0)
    odds = whole(process, log_score, x, gap)
    torch.testing.assert_close(odds.sum(-1), torch.ones(len(x)).double())
    assert bool((odds < 0).any()) == (
        gap > 0.1 or kind == "hybrid"
    )  # most of its prior is MASK


@pytest.mark.parametrize(("now", "then"), [(1.2, 0.4), (0.05, 0.01), (9.0, 0.0)])
@pytest.mark.parametrize("kind", KINDS)
def test_scores_of_a_law_give_bayes(
    process_of, transition, kind: str, now: float, then: float
) -> None:
    """p(x_s | x_t) from transition matrices alone: what ancestral sampling draws from."""
    process = process_of(kind, TokenSpace((Field("text", 1, IDS),)), "score")
    prior, law = (
        process.prior_probs()[0],
        torch.zeros(process.space.vocab, dtype=torch.float64),
    )
    law[:IDS] = torch.tensor([0.1, 0.2, 0.3, 0.4])
    later, between = law @ transition(prior, now), transition(prior, now - then)
    earlier = law @ transition(prior, then)
    x = torch.where(prior > 0)[0]
    bayes = (earlier[:, None] * between / later)[:, x].T
    log_score = (later / later[x, None]).log()
    torch.testing.assert_close(
        whole(process, log_score, x, now - then), bayes, rtol=1e-8, atol=1e-10
    )


@pytest.mark.parametrize("kind", KINDS)
def test_draws_count_what_is_negative_as_nothing(part, likely, kind: str) -> None:
    """One step from scores that no law has, against the clamped and renormalised rows."""
    options = {"frequencies": {"text": [1.0, 2, 3, 4]}} if kind == "marginal" else {}
    process = part(
        "process", kind, predict="score", schedule="log-linear", **options
    ).build(TokenSpace((Field("text", 1, IDS),)))
    n, t = 20_000, 1.0
    score = 2 * torch.randn(process.space.vocab, dtype=torch.float64)
    seen: list[State] = []

    def session(state: State, time: Tensor, at: Tensor) -> CategoricalPrediction:
        seen.append(state)
        pred = process.read(
            score.expand(n, 1, -1), state, process.schedule(time.double())
        )
        return pred.at(at)

    list(
        Analytic(steps=1, t_min=0.5).build()(
            process, session, Clean.of(torch.zeros(n, 1, dtype=torch.long))
        )
    )
    gap = (
        process.schedule(torch.tensor([t]).double())
        .since(process.schedule(torch.tensor([0.5]).double()))
        .sigma
    )
    for x in torch.where(process.prior_probs()[0] > 0)[0]:
        log_score = score.scatter(0, x, 0.0)[None]
        expected = whole(process, log_score, x[None], float(gap))[0].clamp_min(0)
        assert likely(seen[1].x[seen[0].x == x], expected) > 1e-3


@pytest.mark.parametrize("kind", KINDS)
def test_equal_scores_in_float32_at_any_noise(process_of, kind: str) -> None:
    """Where all of a row is rounding, something is drawn all the same, and evenly."""
    process = process_of(kind, TokenSpace((Field("text", 1, 6_000),)), "score")
    x = torch.where(process.prior_probs()[0] > 0)[0][:1].expand(40)
    state = State.of(x[:, None])
    pred = process.read(torch.zeros(40, 1, process.space.vocab), state, noise(60.0))
    new = process.step(state, pred, noise(60.0), noise(0.0), Clean.of(state.x))
    assert len(new.x.unique()) > 30
    odds = step_odds(
        pred.log[:, 0],
        x,
        process.prior_probs(),
        noise(60.0).sigma.expand(40),
        least=1e-7,
    )
    assert (odds.sum(-1) > 0).all()


def noise(sigma: float) -> Noise:
    return Noise(torch.full((40,), sigma), torch.ones(40))


@pytest.mark.parametrize(
    ("sigma", "gap"), [(0.1, 0.1), (1.0, 1.0), (1.0, 0.1), (5.0, 5.0)]
)
def test_float32_scores_lose_only_their_own_rounding(
    process_of, sigma: float, gap: float
) -> None:
    """Step and denoising of float32 scores against the same numbers in float64, relative to each entry."""
    process = process_of("uniform", TokenSpace((Field("text", 1, 50),)), "score")
    m = torch.randn(40, 50, dtype=torch.float64).softmax(-1)
    p_t, x = (
        noise(sigma).alpha(m).double() * m
        + noise(sigma).one_minus_alpha(m).double() / 50,
        torch.arange(40),
    )
    log_score = (p_t / p_t.gather(1, x[:, None])).log().float()
    step, denoised = ([], [])
    for score in (log_score, log_score.double()):
        gaps = torch.full((40,), gap, dtype=torch.float64)
        step.append(
            step_odds(score, x, process.prior_probs(), gaps, least=1e-7).double()
        )
        denoised.append(
            process.read(score[:, None], State.of(x[:, None]), noise(sigma))
            .log_clean()
            .double()
            .exp()
        )
    torch.testing.assert_close(*step, rtol=1e-5, atol=0)
    torch.testing.assert_close(*denoised, rtol=1e-5, atol=0)
