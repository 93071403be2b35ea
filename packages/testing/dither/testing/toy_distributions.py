"""Distributions small enough to be known exactly, models that know them, and statistical tests of samples.

Letters: B batch, L length, V vocabulary, O outcomes (all samples).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor
from torch.nn.functional import one_hot

from dither.registry import FeatureSpace, Field, TokenSpace
from dither.registry.contracts.protocols import TokenProcess
from dither.registry.contracts.records import Clean, Noise, Noised, State, over

from .check_utils import gaussian_scales, with_variances

__all__ = [
    "FEATURES",
    "IDS",
    "OUTCOMES",
    "PROBABILITIES",
    "SPACE",
    "TWO_FIELDS",
    "NormalSession",
    "OracleSession",
    "TrialSession",
    "assert_follows",
    "assert_normal",
    "blank_batch",
    "chi_square_p",
    "divergences",
    "exact_normal",
    "exact_outputs",
    "forward_table",
    "normal_divergence",
    "outcome_index",
    "pool_rare",
    "replaced_probs",
]

_Pairs = Int[Tensor, "B P"]

IDS = 3
SPACE = TokenSpace((Field("word", 2, IDS),))
"""Two positions of three ids."""
TWO_FIELDS = TokenSpace((Field("left", 1, IDS), Field("right", 1, IDS)))
"""The same positions as two fields."""
FEATURES = FeatureSpace(2, 2)
OUTCOMES: Int[Tensor, "O 2"] = torch.cartesian_prod(
    torch.arange(IDS), torch.arange(IDS)
)
# Correlated, so that sampling both positions from their marginals is seen to be wrong.
PROBABILITIES: Float[Tensor, " O"] = (
    torch.tensor([8.0, 1, 1, 1, 2, 5, 1, 6, 2], dtype=torch.float64) / 27
)


def outcome_index(x: Int[Tensor, "B 2"]) -> Int[Tensor, " B"]:
    """Return the index of each sample in `OUTCOMES`; -1 for ids outside the vocabulary."""
    inside = ((x >= 0) & (x < IDS)).all(1)
    first, second = x.unbind(1)
    return torch.where(inside, first * IDS + second, -1)


def exact_outputs(
    state: State,
    noise: Noise,
    prior: Float[Tensor, "*B rows V"],
    before: _Pairs | None = None,
    targets: Sequence[str] = ("posterior", "plug-in", "score"),
) -> dict[str, Float[Tensor, "B L V"]]:
    """Return the raw output of an exact model by prediction target.

    `state` follows the clean positions `before`; `prior` is the distribution of changed tokens.
    """
    x = state.x

    first = 0
    if before is not None:
        first = before.shape[1]

    vocab = prior.shape[-1]
    outcomes = OUTCOMES[:, first : first + x.shape[1]]
    alpha = over(noise.sigma.double(), x).neg().exp()
    alpha = alpha.expand(x.shape)[:, None, :, None]
    same = one_hot(outcomes, vocab).double()

    # q[b, o, l, v]: probability that position l of outcome o became v.
    if prior.ndim > 2:
        prior = prior[:, None]
    q = alpha * same + (1 - alpha) * prior.double()
    current = x[:, None, :, None].expand(-1, len(outcomes), -1, 1)
    likelihood = q.gather(-1, current)[..., 0]
    weight = PROBABILITIES.expand(len(x), -1)
    if before is not None:
        matches = OUTCOMES[None, :, :first] == before[:, None]
        weight = weight * matches.all(-1)

    # others[b, o, l]: probability of outcome o and of all positions of x but l.
    index = torch.arange(x.shape[1], device=x.device)
    products = [likelihood.index_fill(-1, i, 1.0).prod(-1) for i in index]
    others = torch.stack(products, -1) * weight[..., None]
    outputs = {}
    # A sampler reads one of them at each of many steps.
    for target in targets:
        if target == "score":
            odds = torch.einsum("bol,bolv->blv", others, q)
            total = odds.gather(-1, x[..., None])
        else:
            weights = others
            # The plug-in prediction leaves out the evidence of the position itself.
            if target == "posterior":
                weights = others * likelihood
            odds = torch.einsum("bol,olv->blv", weights, same)
            total = odds.sum(-1, keepdim=True)
        outputs[target] = (odds / total).log()
    return outputs


def replaced_probs(
    process: Any, noised: Noised, now: Noise, then: Noise | None = None
) -> Float[Tensor, "rows V"]:
    """Return the distribution of tokens replaced up to a noise, or between two, of the first sample."""
    prior = noised.prior
    if isinstance(process, TokenProcess):
        prior = process.prior_at(now, then)
    assert prior is not None, "a process over tokens records its prior"
    if prior.ndim > 2:
        prior = prior[0]
    # In float64, as small probabilities are added.
    return prior.double()


def forward_table(
    sigma: Float[Tensor, ""], prior: Float[Tensor, "rows V"]
) -> Float[Tensor, "O K"]:
    """Return q(x_t | x_0) of every outcome and every state, in the order of `torch.cartesian_prod` of the ids."""
    alpha = (-sigma).exp()
    prior = prior.double().expand(2, -1)
    same = one_hot(OUTCOMES, prior.shape[-1]).double()
    q = alpha * same + (1 - alpha) * prior
    return (q[:, 0, :, None] * q[:, 1, None, :]).flatten(1)


def divergences(
    sigma: Float[Tensor, ""], prior: Float[Tensor, "rows V"]
) -> Float[Tensor, " O"]:
    """Return KL(q(x_t | x_0) || p_t) of each outcome; its decrease from t to s is the bound between.

    The reverse path of an exact model has p(x_s | x_t) = p_s(x_s) q(x_t | x_s) / p_t(x_t), so that
    the divergences of its steps telescope. The gradient holds for each x_0 alone, whose prediction
    by the exact model is wrong.
    """
    q = forward_table(sigma, prior)
    p = (PROBABILITIES @ q).expand_as(q)
    # Where p is 0, so is q; no branch may divide by it, as gradients of both are taken.
    ratio = (q / torch.where(p > 0, p, 1.0)).clamp_min(1e-300)
    return torch.where(q > 0, q * ratio.log(), 0.0).sum(1)


def normal_divergence(
    sigma: Float[Tensor, ""],
    x0: Float[Tensor, "..."],
    mean: float,
    std: float,
) -> Tensor:
    """Return the same for a feature x_0 under data of this mean and standard deviation."""
    alpha = (-sigma).exp()
    var = -torch.expm1(-sigma)
    total = alpha * std**2 + var
    # KL between two normal distributions.
    squares = var + alpha * (x0 - mean).square()
    return (total / var).log() / 2 + squares / (2 * total) - 0.5


class TrialSession:
    """A `Session` whose raw output is that of `output`, without a cache."""

    def __init__(self, process: Any) -> None:
        self.process = process

    def __call__(
        self,
        state: State,
        t: Float[Tensor, "B *L"],
        at: Bool[Tensor, "B L"] | None = None,
    ) -> Any:
        noise = self.process.schedule(t)
        pred = self.process.read(self.output(state, noise), state, noise)
        if at is None:
            return pred
        return pred.at(at)

    def output(self, state: State, noise: Noise) -> Tensor:
        raise NotImplementedError

    def append(self, x: Shaped[Tensor, "B L"]) -> None:
        pass

    def drop(self, count: int) -> None:
        pass

    def refresh(
        self, x: Shaped[Tensor, "B L"], t: Float[Tensor, "B *L"], start: int
    ) -> None:
        pass


class OracleSession(TrialSession):
    """A `Session` with an exact model of the token distribution, finished positions included.

    `process` is over `SPACE`, `predict` its prediction target, `prior` the distribution of changed
    tokens at t = 1.
    """

    def __init__(self, process: Any, predict: str, prior: Float[Tensor, "1 V"]) -> None:
        super().__init__(process)
        self.predict = predict
        self.prior = prior
        self.before: _Pairs | None = None

    def output(self, state: State, noise: Noise) -> Tensor:
        prior = self.prior
        if isinstance(self.process, TokenProcess):
            prior = self.process.prior_at(noise)
        outputs = exact_outputs(
            state=state,
            noise=noise,
            prior=prior,
            before=self.before,
            targets=[self.predict],
        )
        raw = outputs[self.predict].float()
        # A model cannot return -inf for ids of the vocabulary; exp(-60) is 0 in any sum.
        if self.predict == "score":
            raw = raw.clamp_min(-60.0)
        return raw

    def append(self, x: _Pairs) -> None:
        # The sampler may write to its state after the call.
        x = x.clone()
        if self.before is not None:
            x = torch.cat([self.before, x], 1)
        self.before = x


class NormalSession(TrialSession):
    """A `Session` with an exact model of independent, normally distributed features; `predict` is the target."""

    def __init__(
        self,
        process: Any,
        predict: str,
        mean: float,
        std: float,
    ) -> None:
        super().__init__(process)
        self.predict = predict
        self.mean = mean
        self.std = std

    def output(self, state: State, noise: Noise) -> Tensor:
        """Return E[x_0 | x_t], or the equivalent prediction."""
        raw = exact_normal(
            process=self.process,
            state=state,
            noise=noise,
            predict=self.predict,
            mean=self.mean,
            std=self.std,
        )
        return with_variances(self.process.space, raw)


def exact_normal(
    process: Any,
    state: State,
    noise: Noise,
    predict: str,
    mean: float | Float[Tensor, "B L M"],
    std: float,
) -> Float[Tensor, "B L M"]:
    """Return the raw output of an exact model of normally distributed features."""
    a, b = gaussian_scales(process, noise, state.x)
    # The posterior mean of a normal x_0 given a x_0 + b eps.
    variance = a.square() * std**2 + b.square()
    gain = a * std**2 / variance
    given_x = mean + gain * (state.x - a * mean)
    x0 = torch.where(state.masked, mean, given_x)
    eps = (state.x - a * x0) / b.clamp_min(1e-6)
    return {
        "x0": x0,
        "eps": eps,
        "velocity": a * eps - b * x0,
        "flow-velocity": eps - x0,
    }[predict]


def blank_batch(rows: int) -> Clean:
    """Return a batch of `SPACE` without known values, to start sampling from."""
    return Clean.of(torch.zeros(rows, SPACE.length, dtype=torch.int64))


MIN_P_VALUE = 1e-6
"""A test fails below this p-value: with some 10,000 tests a run, 1 in 100 runs of other seeds fails."""
MIN_EXPECTED = 5.0
"""Outcomes with a lower expected count are pooled, as the chi-square test requires."""


def assert_follows(
    drawn: Int[Tensor, " N"], probabilities: Float[Tensor, " K"], what: str
) -> None:
    """Test outcomes (0 .. K-1) against their probabilities by a chi-square test."""
    size = len(probabilities)
    inside = (drawn >= 0) & (drawn < size)
    assert inside.all(), (
        f"{what}: outcomes from {drawn.min()} to {drawn.max()} of {size}"
    )
    probabilities = probabilities.double()
    probabilities = probabilities / probabilities.sum()
    counts = torch.bincount(drawn, minlength=size).double()
    expected = probabilities * len(drawn)
    rounded = [round(number, 1) for number in expected.tolist()]
    text = f"counts {counts.int().tolist()}, expected {rounded}"
    impossible = (probabilities < 1e-12) & (counts > 0)
    assert not impossible.any(), (
        f"{what}: an outcome of probability 0 was drawn: {text}"
    )

    table = torch.stack([counts, expected])
    counts, expected = pool_rare(table, expected)
    p = chi_square_p(counts, expected, outcomes=len(counts))
    assert p > MIN_P_VALUE, f"{what}: p = {p:.0e} in a chi-square test: {text}"


def pool_rare(
    table: Float[Tensor, "R K"], expected: Float[Tensor, " K"]
) -> Float[Tensor, "R P"]:
    """Return a table with outcomes of low expected counts pooled, and without empty ones."""
    rare = expected < MIN_EXPECTED
    pooled = table[:, rare].sum(1, keepdim=True)
    table = torch.cat([table[:, ~rare], pooled], 1)
    return table[:, table.sum(0) > 0]


def chi_square_p(
    counts: Float[Tensor, "*R P"], expected: Float[Tensor, "*R P"], outcomes: int
) -> float:
    """Return the p-value of counts in a chi-square test of `outcomes` - 1 degrees of freedom."""
    if outcomes < 2:
        return 1.0
    statistic = ((counts - expected).square() / expected).sum()
    # The survival function of the chi-square distribution.
    half_freedom = torch.tensor((outcomes - 1) / 2).double()
    return float(torch.special.gammaincc(half_freedom, statistic / 2))


def assert_normal(
    drawn: Float[Tensor, " N"],
    what: str,
    *,
    mean: float = 0.0,
    std: float = 1.0,
    slack: float = 0.0,
) -> None:
    """Test mean and variance of independent numbers against those of a normal distribution.

    `slack` is the allowed systematic error: of the mean in standard deviations, of the variance
    relative.
    """
    # Five standard deviations of the mean, and of the variance, of n normal numbers.
    n = drawn.numel()
    centred = (drawn.double() - mean) / std
    offset = centred.mean().item()
    variance = centred.square().mean().item()
    close = abs(offset) < 5 / n**0.5 + slack
    assert close, f"{what}: the mean is off by {offset:.3f} standard deviations"
    close = abs(variance - 1) < 5 * (2 / n) ** 0.5 + slack
    assert close, f"{what}: the variance is {variance:.3f} times the expected"
