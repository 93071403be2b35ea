"""Export of diagrams: JSON lines, the JSON layout of HouseGAN++, and floor plans as SVG, GeoJSON and DXF.

Letters: N samples, L tokens, R rooms.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from io import StringIO
from itertools import pairwise
from math import hypot
from pathlib import Path
from typing import Any, Final

import numpy as np
from jaxtyping import Int

from dither.registry.files.atomic import atomic_write
from dither.registry.plugins.install_command import optional_import

from .decoded_samples import decode_samples
from .formats.housegan import DOOR, FRONT_DOOR, TO_HOUSEGAN
from .formats.jsonl import plan_line
from .geometry.boundary import Point
from .geometry.floor_plan import DOOR_WIDTH, Door, FloorPlan, floor_plan, segment
from .geometry.placement import place_diagram, place_rooms, room_names
from .plans import Box, Diagram
from .plots.diagram import draw_floorplan
from .plots.svg import to_svg
from .relations import GRID, METRES
from .vocabulary import ROOMS, Export

__all__ = [
    "EXPORTS",
    "dxf_plan",
    "geojson_plan",
    "housegan_plan",
    "write_diagrams",
    "write_samples",
]

EXPORTS: Final[dict[str, tuple[str, Callable[[Diagram], str]]]] = {
    "jsonl": (".jsonl", plan_line),
    "housegan": (".json", lambda diagram: json.dumps(housegan_plan(diagram))),
    "svg": (".svg", lambda diagram: to_svg(draw_floorplan(place_diagram(diagram)))),
    "geojson": (".geojson", lambda diagram: json.dumps(geojson_plan(diagram))),
    "dxf": (".dxf", lambda diagram: dxf_plan(diagram)),  # noqa: PLW0108 - defined below
}
"""File suffix and text of each format; JSON lines share one file."""


def write_diagrams(diagrams: Mapping[int, Diagram], folder: Path, form: Export) -> list[Path]:
    """Write diagrams atomically: one file, or one per diagram, named by its number; return these files.

    HouseGAN++ also requires `list.txt` with one file name per line.
    """
    suffix, text = EXPORTS[form]
    files = {f"{number}{suffix}": text(diagram) + "\n" for number, diagram in diagrams.items()}
    if form == "jsonl":
        files = {f"plans{suffix}": "".join(files.values())}
    listed = {"list.txt": "".join(f"{name}\n" for name in files)} if form == "housegan" else {}
    for name, content in (files | listed).items():
        with atomic_write(folder / name) as beside:
            beside.write_text(content, encoding="utf-8")
    return [folder / name for name in files]


def write_samples(
    samples: Int[np.ndarray, "N L"],
    rooms: int,
    folder: Path,
    form: Export,
    boundaries: Int[np.ndarray, "N P 2"] | None = None,
    narrow: Callable[[Diagram], Diagram] | None = None,
) -> tuple[list[Path], list[str]]:
    """Write samples of a model, with boxes wherever boxes realise the diagram; a file is named by its sample.

    Other samples are written without boxes, except in formats that require them; see
    `housegan_plan`. Returns the files, and notes for the user: which samples do not decode, and how
    many have no boxes.
    """
    diagrams: dict[int, Diagram] = {}
    notes = []
    bare = 0
    for sample in decode_samples(samples, rooms, boundaries, narrow):
        if sample.placement is None:
            notes.append(f"sample {sample.number} skipped: {'; '.join(sample.errors)}")
            continue
        diagram = sample.placement.diagram
        exact = sample.placement.exact
        boxes = _centred(sample.placement.boxes, sample.placement.outline) if exact else None
        boundary = None if boxes is None else sample.placement.boundary_at(boxes[0])
        name = f"sample {sample.number}"
        diagrams[sample.number] = replace(diagram, boxes=boxes, name=name, boundary=boundary)
        bare += not exact
    if bare:
        what = "written without boxes" if form == "jsonl" else "their boxes violate some relations"
        notes.append(f"{bare:,} of {len(diagrams):,} samples cannot be realised by boxes; {what}")
    return write_diagrams(diagrams, folder, form), notes


def _centred(
    boxes: Int[np.ndarray, "R 4"], outline: Sequence[tuple[int, int]] = ()
) -> tuple[Box, ...]:
    """Centre boxes with their outline on the grid by whole pixels, which preserves all relations."""
    low = boxes[:, :2].min(0)
    high = boxes[:, 2:].max(0)
    points = np.array([low, high, *outline])
    shift = ((GRID - points.max(0) - points.min(0)) // 2).clip(-low, GRID - high)
    centred = boxes + np.tile(shift, 2)
    return tuple((x0, y0, x1, y1) for x0, y0, x1, y1 in centred.tolist())


_DOOR_DEPTH: Final = 2
"""Thickness of a door in pixels."""

NODES = 20
CORNERS = 100
"""Largest number of nodes (200 pairs), and of corners of a plan that HouseDiffusion's loader
accepts."""

_Wall = tuple[int, int, int, int]


def housegan_plan(diagram: Diagram) -> dict[str, Any]:
    """Return the plan as a JSON object in the layout of HouseGAN++.

    Rooms are disjoint outlines within their boxes. Doors are those of the diagram; if they are
    unknown, they join every room to the others, and one front door leads outside; see
    `geometry.floor_plan`. A diagram without boxes gets a layout (`place_rooms`), which may violate
    some relations. Plans with more than `NODES` nodes or `CORNERS` corners exceed HouseDiffusion's
    loader.
    """
    boxes, plan = _plan_of(diagram)
    kinds = [TO_HOUSEGAN[ROOMS[kind]] for kind in diagram.types]
    openings = [_opening(door) for door in plan.doors]
    kinds += [FRONT_DOOR if door.j is None else DOOR for door in plan.doors]
    corners = [((x0, y0), (x1, y0), (x1, y1), (x0, y1)) for x0, y0, x1, y1 in openings]
    sides = [_sides(outline) for outline in (*plan.outlines, *corners)]
    shared: list[list[tuple[int, Box]]] = [[] for _ in sides]
    for node, (door, box) in enumerate(zip(plan.doors, openings, strict=True), len(boxes)):
        shared[node] = [(room, boxes[room]) for room in (door.i, door.j) if room is not None]
        if door.j is not None:
            shared[door.i].append((door.j, box))
            shared[door.j].append((door.i, box))
    walls = [(node, *wall) for node, own in enumerate(sides) for wall in _walls(own, shared[node])]
    return {
        "room_type": kinds,
        "boxes": [[x0, y0, x1 - 1, y1 - 1] for x0, y0, x1, y1 in (*boxes, *openings)],
        "edges": [
            [*wall, kinds[node], 0 if other is None else kinds[other]]
            for node, wall, other in walls
        ],
        "ed_rm": [[node] if other is None else [node, other] for node, _, other in walls],
    }


def _lines(plan: FloorPlan) -> Iterator[tuple[str, list[int], tuple[Point, ...]]]:
    """Yield layer, rooms and points of each shape in metres, y pointing up: closed outlines, then doors and windows."""

    def metres(x: float, y: float) -> Point:
        return round(x * METRES, 3), round(-y * METRES, 3)

    for room, outline in enumerate(plan.outlines):
        yield "rooms", [room], tuple(metres(*corner) for corner in (*outline, outline[0]))
    for door in plan.doors:
        layer = "front-door" if door.j is None else "doors"
        rooms = [door.i, *([] if door.j is None else [door.j])]
        yield layer, rooms, tuple(metres(*end) for end in segment(door, DOOR_WIDTH))
    for window in plan.windows:
        yield (
            "windows",
            [window.room],
            tuple(metres(*end) for end in segment(window, window.length)),
        )


def geojson_plan(diagram: Diagram) -> dict[str, Any]:
    """Return the floor plan as a GeoJSON feature collection in metres, y pointing up; boxes as in `housegan_plan`."""
    _, plan = _plan_of(diagram)
    areas = np.bincount(plan.label[plan.label >= 0], minlength=len(diagram.types)) * METRES**2
    features = [
        {
            "type": "Feature",
            "properties": {"layer": layer, "room": room, "type": ROOMS[diagram.types[room]]}
            | ({"area": round(float(areas[room]), 2)} if layer == "rooms" else {})
            | ({"to": beyond[0]} if beyond else {}),
            "geometry": {"type": "Polygon", "coordinates": [points[::-1]]}
            if layer == "rooms"
            else {"type": "LineString", "coordinates": points},
        }
        for layer, (room, *beyond), points in _lines(plan)
    ]
    return {"type": "FeatureCollection", "features": features}


def dxf_plan(diagram: Diagram) -> str:
    """Return the floor plan as a DXF drawing in metres, with a layer for rooms, doors, windows and names.

    Raises:
        Refused: ezdxf is not installed (`missing-dependency`).
    """
    with optional_import("DXF requires ezdxf", "dither-tasks", "dxf"):
        import ezdxf
    (_, plan), text = _plan_of(diagram), StringIO()
    drawing = ezdxf.new()  # type: ignore[attr-defined,unused-ignore]
    drawing.header["$INSUNITS"] = 6  # metres
    names = room_names(diagram)
    for color, layer in enumerate(("rooms", "doors", "front-door", "windows", "names"), 1):
        drawing.layers.add(layer, color=color)
    for layer, (room, *_), points in _lines(plan):
        drawing.modelspace().add_lwpolyline(
            points, close=layer == "rooms", dxfattribs={"layer": layer}
        )
        if layer == "rooms":
            y, x = np.argwhere(plan.label == room).mean(0).tolist()
            label = drawing.modelspace().add_text(
                names[room], height=0.25, dxfattribs={"layer": "names"}
            )
            label.set_placement((x * METRES, -y * METRES))
    drawing.write(text)
    return text.getvalue()


def _plan_of(diagram: Diagram) -> tuple[tuple[Box, ...], FloorPlan]:
    """Return boxes, if unknown from the layout program, centred on the grid and scaled to it, and the floor plan."""
    boxes = diagram.boxes
    if boxes is None:
        walls = place_rooms(diagram).astype(float)
        whole = np.rint(walls * min(1.0, GRID / walls.max())).astype(int)
        whole[:, 2:] = np.maximum(whole[:, 2:], whole[:, :2] + 1)
        boxes = _centred(np.clip(whole, 0, GRID))
    return boxes, floor_plan(diagram.types, np.array(boxes), diagram.front_door, diagram.doors)


def _opening(door: Door) -> Box:
    half = (
        (_DOOR_DEPTH // 2, DOOR_WIDTH // 2) if door.upright else (DOOR_WIDTH // 2, _DOOR_DEPTH // 2)
    )
    x, y = (int(min(max(at, h), GRID - h)) for at, h in zip((door.x, door.y), half, strict=True))
    return x - half[0], y - half[1], x + half[0], y + half[1]


def _sides(outline: Sequence[tuple[int, int]]) -> list[_Wall]:
    """The closed outline, clockwise; right and lower walls are on the last pixel of the room, as in this layout."""
    sides = list(zip(outline, (*outline[1:], outline[0]), strict=True))
    lines = [x0 - (y1 > y0) if x0 == x1 else y0 - (x1 < x0) for (x0, y0), (x1, y1) in sides]
    points = [  # sides alternate, so a corner has the x of one and the y of the other
        (before, after) if x0 != x1 else (after, before)
        for ((x0, _), (x1, _)), (before, after) in zip(
            sides, pairwise((lines[-1], *lines)), strict=True
        )
    ]
    return [(*start, *end) for start, end in zip(points, (*points[1:], points[0]), strict=True)]


def _walls(
    sides: Sequence[_Wall], shared: Sequence[tuple[int, Box]]
) -> list[tuple[_Wall, int | None]]:
    """Split sides so that each node in `shared` has one, the nearest to its box; return each with its node."""
    at: list[list[int]] = [[] for _ in sides]
    for other, box in shared:
        centre = (box[0] + box[2]) / 2, (box[1] + box[3]) / 2
        nearest = min(range(len(sides)), key=lambda side: _distance(sides[side], centre))
        at[nearest].append(other)
    walls: list[tuple[_Wall, int | None]] = []
    for (x0, y0, x1, y1), others in zip(sides, at, strict=True):
        parts = max(len(others), 1)
        corners = [
            (x0 + (x1 - x0) * k // parts, y0 + (y1 - y0) * k // parts) for k in range(parts + 1)
        ]
        for k, (start, end) in enumerate(pairwise(corners)):
            walls.append(((*start, *end), others[k] if others else None))
    return walls


def _distance(side: _Wall, point: tuple[float, float]) -> float:
    (x0, x1), (y0, y1) = sorted((side[0], side[2])), sorted((side[1], side[3]))
    return hypot(max(x0 - point[0], point[0] - x1, 0), max(y0 - point[1], point[1] - y1, 0))
