"""Pictures of placed diagrams: rooms and links in a grid with a legend, and sketched floor plans.

Large rooms are drawn first. Labels do not overlap: each is on the visible part of its room in the
largest font that fits, or elsewhere with a line to the room. Relations that the boxes violate are
red.
Letters: R rooms, H and W cells of the label grid.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import ceil

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy import ndarray

from ..arrays import PixelLabels, Walls
from ..geometry.floor_plan import (
    DOOR_WIDTH,
    Door,
    FloorPlan,
    Window,
    floor_plan,
    segment,
)
from ..geometry.placement import Placement
from ..plans import room_names
from ..relations import METRES, NEAR, areas_of
from ..vocabulary import COLOURS, LIVING, ROOMS
from . import svg

INK = "#2b2f36"
"""Colour of names and walls."""

PALE = "#6f7782"
"""Colour of captions."""

BROKEN = "#c8443c"
"""Colour of violated relations."""

LINK = "#4a515c"
"""Colour of links."""

_SIZES = (12.5, 11.5, 10.5, 9.5, 8.5, 7.5)
"""Font sizes of names."""

_MIN_RATIO = 24
"""Smallest ratio of the width of the picture to them."""

_LINE = 1.3
"""Line spacing in multiples of them."""

_CELL = 2.0
"""Side of a cell of the label grid."""

_UPRIGHT = 1.3
"""Factor by which upright text must be larger to be preferred."""

_WALL = "#3a3f47"
"""Colour of walls."""

_OUTER = NEAR / 2
"""Thickness of walls around a room in pixels, so that gaps between neighbours are filled."""

_REVEAL = 1.1
"""How far floors reach into walls, so that inner walls are thinner than outer ones."""

_TINT = 0.45
"""Share of the room colour in the floor colour."""

_FOOT = 26.0
"""Height of the caption of a floor plan."""

_CAPTION = 9.5
"""Font size of captions."""

_Cells = Bool[ndarray, "h w"]


@dataclass(frozen=True)
class Label:
    """A label centred at (x, y), upright if rotated; `spot` is its room, if that is elsewhere."""

    x: float
    y: float
    size: float
    lines: tuple[str, ...]
    upright: bool = False
    spot: tuple[float, float] | None = None

    @property
    def extent(self) -> tuple[float, float]:
        """Width and height, with padding."""
        widest = max(svg.text_width(line, self.size) for line in self.lines)
        long = widest + 0.8 * self.size
        short = self.size * (_LINE * len(self.lines) + 0.3)
        if self.upright:
            return short, long
        return long, short


class Scene:
    """A placed diagram scaled into a rectangle of a page: room boxes, their order, and labels."""

    def __init__(
        self,
        placement: Placement,
        x: float,
        y: float,
        width: float,
        height: float,
        regions: PixelLabels | None = None,
    ) -> None:
        """Scale a diagram; `regions` are its rooms if they are not rectangles."""
        self.placement = placement
        self.x = x
        self.y = y
        self.width = width
        # The same scale along both axes, and the rest of the rectangle as margins.
        boxes = placement.boxes
        size = np.array([width, height])
        extent = np.array([*boxes[:, 2:], *placement.outline]).max(0)
        self.scale = float((size / extent).min())
        margin = (size - extent * self.scale) / 2
        within = boxes * self.scale + np.tile(margin, 2)
        self.boxes: Walls = within + np.array([x, y, x, y])
        self._origin = float(x + margin[0]), float(y + margin[1])
        self.order: list[int] = np.argsort(-areas_of(boxes), kind="stable").tolist()
        self.names = room_names(placement.diagram)
        self.labels: list[Label] = []

        # Room at each cell of the label grid, -1 outside; larger rooms are covered by smaller ones.
        shape = (int(height / _CELL), int(width / _CELL))
        self._taken = np.zeros(shape, bool)
        self._visible: PixelLabels = np.full(shape, -1)
        if regions is not None:
            self._show_regions(regions, margin)
            return
        for room in self.order:
            x0, y0, x1, y1 = np.round(within[room] / _CELL).astype(int)
            self._visible[y0:y1, x0:x1] = room

    def _show_regions(self, regions: PixelLabels, margin: Float[ndarray, " 2"]) -> None:
        """Sample the rooms at the centres of the cells of the label grid."""
        height, width = self._visible.shape

        def pixels(cells: int, start: float) -> Int[ndarray, " c"]:
            centres = (np.arange(cells) + 0.5) * _CELL
            return np.floor((centres - start) / self.scale).astype(int)

        x = pixels(width, float(margin[0]))
        y = pixels(height, float(margin[1]))
        # The margins are outside of the canvas.
        columns = np.flatnonzero((x >= 0) & (x < len(regions)))
        rows = np.flatnonzero((y >= 0) & (y < len(regions)))
        sampled = regions[np.ix_(y[rows], x[columns])]
        self._visible[np.ix_(rows, columns)] = sampled

    def at(self, x: float, y: float) -> tuple[float, float]:
        """Return the point of the page at a point in box pixels."""
        return self._origin[0] + x * self.scale, self._origin[1] + y * self.scale

    def outline(self, corners: Iterable[tuple[float, float]]) -> str:
        """Return the path through corners in box pixels."""
        points = [self.at(*corner) for corner in corners]
        return "M" + "L".join(f"{x:.1f},{y:.1f}" for x, y in points) + "Z"

    def label_rooms(
        self, texts: Sequence[tuple[str, ...]] | None = None
    ) -> list[Label]:
        """Place a label for each room, by default its name."""
        sizes = [
            size for size in _SIZES if size <= max(self.width / _MIN_RATIO, _SIZES[-1])
        ]
        texts = texts or [(name,) for name in self.names]
        # Labels on their rooms come first; the others get the cells that are left.
        labels = [self._on_room(room, lines, sizes) for room, lines in enumerate(texts)]
        self.labels = [
            label or self._near_room(room, texts[room][:1])
            for room, label in enumerate(labels)
        ]
        return self.labels

    def anchor(self, room: int) -> tuple[float, float]:
        """Return the end point of links to a room."""
        label = self.labels[room]
        return label.spot or (label.x, label.y)

    def _on_room(
        self,
        room: int,
        lines: tuple[str, ...],
        sizes: Sequence[float],
    ) -> Label | None:
        """Return the largest label that fits on the visible part of its room."""
        rows, columns = np.nonzero(self._visible == room)
        if not len(rows):
            return None
        top = int(rows.min())
        left = int(columns.min())
        visible = self._visible[top : rows.max() + 1, left : columns.max() + 1] == room
        # The centroid of the visible cells, whose centres are half a cell from their start.
        middle = (rows.mean() - top + 0.5, columns.mean() - left + 0.5)

        def rank(option: tuple[float, bool]) -> float:
            size, upright = option
            return -size / _UPRIGHT if upright else -size

        for size, upright in sorted(product(sizes, (False, True)), key=rank):
            label = Label(0, 0, size, lines, upright)
            placed = self._place(visible, label, middle, start=(top, left))
            if placed is not None:
                return placed
        return None

    def _near_room(self, room: int, lines: tuple[str, ...]) -> Label:
        """Return the label at the free cells nearest to its room, shrunk until it fits."""
        x0, y0, x1, y1 = self.boxes[room].tolist()
        x = (x0 + x1) / 2
        y = (y0 + y1) / 2
        cells = np.argwhere(self._visible == room)
        if len(cells):
            # The line ends in the visible part of the room.
            centres = (cells[:, ::-1] + 0.5) * _CELL
            points = centres + np.array([self.x, self.y])
            distances = np.square(points - np.array([x, y])).sum(1)
            x, y = points[distances.argmin()].tolist()

        middle = ((y - self.y) / _CELL, (x - self.x) / _CELL)
        label = Label(0, 0, _SIZES[-1], lines, spot=(x, y))
        # A small enough label fits as long as one cell is free.
        while (placed := self._place(~self._taken, label, middle)) is None:
            label = replace(label, size=0.9 * label.size)
        return placed

    def _place(
        self,
        free: _Cells,
        label: Label,
        middle: tuple[float, float],
        start: tuple[int, int] = (0, 0),
    ) -> Label | None:
        """Take the free cells nearest to a point (row, column) for a label.

        `start` is the first cell of `free`.
        """
        width, height = (ceil(side / _CELL) for side in label.extent)
        rows, columns = np.nonzero(_free_rectangles(free, height, width))
        if not len(rows):
            return None
        y = rows + height / 2
        x = columns + width / 2
        best = np.argmin((y - middle[0]) ** 2 + (x - middle[1]) ** 2)
        row = int(rows[best]) + start[0]
        column = int(columns[best]) + start[1]
        self._taken[row : row + height, column : column + width] = True
        return replace(
            label,
            x=self.x + (column + width / 2) * _CELL,
            y=self.y + (row + height / 2) * _CELL,
        )


def _free_rectangles(
    free: _Cells,
    height: int,
    width: int,
) -> _Cells:
    """Return at which cells a free rectangle starts."""
    if height > free.shape[0] or width > free.shape[1]:
        return np.zeros((0, 0), bool)
    # Differences of sums over all cells above and to the left.
    sums = free.cumsum(0, dtype=np.int32).cumsum(1, dtype=np.int32)
    sums = np.pad(sums, ((1, 0), (1, 0)))
    columns = sums[:, width:] - sums[:, :-width]
    count = columns[height:] - columns[:-height]
    return count == height * width


def draw_gallery(
    placements: Sequence[Placement],
    verdicts: Sequence[str] = (),
    *,
    columns: int = 4,
    size: float = 230.0,
) -> svg.Page:
    """Draw diagrams in a grid with a common legend; captions begin with the verdicts, if any."""
    columns = max(1, min(columns, len(placements)))
    gap = 14.0
    caption = 18.0
    shapes: list[str] = []
    for index, placement in enumerate(placements):
        row, column = divmod(index, columns)
        x = gap + column * (size + gap)
        y = gap + row * (size + caption + gap)
        shapes += draw_bubbles(
            Scene(
                placement=placement,
                x=x + 6,
                y=y + 6,
                width=size - 12,
                height=size - 12,
            )
        )
        diagram = placement.diagram
        summary = f"{len(diagram.types)} rooms, {len(diagram.edges)} relations"
        if placement.broken:
            summary += f", {placement.broken} violated"
        if verdicts:
            summary = f"{verdicts[index]}: {summary}"
        colour = BROKEN if placement.broken else PALE
        middle = y + size + caption / 2 - 2
        shapes.append(svg.text(x + size / 2, middle, summary, _CAPTION, colour))

    width = gap + columns * (size + gap)
    height = gap + ceil(len(placements) / columns) * (size + caption + gap)
    kinds = {kind for placement in placements for kind in placement.diagram.types}
    legend, height = _legend(sorted(kinds), width, height)
    return svg.Page(width, height, (*shapes, *legend))


def _legend(
    kinds: Sequence[int],
    width: float,
    top: float,
) -> tuple[list[str], float]:
    """Return the types of rooms with their colours in lines of a width, and where they end."""
    font = 10.5
    line = 20.0
    left = 15.0
    x = left
    y = top + 12
    shapes = []
    for kind in kinds:
        item = svg.text_width(ROOMS[kind], font) + 34
        if x > left and x + item > width - left:
            x = left
            y += line
        shapes.append(svg.rectangle(x, y - 6, 12, 12, 3, COLOURS[kind], INK, 0.9))
        shapes.append(svg.text(x + 18, y, ROOMS[kind], font, INK, left=True))
        x += item
    return shapes, y + line


def draw_bubbles(scene: Scene) -> list[str]:
    """Draw rooms, links and names."""
    scene.label_rooms()
    placement = scene.placement
    shapes = [draw_room(scene, room) for room in scene.order]
    sentences = placement.sentences()
    for edge, holds, sentence in zip(
        placement.diagram.edges, placement.holds, sentences, strict=True
    ):
        ends = (*scene.anchor(edge[0]), *scene.anchor(edge[1]))
        colour = LINK if holds else BROKEN
        shapes.append(svg.line(*ends, colour, 1.1, dashed=not holds, title=sentence))
    for label in scene.labels:
        shapes += label_shapes(label)
    return shapes


def draw_room(
    scene: Scene,
    room: int,
    fill: str = "",
    stroke: str = INK,
) -> str:
    """Return the box of a room, by default in the colour of its type."""
    x0, y0, x1, y1 = scene.boxes[room].tolist()
    width = x1 - x0
    height = y1 - y0
    radius = min(7.0, width / 4, height / 4)
    fill = fill or COLOURS[scene.placement.diagram.types[room]]
    return svg.rectangle(
        x0, y0, width, height, radius, fill, stroke, 1.3, scene.names[room]
    )


def label_shapes(label: Label, *, background: bool = True) -> list[str]:
    """Return a label, and a line to its spot if it is elsewhere; it then has a white background."""
    width, height = label.extent
    shapes: list[str] = []
    if label.spot:
        shapes.append(svg.line(label.x, label.y, *label.spot, LINK, 0.9))
    if label.spot or background:
        x = label.x - width / 2
        y = label.y - height / 2
        radius = min(width, height) / 2
        shapes.append(svg.rectangle(x, y, width, height, radius, "#ffffff", LINK, 0.9))

    for row, line in enumerate(label.lines):
        # The first line is the name, others are smaller.
        size = 0.92 * label.size if row else label.size
        colour = LINK if row else INK
        offset = (row - (len(label.lines) - 1) / 2) * _LINE * label.size
        x = label.x
        y = label.y
        if label.upright:
            x += offset
        else:
            y += offset
        shapes.append(svg.text(x, y, line, size, colour, label.upright))
    return shapes


def draw_floorplan(
    placement: Placement,
    verdict: str = "",
    *,
    size: float = 420.0,
) -> svg.Page:
    """Draw a floor plan with walls, doors, windows, areas, scale bar, total area and verdict."""
    corners = np.array([*placement.boxes[:, 2:], *placement.outline])
    across, down = corners.max(0) + 2 * _OUTER
    # The longer side fills the page.
    scale = min(0.96 * size / across, (0.96 * size - _FOOT) / down)
    rim = 0.02 * size + _OUTER * scale
    width = max(across * scale, 0.7 * size) + 0.04 * size
    height = down * scale
    height += 0.04 * size + _FOOT

    diagram = placement.diagram
    types = diagram.types
    plan = floor_plan(types, placement.boxes, placement.front_door, diagram.doors)
    areas = np.bincount(plan.label[plan.label >= 0], minlength=len(types)) * METRES**2
    names = room_names(diagram)
    texts = [(name, f"{area:.1f} m²") for name, area in zip(names, areas, strict=True)]
    clear = _clear_of_doors(plan)
    crowded: list[int] = []
    # The labels of rooms that are too small to be clear of their doors may cross them.
    for _ in range(2):
        regions = np.where(np.isin(plan.label, crowded), plan.label, clear)
        scene = Scene(
            placement=placement,
            x=rim,
            y=rim,
            width=width - 2 * rim,
            height=height - 2 * rim - _FOOT,
            regions=regions,
        )
        crowded = [
            room for room, label in enumerate(scene.label_rooms(texts)) if label.spot
        ]
        if not crowded:
            break

    shapes = _wall_shapes(scene, plan)
    for window in plan.windows:
        shapes += _window_shapes(scene, window, plan.label)
    shapes += _outline_shapes(scene, width, height)
    swept: list[Square] = []
    for door in plan.doors:
        if door.depth >= 0:
            shapes += _door_shapes(scene, door, plan.label, swept)
    for label in scene.labels:
        shapes += label_shapes(label, background=False)

    summary = f"{areas.sum():.0f} m² in {len(areas)} rooms"
    if placement.broken:
        summary = f"{placement.broken} relations violated"
    if impossible := sum(door.depth < 0 for door in plan.doors):
        summary += f", no wall for {impossible} {'doors' if impossible > 1 else 'door'}"
    if placement.unmet:
        summary += f", {len(placement.unmet)} unmet"
    caption = " · ".join(filter(None, (summary, verdict)))
    shapes += _foot_shapes(
        scene=scene,
        caption=caption,
        left=0.04 * size,
        width=width,
        y=height - _FOOT / 2,
    )
    return svg.Page(width, height, tuple(shapes))


def _clear_of_doors(plan: FloorPlan) -> PixelLabels:
    """Return rooms without the pixels near doors, unless nothing would be left of a room."""
    clear = plan.label.copy()
    reach = 1.15 * DOOR_WIDTH
    for door in plan.doors:
        x0 = max(int(door.x - reach), 0)
        y0 = max(int(door.y - reach), 0)
        clear[y0 : int(door.y + reach), x0 : int(door.x + reach)] = -1
    return np.where(np.isin(plan.label, np.unique(clear)), clear, plan.label)


def _wall_shapes(scene: Scene, plan: FloorPlan) -> list[str]:
    """Return walls, which fill the gaps between rooms, then floors."""
    paths = [scene.outline(corners) for corners in plan.outlines]
    shapes = [svg.path(path, _WALL, _WALL, 2 * _OUTER * scene.scale) for path in paths]
    for room, path in enumerate(paths):
        # A tint: each channel is mixed with white.
        colour = COLOURS[scene.placement.diagram.types[room]]
        floor = "#"
        for channel in bytes.fromhex(colour[1:]):
            floor += f"{round(255 - _TINT * (255 - channel)):02x}"
        shapes.append(
            svg.path(path, floor, floor, 2 * _REVEAL * scene.scale, scene.names[room])
        )
    return shapes


def _outline_shapes(scene: Scene, width: float, height: float) -> list[str]:
    """Return the required outline, if there is one, and a cover of the page outside, where walls end."""
    outline = scene.placement.outline
    if not outline:
        return []
    # The outline is clockwise and the page is not, so that their windings cancel inside.
    path = scene.outline(outline)
    page = f"M0,0V{height:.1f}H{width:.1f}V0Z"
    return [
        svg.path(page + path, "#ffffff", "none", 0.0),
        svg.path(path, "none", BROKEN, 1.0),
    ]


def _foot_shapes(
    scene: Scene,
    caption: str,
    left: float,
    width: float,
    y: float,
) -> list[str]:
    """Return a scale bar with its length and a caption, in a line."""
    pixels = scene.scale / METRES
    space = width - 2 * left - svg.text_width("1 m · " + caption, _CAPTION)
    metres = 1
    for longer in (2, 5):
        if longer * pixels < space:
            metres = longer
    caption = f"{metres} m · {caption}"
    end = left + metres * pixels
    shapes = [svg.line(x, y - 3, x, y + 3, PALE, 1.2) for x in (left, end)]
    shapes.append(svg.line(left, y, end, y, PALE, 1.2))
    shrink = min(1.0, (width - end - 8 - left) / svg.text_width(caption, _CAPTION))
    colour = BROKEN if scene.placement.broken else PALE
    shapes.append(svg.text(end + 8, y, caption, _CAPTION * shrink, colour, left=True))
    return shapes


def _outward(opening: Door | Window, label: PixelLabels) -> int:
    """Return 1 if the outside of an outer wall is to the right or below, else -1."""
    # Two pixels before the wall are in a room if the wall is to the right of it, or below.
    row = int(opening.y)
    column = int(opening.x)
    if opening.upright:
        column -= 2
    else:
        row -= 2
    within = 0 <= row < len(label) and 0 <= column < len(label)
    return 1 if within and label[row, column] >= 0 else -1


def _gap(
    scene: Scene,
    opening: Door | Window,
    length: float,
    depth: float,
    shift: float,
    border: float = 0.0,
) -> str:
    """Return a white bar in a wall with a border."""
    first, _ = segment(opening, length, shift - depth / 2)
    _, last = segment(opening, length, shift + depth / 2)
    x0, y0 = scene.at(*first)
    x1, y1 = scene.at(*last)
    return svg.rectangle(x0, y0, x1 - x0, y1 - y0, 0.0, "#ffffff", _WALL, border)


def _window_shapes(
    scene: Scene,
    window: Window,
    label: PixelLabels,
) -> list[str]:
    """Return a gap in an outer wall with a line along its middle."""
    depth = _OUTER - _REVEAL
    shift = _outward(window, label) * (_REVEAL + depth / 2)
    start, end = (scene.at(*point) for point in segment(window, window.length, shift))
    gap = _gap(
        scene=scene,
        opening=window,
        length=window.length,
        depth=depth,
        shift=shift,
        border=0.7,
    )
    return [gap, svg.line(*start, *end, _WALL, 0.7)]


Square = tuple[float, float, float, float]


@dataclass(frozen=True)
class _Swing:
    """A leaf of a door: its hinge, its end if open and if closed, and the square it sweeps."""

    hinge: tuple[float, float]
    opened: tuple[float, float]
    closed: tuple[float, float]
    clockwise: bool
    square: Square

    def crosses(self, squares: Iterable[Square]) -> bool:
        x0, y0, x1, y1 = self.square
        return any(x0 < c and a < x1 and y0 < d and b < y1 for a, b, c, d in squares)


def _door_shapes(
    scene: Scene,
    door: Door,
    label: PixelLabels,
    swept: list[Square],
) -> list[str]:
    """Return the gap of a door, its leaf, and its arc, if possible in a square not `swept` yet."""
    shift = 0.0
    depth = max(door.depth - 2 * _REVEAL, 0.0) + 1.0
    sides = [1, -1]
    if door.j is None:
        outward = _outward(door, label)
        shift = outward * _OUTER / 2
        depth = _OUTER + 1.0
        sides = [-outward]
    elif scene.placement.diagram.types[door.j] == LIVING:
        # Rather not into the living room.
        sides = [-1, 1]

    options = product(sides, (0, 1))
    swings = [_swing(door, side, hinge, shift) for side, hinge in options]
    # The first one that is free, or else the first of all.
    swing = min(swings, key=lambda option: option.crosses(swept))
    swept.append(swing.square)
    hx, hy = scene.at(*swing.hinge)
    ox, oy = scene.at(*swing.opened)
    cx, cy = scene.at(*swing.closed)
    radius = f"{DOOR_WIDTH * scene.scale:.1f}"
    leaf = f"M{hx:.1f},{hy:.1f}L{ox:.1f},{oy:.1f}"
    arc = f"A{radius},{radius} 0 0 {int(swing.clockwise)} {cx:.1f},{cy:.1f}"
    gap = _gap(
        scene=scene,
        opening=door,
        length=DOOR_WIDTH,
        depth=depth,
        shift=shift,
    )
    return [gap, svg.path(leaf + arc, "none", PALE, 0.8)]


def _swing(
    door: Door,
    side: int,
    hinge: int,
    shift: float,
) -> _Swing:
    """Return the leaf of a door that opens to a side, with its hinge at one of its two ends."""
    ends = segment(door, DOOR_WIDTH, shift)
    opened = segment(door, DOOR_WIDTH, shift + side * DOOR_WIDTH)
    x0, x1 = sorted((ends[0][0], opened[1][0]))
    y0, y1 = sorted((ends[0][1], opened[1][1]))
    return _Swing(
        hinge=ends[hinge],
        opened=opened[hinge],
        closed=ends[1 - hinge],
        clockwise=((side > 0) == door.upright) != bool(hinge),
        square=(x0, y0, x1, y1),
    )
