"""Inline SVG charts: curves over steps, and scatter plots of a sweep.

No plotting library (docs/adr/0006): pages follow dark mode, have tooltips, stay small, and need no
script except for the smoothing and zoom of `templates/charts.js`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

from ..files.metrics_file import as_number
from ..sweeps.points import format_value

__all__ = ["COLOURS", "SMOOTHING", "Axis", "curve", "line_classes", "scatter", "scatters", "ticks"]

WIDTH = 460
HEIGHT = 220
LEFT = 56
RIGHT = 16
TOP = 16
BOTTOM = 26
"""Margins for labels."""
MAX_PLOTTED = 1e300
"""Larger numbers are not drawn, since differences of them may overflow."""
LOG_RATIO = 20
"""Ratio of the largest to the smallest value from which an axis is logarithmic."""
SWEPT_RATIO = 8
"""The same for the values of a sweep, which are few and often geometric."""
MAX_POINTS = 400
"""Points drawn of a line; of more, the minimum and maximum of each interval."""
COLOURS = 10
SMOOTHED = 20
"""Number of points from which a line is also drawn smoothed."""
SMOOTHING = 0.6
"""Weight of the past in the exponential moving average; the page has a slider for it."""
FEW = 3
"""Number of lines up to which raw points are drawn behind smoothed ones."""
MAX_CATEGORIES = 8
LETTER = 6
"""Width of a letter."""

Points = Sequence[tuple[int, float]]


class Axis:
    """A linear axis from coordinate `start` to `end`, or a logarithmic one for values above a `ratio`.

    If the values are `steps`, it is linear and has no margins.
    """

    def __init__(
        self,
        low: float,
        high: float,
        start: float,
        end: float,
        *,
        steps: bool = False,
        ratio: float = LOG_RATIO,
    ) -> None:
        self.start = start
        self.end = end
        self.log = not steps and low > 0 and high / low >= ratio
        self.low, self.high = (
            (math.log10(low), math.log10(high)) if self.log else (low, max(high, low + steps))
        )
        margin = 0.0 if steps else 0.04 * (self.high - self.low) or 0.05 * abs(self.high) or 1.0
        self.low = self.low - margin
        self.high = self.high + margin

    def __call__(self, value: float) -> float:
        if self.log:
            value = math.log10(value) if value > 0 else self.low
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)

    @property
    def data(self) -> str:
        """The axis as `charts.js` reads it."""
        return f"{self.start} {self.end} {self.low!r} {self.high!r} {int(self.log)}"

    def labels(self) -> list[tuple[float, str]]:
        """Return the coordinates and texts of labels."""
        values = ticks(self.low, self.high, 5)
        if self.log:
            decades = range(math.floor(self.low), math.ceil(self.high) + 1)
            factors = (1, 2, 5) if self.high - self.low < 2.5 else (1,)
            values = [factor * 10.0**decade for decade in decades for factor in factors]
            values = [value for value in values if self.low <= math.log10(value) <= self.high]
        return [(self(value), f"{value:,.10g}") for value in values]


def ticks(low: float, high: float, count: int) -> list[float]:
    """Return about `count` round numbers from low to high."""
    if not high > low:
        return [low]
    rough = (high - low) / count
    size = 10.0 ** math.floor(math.log10(rough))
    size *= next(factor for factor in (1, 2, 2.5, 5, 10) if factor * size >= rough)
    return [
        float(f"{size * n:.12g}") + 0.0
        for n in range(math.ceil(low / size), math.floor(high / size) + 1)
    ]


def _frame(y: Axis, labels: Sequence[tuple[float, str]], name: str) -> Iterator[str]:
    """Yield horizontal grid lines with labels, labels below the chart, and the name of the horizontal axis."""
    for place, text in y.labels():
        yield f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{place:.1f}" y2="{place:.1f}"/>'
        yield f'<text class="y" x="{LEFT - 6}" y="{place + 3.5:.1f}">{text}</text>'
    if y.log:
        yield f'<text class="y axis" x="{LEFT - 6}" y="9">log</text>'
    below = HEIGHT - BOTTOM + 16
    for place, text in labels:
        inside = min(place, WIDTH - 3.2 * len(text))
        yield f'<text class="x" x="{inside:.1f}" y="{below}">{escape(text)}</text>'
    yield f'<text class="y axis" x="{LEFT - 20}" y="{below}">{name}</text>'


def _svg(label: str, parts: Sequence[str], attributes: str = "") -> str:
    label = escape(label, quote=True)
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}"{attributes}>{"".join(parts)}</svg>'


def line_classes(index: int) -> str:
    """Return the CSS classes of line `index`: its number, colour and dash pattern."""
    return f"s{index} c{index % COLOURS} d{index // COLOURS % 3}"


def curve(
    series: Mapping[str, Points],
    *,
    baselines: Mapping[str, float] | None = None,
    intervals: Mapping[str, Points] | None = None,
) -> str:
    """Return an <svg> element with lines over steps, or an empty text if nothing can be drawn.

    NaN, inf and huge values are gaps. Baselines are omitted where they would squeeze the lines;
    `intervals` are (step, half-width of the interval around a line), drawn for a single line only.
    """
    finite = {
        name: [p for p in points if abs(p[1]) < MAX_PLOTTED] for name, points in series.items()
    }
    few = sum(map(bool, finite.values())) <= FEW
    halves = {
        name: dict((intervals or {}).get(name, ())) if len(finite) == 1 else {} for name in finite
    }
    values = [v for points in finite.values() for _, v in points]
    if not values:
        return ""
    bounds = [
        v + sign * halves[name].get(step, 0)
        for name, p in finite.items()
        for step, v in p
        for sign in (-1, 1)
    ]
    values += [v for v in bounds if math.isfinite(v)]
    low = min(values)
    high = max(values)
    span = (high - low) or abs(high) or 1.0
    levels = {name: v for name, v in (baselines or {}).items() if low - span <= v <= high + span}
    steps = [step for points in finite.values() for step, _ in points]
    x = Axis(min(steps), max(steps), LEFT, WIDTH - RIGHT, steps=True)
    y = Axis(min([low, *levels.values()]), max([high, *levels.values()]), HEIGHT - BOTTOM, TOP)
    labels = [(place, text) for place, text in x.labels() if "." not in text]
    lines, texts = _levels(levels, y)
    for index, (name, points) in enumerate(finite.items()):
        band = _band(points, halves[name], x, y)
        line = _line(name, points, x, y, len(finite), few) if points else ""
        lines.append(f'<g class="{line_classes(index)}">{band}{line}</g>')
    width = WIDTH - RIGHT - LEFT
    height = HEIGHT - BOTTOM - TOP
    box = f'x="{LEFT}" y="{TOP}" width="{width}" height="{height}" viewBox="{LEFT} {TOP} {width} {height}"'
    frame = f'<g class="frame">{"".join(_frame(y, labels, "step"))}</g>'
    plot = f'<svg {box} preserveAspectRatio="none">{"".join(lines)}</svg>'
    return _svg(
        ", ".join(series),
        [frame, plot, *texts],
        f' class="smoothed" data-x="{x.data}" data-y="{y.data}"',
    )


def _line(
    name: str,
    points: Points,
    x: Axis,
    y: Axis,
    lines: int,
    few: bool,
) -> str:
    """Return a line, its exponential moving average if it is long, and dots with tooltips if there is room for them."""

    def path(line: Points) -> str:
        return " ".join(f"{x(step):.1f},{y(value):.1f}" for step, value in line)

    def polyline(line: Points, attributes: str = "") -> str:
        return f'<polyline{attributes} points="{path(line)}">{title(*points[-1])}</polyline>'

    def title(step: int, value: float) -> str:
        return f"<title>{escape(name)}: {value:.6g} at step {step}</title>"

    if len(points) > SMOOTHED:
        means = _interval_means(points)
        raw = polyline(_downsampled(points), f' class="raw{"" if few else " many"}"')
        return raw + polyline(_smoothed(means), f' class="smooth" data-points="{path(means)}"')
    radius = 0 if lines > COLOURS else 2.5
    dots = "".join(
        f'<path d="M{x(step):.1f},{y(value):.1f}h0">{title(step, value)}</path>'
        for step, value in (points if radius else ())
    )
    return polyline(_downsampled(points)) + dots


def _band(
    points: Points,
    halves: Mapping[int, float],
    x: Axis,
    y: Axis,
) -> str:
    """Return the area of the intervals, clipped to the chart."""
    known = [
        (step, value, halves[step])
        for step, value in points
        if math.isfinite(halves.get(step, math.nan))
    ]
    if len(known) < 2:
        return ""
    upper, lower = (
        [(step, value + sign * half) for step, value, half in known] for sign in (1, -1)
    )
    edge = ((x(s), min(max(y(v), TOP), HEIGHT - BOTTOM)) for s, v in [*upper, *reversed(lower)])
    return f'<polygon points="{" ".join(f"{a:.1f},{b:.1f}" for a, b in edge)}"/>'


def _levels(levels: Mapping[str, float], y: Axis) -> tuple[list[str], list[str]]:
    """Return horizontal lines, and labels that do not overlap; lines of equal height share one."""
    names: dict[str, list[str]] = {}
    for name, value in levels.items():
        names.setdefault(f"{value:.4g}", []).append(name)
    baseline = 0.0
    lines = list[str]()
    labels = list[str]()
    for height, text in sorted(
        (y(levels[same[0]]), f"{', '.join(same)} {text}") for text, same in names.items()
    ):
        ends = f'x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{height:.1f}" y2="{height:.1f}"'
        lines.append(f'<line class="level" {ends}><title>{escape(text)}</title></line>')
        baseline = max(height - 3, baseline + 11)
        labels.append(
            f'<text class="level" x="{WIDTH - RIGHT}" y="{baseline:.1f}">{escape(text)}</text>'
        )
    return lines, labels


def _smoothed(points: Points) -> Points:
    """Return the exponential moving average without bias."""
    mean = 0.0
    weight = 0.0
    smoothed = []
    for step, value in points:
        mean = SMOOTHING * mean + (1 - SMOOTHING) * value
        weight = SMOOTHING * weight + 1 - SMOOTHING
        smoothed.append((step, mean / weight))
    return smoothed


def _interval_means(points: Points) -> Points:
    """Return the means of intervals of equal size, few enough to be plotted."""
    size = math.ceil(len(points) / MAX_POINTS)
    parts = [points[start : start + size] for start in range(0, len(points), size)]
    return [(part[-1][0], sum(value for _, value in part) / len(part)) for part in parts]


def _downsampled(points: Points) -> Points:
    """Keep the minimum and maximum of each interval, so that no spike is lost."""
    if len(points) <= MAX_POINTS:
        return points
    size = math.ceil(len(points) / (MAX_POINTS / 2))
    kept: list[tuple[int, float]] = []
    for start in range(0, len(points), size):
        part = points[start : start + size]
        kept += sorted({min(part, key=lambda p: p[1]), max(part, key=lambda p: p[1])})
    return [*kept, points[-1]] if kept[-1] != points[-1] else kept


def scatters(
    rows: Sequence[dict[str, Any]], keys: Sequence[str], metric: str
) -> list[tuple[str, str]]:
    """Return (key, SVG) for every swept key with more than one value among the points that have the metric."""
    measured = [row for row in rows if _plottable(row["figures"].get(metric))]
    drawn = []
    for key in keys:
        dots = [
            (row["values"][key], row["figures"][metric], row["name"])
            for row in measured
            if key in row["values"]
        ]
        if len({format_value(value) for value, _, _ in dots}) > 1:
            drawn.append((key, scatter(dots, f"{metric} over {key}")))
    return [(key, svg) for key, svg in drawn if svg]


def scatter(dots: Sequence[tuple[Any, float, str]], label: str) -> str:
    """Return an <svg> of (value, metric, name of a point); values that are not numbers are categories."""
    values = [value for value, _, _ in dots]
    metrics = [metric for _, metric, _ in dots]
    y = Axis(min(metrics), max(metrics), HEIGHT - BOTTOM, TOP)
    if all(map(_plottable, values)):
        x = Axis(min(values), max(values), LEFT, WIDTH - RIGHT, ratio=SWEPT_RATIO)
        places = {format_value(value): x(value) for value in values}
        labels = x.labels()
        axis = "log" * x.log
    else:
        names = sorted({format_value(value) for value in values})
        if len(names) > MAX_CATEGORIES:
            return ""
        room = (WIDTH - LEFT - RIGHT) / len(names)
        places = {name: LEFT + room * (index + 0.5) for index, name in enumerate(names)}
        labels = [(place, name[: int(room / LETTER)]) for name, place in places.items()]
        axis = ""
    parts = [*_frame(y, labels, axis)]
    for value, metric, name in dots:
        where = f'cx="{places[format_value(value)]:.1f}" cy="{y(metric):.1f}" r="3.5"'
        parts.append(
            f'<circle class="dot" {where}><title>{escape(f"{name}: {metric:.6g}")}</title></circle>'
        )
    return _svg(label, parts)


def _plottable(value: Any) -> bool:
    number = as_number(value)
    return number is not None and abs(number) < MAX_PLOTTED
