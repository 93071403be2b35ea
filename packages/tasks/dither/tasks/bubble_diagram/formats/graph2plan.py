"""Graph2Plan: many plans per file, as MATLAB structs (`data.mat`), JSON or arrays.

A plan has these fields in each form; others are ignored:

    name      name of the plan
    gtBoxNew  x0, y0, x1, y1 of each room after alignment; or gtBox, which is y0, x0, y1, x1
    rType     type of each room
    box       x0, y0, x1, y1, type of each room: replaces the fields above in preprocessed files
    rEdge     u, v, relation of u to v, rooms counted from 0; or edge. Used only if there are no boxes

MATLAB: a struct array `data`, format 7 or older. JSON: a list of dicts, or {"data": a list}. Arrays (.npz): `name` (N),
`rooms` (N, number of rooms) and `box` (concatenated rooms, 5 columns). Stored relations are ignored where there are
boxes: the published files hold some that were computed with x and y swapped.
Source: Hu et al., Graph2Plan, SIGGRAPH 2020, and its reference code.
"""

from __future__ import annotations

import struct
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final

import numpy as np

from ..plans import Diagram
from ..vocabulary import ROOMS
from .entries import Entry, Fault, ReadOptions, RejectedPlan, diagram_of_boxes, diagram_of_edges, entry_of, read_json

__all__ = ["read_graph2plan", "run_isolated"]

_BOXES = ("gtBoxNew", "box", "gtBox")
_EDGES = ("rEdge", "edge")
_FIELDS: Final = ("name", "rType", *_BOXES, *_EDGES)


def read_graph2plan(file: Path, options: ReadOptions) -> Iterator[Entry]:
    """Yield the plans of a file."""
    try:
        plans = _READERS[file.suffix.lower()](file)
    except RejectedPlan as rejected:
        yield Entry(file, faults=rejected.faults)
        return
    for number, plan in enumerate(plans):
        name = _name(plan)
        yield entry_of(file, f"plan {number}" + (f' "{name}"' if name else ""), _read, plan, name, options)


def _read_json(file: Path) -> Iterable[Mapping[str, Any]]:
    content = read_json(file)
    plans = content.get("data") if isinstance(content, dict) else content
    if not isinstance(plans, list):
        raise RejectedPlan(Fault("text", 'expected a list of plans or {"data": a list of plans}'))
    return (plan if isinstance(plan, dict) else {} for plan in plans)


def _read_arrays(file: Path) -> Iterable[Mapping[str, Any]]:
    try:
        with file.open("rb") as stream, np.load(stream, allow_pickle=False) as archive:
            arrays = {key: archive[key] for key in ("name", "rooms", "box") if key in archive.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error, struct.error, NotImplementedError) as error:
        raise RejectedPlan(Fault("file", f"unreadable arrays: {error}")) from None
    missing = [key for key in ("rooms", "box") if key not in arrays]
    if missing:
        raise RejectedPlan(Fault("file", f"missing array: {', '.join(missing)}"))
    rooms, box = arrays["rooms"], arrays["box"]
    valid = rooms.ndim == 1 and rooms.dtype.kind in "iu" and (rooms >= 0).all()
    if not (valid and box.ndim == 2 and box.shape[1] == 5 and len(box) == rooms.sum()):
        actual = f"rooms {rooms.dtype} {rooms.shape}, box {box.shape}"
        raise RejectedPlan(Fault("file", f"box must have 5 columns and sum(rooms) rows; got {actual}"))
    names = arrays.get("name", np.full(len(rooms), ""))
    if names.shape != rooms.shape:
        raise RejectedPlan(Fault("file", f"{len(rooms)} plans, but name has shape {names.shape}"))
    parts = np.split(box, np.cumsum(rooms)[:-1]) if len(rooms) else []
    return ({"name": name, "box": part} for name, part in zip(names.tolist(), parts, strict=True))


def _read_matlab(file: Path) -> Iterable[Mapping[str, Any]]:
    plans: list[dict[str, Any]] | str = run_isolated(_load_structs, file)
    if isinstance(plans, str):
        raise RejectedPlan(Fault("file", plans))
    return plans


