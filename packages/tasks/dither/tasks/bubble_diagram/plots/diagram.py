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
from ..geometry.door_swings import (
    OUTER,
    Swing,
    door_swings,
    outward_side,
)
from ..geometry.floor_plan import (
    DOOR_WIDTH,
    Door,
    FloorPlan,
    Window,
    floor_plan,
    segment,
    thin_walls,
)
from ..geometry.placement import Placement
from ..plans import room_names
from ..relations import areas_of
from ..vocabulary import BALCONY, COLOURS, METRES, ROOMS
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

_REVEAL = 1.1
"""How far floors reach into walls, so that inner walls are thinner than outer ones."""

_RAILING = 1.7
"""How far the railing of a balcony reaches, of which floors cover the most."""

_THIN = 1.6
"""Thickness of the wall between rooms that touch, in pixels."""

_TINT = 0.45
"""Share of the room colour in the floor colour."""

_FOOT = 26.0
"""Height of the caption of a floor plan."""

_CAPTION = 9.5
"""Font size of captions."""
_COLUMNS = 4
"""Diagrams in a row of a gallery."""

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


@dataclass(frozen=True)
class Rectangle:
    """A part of a page."""

    x: float
    y: float
    width: float
    height: float


class Scene:
    """A placed diagram scaled into a rectangle of a page: room boxes, their order, and labels."""

    def __init__(
        self,
        placement: Placement,
        place: Rectangle,
        regions: PixelLabels | None = None,
        scale: float | None = None,
    ) -> None:
        """Scale a diagram; `regions` are its rooms if they are not rectangles.

        It fills the rectangle, unless `scale` is smaller.
        """
        self.placement = placement
        self.place = place
        # The same scale along both axes, and the rest of the rectangle as margins.
        boxes = placement.boxes
        corner = np.array([place.x, place.y])
        size = np.array([place.width, place.height])
        extent = extent_of(placement)
        self.scale = min(float((size / extent).min()), scale or np.inf)
        margin = (size - extent * self.scale) / 2
        within = boxes * self.scale + np.tile(margin, 2)
        self.boxes: Walls = within + np.tile(corner, 2)
        self._origin: tuple[float, float] = tuple((corner + margin).tolist())
        self.order: list[int] = np.argsort(-areas_of(boxes), kind="stable").tolist()
        self.names = room_names(placement.diagram)
        self.labels: list[Label] = []

        # Room at each cell of the label grid, -1 outside; larger rooms are covered by smaller ones.
        shape = (int(place.height / _CELL), int(place.width / _CELL))
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
        size = len(regions)
        columns = np.flatnonzero((x >= 0) & (x < size))
        rows = np.flatnonzero((y >= 0) & (y < size))
        sampled = regions[np.ix_(y[rows], x[columns])]
        self._visible[np.ix_(rows, columns)] = sampled

    def at(self, x: float, y: float) -> tuple[float, float]:
        """Return the point of the page at a point in box pixels."""
        left, top = self._origin
        return left + x * self.scale, top + y * self.scale

    def outline(self, corners: Iterable[tuple[float, float]]) -> str:
        """Return the path through corners in box pixels."""
        points = []
        for corner in corners:
            x, y = self.at(*corner)
            points.append(f"{x:.1f},{y:.1f}")
        return f"M{'L'.join(points)}Z"

    def label_rooms(
        self, texts: Sequence[tuple[str, ...]] | None = None
    ) -> list[Label]:
        """Place a label for each room, by default its name."""
        # Fonts of a small picture would be larger than its rooms.
        sizes = [
            size
            for size in _SIZES
            if size <= max(self.place.width / _MIN_RATIO, _SIZES[-1])
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
        cells = self._visible == room
        rows, columns = np.nonzero(cells)
        if not len(rows):
            return None
        top = int(rows.min())
        left = int(columns.min())
        bottom = int(rows.max())
        right = int(columns.max())
        visible = cells[top : bottom + 1, left : right + 1]
        # The centroid of the visible cells, whose centres are half a cell from their start.
        middle = (rows.mean() - top + 0.5, columns.mean() - left + 0.5)

        def rank(option: tuple[float, bool]) -> float:
            size, upright = option
            if upright:
                return -size / _UPRIGHT
            return -size

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
            points = centres + np.array([self.place.x, self.place.y])
            offsets = points - np.array([x, y])
            distances = np.square(offsets).sum(1)
            x, y = points[distances.argmin()].tolist()

        middle = ((y - self.place.y) / _CELL, (x - self.place.x) / _CELL)
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
        middle_y, middle_x = middle
        distances = (y - middle_y) ** 2 + (x - middle_x) ** 2
        best = np.argmin(distances)
        row = int(rows[best]) + start[0]
        column = int(columns[best]) + start[1]
        self._taken[row : row + height, column : column + width] = True
        return replace(
            label,
            x=self.place.x + (column + width / 2) * _CELL,
            y=self.place.y + (row + height / 2) * _CELL,
        )


def extent_of(placement: Placement) -> Int[ndarray, " 2"]:
    """Return the width and the height of a plan and its outline in pixels."""
    return np.array([*placement.boxes[:, 2:], *placement.outline]).max(0)


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
    size: float = 230.0,
    plans: bool = False,
) -> svg.Page:
    """Draw diagrams in a grid with a common legend; captions begin with the verdicts, if any.

    With `plans`, each one has its floor plan below it. All are in one scale.
    """
    columns = max(1, min(_COLUMNS, len(placements)))
    gap = 14.0
    caption = 18.0
    cell = size
    if plans:
        cell = 2 * size
    # Of one scale, so that plans can be compared by size.
    scale = min(
        (
            float((size - 12) / (extent_of(placement).max() + 2 * OUTER))
            for placement in placements
        ),
        default=1.0,
    )
    shapes: list[str] = []
    for index, placement in enumerate(placements):
        row, column = divmod(index, columns)
        x = gap + column * (size + gap)
        y = gap + row * (cell + caption + gap)
        place = Rectangle(x + 6, y + 6, size - 12, size - 12)
        shapes += draw_bubbles(Scene(placement, place, scale=scale))
        if plans:
            below = replace(place, y=place.y + size)
            shapes += _plan_shapes(placement, below, scale)[1]
        diagram = placement.diagram
        summary = f"{len(diagram.types)} rooms, {len(diagram.edges)} relations"
        if placement.broken:
            summary += f", {placement.broken} violated"
        if verdicts:
            summary = f"{verdicts[index]}: {summary}"
        colour = BROKEN if placement.broken else PALE
        middle = y + cell + caption / 2 - 2
        shapes.append(svg.text(x + size / 2, middle, summary, _CAPTION, colour))

    width = gap + columns * (size + gap)
    height = gap + ceil(len(placements) / columns) * (cell + caption + gap)
    kinds: set[int] = set()
    for placement in placements:
        kinds.update(placement.diagram.types)
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
        shapes.append(
            svg.rectangle(
                x,
                y - 6,
                12,
                12,
                3,
                COLOURS[kind],
                INK,
                0.9,
            )
        )
        shapes.append(svg.text(x + 18, y, ROOMS[kind], font, INK, left=True))
        x += item
    return shapes, y + line


