"""Plots of motifs (truth against prediction), accessibility (ROC and precision-recall) and the spread of draws.

Letters: n pairs, K motifs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Bool, Float

from ..metrics.column_metrics import Pair, pearson, r2, rank_metrics, varies
from ..metrics.sample_metrics import LEVEL, Draws, coverage, draw_metrics, half_width
from .style import BLUE, GREY, LIGHT, ORANGE, bare, new_figure, png_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = [
    "Column",
    "MotifPredictions",
    "draw_accessibility",
    "draw_imputation",
    "draw_motif_bars",
    "draw_motif_scatter",
]

SHOWN = 12
"""Motifs in the scatter plot."""

MIN_PAIRS = 8
"""Smallest number of pairs for a correlation."""

DOTS = 3000
"""Largest number of dots per motif."""


@dataclass(frozen=True)
class MotifPredictions:
    """Sampled motifs whose truth varies, by decreasing r.

    Attributes:
        names: `K`.
        pairs: Truth and prediction of each.
        r: Pearson's r of each; 0 for a constant prediction.
    """

    names: list[str]
    pairs: list[Pair]
    r: list[float]

    @classmethod
    def of(cls, names: Sequence[str], pairs: Sequence[Pair]) -> MotifPredictions:
        """Sort the motifs with enough pairs."""
        motifs = [
            (pearson(*pair), name, pair)
            for name, pair in zip(names, pairs, strict=True)
            if len(pair[0]) >= MIN_PAIRS and varies(pair[0]) and np.isfinite(pair[1]).all()
        ]
        motifs.sort(key=lambda motif: -motif[0])
        return cls([name for _, name, _ in motifs], [pair for _, _, pair in motifs], [r for r, _, _ in motifs])


def draw_motif_scatter(predictions: MotifPredictions) -> bytes:
    """Return a PNG: truth against prediction of the most frequent motifs."""
    count = min(SHOWN, len(predictions.names))
    frequent = np.argsort([-np.count_nonzero(truth) / len(truth) for truth, _ in predictions.pairs], kind="stable")[
        :count
    ]
    columns = min(4, count)
    rows = -(-count // columns)
    figure = new_figure(3.1 * columns, 2.9 * rows + 0.5, f"The {count} most frequent motifs")
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    for axis in axes[count:]:
        axis.set_visible(False)
    for place, (axis, motif) in enumerate(zip(axes, frequent, strict=False)):
        truth, guess = predictions.pairs[motif]
        bare(axis, f"{predictions.names[motif]}:  r = {predictions.r[motif]:z.2f}, R² = {r2(truth, guess):z.2f}")
        low = min(0.0, float(truth.min()), float(guess.min()))
        high = max(float(truth.max()), float(guess.max()))
        axis.plot([low, high], [low, high], color=LIGHT, zorder=0)
        step = -(-len(truth) // DOTS)
        axis.scatter(truth[::step], guess[::step], s=9, color=BLUE, alpha=0.35, linewidths=0)
        margin = 0.04 * (high - low)
        axis.set(xlim=(low - margin, high + margin), ylim=(low - margin, high + margin))
        if place % columns == 0:
            axis.set_ylabel("prediction", fontsize=9)
        if place + columns >= count:
            axis.set_xlabel("truth", fontsize=9)
    return png_of(figure)


def draw_motif_bars(predictions: MotifPredictions) -> bytes:
    """Return a PNG: Pearson's r of all motifs, and by name of the best and the worst ones."""
    r = np.array(predictions.r)
    mean = float(r.mean())
    figure = new_figure(12, 5.2, f"Pearson's r of {len(r)} motifs: mean {mean:.3f}")
    whole, best, worst = figure.subplots(1, 3, width_ratios=[1.5, 1, 1])
    bare(whole, "all motifs, sorted")
    whole.fill_between(np.arange(len(r)), r, color=BLUE, step="mid", linewidth=0)
    whole.axhline(mean, color=ORANGE, linewidth=1)
    whole.text(len(r) - 1, mean, "mean", color=ORANGE, fontsize=8, ha="right", va="bottom")
    whole.axhline(0, color=GREY, linewidth=0.8)
    whole.set_xlabel("motif", fontsize=9)
    whole.set_ylabel("Pearson's r over sampled regions", fontsize=9)
    count = min(15, len(r))
    for axis, title, part in ((best, "best", slice(0, count)), (worst, "worst", slice(len(r) - count, len(r)))):
        bare(axis, title)
        axis.barh(np.arange(count), r[part], color=BLUE, height=0.7)
        axis.set_yticks(np.arange(count), predictions.names[part])
        axis.invert_yaxis()
        axis.axvline(0, color=GREY, linewidth=0.8)
        axis.set_xlim(min(-0.1, float(r.min()) * 1.1), max(0.1, float(r.max()) * 1.1))
        axis.set_xlabel("Pearson's r", fontsize=9)
    return png_of(figure)


