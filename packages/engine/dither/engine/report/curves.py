"""Curves as inline SVG. Colours are classes, so that the page decides on them; points and lines have tooltips.

A class `s3` is the fourth line of the page, `c3` its colour, `d0` its dashes: so thirty lines can be told apart.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from html import escape

from .axes import BOTTOM, HEIGHT, LARGEST, LEFT, RIGHT, TOP, WIDTH, Frame

__all__ = ["COLOURS", "curve", "marks"]

MOST = 400
"""Points of a line that are drawn; of more, the least and the largest of each stretch."""
COLOURS = 10
SMOOTHED = 60
"""Points from which a restless line is drawn as its running mean."""
WINDOWS = 30
"""Windows of the running mean in a line."""
RESTLESS = 0.02
"""How far a line is from its running mean, on average and as a share of its range, if the mean says more."""
FLAT = 1e-9
"""A line whose range is smaller than this, as a share of its values, is level: the rest is rounding."""
FEW = 3
"""Lines that have the points behind their mean drawn, and their intervals; of more these would hide each other."""

Points = Sequence[tuple[int, float]]


def marks(index: int) -> str:
    """Return the classes of the line of a run: which it is, its colour, its dashes."""
    return f"s{index} c{index % COLOURS} d{index // COLOURS % 3}"


def curve(
    series: Mapping[str, Points],
    *,
    baselines: Mapping[str, float] | None = None,
    intervals: Mapping[str, Points] | None = None,
) -> str:
    """Draw lines over the same steps.

    Args:
        series: Name -> (step, value); values that are no numbers, or too large for an axis, leave a gap.
        baselines: Name -> value of a level line; drawn where they do not squeeze the lines together.
        intervals: Name of a line -> (step, half of an interval around its value).

    Returns:
        An <svg> element, or an empty text where there is nothing to draw.
    """
    finite = {name: [p for p in points if abs(p[1]) < LARGEST] for name, points in series.items()}
    few = sum(map(bool, finite.values())) <= FEW
    means = {name: _calmed(points) for name, points in finite.items()}
    drawn = means if not few else {name: [*finite[name], *means[name]] for name in finite}
    values = [value for points in drawn.values() for _, value in points]
    if not values:
        return ""
    low, high = min(values), max(values)
    levels = {name: v for name, v in (baselines or {}).items() if abs(v) < LARGEST and _near(v, low, high)}
    steps = [step for points in finite.values() for step, _ in points]
    frame = Frame(min(steps), max(steps), min([low, *levels.values()]), max([high, *levels.values()]))
    parts = [*frame.axes(), *_levels(levels, frame)]
    for index, (name, points) in enumerate(finite.items()):
        around = _band(points, dict((intervals or {}).get(name, ())), frame) if few else ""
        raw = points if few and means[name] is not points else []
        parts.append(f'<g class="{marks(index)}">{around}{_line(name, means[name], raw, frame, len(finite))}</g>')
    label = escape(", ".join(series), quote=True)
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}">{"".join(parts)}</svg>'


def _line(name: str, points: Points, raw: Points, frame: Frame, lines: int) -> str:
    """Draw a line, faintly what it is the mean of, and dots where there is room for them."""
    behind = f'<polyline class="raw" points="{_places(_thinned(raw), frame)}"/>' if raw else ""
    if not points:
        return ""
    said = f"{escape(name)}: {points[-1][1]:.6g} at step {points[-1][0]}"
    shown = _thinned(points)
    dots = ""
    radius = 0 if raw or lines > COLOURS else 2.5 if len(shown) <= 40 else 1.5 if len(shown) <= 150 else 0
    for step, value in shown if radius else ():
        title = f"{escape(name)}: {value:.6g} at step {step}"
        where = f'cx="{frame.x(step):.1f}" cy="{frame.y(value):.1f}" r="{radius}"'
        dots += f"<circle {where}><title>{title}</title></circle>"
    return f'{behind}<polyline points="{_places(shown, frame)}"><title>{said}</title></polyline>{dots}'


def _places(points: Points, frame: Frame) -> str:
    return " ".join(f"{frame.x(step):.1f},{frame.y(value):.1f}" for step, value in points)


def _band(points: Points, halves: Mapping[int, float], frame: Frame) -> str:
    """Draw the interval around each value; it is cut off where the axes end."""
    there = [(step, value, halves[step]) for step, value in points if math.isfinite(halves.get(step, math.nan))]
    if len(there) < 2:
        return ""
    edges = [[(step, value + sign * half) for step, value, half in there] for sign in (1, -1)]
    around = [*edges[0], *reversed(edges[1])]
    inside = " ".join(f"{frame.x(s):.1f},{min(max(frame.y(v), TOP), HEIGHT - BOTTOM):.1f}" for s, v in around)
    return f'<polygon points="{inside}"/>'


def _levels(levels: Mapping[str, float], frame: Frame) -> Iterator[str]:
    """Draw level lines; those of one height share a text, and no text stands on another."""
    names: dict[str, list[str]] = {}
    for name, value in levels.items():
        names.setdefault(f"{value:.4g}", []).append(name)
    below, written = 0.0, []
    for text, height in sorted(((t, frame.y(levels[n[0]])) for t, n in names.items()), key=lambda item: item[1]):
        yield f'<line class="level" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{height:.1f}" y2="{height:.1f}"/>'
        below = max(height - 3, below + 11)
        said = escape(f"{', '.join(names[text])} {text}")
        written.append(f'<text class="level" x="{WIDTH - RIGHT}" y="{below:.1f}">{said}</text>')
    yield from written


def _calmed(points: Points) -> Points:
    """Return the running mean of a line that is long and restless; any other line as it is."""
    if len(points) <= SMOOTHED:
        return points
    half = max(1, len(points) // WINDOWS // 2)
    sums = [0.0]
    for _, value in points:
        sums.append(sums[-1] + value)
    ends = [(max(0, i - half), min(len(points), i + half + 1)) for i in range(len(points))]
    means = [(step, (sums[b] - sums[a]) / (b - a)) for (step, _), (a, b) in zip(points, ends, strict=True)]
    values = [value for _, value in points]
    span, largest = max(values) - min(values), max(map(abs, values))
    away = sum(abs(mean - value) for (_, mean), value in zip(means, values, strict=True)) / len(points)
    return means if away > RESTLESS * span > FLAT * largest else points


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
