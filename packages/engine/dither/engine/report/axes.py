"""The axes of a curve: where a value stands, and which round numbers are written beside it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from html import escape

__all__ = ["BOTTOM", "HEIGHT", "LARGEST", "LEFT", "RIGHT", "TOP", "WIDTH", "Axis", "Frame", "below", "ticks", "written"]

WIDTH, HEIGHT = 460, 220
"""Of the drawing."""
LEFT, RIGHT, TOP, BOTTOM = 56, 16, 16, 26
"""Room around the lines for what is written."""
LARGEST = 1e300
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
        for value, text in zip(values, written(values), strict=True):
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
        yield from below([(self.x(step), text) for step, text in zip(steps, written(steps), strict=True)], "step")


def below(texts: Sequence[tuple[float, str]], name: str) -> Iterator[str]:
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


def written(values: list[float]) -> list[str]:
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