def draw_accessibility(truth: Bool[np.ndarray, " n"], score: Float[np.ndarray, " n"], cell: str) -> bytes | None:
    """Return a PNG of the ROC and precision-recall curves; None if all regions are open, or all closed.

    Args:
        truth: Which regions are open.
        score: Predictions.
        cell: Name of the cell type, or of several.
    """
    from sklearn.metrics import precision_recall_curve, roc_curve

    metrics = rank_metrics(truth, score)
    if not metrics:
        return None
    share = float(truth.mean())
    figure = new_figure(12, 4.2, f"Open in {cell}: {truth.sum():,} of {truth.size:,} sampled regions")
    spread, roc, recall = figure.subplots(1, 3)
    bare(spread, "predictions")
    edges = np.linspace(min(0.0, score.min()), max(1.0, score.max()), 41)
    for chosen, colour, name in ((~truth, GREY, "closed"), (truth, ORANGE, "open")):
        weights = np.full(int(chosen.sum()), 1 / chosen.sum())
        spread.hist(score[chosen], edges, weights=weights, color=colour, alpha=0.6, label=name)
    spread.legend(fontsize=8, frameon=False)
    spread.set_xlabel("prediction", fontsize=9)
    spread.set_ylabel("share of the regions", fontsize=9)
    false, true, _ = roc_curve(truth, score)
    bare(roc, f"ROC: area {metrics['accessibility_auc']:.3f}, random .5")
    roc.plot([0, 1], [0, 1], color=LIGHT)
    roc.plot(false, true, color=BLUE)
    roc.set_xlabel("false positive rate", fontsize=9)
    roc.set_ylabel("true positive rate", fontsize=9)
    precision, sensitivity, _ = precision_recall_curve(truth, score)
    bare(recall, f"precision: average {metrics['accessibility_auprc']:.3f}, random {share:.3f}")
    recall.axhline(share, color=LIGHT)
    recall.plot(sensitivity, precision, color=BLUE)
    recall.set(ylim=(0, 1.02))
    recall.set_xlabel("recall", fontsize=9)
    recall.set_ylabel("precision", fontsize=9)
    return png_of(figure)


BINS = 10
"""Groups of elements with similar spread."""

REGIONS = 60
"""Largest number of regions shown."""


@dataclass(frozen=True)
class Column:
    """One column of one window, in the sampled regions.

    Attributes:
        name: Name of the column.
        truth: `L`.
        draws: `K L`.
        places: Places of the regions. `L`.
    """

    name: str
    truth: Float[np.ndarray, " L"]
    draws: Float[np.ndarray, "K L"]
    places: Sequence[str]


def draw_imputation(draws: Draws, column: Column) -> bytes:
    """Return a PNG: a column with its intervals, their coverage, and error against spread."""
    metrics = draw_metrics(draws)
    summary = f"spread by error {metrics.get('spread_skill', 0.0):.2f} (1 is calibrated)"
    if not draws.is_binary:
        summary = f"{metrics['draw_coverage_90']:.1%} of the truths are inside the {LEVEL:.0%} interval, {summary}"
    figure = new_figure(12, 7.2, f"{draws.count} draws of each window, {draws.truth.size:,} values: {summary}")
    grid = figure.add_gridspec(2, 2, height_ratios=[1, 1.25])
    _draw_column(bare(figure.add_subplot(grid[0, :])), column, draws.is_binary)
    draw = _draw_reliability if draws.is_binary else _draw_calibration
    draw(bare(figure.add_subplot(grid[1, 0]), "calibration"), draws)
    _draw_errors(bare(figure.add_subplot(grid[1, 1]), "error against spread"), draws)
    return png_of(figure)


