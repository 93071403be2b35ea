"""Export of diagrams: JSON lines, HouseGAN++'s JSON, and floor plans as SVG, GeoJSON, DXF and IFC.

Letters: N samples, L tokens, R rooms.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from math import hypot
from pathlib import Path
from typing import Any

import numpy as np

from dither.registry.files.atomic import atomic_write

from .arrays import Boundaries, BoxBatch, Boxes, Tokens
from .decoded_samples import decode_samples
from .dxf import draw_dxf
from .formats.housegan import DOOR, FRONT_DOOR, TO_HOUSEGAN
from .formats.jsonl import plan_line
from .geometry.boundary import Point
from .geometry.floor_plan import (
    DOOR_WIDTH,
    Corner,
    Door,
    FloorPlan,
    floor_plan,
    segment,
)
from .geometry.placement import (
    Placement,
    place_diagram,
    place_rooms,
    whole_boxes,
)
from .geometry.wall_shapes import metres
from .ifc import draw_ifc
from .plans import Box, Diagram, room_names
from .plots.diagram import draw_floorplan
from .plots.svg import to_svg
from .vocabulary import GRID, METRES, ROOMS, Export


def write_diagrams(
    diagrams: Mapping[int, Diagram],
    folder: Path,
    form: Export,
) -> list[Path]:
    """Write diagrams atomically: one file, or one per diagram, named by its number.

    HouseGAN++ also requires `list.txt` with one file name per line, which is not returned.
    """
    suffix, text = EXPORTS[form]
    files = {
        f"{number}{suffix}": text(diagram) + "\n"
        for number, diagram in diagrams.items()
    }
    if form == "jsonl":
        files = {f"plans{suffix}": "".join(files.values())}
    names = list(files)
    if form == "housegan":
        files["list.txt"] = "".join(f"{name}\n" for name in names)
    for name, content in files.items():
        with atomic_write(folder / name) as temporary:
            temporary.write_text(content, encoding="utf-8")
    return [folder / name for name in names]


def write_samples(
    samples: Tokens,
    rooms: int,
    folder: Path,
    form: Export,
    boundaries: Boundaries | None = None,
    narrow: Callable[[Diagram], Diagram] | None = None,
    drawn: BoxBatch | None = None,
) -> tuple[list[Path], list[str]]:
    """Write samples of a model with the boxes of their layout; JSON lines only with exact ones.

    Samples with `drawn` boxes have these, and the relations that they show. A file is named by its
    sample. Returns the files, and notes for the user: which samples do not decode, how many have no
    boxes that show their relations, and how many miss areas, outline or front door.
    """
    diagrams: dict[int, Diagram] = {}
    notes = []
    unmet = list[str]()
    bare = 0
    for sample in decode_samples(samples, rooms, boundaries, narrow, drawn):
        placement = sample.placement
        if placement is None:
            notes.append(f"sample {sample.number} skipped: {'; '.join(sample.errors)}")
            continue
        diagram = laid_out(placement)
        if drawn is not None and diagram.boxes is not None:
            diagram = Diagram.from_boxes(diagram.types, diagram.boxes)
        diagrams[sample.number] = replace(diagram, name=f"sample {sample.number}")
        bare += not placement.exact
        unmet += [f"sample {sample.number}: {reason}" for reason in placement.unmet[:1]]
    if bare and drawn is not None:
        notes.append(
            f"the boxes of {bare:,} of {len(diagrams):,} samples contradict their relations; "
            "written with the relations that the boxes show"
        )
    elif bare:
        # Only JSON lines can do without boxes.
        done = "their boxes violate some relations"
        if form == "jsonl":
            done = "written without boxes"
        notes.append(
            f"{bare:,} of {len(diagrams):,} samples cannot be realised by boxes; {done}"
        )
    if unmet:
        notes.append(
            f"{len(unmet):,} of {len(diagrams):,} samples have layouts that miss an area, the "
            f"outline or its front door, the first {unmet[0]}"
        )
    files = write_diagrams(diagrams, folder, form)
    if form == "housegan":
        large = sum(map(_exceeds_loader, files))
        if large:
            limits = f"{NODES} rooms and doors or {CORNERS} corners"
            notes.append(
                f"{large:,} of {len(files):,} samples have more than {limits}, "
                "which HouseDiffusion's loader rejects"
            )
    return files, notes


def laid_out(placement: Placement) -> Diagram:
    """Return the diagram with its boxes on the canvas, and the boundary in which they are.

    A layout of relations that contradict each other may be larger than the canvas: without boxes.
    """
    diagram = placement.diagram
    if not placement.exact and placement.boxes.max() > GRID:
        return replace(diagram, boxes=None, boundary=None)
    # Rooms that an edited plan keeps are where they were.
    boxes = diagram.boxes or _centred(placement.boxes, placement.outline)
    return replace(diagram, boxes=boxes, boundary=placement.boundary_at(boxes[0]))


def _exceeds_loader(file: Path) -> bool:
    """Whether a plan in the layout of HouseGAN++ is too large for HouseDiffusion's loader."""
    plan = json.loads(file.read_text(encoding="utf-8"))
    return len(plan["room_type"]) > NODES or len(plan["edges"]) > CORNERS


