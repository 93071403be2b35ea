"""Graph2Plan's `data.mat`: a struct array `data`, one plan per struct, MATLAB format 7 or older.

    name      name of the plan
    gtBoxNew  x0, y0, x1, y1 of each room after alignment; or gtBox, which is y0, x0, y1, x1
    rType     type of each room
    box       x0, y0, x1, y1, type of each room: replaces the fields above in preprocessed files
    boundary  x, y, direction, isNew of the corners of the outline; the first two are the ends
              of the front door
    rEdge     u, v, relation of u to v, rooms counted from 0; or edge. Only without boxes

Stored relations are ignored where there are boxes: the published files hold some that were computed
with x and y swapped. Source: Hu et al., Graph2Plan, SIGGRAPH 2020, and its reference code.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from dither.registry.files.child_process import safe_path

from ..geometry.boundary import pack_boundary
from ..plans import Diagram
from ..vocabulary import ROOMS
from .entries import (
    Entry,
    Fault,
    ReadOptions,
    RejectedPlan,
    diagram_of_boxes,
    diagram_of_edges,
    entry_of,
)

# In order of preference: aligned boxes before raw ones.
_BOXES = ("gtBoxNew", "box", "gtBox")
_EDGES = ("rEdge", "edge")
_FIELDS = ("name", "rType", "boundary", *_BOXES, *_EDGES)


def read_graph2plan(file: Path, options: ReadOptions) -> Iterator[Entry]:
    """Yield the plans of a file."""
    # scipy can crash on a damaged file
    with safe_path(), ProcessPoolExecutor(1, mp_context=get_context("spawn")) as child:
        try:
            with _without_script():
                loading = child.submit(_load_structs, file)
            plans = loading.result()
        except BrokenProcessPool:
            plans = "unreadable MATLAB file: the reader crashed"
    if isinstance(plans, str):
        yield Entry(file, faults=(Fault("file", plans),))
        return
    for number, plan in enumerate(plans):
        names = np.asarray(plan.get("name", ""), object).ravel()

        name = ""
        if len(names) == 1:
            name = str(names[0])

        place = f'plan {number} "{name}"' if name else f"plan {number}"
        yield entry_of(file, place, _read, plan, name, options.most)


@contextmanager
def _without_script() -> Iterator[None]:
    """Start processes that do not run the user's script once more.

    Without a main guard it would read the same file in the child, which is a RuntimeError.
    """
    script = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = script


def _load_structs(file: Path) -> list[dict[str, Any]] | str:
    """Return the plans in the variable `data`, or what is wrong with the file."""
    from scipy.io import loadmat, whosmat

    try:
        # appendmat would add .mat to a name without it.
        content = loadmat(file, variable_names=["data"], appendmat=False)
        names = [name for name, _, _ in whosmat(file, appendmat=False)]
    except NotImplementedError:
        return "MATLAB 7.3 (HDF5) is not supported; save the file with -v7"
    except Exception as error:  # a damaged file may raise anything
        return f"unreadable MATLAB file: {str(error) or type(error).__name__}"
    if "data" not in content:
        return f"missing variable data; variables: {', '.join(names) or 'none'}"
    data = np.asarray(content["data"])
    if data.dtype.names is None:
        return f"expected an array of structs in data, got {data.dtype} of shape {data.shape}"
    fields = [field for field in _FIELDS if field in data.dtype.names]
    plans = []
    for plan in data.ravel():
        plans.append({field: _plain(plan[field]) for field in fields})
    return plans


def _plain(value: Any) -> Any:
    array = np.asarray(value)

    if array.dtype.kind in "biufU":
        return array.tolist()
    return str(value)


def _read(
    plan: Mapping[str, Any],
    name: str,
    most: int,
) -> Diagram:
    return replace(
        _read_rooms(plan, name, most), boundary=_boundary(plan.get("boundary", ()))
    )


def _boundary(points: Any) -> tuple[tuple[int, int], ...] | None:
    """Return the boundary; None if it is malformed."""
    array = np.asarray(points, object)
    if array.ndim != 2 or array.shape[1] < 2:
        return None
    corners = array[:, :2].astype(float)
    return pack_boundary(corners.tolist(), corners[:2].tolist())


def _read_rooms(
    plan: Mapping[str, Any],
    name: str,
    most: int,
) -> Diagram:
    known = [field for field in _BOXES if np.size(plan.get(field, ()))]
    if known and known[0] == "box":
        table = _rows(plan, "box", 5)
        return diagram_of_boxes(
            types=_types(table[:, 4]),
            boxes=table[:, :4],
            name=name,
            most=most,
        )
    if "rType" not in plan:
        raise RejectedPlan(Fault("types", "missing field: rType or box"))
    types = _types(_rows(plan, "rType", 1)[:, 0])
    if known:
        boxes = _rows(plan, known[0], 4)
        # y0, x0, y1, x1 in this field.
        if known[0] == "gtBox":
            boxes = boxes[:, [1, 0, 3, 2]]
        return diagram_of_boxes(types, boxes, name, most)

    stored = [field for field in _EDGES if field in plan]
    if not stored:
        raise RejectedPlan(
            Fault("boxes", f"missing field: one of {', '.join((*_BOXES, *_EDGES))}")
        )
    return diagram_of_edges(types, _rows(plan, stored[0], 3), name, most)


def _rows(
    plan: Mapping[str, Any],
    field: str,
    columns: int,
) -> Any:
    """Return a field as rows; MATLAB drops dimensions of size one."""
    try:
        return np.asarray(plan[field], np.float64).reshape(-1, columns)
    except (ValueError, TypeError, OverflowError):
        sort: Any = "boxes" if columns > 3 else "edges"
        raise RejectedPlan(
            Fault(sort, f"{field}: expected rows of {columns} numbers")
        ) from None


def _types(numbers: Any) -> list[int]:
    faults = []
    for room, number in enumerate(numbers.tolist()):
        if number not in range(len(ROOMS)):
            message = f"invalid room type {number:g}, expected 0..{len(ROOMS) - 1}"
            faults.append(Fault("types", f"room {room}: {message}"))
    if faults:
        raise RejectedPlan(*faults)
    return [int(number) for number in numbers]
