"""Sampling trajectories as an animated SVG without scripts, as frames for a GIF, and as a strip of stages.

Rooms are drawn at their boxes in the finished diagram. Grey rooms are masked; pale lines are undecided pairs.
Letters: T states, K samples, L tokens (R room slots, then the pairs of slots).
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
from .diagram import BROKEN, INK, LINK, PALE, Scene, draw_room, label_shapes
from .labels import Label
from .svg import Line, Page, Rectangle, Shape, Text, elements, svg_head, text_width

__all__ = ["MAX_FRAMES", "Animation", "animate", "draw_stages", "to_animated_svg"]

MAX_FRAMES: Final = 60
"""Frames of an animation; longer trajectories are subsampled."""

_SECONDS, _LAST = 0.22, 3.0
"""Duration of a frame, and of the last one."""

_STAGES: Final = 6
_GREY, _UNDECIDED = "#c9ced6", "#dfe2e7"

Layer = tuple[Shape, ...]
"""Shapes of a frame at one position of the drawing order."""


@dataclass(frozen=True)
class Animation:
    """Frames of one size, each a list of the same number of layers, and their durations."""

    width: float
    height: float
    frames: tuple[tuple[Layer, ...], ...]
    seconds: tuple[float, ...]

    def pages(self) -> list[Page]:
        """Return the frames as pages."""
        return [
            Page(self.width, self.height, tuple(shape for layer in frame for shape in layer)) for frame in self.frames
        ]


def animate(path: Int[np.ndarray, "T K L"], placements: Sequence[Placement], *, size: float = 260.0) -> Animation:
    """Return an animation of K samples side by side.

    Args:
        path: All states, the finished samples last. States without changes are skipped.
        placements: Placements of the finished samples.
        size: Side of the picture of one sample.
    """
    states = _subsample(path, MAX_FRAMES)
    columns = max(1, round(len(placements) ** 0.5))
    cells = [divmod(index, columns) for index in range(len(placements))]
    samples = [
        _SampleAnimation(placement, column * size, row * size, size)
        for (row, column), placement in zip(cells, placements, strict=True)
    ]
    frames = tuple(
        tuple(layer for sample, tokens in zip(samples, state, strict=True) for layer in sample.layers(tokens))
        for state in states
    )
    rows = max((row for row, _ in cells), default=-1) + 1
    return Animation(columns * size, rows * size, frames, (*[_SECONDS] * (len(frames) - 1), _LAST))


def draw_stages(path: Int[np.ndarray, "T K L"], placements: Sequence[Placement], *, size: float = 190.0) -> Page:
    """Return a page with a row of stages for each sample."""
    shapes: list[Shape] = []
    for row, placement in enumerate(placements):
        for column, state in enumerate(_subsample(path[:, [row]], _STAGES)):
            sample = _SampleAnimation(placement, column * size, row * size, size)
            shapes += [shape for layer in sample.layers(state[0]) for shape in layer]
    return Page(_STAGES * size, len(placements) * size, tuple(shapes))


def _subsample(path: Int[np.ndarray, "T K L"], most: int) -> Int[np.ndarray, "t K L"]:
    """Return at most `most` states that differ from the previous one, including the first and the last."""
    changed = np.ones(len(path), bool)
    changed[1:] = (path[1:] != path[:-1]).any((1, 2))
    path = path[changed]
    return path if len(path) <= most else path[np.round(np.linspace(0, len(path) - 1, most)).astype(int)]


class _SampleAnimation:
    """One sample in a square cell of an animation."""

    def __init__(self, placement: Placement, x: float, y: float, size: float) -> None:
        self.diagram, self.corner, self.size = placement.diagram, (x, y), size
        self.scene = Scene(placement, x + 8, y + 8, size - 16, size - 34)
        self.scene.label_rooms()
        self.pairs = pairs(len(self.diagram.types))
        self.shown_edges = edges_of(placement.boxes).tolist()

    def layers(self, tokens: Int[np.ndarray, " L"]) -> list[Layer]:
        """Return the shapes of a state: rooms, links, names, and progress."""
        count, slots = len(self.diagram.types), _slots(len(tokens))
        types = tokens[:count].tolist()
        edges = [int(tokens[slots + pair_index(i, j, slots)]) for i, j in self.pairs]
        layers = [self._room(room, types[room]) for room in self.scene.order]
        layers += [self._link(pair, edge) for pair, edge in enumerate(edges)]
        layers += [self._name(room, types[room]) for room in range(count)]
        known = sum(kind < NODE_MASK for kind in types) + sum(edge <= NO_EDGE for edge in edges)
        return [*layers, self._progress(known, len(types) + len(edges))]

    def _room(self, room: int, kind: int) -> Layer:
        fill, stroke = (COLOURS[kind], INK) if kind < NODE_MASK else (_GREY, PALE)
        return (draw_room(self.scene, room, fill, stroke, title=False),)

    def _link(self, pair: int, edge: int) -> Layer:
        if edge == NO_EDGE:
            return ()
        ends = (*self.scene.anchor(self.pairs[pair][0]), *self.scene.anchor(self.pairs[pair][1]))
        if edge > NO_EDGE:
            return (Line(*ends, _UNDECIDED, 0.8),)
        holds = self.shown_edges[pair] == edge
        return (Line(*ends, LINK if holds else BROKEN, 1.2, dashed=not holds),)

    def _name(self, room: int, kind: int) -> Layer:
        label = self.scene.labels[room]
        if kind == self.diagram.types[room]:
            return tuple(label_shapes(label))
        return tuple(label_shapes(_relabelled(label, SHORT[kind] if kind < NODE_MASK else "?")))

    def _progress(self, known: int, total: int) -> Layer:
        x, y, length = self.corner[0] + 14, self.corner[1] + self.size - 13, self.size - 110
        done = Rectangle(x, y - 2.5, length * known / total, 5, 2.5, PALE, PALE, 0.0)
        caption = Text(x + length + 8, y, f"{known} of {total} known", 9.0, PALE, left=True)
        return (Rectangle(x, y - 2.5, length, 5, 2.5, _UNDECIDED, _UNDECIDED, 0.0), done, caption)


def _slots(tokens: int) -> int:
    """Return the number of room slots of samples with `tokens` tokens."""
    return (isqrt(8 * tokens + 1) - 1) // 2


def _relabelled(label: Label, text: str) -> Label:
    """Replace the text of a label, in a smaller font if it is longer."""
    longest = max(text_width(line, label.size) for line in label.lines)
    size = label.size * min(1.0, longest / text_width(text, label.size))
    return replace(label, lines=(text,), size=size)


def to_animated_svg(animation: Animation) -> str:
    """Return an animation as a looping SVG (SMIL); viewers without animation show the last frame."""
    starts = np.concatenate([[0.0], np.cumsum(animation.seconds)[:-1]]) / sum(animation.seconds)
    lines = [svg_head(animation.width, animation.height)]
    for layer in zip(*animation.frames, strict=True):
        lines += _layer_elements(layer, starts.tolist(), sum(animation.seconds))
    return "\n".join([*lines, "</svg>", ""])


def _layer_elements(layers: Sequence[Layer], starts: Sequence[float], seconds: float) -> list[str]:
    """Return each distinct content of a layer once, with the times at which it is visible."""
    lines = []
    for content in dict.fromkeys(layer for layer in layers if layer):
        visible = [layer == content for layer in layers]
        if all(visible):
            lines += elements(content)
            continue
        changes = [next(group) for _, group in groupby(range(len(visible)), key=visible.__getitem__)]
        values = ";".join("visible" if visible[frame] else "hidden" for frame in changes)
        times = ";".join(f"{starts[frame]:.5g}" for frame in changes)
        timing = f'dur="{seconds:g}s" repeatCount="indefinite" calcMode="discrete"'
        lines.append(f'<g visibility="{"visible" if visible[-1] else "hidden"}">')
        lines.append(f'<animate attributeName="visibility" {timing} values="{values}" keyTimes="{times}"/>')
        lines += [*elements(content), "</g>"]
    return lines
