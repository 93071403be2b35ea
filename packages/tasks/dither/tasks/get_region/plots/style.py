"""What all pictures of regions share: a figure without a window system, its colours, and its bytes."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["BLUE", "GREY", "LIGHT", "ORANGE", "bare", "new_figure", "png_of"]

BLUE = "#1864ab"
"""What a model says."""

ORANGE = "#e8590c"
"""What is true, or what stands out."""

GREY = "#868e96"
"""What a model is held against."""

LIGHT = "#dee2e6"
"""Lines that lead the eye."""


def new_figure(width: float, height: float, title: str) -> Figure:
    """Return an empty figure, in inches."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    figure.suptitle(title, fontsize=12)
    return figure


def bare(axis: Axes, title: str = "") -> Axes:
    """Take away what is not needed of a frame."""
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