def draw_bubbles(scene: Scene) -> list[str]:
    """Draw rooms, links and names."""
    # Before the links, which end at labels.
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
        shapes.append(
            svg.rectangle(
                x,
                y,
                width,
                height,
                radius,
                "#ffffff",
                LINK,
                0.9,
            )
        )

    for row, line in enumerate(label.lines):
        # The first line is the name, others are smaller.
        size = label.size
        if row:
            size = 0.92 * label.size

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
    scale: float | None = None,
) -> svg.Page:
    """Draw a floor plan with walls, doors, windows, areas, scale bar, total area and verdict.

    It fills the page, or is on a square one in a given scale (see `common_scale`).
    """
    across, down = extent_of(placement) + 2 * OUTER
    width = size
    height = size
    if scale is None:
        # The longer side fills the page.
        scale = min(0.96 * size / across, (0.96 * size - _FOOT) / down)
        width = max(across * scale, 0.7 * size) + 0.04 * size
        height = down * scale + 0.04 * size + _FOOT
    rim = 0.02 * size
    place = Rectangle(rim, rim, width - 2 * rim, height - 2 * rim - _FOOT)
    scene, shapes, plan = _plan_shapes(placement, place, scale)

    areas = plan.room_areas() * METRES**2
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


def common_scale(placements: Iterable[Placement], size: float) -> float:
    """Return the scale in which all floor plans fit on square pages."""
    longest = max((float(extent_of(p).max()) for p in placements), default=1.0)
    return (0.96 * size - _FOOT) / (longest + 2 * OUTER)


