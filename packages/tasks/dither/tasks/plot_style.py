"""Plots of matplotlib in one style, for the pictures of all tasks."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["BLUE", "GREY", "LIGHT", "ORANGE", "bare", "new_figure", "to_png"]

BLUE = "#1864ab"
"""Predictions."""
ORANGE = "#e8590c"
"""Truth and highlights."""
GREY = "#868e96"
"""References."""
LIGHT = "#dee2e6"
"""Guide lines."""


def new_figure(width: float, height: float, title: str = "") -> Figure:
    """Return an empty plot without pyplot, whose state is global."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    if title:
        figure.suptitle(title, fontsize=12)
    return figure


def bare(
    axis: Axes,
    title: str = "",
    x: str = "",
    y: str = "",
) -> Axes:
    """Set a title and labels, and remove most of the frame."""
    axis.spines[["top", "right"]].set_visible(False)
    axis.spines[["left", "bottom"]].set_color(GREY)
    axis.tick_params(labelsize=8, color=GREY)
    axis.set_title(title, fontsize=10)
    axis.set_xlabel(x, fontsize=9)
    axis.set_ylabel(y, fontsize=9)
    return axis


def to_png(figure: Figure) -> bytes:
    """Return a plot as PNG."""
    out = io.BytesIO()
    figure.savefig(out, format="png", dpi=110)
    return out.getvalue()
