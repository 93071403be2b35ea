"""A window of regions as heat maps: what is true, what was given, what was drawn, and by how much that is off.

Letters: N regions (rows), M columns: motifs, and perhaps accessibility as the last one, which stands apart.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Bool, Float, Shaped

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure

__all__ = ["WindowPicture", "draw_window"]

STRIP = 0.07
"""Width of the accessibility strip, as a share of a panel's."""


@dataclass(frozen=True)
class WindowPicture:
    """What is drawn.

    Attributes:
        title: Stands above everything.
        truth: `N M`, in the units of the data.
        given: True where the value was given and not drawn. `N M`.
        drawn: `N M`.
        places: Where each region lies, such as "chr2:1,234,567". `N`.
        motifs: Names of the motif columns; M is their number, or one more.
        cell: The cell type of the accessibility column.
    """

    title: str
    truth: Float[np.ndarray, "N M"]
    given: Bool[np.ndarray, "N M"]
    drawn: Float[np.ndarray, "N M"]
    places: Sequence[str]
    motifs: Sequence[str]
    cell: str


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
    """Return a PNG of four heat maps side by side; the accessibility column, if any, is a strip right of each."""
    from matplotlib.figure import Figure

    panels = _panels(picture)
    strip = picture.truth.shape[1] > len(picture.motifs)
    figure = Figure(figsize=(15, 6.4), layout="constrained")
    figure.suptitle(picture.title, fontsize=12)
    axes = (
        figure.subplots(1, 8, sharey=True, width_ratios=[1, STRIP] * 4) if strip else figure.subplots(1, 4, sharey=True)
    )
    pairs = axes.reshape(4, 2) if strip else [(axis, None) for axis in axes]
    for panel, (axis, side) in zip(panels, pairs, strict=True):
        _draw_panel(figure, picture, panel, axis, side)
    first = pairs[0][0]
    rows = _spread(len(picture.places), 9)
    first.set_yticks(rows, [picture.places[row] for row in rows], fontsize=7)
    first.set_ylabel("regions, in genome order", fontsize=9)
    out = io.BytesIO()
    figure.savefig(out, format="png", dpi=110)
    return out.getvalue()


def _panels(picture: WindowPicture) -> list[_Panel]:
    from matplotlib.colors import ListedColormap

    motifs = picture.truth[:, : len(picture.motifs)]
    positive = motifs[motifs > 0]
    high = float(np.quantile(positive, 0.95)) if positive.size else 1.0
    error = picture.drawn - picture.truth
    value, mask = "motif score (0 to 1)", ListedColormap(["#e9ecef", "#f08c00"])
    return [
        _Panel("truth", picture.truth, "Blues", "Greens", 0.0, high, value),
        _Panel("mask", ~picture.given, mask, mask, 0.0, 1.0, "given        drawn"),
        _Panel("drawn", picture.drawn, "Blues", "Greens", 0.0, high, value),
        _Panel("drawn minus truth", error, "RdBu_r", "RdBu_r", -high, high, "difference"),
    ]


def _draw_panel(figure: Figure, picture: WindowPicture, panel: _Panel, axis: Axes, side: Axes | None) -> None:
    motifs = len(picture.motifs)
    order = np.argsort(-picture.truth[:, :motifs].mean(0), kind="stable")  # the most frequent motifs first
    options: dict[str, Any] = {"aspect": "auto", "interpolation": "nearest"}
    values = panel.values[:, :motifs][:, order]
    image = axis.imshow(values, vmin=panel.low, vmax=panel.high, cmap=panel.colours, **options)
    axis.set_title(panel.title, fontsize=11)
    columns = _spread(motifs, 12)
    axis.set_xticks(columns, [picture.motifs[order[column]] for column in columns], rotation=90, fontsize=7)
    bar = figure.colorbar(image, ax=axis, location="bottom", shrink=0.8, aspect=30, pad=0.02)
    bar.set_label(panel.label, fontsize=8)
    bar.ax.tick_params(labelsize=7)
    if panel.title == "mask":
        bar.set_ticks([])
    if side is not None:
        low = -1 if panel.low < 0 else 0
        side.imshow(panel.values[:, motifs:], vmin=low, vmax=1, cmap=panel.strip, **options)
        side.set_xticks([0], [f"open in {picture.cell}"], rotation=90, fontsize=7)
        side.tick_params(left=False)
    for each in (axis, side):
        if each is not None:
            each.spines[:].set_color("#adb5bd")


def _spread(length: int, number: int) -> list[int]:
    """Some positions spread evenly over `length`, first and last among them."""
    return sorted({round(position) for position in np.linspace(0, length - 1, min(number, length))})
