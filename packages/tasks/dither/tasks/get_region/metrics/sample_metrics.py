"""Metrics of samples, and of several of one window: error of their mean, spread, calibration.

Letters: N samples, L length, M columns, K draws of one window, n elements that were sampled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from jaxtyping import Bool, Float
from numpy import ndarray
from torch import Tensor

from dither.registry.contracts.records import Clean

from .baselines import MaskedBatch
from .column_metrics import is_binary
from .region_metrics import RegionMetrics

__all__ = [
    "LEVEL",
    "Draws",
    "coverage",
    "draw_groups",
    "draw_metrics",
    "half_width",
    "sample_metrics",
    "sampled_batch",
    "sampled_mask",
]

_Vector = Float[ndarray, " n"]
_Samples = Float[Tensor, "N L M"]
_Quantile = float | Float[ndarray, " q"]

LEVEL = 0.9
"""Share of truths that an interval should contain."""


def draw_groups(like: Clean) -> list[slice]:
    """Return runs of samples with the same `imputation`; without this condition each is its own."""
    count = len(like.x0)
    if count == 0:
        return []
    if "imputation" not in like.cond:
        return [slice(row, row + 1) for row in range(count)]
    number = like.cond["imputation"].cpu().numpy()
    # Draws of one window are adjacent.
    edges = [0, *(np.flatnonzero(np.diff(number)) + 1).tolist(), count]
    return [slice(low, high) for low, high in pairwise(edges)]


def sampled_mask(samples: _Samples, like: Clean) -> Bool[Tensor, "N L M"]:
    """Return which values were sampled, neither given nor left visible, on the CPU.

    A process may leave values equal to the truth, bit for bit, and counting them would lower every
    error. So values count in regions and columns in which something changed, in any draw of the
    window.
    """
    changed = ~like.fixed & (samples != like.x0)
    columns = changed.any(0).any(0)
    regions = torch.zeros_like(changed[..., :1])
    for rows in draw_groups(like):
        regions[rows] = changed[rows].any(0).any(-1, keepdim=True)
    return (~like.fixed & columns & regions).cpu()


@dataclass(frozen=True)
class Draws:
    """Windows that were sampled K = `count` times; sampled elements in one row each.

    `spread` is the standard deviation of the draws (with K - 1), `error` the mean squared error of
    single draws, and `above` the share of the draws above 1/2.
    """

    truth: _Vector
    mean: _Vector
    spread: _Vector
    error: _Vector
    above: _Vector
    count: int

    @classmethod
    def of(
        cls,
        truth: Float[ndarray, "N L M"],
        samples: Float[ndarray, "N L M"],
        counted: Bool[ndarray, "N L M"],
        windows: Sequence[slice],
    ) -> Draws | None:
        """Collect windows with the full number of draws; None if that is 1, or none was sampled."""
        count = max((rows.stop - rows.start for rows in windows), default=0)
        # The last window may have fewer draws.
        full = [rows for rows in windows if rows.stop - rows.start == count]
        if count < 2 or not any(counted[rows].any() for rows in full):
            return None
        # One row for each draw, one column for each element.
        values = []
        truths = []
        for rows in full:
            sampled = counted[rows.start]
            values.append(samples[rows][:, sampled])
            truths.append(truth[rows.start][sampled])
        draws = np.concatenate(values, 1).astype(np.float64)
        true = np.concatenate(truths).astype(np.float64)
        return cls(
            truth=true,
            mean=draws.mean(0),
            spread=draws.std(0, ddof=1),
            error=np.square(draws - true).mean(0),
            above=(draws > 0.5).mean(0),
            count=len(draws),
        )


def half_width(count: int, level: _Quantile) -> _Quantile:
    """Return half the width of the prediction interval, in standard deviations of the draws.

    For a normal variable after K values it is t_{K-1} sqrt(1 + 1/K), exact for any K; quantiles of
    8 draws could not reach 90 %.
    """
    from scipy.stats import t

    quantile = t.ppf((1 + np.asarray(level)) / 2, count - 1)
    return quantile * np.sqrt(1 + 1 / count)


def coverage(draws: Draws, level: float = LEVEL) -> float:
    """Return the share of truths inside the prediction interval of a level."""
    half = half_width(draws.count, level) * draws.spread
    return float((np.abs(draws.truth - draws.mean) <= half).mean())


def draw_metrics(draws: Draws) -> dict[str, float]:
    """Return metrics of several draws of a window.

    - `draws`: number of draws of each window.
    - `single_draw_mse`: mean squared error of a single draw; that of their mean is `masked_mse`.
    - `draw_spread`: root of the mean variance of the draws.
    - `spread_skill`: error of the mean expected from the spread, divided by the actual error; 1 is
      calibrated, less is overconfident (Fortin et al. 2014, J. Hydrometeorology 15, eq. 15).
    - `draw_coverage_90`: share of truths in the 90 % interval of the draws; .9 is calibrated, less
      is overconfident. The interval is that of a normal variable; it is left out where the truth is
      0 or 1.
    """
    # The truth is another draw of the same distribution: 1 + 1/K times its variance.
    error = float(np.square(draws.mean - draws.truth).mean())
    expected = float(np.square(draws.spread).mean()) * (1 + 1 / draws.count)
    metrics = {
        "draws": float(draws.count),
        "single_draw_mse": float(draws.error.mean()),
        "draw_spread": float(np.sqrt(np.square(draws.spread).mean())),
    }
    if error > 0:
        metrics["spread_skill"] = float(np.sqrt(expected / error))
    if not is_binary(draws.truth):
        metrics["draw_coverage_90"] = coverage(draws)
    return metrics


def sample_metrics(
    metrics: RegionMetrics, samples: _Samples, like: Clean
) -> dict[str, float]:
    """Return metrics of the mean over the draws of each window, and of the spread of several draws.

    Sampled values are added to `metrics`; draws of one window are adjacent in `like`, the start of
    sampling.
    """
    if not len(samples):
        return {}
    metrics.add(sampled_batch(metrics, samples, like))
    result = dict(metrics.compute())
    draws = Draws.of(
        metrics.in_data_units(like.x0),
        metrics.in_data_units(samples),
        sampled_mask(samples, like).numpy(),
        draw_groups(like),
    )
    if draws is not None:
        result |= draw_metrics(draws)
    return result


def sampled_batch(
    metrics: RegionMetrics, samples: _Samples, like: Clean
) -> MaskedBatch:
    """Return the mean over the draws of each window as a batch."""
    groups = draw_groups(like)
    first = [rows.start for rows in groups]
    starts = like.apply(lambda value: value[first])
    means = torch.stack([samples[rows].mean(0) for rows in groups])
    return MaskedBatch.of(
        metrics.in_data_units(starts.x0),
        sampled_mask(samples, like)[first],
        starts,
        metrics.in_data_units(means),
    )