def _plan_shapes(
    placement: Placement, place: Rectangle, scale: float
) -> tuple[Scene, list[str], FloorPlan]:
    """Draw a floor plan without its caption into a rectangle."""
    diagram = placement.diagram
    types = diagram.types
    plan = floor_plan(types, placement.boxes, placement.front_door, diagram.doors)
    swings = door_swings(types, plan)
    scene = _labelled(placement, place, plan, swings, scale)
    shapes = _wall_shapes(scene, plan)
    for window in plan.windows:
        shapes += _window_shapes(scene, window, plan.label)
    shapes += _outline_shapes(scene, place)
    for door, swing in zip(plan.doors, swings, strict=True):
        if door.depth >= 0:
            shapes += _door_shapes(scene, door, plan.label, swing)
    for label in scene.labels:
        shapes += label_shapes(label, background=False)
    return scene, shapes, plan


def _labelled(
    placement: Placement,
    place: Rectangle,
    plan: FloorPlan,
    swings: Sequence[Swing | None],
    scale: float,
) -> Scene:
    """Return a scene with labels that no door crosses, if they fit: with areas, else without."""
    names = room_names(placement.diagram)
    areas = plan.room_areas() * METRES**2
    texts: list[tuple[str, ...]] = [
        (name, f"{area:.1f} m²") for name, area in zip(names, areas, strict=True)
    ]
    clear = _clear_of_doors(plan, swings)
    within = Rectangle(
        x=place.x + OUTER * scale,
        y=place.y + OUTER * scale,
        width=place.width - 2 * OUTER * scale,
        height=place.height - 2 * OUTER * scale,
    )
    crossed: list[int] = []
    for attempt in range(3):
        regions = np.where(np.isin(plan.label, crossed), plan.label, clear)
        scene = Scene(placement, within, regions, scale)
        labels = scene.label_rooms(texts)
        crowded = [room for room, label in enumerate(labels) if label.spot]
        if not crowded:
            break
        # First names without areas, then also on pixels that doors sweep.
        if attempt == 0:
            texts = [
                text[:1] if room in crowded else text for room, text in enumerate(texts)
            ]
        else:
            crossed += crowded
    return scene


def _clear_of_doors(plan: FloorPlan, swings: Sequence[Swing | None]) -> PixelLabels:
    """Return rooms without the pixels that leaves of doors sweep, unless nothing is left of a room."""
    clear = plan.label.copy()
    for swing in swings:
        if swing is None:
            continue
        x0, y0, x1, y1 = (round(end) for end in swing.square)
        # A pixel more on every side.
        rows = slice(max(y0 - 1, 0), y1 + 1)
        columns = slice(max(x0 - 1, 0), x1 + 1)
        clear[rows, columns] = -1
    return np.where(np.isin(plan.label, np.unique(clear)), clear, plan.label)


def _wall_shapes(scene: Scene, plan: FloorPlan) -> list[str]:
    """Return walls, which fill the gaps between rooms, then floors, then walls of touching rooms."""
    types = scene.placement.diagram.types
    paths = [scene.outline(corners) for corners in plan.outlines]
    shapes = []
    for kind, path in zip(types, paths, strict=True):
        # A balcony has a railing; the walls next to it are those of rooms.
        width = _RAILING if kind == BALCONY else OUTER
        # Half the width of a stroke is inside of the outline.
        shapes.append(svg.path(path, _WALL, _WALL, 2 * width * scene.scale))
    for room, path in enumerate(paths):
        # A tint: each channel is mixed with white.
        colour = COLOURS[types[room]]
        floor = "#"
        for channel in bytes.fromhex(colour[1:]):
            floor += f"{round(255 - _TINT * (255 - channel)):02x}"
        shapes.append(
            svg.path(path, floor, floor, 2 * _REVEAL * scene.scale, scene.names[room])
        )
    # Floors cover walls of two pixels, and most of wider ones.
    for start, end in thin_walls(plan.label, 3):
        # To the walls at both ends, into which floors reach.
        longer = np.sign(np.subtract(end, start)) * _REVEAL
        first = scene.at(*(start - longer).tolist())
        last = scene.at(*(end + longer).tolist())
        shapes.append(svg.line(*first, *last, _WALL, _THIN * scene.scale))
    return shapes