def _draw_column(axis: Axes, column: Column, binary: bool) -> None:
    shown = slice(0, REGIONS)
    truth, draws = column.truth[shown], column.draws[:, shown]
    place, middle = np.arange(truth.size), draws.mean(0)
    half = half_width(len(draws), LEVEL) * draws.std(0, ddof=1)
    if not binary:
        label = f"{LEVEL:.0%} interval"
        axis.vlines(place, middle - half, middle + half, color=LIGHT, linewidth=5, zorder=0, label=label)
    axis.scatter(np.tile(place, len(draws)), draws, s=5, color=BLUE, alpha=0.35, linewidths=0, label="draws")
    axis.scatter(place, middle, s=26, color=BLUE, marker="_", label="their mean")
    axis.scatter(place, truth, s=22, color=ORANGE, marker="x", linewidths=1.2, label="truth")
    step = max(1, truth.size // 12)
    axis.set_xticks(place[::step], column.places[shown][::step], rotation=20, fontsize=7, ha="right")
    axis.set_ylabel(column.name, fontsize=9)
    axis.set_xlim(-1, truth.size)
    axis.legend(fontsize=8, frameon=False, ncols=4, loc="lower right", bbox_to_anchor=(1, 1))


def _draw_calibration(axis: Axes, draws: Draws) -> None:
    levels = np.linspace(0.05, 0.95, 19)
    axis.plot([0, 1], [0, 1], color=LIGHT)
    axis.text(0.97, 0.93, "calibrated", color=GREY, fontsize=8, ha="right", va="top")
    axis.plot(levels, [coverage(draws, level) for level in levels], color=BLUE, marker=".")
    axis.set(xlim=(0, 1), ylim=(0, 1.02))
    axis.set_xlabel("level of the interval", fontsize=9)
    axis.set_ylabel("share of truths inside", fontsize=9)


def _draw_reliability(axis: Axes, draws: Draws) -> None:
    """Plot how often the truth is 1 against the share of draws above 1/2."""
    group = np.minimum((draws.above * BINS).astype(int), BINS - 1)
    groups = [np.flatnonzero(group == number) for number in range(BINS)]
    predicted, true, size = (
        np.array([summary(rows) for rows in groups if rows.size])
        for summary in (lambda rows: draws.above[rows].mean(), lambda rows: draws.truth[rows].mean(), len)
    )
    axis.plot([0, 1], [0, 1], color=LIGHT)
    axis.text(0.97, 0.93, "calibrated", color=GREY, fontsize=8, ha="right", va="top")
    axis.plot(predicted, true, color=BLUE)
    axis.scatter(predicted, true, s=8 + 200 * size / size.sum(), color=BLUE)
    axis.set(xlim=(-0.04, 1.04), ylim=(-0.04, 1.04))
    axis.set_xlabel("share of draws above 1/2 (area: size of the group)", fontsize=9)
    axis.set_ylabel("share of truths that are 1", fontsize=9)


def _draw_errors(axis: Axes, draws: Draws) -> None:
    order = np.argsort(draws.spread, kind="stable")
    groups = [group for group in np.array_split(order, BINS) if group.size]
    spread = [float(np.sqrt(np.square(draws.spread[group]).mean() * (1 + 1 / draws.count))) for group in groups]
    error = [float(np.sqrt(np.square(draws.mean[group] - draws.truth[group]).mean())) for group in groups]
    high = 1.05 * max(*spread, *error, 1e-12)
    axis.plot([0, high], [0, high], color=LIGHT)
    axis.plot(spread, error, color=BLUE, marker="o", markersize=4)
    axis.set(xlim=(0, high), ylim=(0, high))
    axis.set_xlabel(f"expected error from the spread, {len(groups)} groups of values", fontsize=9)
    axis.set_ylabel("error of the mean of the draws (root mean square)", fontsize=9)
