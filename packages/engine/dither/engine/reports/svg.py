"""The axes of a curve: where a value stands, and which round numbers are written beside it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

from ..files.metrics_file import as_number
from ..sweeps.points import format_value

__all__ = [
    "BOTTOM",
    "COLOURS",
    "HEIGHT",
    "LEFT",
    "MAX_PLOTTED",
    "RIGHT",
    "TOP",
    "WIDTH",
    "Axis",
    "Frame",
    "curve",
    "format_ticks",
    "line_classes",
    "scatter",
    "scatters",
    "ticks",
    "x_labels",
]

WIDTH, HEIGHT = 460, 220
"""Of the drawing."""
LEFT, RIGHT, TOP, BOTTOM = 56, 16, 16, 26
"""Room around the lines for what is written."""
MAX_PLOTTED = 1e300
"""Numbers from here on are not drawn: their differences may be none."""
DECADES = 50
"""How many times the least value the largest one is where the axis becomes logarithmic."""


class Axis:
    """A direction in which numbers stand, in their logarithm where they are positive and of many sizes.

    Args:
        low: The least number.
        high: The largest one.
        start: Where the axis begins in the drawing.
        end: Where it ends.

    Attributes:
        log: Whether numbers stand in their logarithm.
    """

    def __init__(self, low: float, high: float, start: float, end: float) -> None:
        self.start, self.end = start, end
        self.log = low > 0 and high / low > DECADES
        self.low, self.high = (math.log10(low), math.log10(high)) if self.log else (low, high)
        margin = 0.04 * (self.high - self.low) or 0.05 * abs(self.high) or 1.0
        self.low, self.high = self.low - margin, self.high + margin

    def place(self, value: float) -> float:
        """Return where a number stands; one that has no logarithm stands at the beginning."""
        if self.log:
            value = math.log10(value) if value > 0 else self.low
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)

    def ticks(self) -> list[float]:
        """Return the numbers that are written beside it."""
        if not self.log:
            return ticks(self.low, self.high, 5)
        decades = range(math.floor(self.low), math.ceil(self.high) + 1)
        factors = (1, 2, 5) if self.high - self.low < 2.5 else (1,)
        found = [factor * 10.0**decade for decade in decades for factor in factors]
        return [value for value in found if self.low <= math.log10(value) <= self.high]

    def grid(self) -> Iterator[str]:
        """Draw lines across the drawing, for an axis that goes up, and the numbers beside them."""
        values = self.ticks()
        for value, text in zip(values, format_ticks(values), strict=True):
            y = self.place(value)
            yield f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
            yield f'<text class="y" x="{LEFT - 6}" y="{y + 3.5:.1f}">{text}</text>'
        if self.log:
            yield f'<text class="y axis" x="{LEFT - 6}" y="9">log</text>'


class Frame:
    """The room in which lines over steps are drawn.

    Args:
        first: The first step.
        last: The last one.
        low: The least value.
        high: The largest one.
    """

    def __init__(self, first: int, last: int, low: float, high: float) -> None:
        self.first, self.last = first, max(last, first + 1)
        self._values = Axis(low, high, HEIGHT - BOTTOM, TOP)
        self.y = self._values.place

    def x(self, step: float) -> float:
        """Return where a step stands."""
        return LEFT + (step - self.first) / (self.last - self.first) * (WIDTH - LEFT - RIGHT)

    def axes(self) -> Iterator[str]:
        """Draw grid lines, the numbers beside them, and what the axes are."""
        yield from self._values.grid()
        steps = [step for step in ticks(self.first, self.last, 5) if step == int(step)]
        yield from x_labels(
            [(self.x(step), text) for step, text in zip(steps, format_ticks(steps), strict=True)], "step"
        )


def x_labels(texts: Sequence[tuple[float, str]], name: str) -> Iterator[str]:
    """Write texts under the drawing, each at its place, and what they are."""
    for x, text in texts:
        inside = min(x, WIDTH - 3.2 * len(text))  # the last one ends where the drawing does
        yield f'<text class="x" x="{inside:.1f}" y="{HEIGHT - BOTTOM + 16}">{escape(text)}</text>'
    yield f'<text class="y axis" x="{LEFT - 20}" y="{HEIGHT - BOTTOM + 16}">{name}</text>'


def ticks(low: float, high: float, count: int) -> list[float]:
    """Return about `count` round numbers from low to high."""
    if not high > low:
        return [low]
    rough = (high - low) / count
    size = 10.0 ** math.floor(math.log10(rough))
    size *= next(factor for factor in (1, 2, 2.5, 5, 10) if factor * size >= rough)
    first = math.ceil(low / size)
    return [float(f"{size * n:.12g}") + 0.0 for n in range(first, math.floor(high / size) + 1)]


def format_ticks(values: list[float]) -> list[str]:
    """Return numbers in as few digits as tell them apart."""
    for digits in range(1, 12):
        found = [_short(value, digits) for value in values]
        if len(set(found)) == len(values) and all(
            math.isclose(_read(t), v, abs_tol=1e-300) for t, v in zip(found, values, strict=True)
        ):
            return found
    return [f"{value:g}" for value in values]


def _read(text: str) -> float:
    return float(text.replace(",", ""))


def _short(value: float, digits: int) -> str:
    if value and (abs(value) >= 1e5 or abs(value) < 1e-3):
        mantissa, _, exponent = f"{value:.{digits - 1}e}".partition("e")
        return f"{mantissa}e{int(exponent)}"
    return f"{value:.{digits + 3}g}" if abs(value) < 1000 else f"{value:,.{max(0, digits - 4)}f}"


MAX_POINTS = 400
"""Points of a line that are drawn; of more, the least and the largest of each stretch."""
COLOURS = 10
SMOOTHED = 60
"""Points from which a restless line is drawn as its running mean."""
WINDOWS = 30
"""Windows of the running mean in a line."""
NOISY = 0.02
"""How far a line is from its running mean, on average and as a share of its range, if the mean says more."""
FLAT = 1e-9
"""A line whose range is smaller than this, as a share of its values, is level: the rest is rounding."""
FEW = 3
"""Lines that have the points behind their mean drawn, and their intervals; of more these would hide each other."""

Points = Sequence[tuple[int, float]]


def line_classes(index: int) -> str:
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
    finite = {name: [p for p in points if abs(p[1]) < MAX_PLOTTED] for name, points in series.items()}
    few = sum(map(bool, finite.values())) <= FEW
    means = {name: _smoothed(points) for name, points in finite.items()}
    drawn = means if not few else {name: [*finite[name], *means[name]] for name in finite}
    values = [value for points in drawn.values() for _, value in points]
    if not values:
        return ""
    low, high = min(values), max(values)
    levels = {name: v for name, v in (baselines or {}).items() if abs(v) < MAX_PLOTTED and _in_range(v, low, high)}
    steps = [step for points in finite.values() for step, _ in points]
    frame = Frame(min(steps), max(steps), min([low, *levels.values()]), max([high, *levels.values()]))
    parts = [*frame.axes(), *_levels(levels, frame)]
    for index, (name, points) in enumerate(finite.items()):
        around = _band(points, dict((intervals or {}).get(name, ())), frame) if few else ""
        raw = points if few and means[name] is not points else []
        parts.append(
            f'<g class="{line_classes(index)}">{around}{_line(name, means[name], raw, frame, len(finite))}</g>'
        )
    label = escape(", ".join(series), quote=True)
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}">{"".join(parts)}</svg>'


def _line(name: str, points: Points, raw: Points, frame: Frame, lines: int) -> str:
    """Draw a line, faintly what it is the mean of, and dots where there is room for them."""
    behind = f'<polyline class="raw" points="{_places(_downsampled(raw), frame)}"/>' if raw else ""
    if not points:
        return ""
    said = f"{escape(name)}: {points[-1][1]:.6g} at step {points[-1][0]}"
    shown = _downsampled(points)
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


def _smoothed(points: Points) -> Points:
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
    return means if away > NOISY * span > FLAT * largest else points


def _downsampled(points: Points) -> Points:
    """Keep the least and the largest of each stretch, so that no spike is lost."""
    if len(points) <= MAX_POINTS:
        return points
    size = math.ceil(len(points) / (MAX_POINTS / 2))
    kept = []
    for start in range(0, len(points), size):
        stretch = points[start : start + size]
        ends = {min(stretch, key=lambda p: p[1]), max(stretch, key=lambda p: p[1])}
        kept += sorted(ends)
    return [*kept, points[-1]] if kept[-1] != points[-1] else kept


def _in_range(value: float, low: float, high: float) -> bool:
    span = (high - low) or abs(high) or 1.0
    return low - span <= value <= high + span


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
        if len({format_value(value) for value, _, _ in dots}) > 1:
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
        places = {format_value(value): across.place(value) for value in values}
        texts = [(across.place(mark), text) for mark, text in zip(marks, format_ticks(marks), strict=True)]
        under = "log" if across.log else ""
    else:
        names = sorted({format_value(value) for value in values})
        if len(names) > MOST_CHOICES:
            return ""
        room = (WIDTH - LEFT - RIGHT) / len(names)
        places = {name: LEFT + room * (index + 0.5) for index, name in enumerate(names)}
        most = int(room / LETTER)
        texts = [(x, name if len(name) <= most else f"{name[: most - 1]}…") for name, x in places.items()]
        under = ""
    parts = [*up.grid(), *x_labels(texts, under)]
    for value, figure, name in dots:
        title = escape(f"{name}: {figure:.6g}")
        where = f'cx="{places[format_value(value)]:.1f}" cy="{up.place(figure):.1f}" r="3.5"'
        parts.append(f'<circle class="dot" {where}><title>{title}</title></circle>')
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(label)}">{"".join(parts)}</svg>'


def _number(value: Any) -> bool:
    number = as_number(value)
    return number is not None and abs(number) < MAX_PLOTTED