def _outline_shapes(scene: Scene, place: Rectangle) -> list[str]:
    """Return the required outline, if there is one, and a cover of what is outside, where walls end."""
    outline = scene.placement.outline
    if not outline:
        return []
    # The outline is clockwise and the rectangle is not, so that their windings cancel inside.
    path = scene.outline(outline)
    left = place.x - 6
    right = place.x + place.width + 6
    around = f"M{left:.1f},{place.y - 6:.1f}V{place.y + place.height + 6:.1f}"
    around += f"H{right:.1f}V{place.y - 6:.1f}Z"
    return [
        svg.path(around + path, "#ffffff", "none", 0.0),
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
    # The longest of 1, 2 and 5 metres that leaves space for the caption.
    metres = 1
    for longer in (2, 5):
        if longer * pixels < space:
            metres = longer
    caption = f"{metres} m · {caption}"
    end = left + metres * pixels
    shapes = [svg.line(x, y - 3, x, y + 3, PALE, 1.2) for x in (left, end)]
    shapes.append(svg.line(left, y, end, y, PALE, 1.2))
    # A caption that is too long gets a smaller font.
    shrink = min(1.0, (width - end - 8 - left) / svg.text_width(caption, _CAPTION))
    colour = BROKEN if scene.placement.broken else PALE
    shapes.append(svg.text(end + 8, y, caption, _CAPTION * shrink, colour, left=True))
    return shapes


def _gap(
    scene: Scene,
    opening: Door | Window,
    depth: float,
    shift: float,
    border: float,
) -> str:
    """Return a white bar in a wall with a border."""
    first, _ = segment(opening, opening.length, shift - depth / 2)
    _, last = segment(opening, opening.length, shift + depth / 2)
    x0, y0 = scene.at(*first)
    x1, y1 = scene.at(*last)
    return svg.rectangle(
        x0,
        y0,
        x1 - x0,
        y1 - y0,
        0.0,
        "#ffffff",
        _WALL,
        border,
    )


def _window_shapes(
    scene: Scene,
    window: Window,
    label: PixelLabels,
) -> list[str]:
    """Return a gap in an outer wall with a line along its middle."""
    depth = OUTER - _REVEAL
    shift = outward_side(window, label) * (_REVEAL + depth / 2)
    start, end = (scene.at(*point) for point in segment(window, window.length, shift))
    gap = _gap(
        scene=scene,
        opening=window,
        depth=depth,
        shift=shift,
        border=0.7,
    )
    return [gap, svg.line(*start, *end, _WALL, 0.7)]


def _door_shapes(
    scene: Scene,
    door: Door,
    label: PixelLabels,
    swing: Swing | None,
) -> list[str]:
    """Return the gap of a door, its leaf, and its arc; a sliding door without a leaf is glazed."""
    shift = 0.0
    depth = max(door.depth - 2 * _REVEAL, 0.0) + 1.0
    if door.j is None:
        shift = outward_side(door, label) * OUTER / 2
        depth = OUTER + 1.0
    gap = _gap(
        scene=scene,
        opening=door,
        depth=depth,
        shift=shift,
        border=0.0 if swing else 0.7,
    )
    if swing is None:
        start, end = (scene.at(*point) for point in segment(door, DOOR_WIDTH))
        return [gap, svg.line(*start, *end, _WALL, 0.7)]

    hx, hy = scene.at(*swing.hinge)
    ox, oy = scene.at(*swing.opened)
    cx, cy = scene.at(*swing.closed)
    radius = f"{DOOR_WIDTH * scene.scale:.1f}"
    leaf = f"M{hx:.1f},{hy:.1f}L{ox:.1f},{oy:.1f}"
    arc = f"A{radius},{radius} 0 0 {int(swing.clockwise)} {cx:.1f},{cy:.1f}"
    return [gap, svg.path(leaf + arc, "none", PALE, 0.8)]
