"""Differences between arms over seeds and held-out samples: intervals, tests, verdicts. No torch.

Letters: S seeds, n samples.

A run of an arm has a seed, which other arms share, and its metric is a ratio of sums over samples,
which all runs share. Seeds and samples are crossed, so that the variance of a difference has two
parts (Owen 2007, The pigeonhole bootstrap), each with degrees of freedom of its own. Its interval
is `sqrt(t_S^2 v_S + t_n^2 v_n)` wide (Cochran and Cox 1957, Experimental Designs, 4.14), and its
p-value the level at which the interval ends at 0. Without differences between samples it is the
paired t-test over seeds.

A percentile bootstrap of five seeds is too narrow, and an exact sign-flip test of fewer than six
pairs cannot be significant at 5 %.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from dither.registry.plugins.install_command import optional_import

__all__ = [
    "Effect",
    "Scores",
    "compare_scores",
    "holm",
    "judge",
    "require_scipy",
]

Array = npt.NDArray[np.float64]
LEVEL = 0.05
"""Probability of a false verdict, over all arms of a comparison."""
POWER = 0.8
"""Probability with which further seeds would give a verdict, if the difference is as estimated."""
MAX_SEEDS = 1000
ROUNDING = 1e-6
"""Relative difference up to which two values are equal."""
SMALLEST = 1e-12
"""Smallest p-value: runs of a deterministic program have no variance."""


@dataclass(frozen=True)
class Scores:
    """A metric of the runs of an arm.

    Attributes:
        values: The metric of each seed, S.
        residuals: The influence of each sample on it, S x n, of mean 0; None if the metric has no
            values per sample.
    """

    values: Array
    residuals: Array | None = None

    @classmethod
    def of_sums(cls, sums: Array) -> Scores:
        """Return the scores of sums S x 2 x n: numerator and denominator of each sample.

        The ratio of sums is linearised in its samples (Cochran 1977, Sampling Techniques, 6.3).
        """
        above = sums[:, 0]
        below = sums[:, 1]
        totals = below.sum(1, keepdims=True)
        values = above.sum(1, keepdims=True) / totals
        residuals = (above - values * below) / totals * sums.shape[2]
        return cls(values[:, 0], residuals)

    @property
    def mean(self) -> float:
        """The mean over seeds; NaN without any."""
        return float(self.values.mean()) if self.values.size else math.nan

    @property
    def sd(self) -> float:
        """The standard deviation of seeds; NaN for fewer than two."""
        return float(self.values.std(ddof=1)) if self.values.size > 1 else math.nan


@dataclass(frozen=True)
class Effect:
    """The difference of an arm to the reference, with its 95 % interval.

    Attributes:
        difference: Metric of the arm minus that of the reference.
        p: Two-sided p-value; `judge` corrects it for the number of arms. NaN for one seed, and for
            a difference without variance.
        verdict: "better", "worse", "not distinguishable", or "seeds unknown" if p is NaN; "lower"
            or "higher" if it is unknown which of them is better.
        more_seeds: Further seeds that would do for a verdict if the difference is as estimated; 0
            if there is a verdict, None if `MAX_SEEDS` would not do or it is unknown.
        seed_variance: Of the difference of one seed.
        sample_variance: Of the difference by samples, for any number of seeds.
    """

    difference: float
    low: float
    high: float
    p: float
    verdict: str = ""
    more_seeds: int | None = None
    seed_variance: float = math.nan
    sample_variance: float = 0.0
    seeds: int = 1


def require_scipy() -> None:
    """Raise Refused if scipy is missing, which intervals need after runs that take long."""
    with optional_import("scipy is not installed", "dither-engine", "compare"):
        import scipy  # noqa: F401


def compare_scores(arm: Scores, reference: Scores) -> Effect:
    """Return the difference of two arms whose seeds and samples are paired.

    With one seed the interval counts samples only; without values per sample, seeds only.
    """
    differences = arm.values - reference.values
    # Equal functions that are computed in another order differ in the last digits of float32.
    scale = np.maximum(np.abs(arm.values), np.abs(reference.values))
    differences = np.where(np.abs(differences) < ROUNDING * scale, 0, differences)
    seeds = len(differences)
    difference = float(differences.mean())
    of_samples, samples = _sample_variance(arm, reference)
    parts = [(of_samples, samples - 1)]
    of_seeds = math.nan
    if seeds > 1:
        of_seeds = float(differences.var(ddof=1))
        # Equal differences of decimals, too, differ in their last digits.
        if np.ptp(differences) <= ROUNDING * scale.max():
            of_seeds = 0.0
        parts.append((of_seeds / seeds, seeds - 1))
    half = _half_width(LEVEL, parts)
    p = math.nan
    if seeds > 1:
        p = _p_value(abs(difference), parts)
    # Few runs of a discrete metric often differ by the same number: this says nothing of others.
    if difference and of_seeds == of_samples == 0:
        half = math.nan
        p = math.nan
    return Effect(
        difference=difference,
        low=difference - half,
        high=difference + half,
        p=p,
        seed_variance=of_seeds,
        sample_variance=of_samples,
        seeds=seeds,
    )


def _sample_variance(arm: Scores, reference: Scores) -> tuple[float, int]:
    """Return the variance of the difference by samples, without that by seeds, and n."""
    if arm.residuals is None or reference.residuals is None:
        return 0.0, 1
    residuals = arm.residuals - reference.residuals
    seeds, samples = residuals.shape
    if samples < 2:
        return 0.0, samples
    means = residuals.mean(0)
    variance = float(means.var(ddof=1)) / samples
    if seeds == 1:
        return variance, samples
    # The interaction of seeds and samples is part of the variance by seeds already.
    squares = float(np.square(residuals - means).sum())
    interaction = squares / ((seeds - 1) * (samples - 1)) / (seeds * samples)
    return max(variance - interaction, 0.0), samples


def _half_width(level: float, parts: Sequence[tuple[float, int]]) -> float:
    """Return half the width of an interval; `parts` are variances and degrees of freedom."""
    from scipy import stats

    known = [part for part in parts if part[1] > 0]
    if not known:
        return math.nan
    squares = 0.0
    for variance, freedom in known:
        squares += variance * float(stats.t.isf(level / 2, freedom)) ** 2
    return math.sqrt(squares)


def _p_value(difference: float, parts: Sequence[tuple[float, int]]) -> float:
    """Return the level of the interval that ends at 0."""
    from scipy import optimize

    if difference == 0:
        return 1.0
    if not _half_width(SMALLEST, parts) > difference:
        return SMALLEST

    def gap(level: float) -> float:
        return _half_width(level, parts) - difference

    # The gap changes its sign once: the interval narrows as the level grows.
    return float(optimize.brentq(gap, SMALLEST, 1.0))


def judge(effects: Sequence[Effect], better: str | None) -> list[Effect]:
    """Return the effects of all arms but the reference, with corrected p-values and verdicts.

    `better` is "lower" or "higher"; without it these are the verdicts.
    """
    judged = []
    for effect, p in zip(effects, holm([effect.p for effect in effects]), strict=True):
        if math.isnan(effect.p):
            judged.append(replace(effect, verdict="seeds unknown"))
            continue
        verdict = "not distinguishable"
        more: int | None = 0
        if p <= LEVEL:
            verdict = "lower" if effect.difference < 0 else "higher"
            if verdict == better:
                verdict = "better"
            elif better is not None:
                verdict = "worse"
        else:
            more = _more_seeds(effect, len(effects))
        judged.append(replace(effect, p=p, verdict=verdict, more_seeds=more))
    return judged


def holm(ps: Sequence[float]) -> list[float]:
    """Return p-values corrected for their number (Holm 1979); NaN stays, and counts as 1."""
    order = sorted(range(len(ps)), key=lambda index: np.nan_to_num(ps[index], nan=1.0))
    corrected = [math.nan] * len(ps)
    largest = 0.0
    for rank, index in enumerate(order):
        if not math.isnan(ps[index]):
            # Step-down: never less than a smaller p-value before it.
            largest = max(largest, min(1.0, ps[index] * (len(ps) - rank)))
            corrected[index] = largest
    return corrected


def _more_seeds(effect: Effect, arms: int) -> int | None:
    """Return the further seeds with which a difference as estimated has power `POWER`."""
    from scipy import stats

    if effect.difference == 0:
        return None
    seeds = np.arange(effect.seeds + 1, MAX_SEEDS + 1)
    errors = np.sqrt(effect.seed_variance / seeds + effect.sample_variance)
    # The level of the first step of Holm's correction.
    level = stats.t.ppf(1 - LEVEL / 2 / arms, seeds - 1)
    power = stats.t.ppf(POWER, seeds - 1)
    enough = seeds[abs(effect.difference) >= (level + power) * errors]
    return int(enough[0]) - effect.seeds if enough.size else None
