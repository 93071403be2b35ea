"""What came of each value of a swept key, as inline SVG: one dot for each point of a sweep."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

from ..metrics_file import as_number
from ..sweep.points import short
from .axes import BOTTOM, HEIGHT, LARGEST, LEFT, RIGHT, TOP, WIDTH, Axis, below, written

__all__ = ["scatter", "scatters"]

MOST_CHOICES = 8
"""Values that are no numbers, beside each other."""
LETTER = 6
"""Width of a letter."""


def scatters(rows: Sequence[dict[str, Any]], keys: Sequence[str], metric: str) -> list[tuple[str, str]]:
    """Return key and SVG of every key that has more than one value among the points with the figure.

    Args:
        rows: Of the points, as a sweep sums them up.
        keys: What is swept.
        metric: The figure, as kind/name.
    """
    measured = [row for row in rows if _number(row["figures"].get(metric))]
    drawn = []
    for key in keys:
        dots = [(row["values"][key], row["figures"][metric], row["name"]) for row in measured if key in row["values"]]
        if len({short(value) for value, _, _ in dots}) > 1:
            drawn.append((key, scatter(dots, f"{metric} over {key}")))
    return [(key, svg) for key, svg in drawn if svg]


def scatter(dots: Sequence[tuple[Any, float, str]], label: str) -> str:
    """Draw (value of a key, figure, name of a point); numbers stand along an axis, other values beside each other."""
    values = [value for value, _, _ in dots]
    figures = [figure for _, figure, _ in dots]
    up = Axis(min(figures), max(figures), HEIGHT - BOTTOM, TOP)
    if all(_number(value) for value in values):
        across = Axis(min(values), max(values), LEFT, WIDTH - RIGHT)
        marks = across.ticks()
        places = {short(value): across.place(value) for value in values}
        texts = [(across.place(mark), text) for mark, text in zip(marks, written(marks), strict=True)]
        under = "log" if across.log else ""
    else:
        names = sorted({short(value) for value in values})
        if len(names) > MOST_CHOICES:
            return ""
        room = (WIDTH - LEFT - RIGHT) / len(names)
        places = {name: LEFT + room * (index + 0.5) for index, name in enumerate(names)}
        most = int(room / LETTER)
        texts = [(x, name if len(name) <= most else f"{name[: most - 1]}…") for name, x in places.items()]
        under = ""
    parts = [*up.grid(), *below(texts, under)]
    for value, figure, name in dots:
        title = escape(f"{name}: {figure:.6g}")
        where = f'cx="{places[short(value)]:.1f}" cy="{up.place(figure):.1f}" r="3.5"'
        parts.append(f'<circle class="dot" {where}><title>{title}</title></circle>')
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(label)}">{"".join(parts)}</svg>'


def _number(value: Any) -> bool:
    number = as_number(value)
    return number is not None and abs(number) < LARGEST
