"""Figure, colours and PNG output shared by all plots of regions."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["BLUE", "GREY", "LIGHT", "ORANGE", "bare", "new_figure", "png_of"]

BLUE = "#1864ab"
"""Predictions."""

ORANGE = "#e8590c"
"""Truth and highlights."""

GREY = "#868e96"
"""References."""

LIGHT = "#dee2e6"
"""Guide lines."""


def new_figure(width: float, height: float, title: str) -> Figure:
    """Return an empty figure, in inches."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    figure.suptitle(title, fontsize=12)
    return figure


def bare(axis: Axes, title: str = "") -> Axes:
    """Set a title and remove most of the frame."""
    axis.spines[["top", "right"]].set_visible(False)
    axis.spines[["left", "bottom"]].set_color(GREY)
    axis.tick_params(labelsize=8, color=GREY)
    axis.set_title(title, fontsize=10)
    return axis


def png_of(figure: Figure) -> bytes:
    """Return the figure as a PNG."""
    out = io.BytesIO()
    figure.savefig(out, format="png", dpi=110)
    return out.getvalue()
