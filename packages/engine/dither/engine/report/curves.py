"""Curves as inline SVG. Colours are classes, so that the page decides on them; every point has a tooltip."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from html import escape

__all__ = ["curve", "ticks"]

WIDTH, HEIGHT = 460, 220
LEFT, RIGHT, TOP, BOTTOM = 56, 12, 12, 26
MOST = 400
"""Points of a line that are drawn; of more, the least and the largest of each stretch."""
COLOURS = 10

Points = Sequence[tuple[int, float]]


def curve(series: Mapping[str, Points], *, baselines: Mapping[str, float] | None = None) -> str:
    """Draw lines over the same steps.

    Args:
        series: Name -> (step, value); values that are no numbers leave a gap.
        baselines: Name -> value of a level line; drawn where they do not squeeze the lines together.

    Returns:
        An <svg> element, or an empty text where there is nothing to draw.
    """
    finite = {name: [p for p in points if math.isfinite(p[1])] for name, points in series.items()}
    values = [value for points in finite.values() for _, value in points]
    if not values:
        return ""
    low, high = min(values), max(values)
    levels = {k: v for k, v in (baselines or {}).items() if math.isfinite(v) and _near(v, low, high)}
    values += levels.values()
    log = min(values) > 0 and max(values) / min(values) > 50
    frame = _Frame(
        min(step for points in finite.values() for step, _ in points),
        max(step for points in finite.values() for step, _ in points),
        min(values),
        max(values),
        log,
    )
    parts = [*frame.axes()]
    for name, value in levels.items():
        y = frame.y(value)
        parts.append(f'<line class="level" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="level" x="{WIDTH - RIGHT}" y="{y - 3:.1f}">{escape(name)} {value:.4g}</text>')
    for index, points in enumerate(finite.values()):
        parts.append(_line(list(series)[index], _thinned(points), frame, index % COLOURS))
    label = escape(", ".join(series), quote=True)
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}">{"".join(parts)}</svg>'


class _Frame:
    def __init__(self, first: int, last: int, low: float, high: float, log: bool) -> None:
        self.first, self.last, self.log = first, max(last, first + 1), log
        self.low, self.high = (math.log10(low), math.log10(high)) if log else (low, high)
        margin = 0.04 * (self.high - self.low) or 0.05 * abs(self.high) or 1.0
        self.low, self.high = self.low - margin, self.high + margin

    def x(self, step: float) -> float:
        return LEFT + (step - self.first) / (self.last - self.first) * (WIDTH - LEFT - RIGHT)

    def y(self, value: float) -> float:
        share = ((math.log10(value) if self.log else value) - self.low) / (self.high - self.low)
        return HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)

    def axes(self) -> Iterator[str]:
        base = HEIGHT - BOTTOM
        for value in self.values():
            y = self.y(value)
            yield f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
            yield f'<text class="y" x="{LEFT - 6}" y="{y + 3.5:.1f}">{_short(value)}</text>'
        for step in ticks(self.first, self.last, 5):
            if step == int(step):
                yield f'<text class="x" x="{self.x(step):.1f}" y="{base + 16}">{_short(step)}</text>'

    def values(self) -> list[float]:
        if not self.log:
            return ticks(self.low, self.high, 5)
        decades = range(math.floor(self.low), math.ceil(self.high) + 1)
        factors = (1, 2, 5) if self.high - self.low < 2.5 else (1,)
        found = [factor * 10.0**decade for decade in decades for factor in factors]
        return [value for value in found if self.low <= math.log10(value) <= self.high]


def ticks(low: float, high: float, count: int) -> list[float]:
    """Return about `count` round numbers from low to high."""
    if not high > low:
        return [low]
    rough = (high - low) / count
    size = 10.0 ** math.floor(math.log10(rough))
    size *= next(factor for factor in (1, 2, 2.5, 5, 10) if factor * size >= rough)
    first = math.ceil(low / size)
    return [round(size * n, 12) + 0.0 for n in range(first, math.floor(high / size) + 1)]


def _line(name: str, points: Points, frame: _Frame, colour: int) -> str:
    places = " ".join(f"{frame.x(step):.1f},{frame.y(value):.1f}" for step, value in points)
    dots = ""
    radius = 2.5 if len(points) <= 40 else 1.5 if len(points) <= 150 else 0
    for step, value in points if radius else ():
        title = f"{escape(name)}: {value:.6g} at step {step}"
        where = f'cx="{frame.x(step):.1f}" cy="{frame.y(value):.1f}" r="{radius}"'
        dots += f"<circle {where}><title>{title}</title></circle>"
    return f'<g class="c{colour}"><polyline points="{places}"><title>{escape(name)}</title></polyline>{dots}</g>'


def _thinned(points: Points) -> Points:
    """Keep the least and the largest of each stretch, so that no spike is lost."""
    if len(points) <= MOST:
        return points
    size = math.ceil(len(points) / (MOST / 2))
    kept = []
    for start in range(0, len(points), size):
        stretch = points[start : start + size]
        ends = {min(stretch, key=lambda p: p[1]), max(stretch, key=lambda p: p[1])}
        kept += sorted(ends)
    return [*kept, points[-1]] if kept[-1] != points[-1] else kept


def _near(value: float, low: float, high: float) -> bool:
    span = (high - low) or abs(high) or 1.0
    return low - span <= value <= high + span


def _short(value: float) -> str:
    if value and (abs(value) >= 1e5 or abs(value) < 1e-3):
        return f"{value:.0e}".replace("e+0", "e").replace("e-0", "e-").replace("e+", "e")
    return f"{value:g}" if abs(value) < 1000 else f"{value:,.0f}"