def run_isolated(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function in a child process, so that a crash of a C library is an error instead of the end of `prepare`.

    `scipy.io.loadmat` (1.16) was seen to segfault on damaged uncompressed files.
    """
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        try:
            return pool.submit(function, *arguments).result()
        except BrokenProcessPool:
            raise RejectedPlan(Fault("file", "unreadable MATLAB file: the reader crashed")) from None


def _load_structs(file: Path) -> list[dict[str, Any]] | str:
    """Return the plans in the variable `data`, or what is wrong with the file."""
    from scipy.io import loadmat, whosmat
    from scipy.io.matlab import MatReadError

    try:
        content = loadmat(file, variable_names=["data"], appendmat=False)
        names = "" if "data" in content else ", ".join(name for name, _, _ in whosmat(file, appendmat=False))
    except NotImplementedError:
        return "MATLAB 7.3 (HDF5) is not supported; save the file with -v7"
    except (OSError, ValueError, TypeError, LookupError, EOFError, MatReadError, zlib.error, struct.error,
            ArithmeticError, MemoryError, AttributeError) as error:  # fmt: skip
        return f"unreadable MATLAB file: {str(error) or type(error).__name__}"
    if "data" not in content:
        return f"missing variable data; variables: {names or 'none'}"
    data = np.asarray(content["data"])
    if data.dtype.names is None:
        return f"expected an array of structs in data, got {data.dtype} of shape {data.shape}"
    fields = [field for field in _FIELDS if field in data.dtype.names]
    return [{field: _plain(plan[field]) for field in fields} for plan in data.ravel()]


def _plain(value: Any) -> Any:
    array = np.asarray(value)
    return array.tolist() if array.dtype.kind in "biufU" else str(value)


def _name(plan: Mapping[str, Any]) -> str:
    name = np.asarray(plan.get("name", ""), object).ravel()
    return str(name[0]) if len(name) == 1 else ""


def _read(plan: Mapping[str, Any], name: str, options: ReadOptions) -> Diagram:
    field = next((key for key in _BOXES if np.size(plan.get(key, ()))), None)
    if field == "box":
        table = _rows(plan, "box", 5)
        return diagram_of_boxes(_types(table[:, 4]), table[:, :4], name, options)
    if "rType" not in plan:
        raise RejectedPlan(Fault("types", "missing field: rType or box"))
    types = _types(_rows(plan, "rType", 1)[:, 0])
    if field is not None:
        boxes = _rows(plan, field, 4)
        return diagram_of_boxes(types, boxes[:, [1, 0, 3, 2]] if field == "gtBox" else boxes, name, options)
    stored = next((key for key in _EDGES if key in plan), None)
    if stored is None:
        raise RejectedPlan(Fault("boxes", f"missing field: one of {', '.join((*_BOXES, *_EDGES))}"))
    return diagram_of_edges(types, _rows(plan, stored, 3), name, options)


def _rows(plan: Mapping[str, Any], field: str, columns: int) -> Any:
    """Return a field as rows; MATLAB drops dimensions of size one."""
    try:
        return np.asarray(plan[field], np.float64).reshape(-1, columns)
    except (ValueError, TypeError, OverflowError):
        pass
    raise RejectedPlan(Fault("boxes" if columns > 3 else "edges", f"{field}: expected rows of {columns} numbers"))


def _types(numbers: Any) -> list[int]:
    faults = [
        Fault("types", f"room {room}: invalid room type {number:g}, expected 0..{len(ROOMS) - 1}")
        for room, number in enumerate(numbers.tolist())
        if number not in range(len(ROOMS))
    ]
    if faults:
        raise RejectedPlan(*faults)
    return [int(number) for number in numbers]


_READERS: dict[str, Callable[[Path], Iterable[Mapping[str, Any]]]] = {
    ".mat": _read_matlab,
    ".npz": _read_arrays,
    ".json": _read_json,
}
