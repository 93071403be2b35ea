"""Pictures of placed diagrams: rooms and links in a grid with a legend, and sketched floor plans.

Large rooms are drawn first. Labels do not overlap: each is on the visible part of its room in the
largest font that fits, or elsewhere with a line to the room. Relations that the boxes violate are
red.
Letters: R rooms, H and W cells of the label grid.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Final

import numpy as np
from jaxtyping import Bool, Float, Int

from ..geometry.floor_plan import DOOR_WIDTH, Door, Window, floor_plan, segment
from ..geometry.placement import Placement, room_names
from ..relations import METRES, NEAR
from ..vocabulary import COLOURS, LIVING, ROOMS
from . import svg

__all__ = [
    "BROKEN",
    "INK",
    "LINK",
    "PALE",
    "Scene",
    "draw_bubbles",
    "draw_floorplan",
    "draw_gallery",
    "draw_room",
]

INK = "#2b2f36"
PALE = "#6f7782"
BROKEN = "#c8443c"
LINK = "#4a515c"
"""Colours of names and walls, of captions, of violated relations, and of links."""

_SIZES: Final = (12.5, 11.5, 10.5, 9.5, 8.5, 7.5)
_MIN_RATIO = 24
_LINE = 1.3
_CELL = 2.0
_UPRIGHT = 1.3
"""Font sizes of names; smallest ratio of the width of the picture to them; line spacing in
multiples of them; side of a cell of the label grid; factor by which upright text must be larger to
be preferred."""

_WALL = "#3a3f47"
_OUTER = NEAR / 2
_REVEAL = 1.1
_TINT = 0.45
"""Colour of walls; their thickness around a room in pixels, so that gaps between neighbours are
filled; how far floors reach into them; share of the room colour in the floor colour."""


@dataclass(frozen=True)
class Label:
    """A label centred at (x, y), upright if rotated by 90 degrees. `spot` is the point it refers to, if elsewhere."""

    x: float
    y: float
    size: float
    lines: tuple[str, ...]
    upright: bool = False
    spot: tuple[float, float] | None = None

    @property
    def extent(self) -> tuple[float, float]:
        """Width and height, with padding."""
        long = max(svg.text_width(line, self.size) for line in self.lines) + 0.8 * self.size
        short = self.size * (_LINE * len(self.lines) + 0.3)
        return (short, long) if self.upright else (long, short)


class Scene:
    """A placed diagram scaled into a rectangle of a page: room boxes, rooms from bottom to top, and labels."""

    def __init__(
        self,
        placement: Placement,
        x: float,
        y: float,
        width: float,
        height: float,
        regions: Int[np.ndarray, "H W"] | None = None,
    ) -> None:
        self.placement = placement
        self.x = x
        self.y = y
        self.width = width
        boxes = placement.boxes
        size = np.array([width, height])
        extent = np.array([*boxes[:, 2:], *placement.outline]).max(0)
        self.scale = float((size / extent).min())
        margin = (size - extent * self.scale) / 2
        within = boxes * self.scale + np.tile(margin, 2)
        self.boxes: Float[np.ndarray, "R 4"] = within + np.array([x, y, x, y])
        self._origin = float(x + margin[0]), float(y + margin[1])
        self.order: list[int] = np.argsort(
            -(boxes[:, 2:] - boxes[:, :2]).prod(1), kind="stable"
        ).tolist()
        self.names = room_names(placement.diagram)
        self.labels: list[Label] = []
        self._visible: Int[np.ndarray, "H W"] = np.full(
            (int(height / _CELL), int(width / _CELL)), -1
        )
        self._taken: Bool[np.ndarray, "H W"] = np.zeros(self._visible.shape, bool)
        for room in self.order:
            x0, y0, x1, y1 = np.round(within[room] / _CELL).astype(int)
            self._visible[y0:y1, x0:x1] = room
        if regions is not None:  # rooms that are not rectangles
            rows, columns = (
                ((np.arange(n) + 0.5) * _CELL - m) / self.scale
                for n, m in zip(self._visible.shape, margin[::-1], strict=True)
            )
            inside = [(at >= 0) & (at < len(regions)) for at in (rows, columns)]
            self._visible[:] = -1
            self._visible[np.ix_(*inside)] = regions[
                np.ix_(rows[inside[0]].astype(int), columns[inside[1]].astype(int))
            ]

    def at(self, x: float, y: float) -> tuple[float, float]:
        """Return the point of the page at a point in box pixels."""
        return self._origin[0] + x * self.scale, self._origin[1] + y * self.scale

    def outline(self, corners: Iterable[tuple[float, float]]) -> str:
        """Return the path through corners in box pixels."""
        return (
            "M"
            + "L".join(f"{x:.1f},{y:.1f}" for x, y in (self.at(*corner) for corner in corners))
            + "Z"
        )

    def label_rooms(self, texts: Sequence[tuple[str, ...]] | None = None) -> list[Label]:
        """Place a label for each room, by default its name."""
        sizes = [size for size in _SIZES if size <= max(self.width / _MIN_RATIO, _SIZES[-1])]
        texts = texts or [(name,) for name in self.names]
        labels = [self._on_room(room, lines, sizes) for room, lines in enumerate(texts)]
        self.labels = [
            label or self._near_room(room, texts[room][:1]) for room, label in enumerate(labels)
        ]
        return self.labels

    def anchor(self, room: int) -> tuple[float, float]:
        """Return the end point of links to a room."""
        label = self.labels[room]
        return label.spot or (label.x, label.y)

    def _on_room(self, room: int, lines: tuple[str, ...], sizes: Sequence[float]) -> Label | None:
        """Return the largest label that fits on the visible part of its room."""
        rows, columns = np.nonzero(self._visible == room)
        if not len(rows):
            return None
        top = int(rows.min())
        left = int(columns.min())
        visible = self._visible[top : rows.max() + 1, left : columns.max() + 1] == room
        middle = (rows.mean() - top + 0.5, columns.mean() - left + 0.5)
        options = [(size, upright) for size in sizes for upright in (False, True)]
        for size, upright in sorted(
            options, key=lambda option: -option[0] / (_UPRIGHT if option[1] else 1.0)
        ):
            label = self._place(visible, Label(0, 0, size, lines, upright), middle, (top, left))
            if label is not None:
                return label
        return None

    def _near_room(self, room: int, lines: tuple[str, ...]) -> Label:
        """Return the label at the free cells nearest to its room, shrunk until it fits."""
        x0, y0, x1, y1 = self.boxes[room].tolist()
        spot = ((x0 + x1) / 2, (y0 + y1) / 2)
        cells = np.argwhere(self._visible == room)
        if len(cells):  # the line ends in the visible part of the room
            points = (cells[:, ::-1] + 0.5) * _CELL + np.array([self.x, self.y])
            x, y = points[np.square(points - np.array(spot)).sum(1).argmin()].tolist()
            spot = (x, y)
        label = Label(0, 0, _SIZES[-1], lines, spot=spot)
        while True:
            placed = self._place(
                ~self._taken, label, ((spot[1] - self.y) / _CELL, (spot[0] - self.x) / _CELL)
            )
            if placed is not None:
                return placed
            label = replace(label, size=0.9 * label.size)

    def _place(
        self,
        free: Bool[np.ndarray, "h w"],
        label: Label,
        middle: tuple[float, float],
        start: tuple[int, int] = (0, 0),
    ) -> Label | None:
        """Take the free cells nearest to a point (row, column) for a label; `start` is the first cell of `free`."""
        width, height = (ceil(side / _CELL) for side in label.extent)
        if height > free.shape[0] or width > free.shape[1]:
            return None
        sums = np.pad(free.cumsum(0, dtype=np.int32).cumsum(1, dtype=np.int32), ((1, 0), (1, 0)))
        count = (
            sums[height:, width:]
            - sums[:-height, width:]
            - sums[height:, :-width]
            + sums[:-height, :-width]
        )
        rows, columns = np.nonzero(count == height * width)
        if not len(rows):
            return None
        best = np.argmin(
            (rows + height / 2 - middle[0]) ** 2 + (columns + width / 2 - middle[1]) ** 2
        )
        row = int(rows[best]) + start[0]
        column = int(columns[best]) + start[1]
        self._taken[row : row + height, column : column + width] = True
        return replace(
            label, x=self.x + (column + width / 2) * _CELL, y=self.y + (row + height / 2) * _CELL
        )


def draw_gallery(
    placements: Sequence[Placement],
    verdicts: Sequence[str] = (),
    *,
    columns: int = 4,
    size: float = 230.0,
) -> svg.Page:
    """Draw diagrams in a grid with a common legend; captions begin with the verdicts, one per diagram."""
    columns = max(1, min(columns, len(placements)))
    gap = 14.0
    caption = 18.0
    shapes: list[str] = []
    for index, placement in enumerate(placements):
        row, column = divmod(index, columns)
        x = gap + column * (size + gap)
        y = gap + row * (size + caption + gap)
        shapes += draw_bubbles(Scene(placement, x + 6, y + 6, size - 12, size - 12))
        diagram = placement.diagram
        broken = placement.broken
        summary = f"{len(diagram.types)} rooms, {len(diagram.edges)} relations"
        summary += f", {broken} violated" * bool(broken)
        summary = f"{verdicts[index]}: {summary}" if verdicts else summary
        shapes.append(
            svg.text(
                x + size / 2, y + size + caption / 2 - 2, summary, 9.5, BROKEN if broken else PALE
            )
        )
    width = gap + columns * (size + gap)
    height = gap + ceil(len(placements) / columns) * (size + caption + gap)
    font = 10.5
    line = 20.0
    x = 15.0
    y = height + 12
    for kind in sorted({kind for placement in placements for kind in placement.diagram.types}):
        item = svg.text_width(ROOMS[kind], font) + 34
        if x > 15 and x + item > width - 15:
            x = 15.0
            y = y + line
        shapes.append(svg.rectangle(x, y - 6, 12, 12, 3, COLOURS[kind], INK, 0.9))
        shapes.append(svg.text(x + 18, y, ROOMS[kind], font, INK, left=True))
        x += item
    return svg.Page(width, y + line, tuple(shapes))


def draw_bubbles(scene: Scene) -> list[str]:
    """Draw rooms, links and names."""
    scene.label_rooms()
    placement = scene.placement
    shapes = [draw_room(scene, room) for room in scene.order]
    for (i, j, _), holds, sentence in zip(
        placement.diagram.edges, placement.holds, placement.sentences(), strict=True
    ):
        ends = (*scene.anchor(i), *scene.anchor(j))
        colour = LINK if holds else BROKEN
        shapes.append(svg.line(*ends, colour, 1.1, dashed=not holds, title=sentence))
    return shapes + [shape for label in scene.labels for shape in label_shapes(label)]


def draw_room(
    scene: Scene,
    room: int,
    fill: str = "",
    stroke: str = INK,
) -> str:
    """Return the box of a room, by default in the colour of its type."""
    x0, y0, x1, y1 = scene.boxes[room].tolist()
    radius = min(7.0, (x1 - x0) / 4, (y1 - y0) / 4)
    fill = fill or COLOURS[scene.placement.diagram.types[room]]
    return svg.rectangle(x0, y0, x1 - x0, y1 - y0, radius, fill, stroke, 1.3, scene.names[room])


def label_shapes(label: Label, *, background: bool = True) -> list[str]:
    """Return a label, and a line to its spot if it is elsewhere; such a label always has a white background."""
    (width, height), shapes = label.extent, list[str]()
    if label.spot:
        shapes.append(svg.line(label.x, label.y, *label.spot, LINK, 0.9))
    if label.spot or background:
        x = label.x - width / 2
        y = label.y - height / 2
        radius = min(width, height) / 2
        shapes.append(svg.rectangle(x, y, width, height, radius, "#ffffff", LINK, 0.9))
    for row, line in enumerate(label.lines):
        size, colour = (0.92 * label.size, LINK) if row else (label.size, INK)
        offset = (row - (len(label.lines) - 1) / 2) * _LINE * label.size
        x, y = (label.x + offset, label.y) if label.upright else (label.x, label.y + offset)
        shapes.append(svg.text(x, y, line, size, colour, label.upright))
    return shapes


def draw_floorplan(placement: Placement, verdict: str = "", *, size: float = 420.0) -> svg.Page:
    """Draw a floor plan with walls, doors, windows, areas, scale bar, total area and verdict; see `floor_plan`."""
    corners = np.array([*placement.boxes[:, 2:], *placement.outline])
    foot = 26.0
    across, down = corners.max(0) + 2 * _OUTER
    scale = min(0.96 * size / across, (0.96 * size - foot) / down)  # the longer side fills the page
    rim = 0.02 * size + _OUTER * scale
    width = max(across * scale, 0.7 * size) + 0.04 * size
    height = down * scale
    height += 0.04 * size + foot
    types = placement.diagram.types
    plan = floor_plan(types, placement.boxes, placement.front_door, placement.diagram.doors)
    free = plan.label.copy()  # labels stay clear of doors
    for door in plan.doors:
        reach = 1.15 * DOOR_WIDTH
        x0, y0 = (max(int(at - reach), 0) for at in (door.x, door.y))
        free[y0 : int(door.y + reach), x0 : int(door.x + reach)] = -1
    free = np.where(np.isin(plan.label, np.unique(free)), free, plan.label)
    names = room_names(placement.diagram)
    areas = np.bincount(plan.label[plan.label >= 0], minlength=len(types)) * METRES**2
    texts = [(name, f"{area:.1f} m²") for name, area in zip(names, areas, strict=True)]
    crowded: list[int] = []
    for _ in range(2):  # the labels of rooms that are too small for that may cross their doors
        regions = np.where(np.isin(plan.label, crowded), plan.label, free)
        scene = Scene(placement, rim, rim, width - 2 * rim, height - 2 * rim - foot, regions)
        crowded = [room for room, label in enumerate(scene.label_rooms(texts)) if label.spot]
        if not crowded:
            break
    outlines = [scene.outline(corners) for corners in plan.outlines]
    # Walls fill the gaps between rooms; floors reach into them, so that inner walls are thinner
    # than outer ones.
    shapes: list[str] = [
        svg.path(path, _WALL, _WALL, 2 * _OUTER * scene.scale) for path in outlines
    ]
    for room, path in enumerate(outlines):
        parts = (int(COLOURS[types[room]][at : at + 2], 16) for at in (1, 3, 5))
        floor = "#" + "".join(f"{round(255 - _TINT * (255 - part)):02x}" for part in parts)
        shapes.append(svg.path(path, floor, floor, 2 * _REVEAL * scene.scale, scene.names[room]))
    if placement.outline:
        shapes.append(svg.path(scene.outline(placement.outline), "none", BROKEN, 1.0))
    for window in plan.windows:
        shapes += _window_shapes(scene, window, plan.label)
    swept: list[tuple[float, ...]] = []
    for door in (door for door in plan.doors if door.depth >= 0):
        shapes += _door_shapes(scene, door, plan.label, swept)
    for label in scene.labels:
        shapes += label_shapes(label, background=False)
    y = height - foot / 2
    left = 0.04 * size
    pixels = scene.scale / METRES
    broken = placement.broken
    summary = (
        f"{broken} relations violated" if broken else f"{areas.sum():.0f} m² in {len(areas)} rooms"
    )
    if impossible := sum(door.depth < 0 for door in plan.doors):
        summary += f", no wall for {impossible} {'doors' if impossible > 1 else 'door'}"
    caption = " · ".join(filter(None, (summary, verdict)))
    room = width - 2 * left - svg.text_width("1 m · " + caption, 9.5)
    bar = next((metres for metres in (5, 2) if metres * pixels < room), 1)
    caption = f"{bar} m · {caption}"
    end = left + bar * pixels
    shapes += [svg.line(x, y - 3, x, y + 3, PALE, 1.2) for x in (left, end)]
    shapes.append(svg.line(left, y, end, y, PALE, 1.2))
    size = 9.5 * min(1.0, (width - end - 8 - left) / svg.text_width(caption, 9.5))
    shapes.append(svg.text(end + 8, y, caption, size, BROKEN if broken else PALE, left=True))
    return svg.Page(width, height, tuple(shapes))


def _outward(one: Door | Window, label: Int[np.ndarray, "H W"]) -> int:
    """Return 1 if the outside of an outer wall is to the right or below, else -1."""
    row, column = (int(one.y), int(one.x) - 2) if one.upright else (int(one.y) - 2, int(one.x))
    inside = 0 <= row < len(label) and 0 <= column < len(label) and label[row, column] >= 0
    return 1 if inside else -1


def _gap(
    scene: Scene,
    one: Door | Window,
    length: float,
    depth: float,
    shift: float,
    width: float = 0.0,
) -> str:
    """Return a white bar in a wall, and its border of a width."""
    (first, _), (_, last) = (
        segment(one, length, shift - depth / 2),
        segment(one, length, shift + depth / 2),
    )
    (x0, y0), (x1, y1) = scene.at(*first), scene.at(*last)
    return svg.rectangle(x0, y0, x1 - x0, y1 - y0, 0.0, "#ffffff", _WALL, width)


def _window_shapes(scene: Scene, window: Window, label: Int[np.ndarray, "H W"]) -> list[str]:
    """Return a gap in an outer wall with a line along its middle."""
    depth = _OUTER - _REVEAL
    shift = _outward(window, label) * (_REVEAL + depth / 2)
    start, end = (scene.at(*point) for point in segment(window, window.length, shift))
    return [
        _gap(scene, window, window.length, depth, shift, 0.7),
        svg.line(*start, *end, _WALL, 0.7),
    ]


def _door_shapes(
    scene: Scene,
    door: Door,
    label: Int[np.ndarray, "H W"],
    swept: list[tuple[float, ...]],
) -> list[str]:
    """Return the gap of a door, its leaf, and the arc that it swings, if possible in a square not `swept` yet."""
    shift = 0.0
    depth = max(door.depth - 2 * _REVEAL, 0.0) + 1.0
    sides = [1, -1]
    if door.j is None:
        outward = _outward(door, label)
        shift = outward * _OUTER / 2
        depth = _OUTER + 1.0
        sides = [-outward]
    elif scene.placement.diagram.types[door.j] == LIVING:  # rather not into the living room
        sides = [-1, 1]
    options = []
    for side, hinge in ((side, hinge) for side in sides for hinge in (0, 1)):
        ends = segment(door, DOOR_WIDTH, shift)
        opened = segment(door, DOOR_WIDTH, shift + side * DOOR_WIDTH)
        (x0, x1), (y0, y1) = (sorted((ends[0][axis], opened[1][axis])) for axis in (0, 1))
        free = not any(x0 < c and a < x1 and y0 < d and b < y1 for a, b, c, d in swept)
        sweep = int(((side > 0) == door.upright) != bool(hinge))
        options.append(
            (not free, ends[hinge], opened[hinge], ends[1 - hinge], sweep, (x0, y0, x1, y1))
        )
    _, *points, sweep, square = min(options, key=lambda option: option[0])
    swept.append(square)
    (hx, hy), (ox, oy), (cx, cy) = (scene.at(*point) for point in points)
    radius = DOOR_WIDTH * scene.scale
    arc = f"M{hx:.1f},{hy:.1f}L{ox:.1f},{oy:.1f}A{radius:.1f},{radius:.1f} 0 0 {sweep} {cx:.1f},{cy:.1f}"
    return [_gap(scene, door, DOOR_WIDTH, depth, shift), svg.path(arc, "none", PALE, 0.8)]
