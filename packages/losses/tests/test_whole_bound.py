"""Diffusion part and both ends together: with an exact denoiser the mean is entropy plus KL(q(x_1) || prior)."""

import math

import pytest
import torch

from dither.losses.tokens import score_entropy
from dither.processes.schedules.alpha import log_linear
from dither.processes.schedules.sigma import geometric
from dither.processes.timestep_sampling import TimestepSampling
from dither.processes.tokens.posterior import Posterior
from dither.processes.tokens.prediction import CategoricalPrediction
from dither.processes.tokens.process import TokenProcess, even_prior, frequency_prior, mask_prior
from dither.registry.flow.records import Clean
from dither.registry.flow.spaces import Field, TokenSpace

LAW = torch.tensor([0.05, 0.1, 0.2, 0.25, 0.4], dtype=torch.float64)
SPACE = TokenSpace((Field("text", 1, 5),))


def process_of(prior: str, schedule, t_min: float) -> TokenProcess:
    if prior == "absorbing":
        masked = SPACE.with_mask()
        return TokenProcess(masked, mask_prior(masked), TimestepSampling(schedule, t_min=t_min))
    table = even_prior(SPACE) if prior == "uniform" else frequency_prior(SPACE, {"text": [1, 2, 3, 4, 5]})
    return TokenProcess(SPACE, table, TimestepSampling(schedule, t_min=t_min))


def exact(process: TokenProcess):
    """The denoiser that knows the law of a single token."""

    def denoise(state, t):
        noise = process.schedule(t)
        alpha = (-noise.sigma.double()).exp()[:, None, None]
        ids = process.space.vocab
        law = torch.zeros(ids, dtype=torch.float64)
        law[:5] = LAW
        prior = process.prior_probs()[0]
        likelihood = alpha * torch.nn.functional.one_hot(state.x, ids) + (1 - alpha) * prior[state.x][..., None]
        post = law * likelihood
        evidence = Posterior(state.x, noise, process.prior_probs(), process.clean.on("cpu"))
        return CategoricalPrediction((post / post.sum(-1, keepdim=True)).log(), "posterior", evidence)

    return denoise


@pytest.mark.parametrize("t_min", [0.05, 1e-3, 0.0])
@pytest.mark.parametrize(
    ("prior", "schedule"),
    [
        ("absorbing", log_linear(1e-3)),
        ("uniform", geometric(1e-3, 1.0)),
        ("uniform", geometric(1e-4, 20.0)),
        ("uniform", geometric(0.1, 1.0)),
        ("marginal", log_linear(0.2)),
    ],
    ids=["absorbing", "uniform-to-1", "uniform-to-20", "uniform-from-0.1", "marginal"],
)
def test_the_mean_of_the_whole_bound_is_entropy_plus_what_the_prior_misses(prior, schedule, t_min):
    torch.manual_seed(0)
    process, n = process_of(prior, schedule, t_min), 400_000
    x0 = torch.multinomial(LAW, n, replacement=True)[:, None]
    clean, denoise = Clean.of(x0), exact(process)
    t = process.times(n).double()[torch.randperm(n)]
    noised = process.corrupt(clean, t)
    bound = process.bound(clean, score_entropy(denoise(noised.state, t), noised), denoise).values
    expected = float(-(LAW * LAW.log()).sum())
    if prior != "absorbing":
        alpha = math.exp(-float(schedule(torch.ones(1, dtype=torch.float64)).sigma))
        start = process.prior_probs()[0][:5]
        ends = alpha * LAW + (1 - alpha) * start
        expected += float((ends * (ends / start).log()).sum())
    error = float(bound.std()) / math.sqrt(n)
    assert abs(float(bound.mean()) - expected) < 4 * error + 1e-5
    assert error < 0.02


def test_padding_and_known_tokens_count_nothing():
    process = process_of("uniform", geometric(1e-3, 1.0), 1e-3)
    x0 = torch.tensor([[0], [1], [2]])
    clean = Clean.of(x0, torch.tensor([[True], [False], [True]]), torch.tensor([[False], [False], [True]]))
    noised = process.corrupt(clean, process.times(3))
    denoise = exact(process)
    measured = score_entropy(denoise(noised.state, torch.full((3,), 0.5)), noised)
    bound = process.bound(clean, measured, denoise)
    assert bound.weights.tolist() == measured.weights.tolist()
    assert bound.values[0] > measured.values[0]
    torch.testing.assert_close(bound.values[1:], (1 - 1e-3) * measured.values[1:])