def _centred(boxes: Boxes, outline: Sequence[Corner] = ()) -> tuple[Box, ...]:
    """Centre boxes with their outline by whole pixels, which preserves all relations."""
    low = boxes[:, :2].min(0)
    high = boxes[:, 2:].max(0)
    points = np.array([low, high, *outline])
    margins = GRID - points.max(0) - points.min(0)
    shift = margins // 2
    # The outline may be larger than the canvas, the boxes stay on it.
    shift = shift.clip(-low, GRID - high)
    centred = boxes + np.tile(shift, 2)
    return tuple((x0, y0, x1, y1) for x0, y0, x1, y1 in centred.tolist())


_DOOR_DEPTH = 4
"""Thickness of a door in pixels, that of a wall. HouseDiffusion's loader draws nodes in cells of 4
pixels, where thinner doors can have more than four corners."""

_THINNEST = 2
"""Shortest side of a room in pixels: right and lower walls are on the last pixel, so that shorter
ones have no length."""

NODES = 20
"""Most nodes (200 pairs) that HouseDiffusion's loader accepts."""

CORNERS = 100
"""Most corners of a plan that HouseDiffusion's loader accepts."""

_Wall = tuple[int, int, int, int]


def housegan_plan(diagram: Diagram) -> dict[str, Any]:
    """Return the plan as a JSON object in the layout of HouseGAN++.

    Rooms are disjoint outlines within their boxes. Doors are those of the diagram; if they are
    unknown, they join every room to the others, and one front door leads outside; see
    `geometry.floor_plan`. A diagram without boxes gets a layout (`place_rooms`), which may violate
    some relations. No wall is shorter than a pixel; plans with more than `NODES` nodes or `CORNERS`
    corners exceed HouseDiffusion's loader.
    """
    boxes, plan = _plan_of(diagram, _THINNEST)
    # Nodes are the rooms, then the doors.
    kinds = [TO_HOUSEGAN[ROOMS[kind]] for kind in diagram.types]
    kinds += [FRONT_DOOR if door.j is None else DOOR for door in plan.doors]
    openings = [_opening(door) for door in plan.doors]
    outlines = [*plan.outlines, *map(_rectangle, openings)]

    # The nodes on the other side of the walls of each node, with their boxes.
    shared: list[list[tuple[int, Box]]] = [[] for _ in outlines]
    doors = zip(plan.doors, openings, strict=True)
    for node, (door, box) in enumerate(doors, len(boxes)):
        shared[node].append((door.i, boxes[door.i]))
        if door.j is not None:
            shared[node].append((door.j, boxes[door.j]))
            shared[door.i].append((door.j, box))
            shared[door.j].append((door.i, box))

    edges = []
    ends = []
    for node, outline in enumerate(outlines):
        for wall, other in _walls(_sides(outline), shared[node]):
            if other is None:
                edges.append([*wall, kinds[node], 0])
                ends.append([node])
            else:
                edges.append([*wall, kinds[node], kinds[other]])
                ends.append([node, other])
    return {
        "room_type": kinds,
        # Both ends of a box are inside in this layout.
        "boxes": [[x0, y0, x1 - 1, y1 - 1] for x0, y0, x1, y1 in (*boxes, *openings)],
        "edges": edges,
        "ed_rm": ends,
    }


