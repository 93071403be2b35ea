"""The data of Graph2Plan: many plans a file, as MATLAB structs (`data.mat`), as JSON or as arrays.

A plan has these fields, however it is stored; others are not looked at:

    name      what it is called
    gtBoxNew  x0, y0, x1, y1 of each room, moved together; or gtBox, which is y0, x0, y1, x1
    rType     the type of each room
    box       x0, y0, x1, y1, type of each room: in place of the three above, as its preparation of data writes it
    rEdge     u, v, relation of u to v, rooms counted from 0; or edge. Looked at only where there are no boxes

MATLAB: a struct array `data`, format 7 or older. JSON: a list of tables, or {"data": a list}. Arrays (.npz): `name`
(N), `rooms` (N, number of rooms), and `box` (all rooms one after the other, 5 columns). Stored relations are not used
where there are boxes: the published files hold some that were computed from boxes with x and y exchanged.
Source: Hu et al., Graph2Plan, SIGGRAPH 2020, and its published program.
"""

from __future__ import annotations

import struct
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..plans import Diagram
from ..vocabulary import ROOMS
from .common import Entry, Fault, ReadOptions, RejectedPlan, diagram_of_boxes, diagram_of_edges, entry_of, read_json
from .matlab import read_structs

__all__ = ["read_graph2plan"]

_BOXES = ("gtBoxNew", "box", "gtBox")
_EDGES = ("rEdge", "edge")


def read_graph2plan(file: Path, choices: ReadOptions) -> Iterator[Entry]:
    """Yield the plans of a file."""
    try:
        plans = _READERS[file.suffix.lower()](file)
    except RejectedPlan as unfit:
        yield Entry(file, faults=unfit.faults)
        return
    for number, plan in enumerate(plans):
        name = _name(plan)
        shown = f"plan {number}" + (f' "{name}"' if name else "")
        yield entry_of(file, shown, _read, plan, name, choices)


def _tables(file: Path) -> Iterable[Mapping[str, Any]]:
    found = read_json(file)
    plans = found.get("data") if isinstance(found, dict) else found
    if not isinstance(plans, list):
        raise RejectedPlan(Fault("text", 'is neither a list of plans nor {"data": a list of plans}'))
    return (plan if isinstance(plan, dict) else {} for plan in plans)


def _arrays(file: Path) -> Iterable[Mapping[str, Any]]:
    try:
        with file.open("rb") as opened, np.load(opened, allow_pickle=False) as found:
            arrays = {key: found[key] for key in ("name", "rooms", "box") if key in found.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error, struct.error, NotImplementedError) as error:
        raise RejectedPlan(Fault("file", f"holds no arrays that can be read: {error}")) from None
    missing = [key for key in ("rooms", "box") if key not in arrays]
    if missing:
        raise RejectedPlan(Fault("file", f"holds no array {' and no array '.join(missing)}"))
    rooms, box = arrays["rooms"], arrays["box"]
    right = rooms.ndim == 1 and rooms.dtype.kind in "iu" and (rooms >= 0).all()
    if not (right and box.ndim == 2 and box.shape[1] == 5 and len(box) == rooms.sum()):
        given = f"rooms {rooms.dtype} {rooms.shape}, box {box.shape}"
        raise RejectedPlan(
            Fault("file", f"box must have 5 columns and as many rows as rooms add up to; there are {given}")
        )
    names = arrays.get("name", np.full(len(rooms), ""))
    if names.shape != rooms.shape:
        raise RejectedPlan(Fault("file", f"{len(rooms)} plans, but name is of shape {names.shape}"))
    parts = np.split(box, np.cumsum(rooms)[:-1]) if len(rooms) else []
    return ({"name": name, "box": part} for name, part in zip(names.tolist(), parts, strict=True))


def _name(plan: Mapping[str, Any]) -> str:
    name = np.asarray(plan.get("name", ""), object).ravel()
    return str(name[0]) if len(name) == 1 else ""


def _read(plan: Mapping[str, Any], name: str, choices: ReadOptions) -> Diagram:
    field = next((key for key in _BOXES if np.size(plan.get(key, ()))), None)
    if field == "box":
        table = _rows(plan, "box", 5)
        return diagram_of_boxes(_types(table[:, 4]), table[:, :4], name, choices)
    if "rType" not in plan:
        raise RejectedPlan(Fault("types", "there is neither rType nor box"))
    types = _types(_rows(plan, "rType", 1)[:, 0])
    if field is not None:
        boxes = _rows(plan, field, 4)
        return diagram_of_boxes(types, boxes[:, [1, 0, 3, 2]] if field == "gtBox" else boxes, name, choices)
    stored = next((key for key in _EDGES if key in plan), None)
    if stored is None:
        raise RejectedPlan(Fault("boxes", f"there is none of {', '.join((*_BOXES, *_EDGES))}"))
    return diagram_of_edges(types, _rows(plan, stored, 3), name, choices)


def _rows(plan: Mapping[str, Any], field: str, columns: int) -> Any:
    """Return a field as rows; one row may come without its dimension, and a column lying."""
    try:
        found = np.asarray(plan[field], np.float64)
        return found.reshape(-1, columns)
    except (ValueError, TypeError, OverflowError):
        pass
    raise RejectedPlan(Fault("boxes" if columns > 3 else "edges", f"{field}: {columns} numbers a row are due"))


def _types(numbers: Any) -> list[int]:
    faults = [
        Fault("types", f"room {room}: {number:g} is no type of room, they are 0..{len(ROOMS) - 1}")
        for room, number in enumerate(numbers.tolist())
        if number not in range(len(ROOMS))
    ]
    if faults:
        raise RejectedPlan(*faults)
    return [int(number) for number in numbers]


_READERS: dict[str, Callable[[Path], Iterable[Mapping[str, Any]]]] = {
    ".mat": read_structs,
    ".npz": _arrays,
    ".json": _tables,
}
