"""Plans as JSON lines, one plan per line.

    {"types": ["LivingRoom", "Kitchen"], "boxes": [[60, 60, 140, 160], [144, 60, 200, 110]]}
    {"types": ["LivingRoom", "Kitchen"], "edges": [[0, 1, "left-of"]]}

`types` is required, and either `boxes` (x0, y0, x1, y1 in pixels on a 256 x 256 grid, x1 and y1
exclusive, y pointing down), `polygons` (corners of each room, of which the bounding boxes are used)
or `edges` (i, j, relation of room i to room j; i < j, rooms counted from 0). With boxes, the
relations follow from them, and edges must agree with them. Optional are `name`, `unit` ("m", "cm" or
"mm": coordinates from any origin, which are centred), `doors` ([i, j], i < j, or [i, "outside"] for
a front door) and `areas` ("8 to 10 m2", one for each room). Further keys are counted.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from pydantic import BaseModel, ConfigDict
from pydantic_core import from_json

from dither.registry.config.errors import Origin, Problem, Refused, nearest
from dither.registry.config.nearest_name import similarity
from dither.registry.files.limits import TABLE_BYTES, read_bytes

from ..plans import Diagram, is_door, sort_doors
from ..relations import UNITS
from ..vocabulary import (
    GRID,
    METRES,
    OUTSIDE,
    RELATIONS,
    ROOM_IDS,
    ROOMS,
    Unit,
    area_text,
    parse_area,
)
from .entries import (
    Entry,
    Fault,
    ReadOptions,
    RejectedPlan,
    diagram_of_boxes,
    diagram_of_edges,
    entry_of,
    parse_json,
    path_not_found,
)
from .housegan import read_housegan

SHOWN = 20
"""Faults that are listed; further ones are counted."""


_MISSPELT = 0.8
"""Similarity to a key from which on an unknown one is a mistake."""

_SHORTEST = GRID * METRES
"""Smallest extent of a plan in pixels: the largest one of a plan in metres."""


class LineOptions(NamedTuple):
    """Options of the data source "plans-jsonl"; see `specs.JsonPlans`."""

    most: int = 8
    unit: Unit = "px"
    types: tuple[tuple[str, str], ...] = ()


class _Line(BaseModel):
    # Without strict, pydantic reads numbers from text, and whole ones from 1.0.
    model_config = ConfigDict(extra="ignore", strict=True)
    types: list[Literal[ROOMS]]  # type: ignore[valid-type]
    boxes: list[tuple[float, float, float, float]] | None = None
    polygons: list[list[tuple[float, float]]] | None = None
    unit: Unit | None = None
    edges: list[tuple[int, int, Literal[RELATIONS]]] | None = None  # type: ignore[valid-type]
    doors: list[tuple[int, int | Literal["outside"]]] | None = None
    areas: list[str] | None = None
    name: str = ""


def plan_line(diagram: Diagram) -> str:
    """Return a diagram as one line, without newline.

    Boxes are omitted where the relations do not follow from them, as for door adjacency, because
    boxes take precedence.
    """
    plan: dict[str, Any] = {"name": diagram.name} if diagram.name else {}
    plan["types"] = [ROOMS[kind] for kind in diagram.types]
    boxes = diagram.boxes
    if (
        boxes is not None
        and Diagram.from_boxes(diagram.types, boxes).edges == diagram.edges
    ):
        plan["boxes"] = boxes

    plan["edges"] = [[i, j, RELATIONS[relation]] for i, j, relation in diagram.edges]
    if diagram.doors is not None:
        plan["doors"] = [
            [room, OUTSIDE if other is None else other] for room, other in diagram.doors
        ]
    if diagram.areas is not None:
        plan["areas"] = [area_text(bounds) for bounds in diagram.areas]
    return json.dumps(plan, ensure_ascii=False)


def read_plans(path: Path, most: int) -> list[Diagram]:
    """Read a file of plans of at most `most` rooms; see `read_lines`."""
    return read_lines(path, LineOptions(most))[0]


def read_lines(
    path: Path, options: LineOptions
) -> tuple[list[Diagram], dict[str, int]]:
    """Read a file of plans; once for the check of an experiment and its run.

    Args:
        path: The file, UTF-8. Blank lines are skipped.
        options: How lines are read.

    Returns:
        The plans, and how many have each key that is not used.

    Raises:
        Refused: The file cannot be read or is empty, or some lines are invalid; the faults are
            listed by line.
    """
    find_file(path)
    try:
        digest = sha256(path.read_bytes()).digest()
    except OSError:
        # `scan_plans` reports it.
        digest = b""
    plans, extra = _read_plans(path, options, digest)
    return list(plans), dict(extra)


@lru_cache(maxsize=1)
def _read_plans(
    path: Path,
    options: LineOptions,
    digest: bytes,
) -> tuple[tuple[Diagram, ...], Counter[str]]:
    """Read a file; `digest` is that of its content, so that a changed file is read again."""
    plans = []
    problems = []
    extra: Counter[str] = Counter()
    for entry in _scan(path, options, extra):
        if entry.diagram is not None:
            plans.append(entry.diagram)
            continue
        if not entry.plan:
            raise Refused(f"{path} {entry.faults[0].message}", code="unreadable-file")
        origin = Origin(str(path), int(entry.plan.removeprefix("line ")))
        for fault in entry.faults:
            problems.append(
                Problem(fault.message, origin=origin, code="invalid-sample")
            )
    if len(problems) > SHOWN:
        more = f"{path}: {len(problems) - SHOWN} more problems"
        problems = [*problems[:SHOWN], Problem(more, code="more-problems")]
    if problems:
        raise Refused(problems)
    if not plans:
        raise Refused(f"{path} contains no plans", code="no-samples")
    return tuple(plans), extra


def read_plan(path: Path, most: int) -> Diagram:
    """Read the first plan of a file, or the plan of a .json file in one of the JSON layouts.

    Raises:
        Refused: The file cannot be read, or the plan is invalid.
    """
    find_file(path)
    if path.suffix.lower() != ".json":
        return read_plans(path, most)[0]
    content = read_bytes(path)
    # A key that only the layout of HouseGAN++ has.
    if b'"room_type"' in content:
        (entry,) = read_housegan(path, ReadOptions(most))
    else:
        entry = entry_of(path, "", _parse, content, LineOptions(most), Counter())
    return entry.required()


def scan_plans(path: Path, options: ReadOptions) -> Iterator[Entry]:
    """Yield each line of a file as an entry; a file that cannot be read is an entry, too."""
    return _scan(path, LineOptions(options.most), Counter())


def _scan(path: Path, options: LineOptions, extra: Counter[str]) -> Iterator[Entry]:
    """Yield the entries of a file, and count keys that are not used."""
    try:
        # The byte order mark of editors of Windows.
        content = read_bytes(path, TABLE_BYTES).removeprefix(b"\xef\xbb\xbf")
    except OSError as error:
        yield Entry(path, faults=(Fault("file", f"cannot be read: {error.strerror}"),))
        return
    if content.lstrip().startswith(b"["):
        message = "is a JSON array; write one plan per line, as jq -c '.[]' FILE does"
        yield Entry(path, faults=(Fault("file", message),))
        return
    for number, line in enumerate(content.splitlines(), 1):
        if line.strip():
            yield entry_of(path, f"line {number}", _parse, line, options, extra)


def find_file(path: Path) -> None:
    """Check that a path is a regular file.

    Raises:
        Refused: It does not exist (`file-not-found`), or is a folder or a device
            (`unreadable-file`).
    """
    if not path.exists():
        raise path_not_found(path, "file")
    # Reading a pipe or a device may never end.
    if not path.is_file():
        raise Refused(f"not a regular file: {path}", code="unreadable-file")


def _parse(line: bytes, options: LineOptions, extra: Counter[str]) -> Diagram:
    unknown = _unknown_keys(line)
    faults = list(_key_faults(unknown))
    renamed = line
    if options.types:
        renamed = _with_types(line, dict(options.types))
    diagram = None
    try:
        plan = parse_json(_Line, renamed)
        faults += [*_repeated_keys(line), *_extra_faults(plan)]
        diagram = _rooms_of(plan, options)
    except RejectedPlan as rejected:
        faults = [*rejected.faults, *faults]
    if faults or diagram is None:
        raise RejectedPlan(*faults)
    extra.update(unknown)
    if plan.doors is not None:
        ends = [(i, None if isinstance(j, str) else j) for i, j in plan.doors]
        diagram = replace(diagram, doors=sort_doors(ends))
    if plan.areas is not None:
        bounds = filter(None, map(parse_area, plan.areas))
        diagram = replace(diagram, areas=tuple(bounds))
    return diagram


def _with_types(line: bytes, names: Mapping[str, str]) -> bytes:
    """Return a line with the names of types replaced; as it is if it has none."""
    try:
        plan = from_json(line)
        plan["types"] = [names.get(kind, kind) for kind in plan["types"]]
    except (ValueError, TypeError, KeyError):
        # The checks that follow say what is wrong.
        return line
    return json.dumps(plan).encode()


def _unknown_keys(line: bytes) -> list[str]:
    """Return the keys of a line that are not used; none if it is not a JSON object."""
    try:
        plan = from_json(line)
    except ValueError:
        return []
    if not isinstance(plan, dict):
        return []
    return [key for key in plan if key not in _Line.model_fields]


def _repeated_keys(line: bytes) -> Iterator[Fault]:
    """Yield the keys of a valid line that it has twice, of which the parser ignores the first value."""
    pairs = json.loads(line, object_pairs_hook=list)
    for key, count in Counter(key for key, _ in pairs).items():
        if count > 1:
            yield Fault("text", f"{key}: repeated key")


def _key_faults(keys: Sequence[str]) -> Iterator[Fault]:
    """Yield keys that look like misspelt ones."""
    for key in keys:
        close = nearest(key, _Line.model_fields)
        # Less similar ones, such as `rooms` or `floor`, are data of the file's owner.
        if close and similarity(key, close) >= _MISSPELT:
            yield Fault("text", f'{key}: unknown key; did you mean "{close}"?')


def _pixels(boxes: Any, unit: Unit) -> Any:
    """Return boxes in pixels; those in other units are centred on the canvas."""
    walls = np.array(boxes, float).reshape(-1, 4)
    if unit == "px" or not len(walls):
        return walls
    walls = walls * UNITS[unit]
    # Before rounding, which leaves nothing of small boxes.
    low, high = _check_extent(walls, unit)
    # By whole pixels, which preserves the relations of walls at whole pixels.
    shift = np.floor((GRID - low - high) / 2)
    # Rounding may move a plan as wide as the canvas across its edge.
    return np.rint(walls + np.tile(shift, 2)).clip(0, GRID)


def _check_extent(walls: Any, unit: Unit) -> tuple[Any, Any]:
    """Return the corners of the bounding rectangle of boxes in pixels.

    Raises:
        RejectedPlan: It is as large as no flat is, which another unit may explain.
    """
    low = walls[:, :2].min(0)
    high = walls[:, 2:].max(0)
    size = high - low
    if not (np.isfinite(size).all() and _SHORTEST <= size.max() <= GRID):
        metres = " x ".join(f"{side * METRES:.4g}" for side in size.tolist())
        limits = f"{_SHORTEST * METRES:.2g} to {GRID * METRES:g} m"
        message = f"a plan of {metres} m, expected {limits}; is the unit {unit}?"
        raise RejectedPlan(Fault("boxes", message))
    return low, high


def _bounding_boxes(
    polygons: list[list[tuple[float, float]]],
) -> list[tuple[float, ...]]:
    """Return the bounding boxes of polygons.

    Raises:
        RejectedPlan: A polygon has fewer than three corners.
    """
    boxes = []
    for room, corners in enumerate(polygons):
        if len(corners) < 3:
            message = f"room {room}: a polygon of {len(corners)} corners"
            raise RejectedPlan(Fault("boxes", message))
        points = np.array(corners)
        boxes.append((*points.min(0).tolist(), *points.max(0).tolist()))
    return boxes


def _rooms_of(plan: _Line, options: LineOptions) -> Diagram:
    most = options.most
    types = [ROOM_IDS[kind] for kind in plan.types]
    edges = []
    for i, j, relation in plan.edges or ():
        edges.append((i, j, RELATIONS.index(relation)))

    boxes: Any = plan.boxes
    if plan.polygons is not None:
        if boxes is not None:
            raise RejectedPlan(Fault("boxes", "both boxes and polygons are given"))
        boxes = _bounding_boxes(plan.polygons)
    if boxes is None:
        if plan.edges is None:
            raise RejectedPlan(Fault("boxes", "missing: boxes, polygons or edges"))
        return diagram_of_edges(types, edges, plan.name, most)

    unit = plan.unit or options.unit
    diagram = diagram_of_boxes(types, _pixels(boxes, unit), plan.name, most)
    # Boxes in other units have been checked before rounding.
    if unit == "px":
        _check_extent(np.array(diagram.boxes, float), unit)
    if edges:
        stated = diagram_of_edges(types, edges, plan.name, most)
        if faults := list(_contradictions(stated, diagram)):
            raise RejectedPlan(*faults)
    return diagram


def _contradictions(stated: Diagram, shown: Diagram) -> Iterator[Fault]:
    """Yield the edges of a line that its boxes do not show."""
    relations = {(i, j): RELATIONS[relation] for i, j, relation in shown.edges}
    for i, j, relation in stated.edges:
        actual = relations.get((i, j), "no relation")
        if actual != RELATIONS[relation]:
            message = f"rooms {i} and {j}: {RELATIONS[relation]}, but their boxes show {actual}"
            yield Fault("edges", message)


def _extra_faults(plan: _Line) -> Iterator[Fault]:
    """Yield faults of doors and areas."""
    rooms = len(plan.types)
    for i, j in plan.doors or ():
        other = None if isinstance(j, str) else j
        if not is_door((i, other), rooms):
            expected = f'[i, j], i < j < {rooms}, or [i, "{OUTSIDE}"]'
            yield Fault("doors", f"door {[i, j]}: expected {expected}")
    if plan.areas is not None and len(plan.areas) != rooms:
        yield Fault("areas", f"{rooms} rooms, but {len(plan.areas)} areas")
    for text in plan.areas or ():
        if parse_area(text) is None:
            expected = '"8 to 10 m2", "at least 8 m2" or "at most 10 m2"'
            yield Fault("areas", f'invalid area "{text}", expected {expected}')