def _lines(plan: FloorPlan) -> Iterator[tuple[str, list[int], Sequence[Point]]]:
    """Yield layer, rooms and points of each shape in pixels.

    Closed outlines come first, then doors and windows.
    """
    for room, outline in enumerate(plan.outlines):
        yield "rooms", [room], [*outline, outline[0]]
    # The leaf of a door is drawn by no format, so a door is a line of its width.
    for door in plan.doors:
        line = segment(door, door.length)
        if door.j is None:
            yield "front-door", [door.i], line
        else:
            yield "doors", [door.i, door.j], line
    for window in plan.windows:
        yield "windows", [window.room], segment(window, window.length)


def geojson_plan(diagram: Diagram) -> dict[str, Any]:
    """Return the floor plan as a GeoJSON feature collection in metres, y pointing up.

    Boxes as in `housegan_plan`.
    """
    _, plan = _plan_of(diagram)
    areas = plan.room_areas() * METRES**2
    features = []
    for layer, (room, *beyond), line in _lines(plan):
        points = [metres(point) for point in line]
        properties: dict[str, Any] = {"layer": layer, "room": room}
        properties["type"] = ROOMS[diagram.types[room]]
        geometry: dict[str, Any] = {"type": "LineString", "coordinates": points}
        if layer == "rooms":
            properties["area"] = round(float(areas[room]), 2)
            # Counterclockwise, as y points up here.
            geometry = {"type": "Polygon", "coordinates": [points[::-1]]}
        if beyond:
            properties["to"] = beyond[0]
        features.append(
            {"type": "Feature", "properties": properties, "geometry": geometry}
        )
    return {"type": "FeatureCollection", "features": features}


def dxf_plan(diagram: Diagram) -> str:
    """Return the floor plan as a DXF drawing in metres; see `dxf.draw_dxf`."""
    _, plan = _plan_of(diagram)
    return draw_dxf(room_names(diagram), diagram.types, plan)


def ifc_plan(diagram: Diagram) -> str:
    """Return the floor plan as a building model; see `ifc.draw_ifc`."""
    _, plan = _plan_of(diagram)
    # IFC requires a name of the project.
    project = diagram.name or "floor plan"
    return draw_ifc(project, room_names(diagram), diagram.types, plan)


def _plan_of(diagram: Diagram, thinnest: int = 1) -> tuple[tuple[Box, ...], FloorPlan]:
    """Return boxes and the floor plan; unknown boxes are laid out, centred, and scaled down.

    Thinner boxes are widened to `thinnest` pixels.
    """
    boxes = diagram.boxes
    if boxes is None:
        walls = place_rooms(diagram).astype(float)
        # Rooms of contradictory relations may not fit on the canvas.
        whole = whole_boxes(walls * min(1.0, GRID / walls.max()))
        boxes = _centred(np.clip(whole, 0, GRID))
    boxes = tuple(_widened(box, thinnest) for box in boxes)
    return boxes, floor_plan(
        types=diagram.types,
        boxes=np.array(boxes),
        front=diagram.front_door,
        doors=diagram.doors,
    )


def _widened(box: Box, thinnest: int) -> Box:
    """Return a box of at least `thinnest` pixels along both axes, within the grid."""
    x0, y0, x1, y1 = box
    x0 = min(x0, GRID - thinnest)
    y0 = min(y0, GRID - thinnest)
    return x0, y0, max(x1, x0 + thinnest), max(y1, y0 + thinnest)


