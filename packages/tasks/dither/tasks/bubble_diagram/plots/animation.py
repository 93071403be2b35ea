"""The way of samples from noise to diagrams: an animated SVG without a script, a GIF, and a strip of stages.

Rooms stand throughout where they stand in the finished diagram. Grey rooms are masked, and pale lines are pairs of
rooms of which nothing is known yet. Letters: T states, K samples, L tokens (R room slots, then the pairs of slots).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from math import isqrt
from typing import Final

import numpy as np
from jaxtyping import Int

from ..geometry.placement import Placement
from ..relations import edges_of
from ..vocabulary import COLOURS, NO_EDGE, NODE_MASK, SHORT, pair_index, pairs
from .diagram import BROKEN, INK, PALE, Scene, label_shapes
from .labels import Label
from .svg import Line, Page, Rectangle, Shape, Text, elements, svg_head, text_width

__all__ = ["Film", "film_of", "film_strip", "to_animated_svg"]

MOST_FRAMES: Final = 60
"""Frames of a film; of longer ways some states are left out."""

_SECONDS, _LAST = 0.22, 3.0
"""How long a frame is shown, and the last."""

_STAGES: Final = 6
_GREY, _UNKNOWN, _LINK = "#c9ced6", "#dfe2e7", "#4a515c"

Slot = tuple[Shape, ...]
"""What a frame shows at one place in the order of drawing; the next slot is drawn upon it."""


@dataclass(frozen=True)
class Film:
    """Frames of one size.

    Attributes:
        width: Of a frame.
        height: Of a frame.
        frames: Slots of each; all frames have the same slots.
        seconds: How long each is shown.
    """

    width: float
    height: float
    frames: tuple[tuple[Slot, ...], ...]
    seconds: tuple[float, ...]

    def pages(self) -> list[Page]:
        """Return the frames as pages."""
        return [
            Page(self.width, self.height, tuple(shape for slot in frame for shape in slot)) for frame in self.frames
        ]


def film_of(path: Int[np.ndarray, "T K L"], arrangements: Sequence[Placement], *, size: float = 260.0) -> Film:
    """Return the way of K samples beside each other.

    Args:
        path: Every state, the finished samples last. States in which nothing changes are left out.
        arrangements: Of the finished samples.
        size: Of the picture of each sample.
    """
    states = _thinned(path, MOST_FRAMES)
    columns = max(1, round(len(arrangements) ** 0.5))
    places = [divmod(place, columns) for place in range(len(arrangements))]
    actors = [
        _Actor(arrangement, column * size, row * size, size)
        for (row, column), arrangement in zip(places, arrangements, strict=True)
    ]
    frames = tuple(
        tuple(slot for actor, tokens in zip(actors, state, strict=True) for slot in actor.slots(tokens))
        for state in states
    )
    rows = max((row for row, _ in places), default=-1) + 1
    return Film(columns * size, rows * size, frames, (*[_SECONDS] * (len(frames) - 1), _LAST))


def film_strip(path: Int[np.ndarray, "T K L"], arrangements: Sequence[Placement], *, size: float = 190.0) -> Page:
    """Return a page with a row of stages for each sample."""
    shapes: list[Shape] = []
    for row, arrangement in enumerate(arrangements):
        for column, state in enumerate(_thinned(path[:, [row]], _STAGES)):
            actor = _Actor(arrangement, column * size, row * size, size)
            shapes += [shape for slot in actor.slots(state[0]) for shape in slot]
    return Page(_STAGES * size, len(arrangements) * size, tuple(shapes))


def _thinned(path: Int[np.ndarray, "T K L"], most: int) -> Int[np.ndarray, "t K L"]:
    """Return the states in which something changes, at most so many, the first and the last among them."""
    new = np.ones(len(path), bool)
    new[1:] = (path[1:] != path[:-1]).any((1, 2))
    path = path[new]
    return path if len(path) <= most else path[np.round(np.linspace(0, len(path) - 1, most)).astype(int)]


class _Actor:
    """One sample in a film: its stage, and what it shows of a state.

    Args:
        arrangement: Of the finished sample.
        x: Left side of its part of a frame.
        y: Upper side of its part of a frame.
        size: Of its part of a frame.
    """

    def __init__(self, arrangement: Placement, x: float, y: float, size: float) -> None:
        self.diagram, self.corner, self.size = arrangement.diagram, (x, y), size
        self.scene = Scene(arrangement, x + 8, y + 8, size - 16, size - 34)
        self.scene.write()
        rooms = len(self.diagram.types)
        self.pairs = pairs(rooms)
        self.drawn = edges_of(arrangement.boxes).tolist()

    def slots(self, tokens: Int[np.ndarray, " L"]) -> list[Slot]:
        """Return what is shown of a state: rooms, lines, names, and how much is known."""
        count, slots = len(self.diagram.types), _slots(len(tokens))
        types = tokens[:count].tolist()
        edges = [int(tokens[slots + pair_index(i, j, slots)]) for i, j in self.pairs]
        shown = [self._room(room, types[room]) for room in self.scene.order]
        shown += [self._line(place, edge) for place, edge in enumerate(edges)]
        shown += [self._name(room, types[room]) for room in range(count)]
        known = sum(kind < NODE_MASK for kind in types) + sum(edge <= NO_EDGE for edge in edges)
        return [*shown, self._progress(known, len(types) + len(edges))]

    def _room(self, room: int, kind: int) -> Slot:
        x0, y0, x1, y1 = self.scene.boxes[room].tolist()
        colour, line = (COLOURS[kind], INK) if kind < NODE_MASK else (_GREY, PALE)
        return (Rectangle(x0, y0, x1 - x0, y1 - y0, min(7.0, (x1 - x0) / 4, (y1 - y0) / 4), colour, line, 1.3),)

    def _line(self, place: int, edge: int) -> Slot:
        if edge == NO_EDGE:
            return ()
        ends = (*self.scene.anchor(self.pairs[place][0]), *self.scene.anchor(self.pairs[place][1]))
        if edge > NO_EDGE:
            return (Line(*ends, _UNKNOWN, 0.8),)
        holds = self.drawn[place] == edge
        return (Line(*ends, _LINK if holds else BROKEN, 1.2, dashed=not holds),)

    def _name(self, room: int, kind: int) -> Slot:
        label = self.scene.labels[room]
        if kind == self.diagram.types[room]:
            return tuple(label_shapes(label))
        return tuple(label_shapes(_fitted(label, SHORT[kind] if kind < NODE_MASK else "?")))

    def _progress(self, known: int, total: int) -> Slot:
        x, y, long = self.corner[0] + 14, self.corner[1] + self.size - 13, self.size - 110
        done = Rectangle(x, y - 2.5, long * known / total, 5, 2.5, PALE, PALE, 0.0)
        words = Text(x + long + 8, y, f"{known} of {total} known", 9.0, PALE, left=True)
        return (Rectangle(x, y - 2.5, long, 5, 2.5, _UNKNOWN, _UNKNOWN, 0.0), done, words)


def _slots(tokens: int) -> int:
    """Return the number of room slots of samples of so many tokens."""
    return (isqrt(8 * tokens + 1) - 1) // 2


def _fitted(label: Label, words: str) -> Label:
    """Put other words on a label, smaller where they would be longer."""
    longest = max(text_width(line, label.size) for line in label.lines)
    size = label.size * min(1.0, longest / text_width(words, label.size))
    return replace(label, lines=(words,), size=size)


def to_animated_svg(film: Film) -> str:
    """Return a film as SVG that moves by itself (SMIL) and starts again; where nothing moves, the end is shown."""
    starts = np.concatenate([[0.0], np.cumsum(film.seconds)[:-1]]) / sum(film.seconds)
    written = [svg_head(film.width, film.height)]
    for slot in zip(*film.frames, strict=True):
        written += _slot_elements(slot, starts.tolist(), sum(film.seconds))
    return "\n".join([*written, "</svg>", ""])


def _slot_elements(slot: Sequence[Slot], starts: Sequence[float], seconds: float) -> list[str]:
    """Return each thing that a slot shows once, with the times at which it is seen."""
    written = []
    for look in dict.fromkeys(look for look in slot if look):
        seen = [one == look for one in slot]
        if all(seen):
            written += elements(look)
            continue
        turns = [next(group) for _, group in groupby(range(len(seen)), key=seen.__getitem__)]
        values = ";".join("visible" if seen[turn] else "hidden" for turn in turns)
        times = ";".join(f"{starts[turn]:.5g}" for turn in turns)
        timing = f'dur="{seconds:g}s" repeatCount="indefinite" calcMode="discrete"'
        written.append(f'<g visibility="{"visible" if seen[-1] else "hidden"}">')
        written.append(f'<animate attributeName="visibility" {timing} values="{values}" keyTimes="{times}"/>')
        written += [*elements(look), "</g>"]
    return written
