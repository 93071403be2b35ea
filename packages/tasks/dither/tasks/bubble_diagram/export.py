"""Export of diagrams: JSON lines, and the JSON layout of HouseGAN++.

Letters: N samples, L tokens, R rooms.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np
from jaxtyping import Int

from dither.registry.files.atomic import atomic_write

from .decoded_samples import decode_samples
from .formats.housegan import DOOR, TO_HOUSEGAN
from .formats.jsonl import plan_line
from .geometry.placement import place_rooms
from .plans import Box, Diagram
from .relations import GRID
from .vocabulary import ROOMS, Export

__all__ = ["EXPORTS", "housegan_plan", "write_diagrams", "write_samples"]


EXPORTS: Final[dict[str, tuple[str, Callable[[Diagram], str]]]] = {
    "jsonl": (".jsonl", plan_line),
    "housegan": (".json", lambda diagram: json.dumps(housegan_plan(diagram))),
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
    samples: Int[np.ndarray, "N L"], rooms: int, folder: Path, form: Export
) -> tuple[list[Path], list[str]]:
    """Write samples of a model, with boxes wherever boxes realise the diagram; a file is named by its sample.

    Other samples are written without boxes, except in HouseGAN++'s layout, which requires them; see `housegan_plan`.
    Returns the files, and notes for the user: which samples do not decode, and how many have no boxes.
    """
    diagrams: dict[int, Diagram] = {}
    notes, bare = [], 0
    for sample in decode_samples(samples, rooms):
        if sample.placement is None:
            notes.append(f"sample {sample.number} skipped: {'; '.join(sample.errors)}")
            continue
        diagram, exact = sample.placement.diagram, sample.placement.exact
        boxes = _centred(sample.placement.boxes) if exact else None
        diagrams[sample.number] = Diagram(diagram.types, diagram.edges, boxes, f"sample {sample.number}")
        bare += not exact
    if bare:
        what = "their boxes violate some relations" if form == "housegan" else "written without boxes"
        notes.append(f"{bare:,} of {len(diagrams):,} samples cannot be realised by boxes; {what}")
    return write_diagrams(diagrams, folder, form), notes


def _centred(boxes: Int[np.ndarray, "R 4"]) -> tuple[Box, ...]:
    """Centre boxes on the grid by whole pixels, which preserves all relations."""
    centred = boxes + np.tile((GRID - boxes[:, 2:].max(0) - boxes[:, :2].min(0)) // 2, 2)
    return tuple((x0, y0, x1, y1) for x0, y0, x1, y1 in centred.tolist())


_DOOR_WIDTH, _DOOR_DEPTH = 12, 2
"""Size of a door in pixels."""

_Wall = tuple[int, int, int, int]

_SIDES: Final = ((-1, 0), (0, 1), (1, 0), (0, -1))
"""Directions of the four sides of a box, in the order in which its walls are written."""


def housegan_plan(diagram: Diagram) -> dict[str, Any]:
    """Return the plan as a JSON object in the layout of HouseGAN++.

    A diagram without boxes gets a layout (`place_rooms`), which may violate some relations.
    """
    boxes = diagram.boxes or _layout(diagram)
    kinds = [TO_HOUSEGAN[ROOMS[kind]] for kind in diagram.types]
    doors = [(i, j, _door(boxes[i], boxes[j])) for i, j, _ in diagram.edges]
    edges: list[list[int]] = []
    ends: list[list[int]] = []
    for room, box in enumerate(boxes):
        neighbours = [j if i == room else i for i, j, _ in diagram.edges if room in (i, j)]
        for wall, other in _walls(box, [(other, boxes[other]) for other in neighbours]):
            edges.append([*wall, kinds[room], kinds[other] if other is not None else 0])
            ends.append([room] if other is None else [room, other])
    for node, (i, j, box) in enumerate(doors, len(boxes)):
        for side, beyond in zip(_wall_edges(box), (i, None, j, None), strict=True):
            edges.append([*side, DOOR, 0 if beyond is None else kinds[beyond]])
            ends.append([node] if beyond is None else [node, beyond])
    return {
        "room_type": kinds + [DOOR] * len(doors),
        "boxes": [[x0, y0, x1 - 1, y1 - 1] for x0, y0, x1, y1 in (*boxes, *(box for _, _, box in doors))],
        "edges": edges,
        "ed_rm": ends,
    }


def _layout(diagram: Diagram) -> tuple[Box, ...]:
    """Boxes from the layout program, centred on the grid, scaled down if they do not fit."""
    walls = place_rooms(diagram).astype(float)
    walls *= min(1.0, GRID / walls.max())
    whole = np.rint(walls + np.tile((GRID - walls[:, 2:].max(0)) / 2, 2)).astype(int)
    whole[:, 2:] = np.maximum(whole[:, 2:], whole[:, :2] + 1)
    return tuple((x0, y0, x1, y1) for x0, y0, x1, y1 in np.clip(whole, 0, GRID).tolist())


def _wall_edges(box: Box) -> tuple[_Wall, ...]:
    """The closed outline of a box; far walls are on the last pixel, as in this layout."""
    x0, y0, x1, y1 = box[0], box[1], box[2] - 1, box[3] - 1
    return (x0, y0, x0, y1), (x0, y1, x1, y1), (x1, y1, x1, y0), (x1, y0, x0, y0)


def _walls(box: Box, neighbours: Sequence[tuple[int, Box]]) -> list[tuple[_Wall, int | None]]:
    """The walls of a room, split so that each neighbour has one, and the neighbour of each."""
    at: list[list[int]] = [[], [], [], []]
    for other, place in neighbours:
        offset = [place[0] + place[2] - box[0] - box[2], place[1] + place[3] - box[1] - box[3]]
        at[max(range(4), key=lambda side: _SIDES[side][0] * offset[0] + _SIDES[side][1] * offset[1])].append(other)
    walls: list[tuple[_Wall, int | None]] = []
    for side, others in zip(_wall_edges(box), at, strict=True):
        x0, y0, x1, y1 = side
        parts = max(len(others), 1)
        corners = [(x0 + (x1 - x0) * k // parts, y0 + (y1 - y0) * k // parts) for k in range(parts + 1)]
        for k, (start, end) in enumerate(pairwise(corners)):
            walls.append(((*start, *end), others[k] if others else None))
    return walls


def _door(one: Box, other: Box) -> Box:
    """A door across the wall where two rooms are closest."""
    low = np.maximum(one[:2], other[:2])
    high = np.minimum(one[2:], other[2:])
    across = 0 if high[0] - low[0] < high[1] - low[1] else 1
    middle = (low + high) // 2
    half = np.array([_DOOR_WIDTH, _DOOR_WIDTH]) // 2
    half[across] = _DOOR_DEPTH // 2
    x, y = np.clip(middle, half, GRID - half).tolist()
    return x - int(half[0]), y - int(half[1]), x + int(half[0]), y + int(half[1])
