"""The way of a sample back from noise: every state that a sampler went through, of the columns that were drawn.

Letters: T states, L regions, M columns.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from .plotting import BLUE, GREY, ORANGE, bare, new_figure, png_of

__all__ = ["draw_trajectory"]

PANELS = 6
"""States that are shown as heat maps."""

WHOLE: dict[str, Any] = {"aspect": "auto", "interpolation": "nearest"}

LINES = 24
"""Values whose way is shown as a line."""


def draw_trajectory(
    path: Float[np.ndarray, "T L M"], truth: Float[np.ndarray, "L M"], asked: Bool[np.ndarray, "L M"], title: str
) -> bytes | None:
    """Return a PNG: states from noise to sample, beside the truth, and the way of some values; None if none was drawn.

    Args:
        path: The states, in the order in which they came about, the sample last.
        truth: What is true, in the same units.
        asked: True for what was drawn.
        title: Stands above everything.
    """
    if not asked.any() or len(path) < 2:
        return None
    rows, columns = asked.any(1), asked.any(0)
    if columns.sum() == 1:
        return _one_column(path[:, asked], truth[asked], title)
    figure = new_figure(15, 6.8, title)
    grid = figure.add_gridspec(2, PANELS + 1, height_ratios=[1.5, 1])
    shown = np.unique(np.linspace(0, len(path) - 1, PANELS).round().astype(int))
    part = np.ix_(rows, columns)
    high = float(np.quantile(np.abs(truth[part]), 0.98)) or 1.0
    options: dict[str, Any] = {"vmin": -high, "vmax": high, "cmap": "RdBu_r", **WHOLE}
    for panel, values, name in [
        *((panel, path[state], f"state {state} of {len(path) - 1}") for panel, state in enumerate(shown)),
        (PANELS, truth, "truth"),
    ]:
        axis = bare(figure.add_subplot(grid[0, panel]), name)
        image = axis.imshow(values[part], **options)
        axis.set(xticks=[], yticks=[])
        axis.set_xlabel("columns", fontsize=8)
        if not panel:
            axis.set_ylabel("regions that were drawn", fontsize=8)
    figure.colorbar(image, ax=axis, shrink=0.8).ax.tick_params(labelsize=7)
    below = bare(figure.add_subplot(grid[1, :]), f"the way of {LINES} values; a cross is the truth")
    chosen = np.argwhere(asked)[:: -(-int(asked.sum()) // LINES)]
    for row, column in chosen:
        below.plot(path[:, row, column], color=BLUE, alpha=0.4, linewidth=1)
        below.plot(len(path) - 0.5, truth[row, column], "x", color=ORANGE, markersize=5)
    below.locator_params(axis="x", integer=True)
    below.set_xlabel("state", fontsize=9)
    below.set_ylabel("value", fontsize=9)
    return png_of(figure)


def _one_column(path: Float[np.ndarray, "T L"], truth: Float[np.ndarray, " L"], title: str) -> bytes:
    """Draw time downwards and regions sideways, those with the highest truth first."""
    order = np.argsort(-truth, kind="stable")
    figure = new_figure(12, 6.4, title)
    above, true, below = figure.subplots(3, 1, height_ratios=[3, 0.3, 2])
    low, high = float(truth.min()), float(truth.max())
    options: dict[str, Any] = {"vmin": low, "vmax": high, "cmap": "viridis", **WHOLE}
    bare(above, "from noise (above) to sample (below)").imshow(path[:, order], **options)
    above.set_xticks([])
    above.locator_params(axis="y", integer=True)
    above.set_ylabel("state", fontsize=9)
    bare(true).imshow(truth[None, order], **options)
    true.set_yticks([0], ["truth"])
    true.set_xticks([])
    true.set_xlabel("regions that were drawn, the highest truth first", fontsize=9)
    bare(below, "the way of some values; orange are above the middle of the truth")
    step = -(-len(truth) // (2 * LINES))
    for place in range(0, len(truth), step):
        is_high = truth[place] > (low + high) / 2
        below.plot(path[:, place], color=ORANGE if is_high else GREY, alpha=0.6 if is_high else 0.3, linewidth=1)
    below.locator_params(axis="x", integer=True)
    below.set_xlabel("state", fontsize=9)
    below.set_ylabel("value", fontsize=9)
    return png_of(figure)
