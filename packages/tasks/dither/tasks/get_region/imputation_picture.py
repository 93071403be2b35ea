"""Several draws of a window: whether their spread tells how far off they are.

Letters: L length, K draws, n elements that were drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float

from .imputation import LEVEL, Draws, coverage, draw_figures, half_width
from .plotting import BLUE, GREY, LIGHT, ORANGE, bare, new_figure, png_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["Column", "draw_imputation"]

BINS = 10
"""Groups of elements with like spread."""

REGIONS = 60
"""Regions of a window that are shown, the first ones that were drawn."""


@dataclass(frozen=True)
class Column:
    """One column of one window, in the regions that were drawn.

    Attributes:
        name: Of the column.
        truth: `L`.
        draws: `K L`.
        places: Where the regions are. `L`.
    """

    name: str
    truth: Float[np.ndarray, " L"]
    draws: Float[np.ndarray, "K L"]
    places: Sequence[str]


def draw_imputation(draws: Draws, column: Column) -> bytes:
    """Return a PNG: a column with its intervals, what the intervals hold, and error against spread."""
    what = draw_figures(draws)
    told = f"spread by error {what.get('spread_skill', 0.0):.2f} (1 is calibrated)"
    if not draws.binary:
        told = f"{what['draw_coverage_90']:.1%} of the truths lie in the {LEVEL:.0%} interval, {told}"
    figure = new_figure(12, 7.2, f"{draws.count} draws of each window, {draws.truth.size:,} values: {told}")
    grid = figure.add_gridspec(2, 2, height_ratios=[1, 1.25])
    _draw_column(bare(figure.add_subplot(grid[0, :])), column, draws.binary)
    draw = _draw_reliability if draws.binary else _draw_calibration
    draw(bare(figure.add_subplot(grid[1, 0]), "is the spread right?"), draws)
    _draw_errors(bare(figure.add_subplot(grid[1, 1]), "does the spread tell where the error is?"), draws)
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
    """Hold the share of draws above 1/2 against how often the truth is 1, in groups of the same share."""
    group = np.minimum((draws.above * BINS).astype(int), BINS - 1)
    held = [np.flatnonzero(group == number) for number in range(BINS)]
    told, true, size = (
        np.array([figure(rows) for rows in held if rows.size])
        for figure in (lambda rows: draws.above[rows].mean(), lambda rows: draws.truth[rows].mean(), len)
    )
    axis.plot([0, 1], [0, 1], color=LIGHT)
    axis.text(0.97, 0.93, "calibrated", color=GREY, fontsize=8, ha="right", va="top")
    axis.plot(told, true, color=BLUE)
    axis.scatter(told, true, s=8 + 200 * size / size.sum(), color=BLUE)
    axis.set(xlim=(-0.04, 1.04), ylim=(-0.04, 1.04))
    axis.set_xlabel("share of draws above 1/2 (a dot is as large as its group)", fontsize=9)
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
