"""What the end of a figure's name says: that it belongs to another figure, and is shown with that."""

from __future__ import annotations

import math
from collections.abc import Container, Mapping

__all__ = ["FLOOR", "INTERVAL", "belongs", "with_interval"]

INTERVAL = "_ci95"
"""Half of the 95 % interval of the figure before it."""
FLOOR = "_floor"
"""The noise floor of the figure before it: what as many samples of the data themselves reach."""


def belongs(name: str, names: Container[str]) -> bool:
    """Tell whether a figure belongs to another one of these."""
    return any(name.endswith(end) and name.removesuffix(end) in names for end in (INTERVAL, FLOOR))


def with_interval(name: str, figures: Mapping[str, float], digits: int = 4) -> str:
    """Return a figure as a text, with its interval behind it where there is one."""
    half = figures.get(name + INTERVAL, math.nan)
    return f"{figures[name]:.{digits}g}" + (f" ± {half:.2g}" if math.isfinite(half) else "")
