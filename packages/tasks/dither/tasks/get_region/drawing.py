"""A window of regions as heat maps: what is true, what was given, what was drawn, and by how much that is off.

Letters: N regions (rows), M columns: motifs, and behind them accessibility and expression, which stand apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Bool, Float, Shaped

from .plotting import GREY, LIGHT, new_figure, png_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure

__all__ = ["WindowPicture", "draw_window"]

STRIP = 0.07
"""Width of a column that stands apart, as a share of a panel's."""

WIDE_STRIP = 1.5
"""The same where no motif was drawn, so that there is nothing else to see."""


@dataclass(frozen=True)
class WindowPicture:
    """What is drawn.

    Attributes:
        title: Stands above everything.
        truth: `N M`, in the units of the data.
        given: True where the value was given and not drawn. `N M`.
        drawn: `N M`.
        places: Where each region lies, such as "chr2:1,234,567". `N`.
        motifs: Names of the motif columns.
        behind: Names of the columns behind them, such as "open in K562".
    """

    title: str
    truth: Float[np.ndarray, "N M"]
    given: Bool[np.ndarray, "N M"]
    drawn: Float[np.ndarray, "N M"]
    places: Sequence[str]
    motifs: Sequence[str]
    behind: Sequence[str] = ()


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
    """Return a PNG of four heat maps side by side; columns behind the motifs, if any, are a strip right of each."""
    panels, strips = _panels(picture), len(picture.behind)
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
        _Panel(f"mask: {share:.1%} drawn", ~picture.given, mask, mask, 0.0, 1.0, "given        drawn"),
        _Panel("drawn, and given", picture.drawn, "Blues", "Greens", 0.0, high, value),
        _Panel("drawn minus truth", error, "RdBu_r", "RdBu_r", -high, high, "difference"),
    ]


def _draw_panel(
    figure: Figure, picture: WindowPicture, panel: _Panel, axis: Axes, side: Axes | None, names: int
) -> None:
    """Draw one heat map under `names` of its motifs, and the strip beside it."""
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
    for each in (axis, side):
        if each is not None:
            each.tick_params(color=GREY)
            each.spines[:].set_color(LIGHT)


def _draw_strip(picture: WindowPicture, panel: _Panel, side: Axes, options: dict[str, Any]) -> None:
    """Draw the columns behind the motifs, each from 0 to 1 or to its largest true value."""
    motifs = len(picture.motifs)
    values = panel.values[:, motifs:].astype(float)
    if not panel.title.startswith("mask"):
        values = values / np.maximum(1.0, picture.truth[:, motifs:].max(0))
    side.imshow(values, vmin=-1 if panel.low < 0 else 0, vmax=1, cmap=panel.strip, **options)
    side.set_xticks(range(len(picture.behind)), picture.behind, rotation=90, fontsize=7)
    side.tick_params(left=False)


def _spread(length: int, number: int) -> list[int]:
    """Some positions spread evenly over `length`, first and last among them."""
    return sorted({round(position) for position in np.linspace(0, length - 1, min(number, length))})
