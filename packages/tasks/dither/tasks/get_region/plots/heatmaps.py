"""Heat maps of a window (truth, mask, sample, error) and of a sampling trajectory.

Letters: N regions (rows), M columns: motifs, then accessibility and expression, which are drawn apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Bool, Float, Shaped

from .style import BLUE, GREY, LIGHT, ORANGE, bare, new_figure, png_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure

__all__ = ["WindowPicture", "draw_trajectory", "draw_window"]

STRIP = 0.07
"""Width of a separate column, as a share of that of a panel."""

WIDE_STRIP = 1.5
"""The same if no motif was sampled."""


@dataclass(frozen=True)
class WindowPicture:
    """Content of the heat maps of a window.

    Attributes:
        title: Title.
        truth: `N M`, in the units of the data.
        given: True where the value was given, not sampled. `N M`.
        drawn: Sample. `N M`.
        places: Place of each region, such as "chr2:1,234,567". `N`.
        motifs: Names of the motif columns.
        extra: Names of the columns after them, such as "open in K562".
    """

    title: str
    truth: Float[np.ndarray, "N M"]
    given: Bool[np.ndarray, "N M"]
    drawn: Float[np.ndarray, "N M"]
    places: Sequence[str]
    motifs: Sequence[str]
    extra: Sequence[str] = ()


@dataclass(frozen=True)
class _Panel:
    title: str
    values: Shaped[np.ndarray, "N M"]
    colours: str | Colormap
    strip: str | Colormap
    low: float
    high: float
    label: str


def draw_window(picture: WindowPicture) -> bytes:
    """Return a PNG of four heat maps side by side; columns after the motifs are a strip right of each."""
    panels, strips = _panels(picture), len(picture.extra)
    figure = new_figure(15, 7.0, picture.title)
    share = STRIP if (~picture.given[:, : len(picture.motifs)]).any() else WIDE_STRIP
    if strips:
        axes = figure.subplots(1, 8, sharey=True, width_ratios=[1, share * strips] * 4)
        pairs = list(zip(axes[::2], axes[1::2], strict=True))
    else:
        pairs = [(axis, None) for axis in figure.subplots(1, 4, sharey=True)]
    for panel, (axis, side) in zip(panels, pairs, strict=True):
        _draw_panel(figure, picture, panel, axis, side, 7 if strips and share == WIDE_STRIP else 16)
    first = pairs[0][0]
    rows = _spread(len(picture.places), 17)
    first.set_yticks(rows, [picture.places[row] for row in rows], fontsize=7)
    first.set_ylabel(f"{len(picture.places)} regions, in genome order", fontsize=9)
    return png_of(figure)


def _panels(picture: WindowPicture) -> list[_Panel]:
    from matplotlib.colors import ListedColormap

    motifs = picture.truth[:, : len(picture.motifs)]
    positive = motifs[motifs > 0]
    high = float(np.quantile(positive, 0.95)) if positive.size else 1.0
    error = picture.drawn - picture.truth
    value, mask = "motif score", ListedColormap(["#e9ecef", "#f08c00"])
    share = float((~picture.given).mean())
    return [
        _Panel("truth", picture.truth, "Blues", "Greens", 0.0, high, value),
        _Panel(f"mask: {share:.1%} sampled", ~picture.given, mask, mask, 0.0, 1.0, "given        sampled"),
        _Panel("sampled and given", picture.drawn, "Blues", "Greens", 0.0, high, value),
        _Panel("sample minus truth", error, "RdBu_r", "RdBu_r", -high, high, "difference"),
    ]


def _draw_panel(
    figure: Figure, picture: WindowPicture, panel: _Panel, axis: Axes, side: Axes | None, names: int
) -> None:
    """Draw one heat map with `names` of its motifs, and the strip next to it."""
    motifs = len(picture.motifs)
    order = np.argsort(-picture.truth[:, :motifs].mean(0), kind="stable")  # the most frequent motifs first
    options: dict[str, Any] = {"aspect": "auto", "interpolation": "nearest"}
    values = panel.values[:, :motifs][:, order]
    image = axis.imshow(values, vmin=panel.low, vmax=panel.high, cmap=panel.colours, **options)
    axis.set_title(panel.title, fontsize=11)
    columns = _spread(motifs, names)
    axis.set_xticks(columns, [picture.motifs[order[column]] for column in columns], rotation=90, fontsize=7)
    axis.set_xlabel(f"{motifs} motifs, most frequent first", fontsize=8)
    bar = figure.colorbar(image, ax=axis, location="bottom", shrink=0.8, aspect=30, pad=0.02)
    bar.set_label(panel.label, fontsize=8)
    bar.ax.tick_params(labelsize=7)
    bar.outline.set_visible(False)
    if panel.title.startswith("mask"):
        bar.set_ticks([])
    if side is not None:
        _draw_strip(picture, panel, side, options)
    for part in (axis, side):
        if part is not None:
            part.tick_params(color=GREY)
            part.spines[:].set_color(LIGHT)


def _draw_strip(picture: WindowPicture, panel: _Panel, side: Axes, options: dict[str, Any]) -> None:
    """Draw the columns after the motifs, each from 0 to 1 or to its largest true value."""
    motifs = len(picture.motifs)
    values = panel.values[:, motifs:].astype(float)
    if not panel.title.startswith("mask"):
        values = values / np.maximum(1.0, picture.truth[:, motifs:].max(0))
    side.imshow(values, vmin=-1 if panel.low < 0 else 0, vmax=1, cmap=panel.strip, **options)
    side.set_xticks(range(len(picture.extra)), picture.extra, rotation=90, fontsize=7)
    side.tick_params(left=False)


def _spread(length: int, number: int) -> list[int]:
    """Return evenly spaced positions, including the first and the last."""
    return sorted({round(position) for position in np.linspace(0, length - 1, min(number, length))})


PANELS = 6
"""States shown as heat maps."""

FILL_AXES: dict[str, Any] = {"aspect": "auto", "interpolation": "nearest"}

LINES = 24
"""Values shown as lines."""


def draw_trajectory(
    path: Float[np.ndarray, "T L M"], truth: Float[np.ndarray, "L M"], sampled: Bool[np.ndarray, "L M"], title: str
) -> bytes | None:
    """Return a PNG with states from noise to sample, the truth, and the trajectories of values; None without any.

    Args:
        path: States in the order of sampling, the sample last.
        truth: Truth in the same units.
        sampled: True for sampled values.
        title: Title.
    """
    if not sampled.any() or len(path) < 2:
        return None
    rows, columns = sampled.any(1), sampled.any(0)
    if columns.sum() == 1:
        return _one_column(path[:, sampled], truth[sampled], title)
    figure = new_figure(15, 6.8, title)
    grid = figure.add_gridspec(2, PANELS + 1, height_ratios=[1.5, 1])
    shown = np.unique(np.linspace(0, len(path) - 1, PANELS).round().astype(int))
    part = np.ix_(rows, columns)
    high = float(np.quantile(np.abs(truth[part]), 0.98)) or 1.0
    options: dict[str, Any] = {"vmin": -high, "vmax": high, "cmap": "RdBu_r", **FILL_AXES}
    for panel, values, name in [
        *((panel, path[state], f"state {state} of {len(path) - 1}") for panel, state in enumerate(shown)),
        (PANELS, truth, "truth"),
    ]:
        axis = bare(figure.add_subplot(grid[0, panel]), name)
        image = axis.imshow(values[part], **options)
        axis.set(xticks=[], yticks=[])
        axis.set_xlabel("columns", fontsize=8)
        if not panel:
            axis.set_ylabel("sampled regions", fontsize=8)
    figure.colorbar(image, ax=axis, shrink=0.8).ax.tick_params(labelsize=7)
    below = bare(figure.add_subplot(grid[1, :]), f"trajectories of {LINES} values; crosses are the truth")
    chosen = np.argwhere(sampled)[:: -(-int(sampled.sum()) // LINES)]
    for row, column in chosen:
        below.plot(path[:, row, column], color=BLUE, alpha=0.4, linewidth=1)
        below.plot(len(path) - 0.5, truth[row, column], "x", color=ORANGE, markersize=5)
    below.locator_params(axis="x", integer=True)
    below.set_xlabel("state", fontsize=9)
    below.set_ylabel("value", fontsize=9)
    return png_of(figure)


def _one_column(path: Float[np.ndarray, "T L"], truth: Float[np.ndarray, " L"], title: str) -> bytes:
    """Draw time downwards and regions sideways, sorted by decreasing truth."""
    order = np.argsort(-truth, kind="stable")
    figure = new_figure(12, 6.4, title)
    above, true, below = figure.subplots(3, 1, height_ratios=[3, 0.3, 2])
    low, high = float(truth.min()), float(truth.max())
    options: dict[str, Any] = {"vmin": low, "vmax": high, "cmap": "viridis", **FILL_AXES}
    bare(above, "from noise (top) to sample (bottom)").imshow(path[:, order], **options)
    above.set_xticks([])
    above.locator_params(axis="y", integer=True)
    above.set_ylabel("state", fontsize=9)
    bare(true).imshow(truth[None, order], **options)
    true.set_yticks([0], ["truth"])
    true.set_xticks([])
    true.set_xlabel("sampled regions, by decreasing truth", fontsize=9)
    bare(below, "trajectories of values; orange: truth above the middle of its range")
    step = -(-len(truth) // (2 * LINES))
    for place in range(0, len(truth), step):
        is_high = truth[place] > (low + high) / 2
        below.plot(path[:, place], color=ORANGE if is_high else GREY, alpha=0.6 if is_high else 0.3, linewidth=1)
    below.locator_params(axis="x", integer=True)
    below.set_xlabel("state", fontsize=9)
    below.set_ylabel("value", fontsize=9)
    return png_of(figure)
