"""Plots of matplotlib in one style, for the pictures of all tasks."""

from __future__ import annotations

import io
from functools import partial
from typing import TYPE_CHECKING

from dither.registry.contracts.pictures import Picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["BLUE", "GREY", "LIGHT", "ORANGE", "bare", "new_figure", "to_picture"]

BLUE = "#1864ab"
"""Predictions."""
ORANGE = "#e8590c"
"""Truth and highlights."""
GREY = "#868e96"
"""References."""
LIGHT = "#dee2e6"
"""Guide lines."""
DPI = 110


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


def to_picture(name: str, figure: Figure) -> Picture:
    """Return a plot as PNG that is also rendered in other formats on demand."""
    return Picture(name, png=_render(figure, "png"), render=partial(_render, figure))


def _render(figure: Figure, form: str) -> bytes:
    from matplotlib import rc_context

    out = io.BytesIO()
    # Equal plots are equal files: no date, no random names. Letters in PDF stay letters.
    dates = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}
    with rc_context({"svg.hashsalt": "dither", "pdf.fonttype": 42}):
        figure.savefig(out, format=form, dpi=DPI, metadata=dates.get(form))
    return out.getvalue()
