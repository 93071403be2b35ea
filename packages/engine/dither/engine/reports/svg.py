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

__all__ = [
    "COLOURS",
    "SMOOTHING",
    "Axis",
    "curve",
    "forest",
    "line_classes",
    "scatter",
    "scatters",
    "ticks",
]

# Size of a chart, and margins for labels.
WIDTH = 460
HEIGHT = 220
LEFT = 56
RIGHT = 16
TOP = 16
BOTTOM = 26
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
LINE = 11
"""Height of a line of text."""
ROW = 28
"""Height of an arm in a forest plot."""
GAP = 6
"""Least space between two labels of an axis."""

Points = Sequence[tuple[int, float]]


class Axis:
    """A linear axis from coordinate `start` to `end`, or a logarithmic one above a `ratio` of values.

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
        if steps:
            # One step alone would be an axis without length.
            self.low = low
            self.high = max(high, low + 1)
            return
        if self.log:
            low = math.log10(low)
            high = math.log10(high)
        # All values may be equal, or 0.
        margin = 0.04 * (high - low) or 0.05 * abs(high) or 1.0
        self.low = low - margin
        self.high = high + margin

    def __call__(self, value: float) -> float:
        if self.log:
            # Only positive values have a logarithm; others are drawn at the end of the axis.
            value = math.log10(value) if value > 0 else self.low
        share = (value - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)

    @property
    def data(self) -> str:
        """The axis as `charts.js` reads it."""
        return f"{self.start} {self.end} {self.low!r} {self.high!r} {int(self.log)}"

    def labels(self) -> list[tuple[float, str]]:
        """Return the coordinates and texts of labels."""
        values = self._decades() if self.log else ticks(self.low, self.high, 5)
        return [(self(value), f"{value:,.10g}") for value in values]

    def _decades(self) -> list[float]:
        """Return powers of ten, with 2 and 5 between them where there is room."""
        # Of more than two and a half decades, the powers of ten are labels enough.
        factors = (1, 2, 5) if self.high - self.low < 2.5 else (1,)
        values = []
        for decade in range(math.floor(self.low), math.ceil(self.high) + 1):
            for factor in factors:
                value = factor * 10.0**decade
                if self.low <= math.log10(value) <= self.high:
                    values.append(value)
        return values


def ticks(low: float, high: float, count: int) -> list[float]:
    """Return about `count` round numbers from low to high."""
    if not high > low:
        return [low]
    rough = (high - low) / count
    size = 10.0 ** math.floor(math.log10(rough))
    # The smallest round factor that gives no more than `count` steps.
    size *= next(factor for factor in (1, 2, 2.5, 5, 10) if factor * size >= rough)
    multiples = range(math.ceil(low / size), math.floor(high / size) + 1)
    # Rounded, and without a negative zero.
    return [float(f"{size * n:.12g}") + 0.0 for n in multiples]


def line_classes(index: int) -> str:
    """Return the CSS classes of line `index`: its number, colour and dash pattern."""
    return f"s{index} c{index % COLOURS} d{index // COLOURS % 3}"


def curve(
    series: Mapping[str, Points],
    *,
    baselines: Mapping[str, float] | None = None,
    intervals: Mapping[str, Points] | None = None,
    bands: bool = False,
) -> str:
    """Return an <svg> element with lines over steps, or an empty text if nothing can be drawn.

    NaN, inf and huge values are gaps. Baselines are omitted where they would squeeze the lines;
    `intervals` are (step, half-width of the interval around a line), drawn for a single line only,
    unless `bands`.
    """
    lines: dict[str, Points] = {}
    for name, points in series.items():
        lines[name] = [
            (step, value) for step, value in points if abs(value) < MAX_PLOTTED
        ]
    # Bands of many lines would cover each other.
    halves: dict[str, dict[int, float]] = {name: {} for name in lines}
    if intervals and (bands or len(lines) == 1):
        halves |= {name: dict(intervals.get(name, ())) for name in lines}

    steps = []
    values = []
    for name, points in lines.items():
        for step, value in points:
            steps.append(step)
            values.append(value)
            half = halves[name].get(step, 0.0)
            ends = (value - half, value + half)
            values += filter(math.isfinite, ends)
    if not values:
        return ""

    low = min(values)
    high = max(values)
    levels = _within_view(baselines or {}, low, high)
    x = Axis(min(steps), max(steps), LEFT, WIDTH - RIGHT, steps=True)
    y = Axis(
        min([low, *levels.values()]),
        max([high, *levels.values()]),
        HEIGHT - BOTTOM,
        TOP,
    )

    plotted, texts = _levels(levels, y)
    # Many raw lines would hide the smoothed ones.
    raw = "raw" if sum(map(bool, lines.values())) <= FEW else "raw many"
    for index, (name, points) in enumerate(lines.items()):
        line = _band(points, halves[name], x, y)
        if len(points) > SMOOTHED:
            line += _smoothed_line(name, points, x, y, raw)
        elif points:
            line += _dotted_line(name, points, x, y, dots=len(lines) <= COLOURS)
        plotted.append(f'<g class="{line_classes(index)}">{line}</g>')

    # Steps are integers.
    labels = [(place, text) for place, text in x.labels() if "." not in text]
    frame = f'<g class="frame">{"".join(_frame(y, labels, "step"))}</g>'
    width = WIDTH - RIGHT - LEFT
    height = HEIGHT - BOTTOM - TOP
    # An inner element clips the lines where the page zooms.
    box = f'x="{LEFT}" y="{TOP}" width="{width}" height="{height}"'
    # The zoom of the page stretches both axes.
    box += f' viewBox="{LEFT} {TOP} {width} {height}" preserveAspectRatio="none"'
    plot = f"<svg {box}>{''.join(plotted)}</svg>"
    axes = f' class="smoothed" data-x="{x.data}" data-y="{y.data}"'
    return _svg(", ".join(series), [frame, plot, *texts], axes)


def _within_view(
    baselines: Mapping[str, float], low: float, high: float
) -> dict[str, float]:
    # A baseline further away than the lines are high would flatten them.
    span = (high - low) or abs(high) or 1.0
    return {
        name: value
        for name, value in baselines.items()
        if low - span <= value <= high + span
    }


def _svg(label: str, parts: Sequence[str], attributes: str = "", more: int = 0) -> str:
    """Return the picture; `more` is the height of further lines of labels."""
    box = f'viewBox="0 0 {WIDTH} {HEIGHT + more}" role="img"'
    label = escape(label, quote=True)
    return f'<svg {box} aria-label="{label}"{attributes}>{"".join(parts)}</svg>'


def _frame(y: Axis, labels: Sequence[tuple[float, str]], name: str) -> Iterator[str]:
    """Yield horizontal grid lines, the labels of both axes, and the name of the horizontal one."""
    for place, text in y.labels():
        ends = f'x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{place:.1f}" y2="{place:.1f}"'
        yield f'<line class="grid" {ends}/>'
        # A long number is condensed: its end would be outside of the picture.
        room = LEFT - 8
        fit = ""
        if len(text) * LETTER > room:
            fit = f' textLength="{room}" lengthAdjust="spacingAndGlyphs"'
        yield f'<text class="y" x="{LEFT - 6}" y="{place + 3.5:.1f}"{fit}>{text}</text>'
    if y.log:
        yield f'<text class="y axis" x="{LEFT - 6}" y="9">log</text>'
    below = HEIGHT - BOTTOM + 16
    for place, line, text in _arranged(labels):
        whole = text
        if len(text) * LETTER > WIDTH:
            whole = text[: WIDTH // LETTER - 1] + "\N{HORIZONTAL ELLIPSIS}"
        title = "" if whole == text else f"<title>{escape(text)}</title>"
        at = f'x="{place:.1f}" y="{below + line * LINE}"'
        yield f'<text class="x" {at}>{escape(whole)}{title}</text>'
    yield f'<text class="y axis" x="{LEFT - 20}" y="{below}">{name}</text>'


def _arranged(
    labels: Sequence[tuple[float, str]],
) -> Iterator[tuple[float, int, str]]:
    """Yield the centre, line and text of labels below an axis, on as many lines as keep them apart."""
    ends: list[float] = []
    for place, text in labels:
        half = min(len(text) * LETTER, WIDTH) / 2
        centre = min(max(place, half), WIDTH - half)
        line = 0
        while line < len(ends) and centre - half < ends[line] + GAP:
            line += 1
        if line == len(ends):
            ends.append(0.0)
        ends[line] = centre + half
        yield centre, line, text


def _levels(levels: Mapping[str, float], y: Axis) -> tuple[list[str], list[str]]:
    """Return horizontal lines, and labels that do not overlap; lines of equal height share one."""
    names: dict[str, list[str]] = {}
    for name, value in levels.items():
        names.setdefault(f"{value:.4g}", []).append(name)
    heights = []
    for text, equal in names.items():
        heights.append((y(levels[equal[0]]), equal, text))
    heights.sort()

    lines = []
    labels = []
    places = _apart([height - 3 for height, _, _ in heights])
    for (height, equal, text), place in zip(heights, places, strict=True):
        title = f"<title>{escape(', '.join(equal))} {text}</title>"
        ends = f'x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{height:.1f}" y2="{height:.1f}"'
        lines.append(f'<line class="level" {ends}>{title}</line>')
        if place is not None:
            label = f"{_listed(equal)} {text}"
            at = f'x="{WIDTH - RIGHT}" y="{place:.1f}"'
            labels.append(f'<text class="level" {at}>{escape(label)}{title}</text>')
    return lines, labels


def _apart(heights: Sequence[float]) -> list[float | None]:
    """Return heights of lines of text that neither overlap nor leave the chart; None where no room is left."""
    top = TOP + LINE - 3
    count = min(len(heights), (HEIGHT - BOTTOM - top) // LINE + 1)
    places: list[float] = []
    for height in heights[:count]:
        lowest = places[-1] + LINE if places else top
        places.append(max(height, lowest))
    # Those that were pushed out at the bottom move the others up.
    limit = float(HEIGHT - BOTTOM - 2)
    for index in reversed(range(count)):
        places[index] = min(places[index], limit)
        limit = places[index] - LINE
    rest: list[float | None] = [None] * (len(heights) - count)
    return [*places, *rest]


def _listed(names: Sequence[str]) -> str:
    """Return as many names as fit into the chart, and the number of the others."""
    shown: list[str] = []
    room = (WIDTH - LEFT - RIGHT) // LETTER - 20
    for name in names:
        if shown and len(", ".join([*shown, name])) > room:
            return f"{', '.join(shown)} and {len(names) - len(shown)} more"
        shown.append(name)
    text = ", ".join(shown)
    return text if len(text) <= room else text[: room - 1] + "\N{HORIZONTAL ELLIPSIS}"


def _band(points: Points, halves: Mapping[int, float], x: Axis, y: Axis) -> str:
    """Return the area of the intervals, clipped to the chart."""
    upper = []
    lower = []
    for step, value in points:
        half = halves.get(step, math.nan)
        if math.isfinite(half):
            upper.append((step, value + half))
            lower.append((step, value - half))
    if len(upper) < 2:
        return ""
    corners = []
    for step, value in [*upper, *reversed(lower)]:
        height = min(max(y(value), TOP), HEIGHT - BOTTOM)
        corners.append(f"{x(step):.1f},{height:.1f}")
    return f'<polygon points="{" ".join(corners)}"/>'


def _smoothed_line(name: str, points: Points, x: Axis, y: Axis, raw: str) -> str:
    """Return a line as measured, and its exponential moving average."""
    title = _title(name, *points[-1])
    means = _interval_means(points)
    measured = _path(_downsampled(points), x, y)
    smooth = _path(_smoothed(means), x, y)
    # The page smooths the means again where its slider is moved.
    data = _path(means, x, y)
    return (
        f'<polyline class="{raw}" points="{measured}">{title}</polyline>'
        f'<polyline class="smooth" data-points="{data}" points="{smooth}">{title}</polyline>'
    )


def _dotted_line(name: str, points: Points, x: Axis, y: Axis, *, dots: bool) -> str:
    """Return a line, and dots with tooltips if there is room for them."""
    line = f'<polyline points="{_path(points, x, y)}">{_title(name, *points[-1])}</polyline>'
    if dots:
        for step, value in points:
            title = _title(name, step, value)
            line += f'<path d="M{x(step):.1f},{y(value):.1f}h0">{title}</path>'
    return line


def _path(points: Points, x: Axis, y: Axis) -> str:
    return " ".join(f"{x(step):.1f},{y(value):.1f}" for step, value in points)


def _title(name: str, step: int, value: float) -> str:
    return f"<title>{escape(name)}: {value:.6g} at step {step}</title>"


def _smoothed(points: Points) -> Points:
    """Return the exponential moving average without bias."""
    mean = 0.0
    weight = 0.0
    smoothed = []
    for step, value in points:
        mean = SMOOTHING * mean + (1 - SMOOTHING) * value
        # The sum of the weights so far, as in Adam's correction of the bias.
        weight = SMOOTHING * weight + 1 - SMOOTHING
        smoothed.append((step, mean / weight))
    return smoothed


def _interval_means(points: Points) -> Points:
    """Return the means of intervals of equal size, few enough to be plotted."""
    size = math.ceil(len(points) / MAX_POINTS)
    means = []
    for start in range(0, len(points), size):
        interval = points[start : start + size]
        means.append(
            (interval[-1][0], sum(value for _, value in interval) / len(interval))
        )
    return means


def _downsampled(points: Points) -> Points:
    """Keep the minimum and maximum of each interval, so that no spike is lost."""
    if len(points) <= MAX_POINTS:
        return points
    size = math.ceil(len(points) / (MAX_POINTS / 2))
    extremes: list[tuple[int, float]] = []
    for start in range(0, len(points), size):
        interval = points[start : start + size]
        low = min(interval, key=lambda point: point[1])
        high = max(interval, key=lambda point: point[1])
        # In the order of steps, and once if all values are equal.
        extremes += sorted({low, high})
    # The line ends where training did.
    if extremes[-1] != points[-1]:
        extremes.append(points[-1])
    return extremes


def scatters(
    rows: Sequence[dict[str, Any]], keys: Sequence[str], metric: str
) -> list[tuple[str, str]]:
    """Return key and SVG for every swept key with several values among points with the metric."""
    measured = [row for row in rows if _plottable(row["metrics"].get(metric))]
    charts = []
    for key in keys:
        dots = []
        for row in measured:
            if key in row["values"]:
                dots.append((row["values"][key], row["metrics"][metric], row["name"]))
        if len({format_value(value) for value, _, _ in dots}) > 1:
            charts.append((key, scatter(dots, f"{metric} over {key}")))
    return [(key, svg) for key, svg in charts if svg]


def scatter(dots: Sequence[tuple[Any, float, str]], label: str) -> str:
    """Return an <svg> of (value, metric, name of a point); other values than numbers are categories.

    It is an empty text if there are too many categories.
    """
    values = [value for value, _, _ in dots]
    metrics = [metric for _, metric, _ in dots]
    y = Axis(min(metrics), max(metrics), HEIGHT - BOTTOM, TOP)
    axis = ""
    if all(map(_plottable, values)):
        x = Axis(min(values), max(values), LEFT, WIDTH - RIGHT, ratio=SWEPT_RATIO)
        places = {format_value(value): x(value) for value in values}
        labels = x.labels()
        if x.log:
            axis = "log"
    else:
        names = sorted({format_value(value) for value in values})
        if len(names) > MAX_CATEGORIES:
            return ""
        room = (WIDTH - LEFT - RIGHT) / len(names)
        places = {name: LEFT + room * (index + 0.5) for index, name in enumerate(names)}
        labels = [(place, name) for name, place in places.items()]

    parts = list(_frame(y, labels, axis))
    for value, metric, name in dots:
        where = f'cx="{places[format_value(value)]:.1f}" cy="{y(metric):.1f}" r="3.5"'
        title = escape(f"{name}: {metric:.6g}")
        parts.append(f'<circle class="dot" {where}><title>{title}</title></circle>')
    lines = max((line for _, line, _ in _arranged(labels)), default=0)
    return _svg(label, parts, more=lines * LINE)


def forest(rows: Sequence[tuple[str, float, float, float]], label: str) -> str:
    """Return an <svg> of (name, difference, low, high) of each arm, and a line at 0; empty without rows."""
    rows = [row for row in rows if all(map(_plottable, row[1:]))]
    rows = [row for row in rows if all(map(math.isfinite, row[1:]))]
    if not rows:
        return ""
    ends = [0.0]
    for _, _, low, high in rows:
        ends += (low, high)
    x = Axis(min(ends), max(ends), RIGHT, WIDTH - RIGHT, ratio=math.inf)
    bottom = TOP + ROW * len(rows)

    parts = []
    for place, text in x.labels():
        line = f'x1="{place:.1f}" x2="{place:.1f}" y1="{TOP}" y2="{bottom}"'
        parts.append(f'<line class="grid" {line}/>')
        at = f'x="{place:.1f}" y="{bottom + 14}"'
        parts.append(f'<text class="x" {at}>{text}</text>')
    zero = f'x1="{x(0):.1f}" x2="{x(0):.1f}" y1="{TOP}" y2="{bottom}"'
    parts.append(f'<line class="level" {zero}/>')

    for index, (name, difference, low, high) in enumerate(rows):
        # The name is above its interval, which may be anywhere.
        top = TOP + ROW * index
        title = f"<title>{escape(name)}: {difference:+.4g}, {low:+.4g} to {high:+.4g}</title>"
        middle = top + ROW - 8
        parts.append(f'<text x="{RIGHT}" y="{top + 10}">{escape(name)}</text>')
        line = f"{x(low):.1f},{middle} {x(high):.1f},{middle}"
        dot = f'cx="{x(difference):.1f}" cy="{middle}" r="4"'
        parts.append(
            f'<g class="{line_classes(0)}"><polyline points="{line}">{title}</polyline>'
            f"<circle {dot}>{title}</circle></g>"
        )
    return _svg(label, parts, more=bottom + BOTTOM - HEIGHT)


def _plottable(value: Any) -> bool:
    number = as_number(value)
    return number is not None and abs(number) < MAX_PLOTTED
