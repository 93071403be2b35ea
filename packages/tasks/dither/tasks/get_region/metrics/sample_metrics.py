"""Several draws of the same window: how far their mean is off, how much they spread, and whether the spread is right.

Letters: N samples, L length, M columns, K draws of one window, n elements that were drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from dither.registry.flow.records import Clean

from ..data.column_groups import BASELINE_REGIONS
from .baselines import MaskedBatch
from .column_metrics import binary
from .predictions import windows_of
from .region_metrics import RegionMetrics

__all__ = ["LEVEL", "Draws", "coverage", "draw_metrics", "drawn", "half_width", "judge", "questions_of", "same_windows"]

LEVEL = 0.9
"""Share of truths that an interval should hold."""


def same_windows(like: Clean) -> list[slice]:
    """Return the runs of samples that start from the same: the same values, and the same of them given."""
    if not len(like.x0):
        return []
    same = (like.x0[1:] == like.x0[:-1]).flatten(1).all(1) & (like.known[1:] == like.known[:-1]).flatten(1).all(1)
    starts = [0, *(row + 1 for row, equal in enumerate(same.tolist()) if not equal)]
    return [slice(low, high) for low, high in zip(starts, [*starts[1:], len(like.x0)], strict=True)]


def drawn(samples: Float[Tensor, "N L M"], like: Clean) -> Bool[Tensor, "N L M"]:
    """Tell which values a sampler drew: those that were not given, nor left in sight. On the CPU.

    A process that hides a share of what it may hide, or some columns only, leaves the rest as it is, equal to the truth
    bit for bit; to count it would lower every error for nothing. So values count in the regions and in the columns in
    which something changed, in any draw of the window; a single value may be drawn as it was, and counts.
    """
    changed = ~like.fixed & (samples != like.x0)
    columns = changed.any(0).any(0)
    regions = torch.zeros_like(changed[..., :1])
    for rows in same_windows(like):
        regions[rows] = changed[rows].any(0).any(-1, keepdim=True)
    return (~like.fixed & columns & regions).cpu()


@dataclass(frozen=True)
class Draws:
    """Windows that were drawn K times, their drawn elements in one row each.

    Attributes:
        truth: `n`.
        mean: Over the draws. `n`.
        spread: Standard deviation over the draws, with K - 1 in the denominator. `n`.
        error: Mean squared error of the single draws. `n`.
        above: Share of the draws above 1/2. `n`.
        count: K.
    """

    truth: Float[np.ndarray, " n"]
    mean: Float[np.ndarray, " n"]
    spread: Float[np.ndarray, " n"]
    error: Float[np.ndarray, " n"]
    above: Float[np.ndarray, " n"]
    count: int

    @classmethod
    def of(
        cls,
        truth: Float[np.ndarray, "N L M"],
        samples: Float[np.ndarray, "N L M"],
        counted: Bool[np.ndarray, "N L M"],
        windows: Sequence[slice],
    ) -> Draws | None:
        """Take the windows with the usual number of draws; None where that is one, or nothing was drawn."""
        count = max((rows.stop - rows.start for rows in windows), default=0)
        rows = [rows for rows in windows if rows.stop - rows.start == count]
        if count < 2 or not any(counted[one].any() for one in rows):
            return None
        many = np.concatenate([samples[one][:, counted[one.start]] for one in rows], 1).astype(np.float64)
        true = np.concatenate([truth[one.start][counted[one.start]] for one in rows]).astype(np.float64)
        return cls.over(true, many)

    @classmethod
    def over(cls, truth: Float[np.ndarray, " n"], many: Float[np.ndarray, "K n"]) -> Draws:
        """Take K draws of each element."""
        error = np.square(many - truth).mean(0)
        return cls(truth, many.mean(0), many.std(0, ddof=1), error, (many > 0.5).mean(0), len(many))

    @property
    def binary(self) -> bool:
        """Whether every truth is 0 or 1, to rounding."""
        return binary(self.truth)


def half_width(count: int, level: float | Float[np.ndarray, " q"]) -> float | Float[np.ndarray, " q"]:
    """Return half of the interval that holds a new value with probability `level`, in standard deviations of the draws.

    The prediction interval of a normal variable after K values of it: t_{K-1} sqrt(1 + 1/K). It is exact for any K,
    where quantiles of 8 draws could not reach 90 %.
    """
    from scipy.stats import t

    width: float | Float[np.ndarray, " q"] = t.ppf((1 + np.asarray(level)) / 2, count - 1) * np.sqrt(1 + 1 / count)
    return width


def coverage(draws: Draws, level: float = LEVEL) -> float:
    """Return the share of truths that lie in the interval of a level around the mean of the draws."""
    return float((np.abs(draws.truth - draws.mean) <= half_width(draws.count, level) * draws.spread).mean())


def draw_metrics(draws: Draws) -> dict[str, float]:
    """Return what several draws tell beyond their mean.

    - `draws`: how many there are of each window.
    - `single_draw_mse`: the mean squared error of a single draw; that of the mean of the draws is `masked_mse`.
    - `draw_spread`: the root of the mean variance of the draws.
    - `spread_skill`: the error of their mean that the spread leads to expect, by the error that there is; 1 is
      calibrated, less is too sure (Fortin et al. 2014, J. Hydrometeorology 15, eq. 15).
    - `draw_coverage_90`: the share of truths in the 90 % interval of the draws; .9 is calibrated, less is too sure. The
      interval is that of a normal variable; where the truth is 0 or 1 (then it is left out) there is none to speak of.
    """
    error = float(np.square(draws.mean - draws.truth).mean())
    expected = float(np.square(draws.spread).mean()) * (1 + 1 / draws.count)
    figures = {
        "draws": float(draws.count),
        "single_draw_mse": float(draws.error.mean()),
        "draw_spread": float(np.sqrt(np.square(draws.spread).mean())),
    }
    if error > 0:
        figures["spread_skill"] = float(np.sqrt(expected / error))
    return figures if draws.binary else figures | {"draw_coverage_90": coverage(draws)}


def judge(figures: RegionMetrics, samples: Float[Tensor, "N L M"], like: Clean) -> dict[str, float]:
    """Return the figures of the mean over the draws of each window, and with several draws those of their spread.

    Args:
        figures: Fresh; takes in the values that were drawn.
        samples: What was drawn.
        like: What sampling started from; draws of one window stand together.
    """
    counted, windows = drawn(samples, like), same_windows(like)
    if not windows:
        return {}
    first = [rows.start for rows in windows]
    means = torch.stack([samples[rows].mean(0) for rows in windows])
    places = windows_of(like)
    figures.add(like.x0[first], means, counted[first], None if places is None else places[first])
    draws = Draws.of(figures.plain(like.x0), figures.plain(samples), counted.numpy(), windows)
    return figures.compute() | ({} if draws is None else draw_metrics(draws))


def questions_of(figures: RegionMetrics, samples: Float[Tensor, "N L M"], like: Clean) -> list[MaskedBatch]:
    """Return what was drawn of the first windows as a question to baselines; as `judge` otherwise."""
    first = [rows.start for rows in same_windows(like)][: -(-BASELINE_REGIONS // like.x0.shape[1])]
    starts = like.apply(lambda value: value[first])
    return [MaskedBatch.of(figures.plain(starts.x0), drawn(samples, like)[first], starts)] if first else []