def _opening(door: Door) -> Box:
    """Return the box of a door, within the grid."""
    width = DOOR_WIDTH // 2
    height = _DOOR_DEPTH // 2
    if door.upright:
        width, height = height, width
    x = int(min(max(door.x, width), GRID - width))
    y = int(min(max(door.y, height), GRID - height))
    return x - width, y - height, x + width, y + height


def _rectangle(box: Box) -> tuple[Corner, ...]:
    x0, y0, x1, y1 = box
    return (x0, y0), (x1, y0), (x1, y1), (x0, y1)


def _sides(outline: Sequence[Corner]) -> list[_Wall]:
    """Return the closed outline, clockwise.

    Right and lower walls are on the last pixel of the room, as in this layout.
    """
    points = []
    before, start = outline[-2:]
    for end in outline:
        # Sides alternate, so a corner has the x of the upright and the y of the level side.
        if start[0] == end[0]:
            points.append((_line(start, end), _line(before, start)))
        else:
            points.append((_line(before, start), _line(start, end)))
        before, start = start, end
    # The first point is the start of the last side.
    points = [*points[1:], points[0], points[1]]
    return [(*start, *end) for start, end in pairwise(points)]


def _line(start: Corner, end: Corner) -> int:
    """Return x of an upright or y of a level side; right and lower ones are on the last pixel."""
    (x0, y0), (x1, y1) = start, end
    if x0 == x1:
        if y1 > y0:
            return x0 - 1
        return x0

    if x1 < x0:
        return y0 - 1
    return y0


def _walls(
    sides: Sequence[_Wall], shared: Sequence[tuple[int, Box]]
) -> Iterator[tuple[_Wall, int | None]]:
    """Split sides so that each node in `shared` has one; yield each with its node.

    That is the nearest side, of equally distant ones the first, with a pixel left for it: a wall of
    length 0 ends the loader of HouseDiffusion.
    """
    nodes_of: list[list[int]] = [[] for _ in sides]
    for node, (x0, y0, x1, y1) in shared:
        centre = ((x0 + x1) / 2, (y0 + y1) / 2)
        free = []
        for number, side in enumerate(sides):
            if len(nodes_of[number]) < _length(side):
                free.append(number)

        # A room of two pixels with five doors has no pixel left; its wall is split in vain.
        free = free or list(range(len(sides)))
        nearest = min(free, key=lambda k: _distance(sides[k], centre))
        nodes_of[nearest].append(node)
    for side, nodes in zip(sides, nodes_of, strict=True):
        if not nodes:
            yield side, None
            continue
        # Whole pixels: a part ends where the next one starts, up to the end of the side.
        x0, y0, x1, y1 = side
        parts = len(nodes)
        cuts = []
        for k in range(parts + 1):
            x = x0 + (x1 - x0) * k // parts
            y = y0 + (y1 - y0) * k // parts
            cuts.append((x, y))
        for (start, end), node in zip(pairwise(cuts), nodes, strict=True):
            yield (*start, *end), node


def _length(side: _Wall) -> int:
    x0, y0, x1, y1 = side
    return abs(x1 - x0) + abs(y1 - y0)


def _distance(side: _Wall, point: Point) -> float:
    x, y = point
    x0, x1 = sorted((side[0], side[2]))
    y0, y1 = sorted((side[1], side[3]))
    beside = max(x0 - x, x - x1, 0)
    above_or_below = max(y0 - y, y - y1, 0)
    return hypot(beside, above_or_below)


EXPORTS: dict[str, tuple[str, Callable[[Diagram], str]]] = {
    "jsonl": (".jsonl", plan_line),
    "housegan": (".json", lambda diagram: json.dumps(housegan_plan(diagram))),
    "svg": (".svg", lambda diagram: to_svg(draw_floorplan(place_diagram(diagram)))),
    "geojson": (".geojson", lambda diagram: json.dumps(geojson_plan(diagram))),
    "dxf": (".dxf", dxf_plan),
    "ifc": (".ifc", ifc_plan),
}
"""File suffix and text of each format; JSON lines share one file."""
