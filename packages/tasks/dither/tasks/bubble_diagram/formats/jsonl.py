"""Plans as JSON lines, one plan per line.

    {"types": ["LivingRoom", "Kitchen"], "boxes": [[60, 60, 140, 160], [144, 60, 200, 110]]}
    {"types": ["LivingRoom", "Kitchen"], "edges": [[0, 1, "left-of"]]}

`types` is required, and either `boxes` (x0, y0, x1, y1 in pixels on a 256 x 256 grid, x1 and y1
exclusive, y pointing down) or `edges` (i, j, relation of room i to room j; i < j, rooms counted
from 0). With boxes, the relations follow from them, and edges must agree with them. Optional are
`name`, `doors` ([i, j], i < j, or [i, "outside"] for a front door) and `areas` ("8 to 10 m2", one
for each room).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from dither.registry.config.errors import Origin, Problem, Refused
from dither.registry.files.limits import TABLE_BYTES, read_bytes

from ..plans import Diagram, is_door, sort_doors
from ..vocabulary import OUTSIDE, RELATIONS, ROOM_IDS, ROOMS, area_text, parse_area
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


class _Line(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    types: list[Literal[ROOMS]]  # type: ignore[valid-type]
    boxes: list[tuple[int, int, int, int]] | None = None
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
        plan["doors"] = [[i, OUTSIDE if j is None else j] for i, j in diagram.doors]
    if diagram.areas is not None:
        plan["areas"] = [area_text(bounds) for bounds in diagram.areas]
    return json.dumps(plan, ensure_ascii=False)


def read_plans(path: Path, most: int) -> list[Diagram]:
    """Read a file of plans; once for the check of an experiment and its run.

    Args:
        path: The file, UTF-8. Blank lines are skipped.
        most: Largest number of rooms of a plan.

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
    return list(_read_plans(path, most, digest))


@lru_cache(maxsize=1)
def _read_plans(
    path: Path,
    most: int,
    digest: bytes,
) -> tuple[Diagram, ...]:
    """Read a file; `digest` is that of its content, so that a changed file is read again."""
    plans = []
    problems = []
    for entry in scan_plans(path, ReadOptions(most)):
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
    return tuple(plans)


def read_plan(path: Path, most: int) -> Diagram:
    """Read the first plan of a file, or the plan of a .json file in one of the JSON layouts.

    Raises:
        Refused: The file cannot be read, or the plan is invalid.
    """
    find_file(path)
    if path.suffix.lower() != ".json":
        return read_plans(path, most)[0]
    content = read_bytes(path)
    if b'"room_type"' in content:
        (entry,) = read_housegan(path, ReadOptions(most))
    else:
        entry = entry_of(path, "", _parse, content, most)
    if entry.diagram is None:
        messages = [f"{path}: {fault.message}" for fault in entry.faults]
        raise Refused([Problem(message, code="invalid-sample") for message in messages])
    return entry.diagram


def scan_plans(path: Path, options: ReadOptions) -> Iterator[Entry]:
    """Yield each line of a file as an entry; a file that cannot be read is an entry, too."""
    try:
        lines = read_bytes(path, TABLE_BYTES).removeprefix(b"\xef\xbb\xbf").splitlines()
    except OSError as error:
        yield Entry(path, faults=(Fault("file", f"cannot be read: {error.strerror}"),))
        return
    for number, line in enumerate(lines, 1):
        if line.strip():
            yield entry_of(path, f"line {number}", _parse, line, options.most)


def find_file(path: Path) -> None:
    """Check that a path is a regular file.

    Raises:
        Refused: It does not exist (`file-not-found`), or is a folder or a device
            (`unreadable-file`).
    """
    if not path.exists():
        raise path_not_found(path, "file")
    if not path.is_file():
        raise Refused(f"not a regular file: {path}", code="unreadable-file")


def _parse(line: bytes, most: int) -> Diagram:
    plan = parse_json(_Line, line)
    faults = list(_extra_faults(plan))
    diagram = None
    try:
        diagram = _rooms_of(plan, most)
    except RejectedPlan as rejected:
        faults = [*rejected.faults, *faults]
    if faults or diagram is None:
        raise RejectedPlan(*faults)
    if plan.doors is not None:
        ends = [(i, None if isinstance(j, str) else j) for i, j in plan.doors]
        diagram = replace(diagram, doors=sort_doors(ends))
    if plan.areas is not None:
        bounds = filter(None, map(parse_area, plan.areas))
        diagram = replace(diagram, areas=tuple(bounds))
    return diagram


def _rooms_of(plan: _Line, most: int) -> Diagram:
    types = [ROOM_IDS[kind] for kind in plan.types]
    edges = [(i, j, RELATIONS.index(relation)) for i, j, relation in plan.edges or ()]
    if plan.boxes is None:
        if plan.edges is None:
            raise RejectedPlan(Fault("boxes", "missing: boxes or edges"))
        return diagram_of_edges(types, edges, plan.name, most)

    diagram = diagram_of_boxes(types, plan.boxes, plan.name, most)
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
        if not is_door((i, None if isinstance(j, str) else j), rooms):
            expected = f'[i, j], i < j < {rooms}, or [i, "{OUTSIDE}"]'
            yield Fault("doors", f"door {[i, j]}: expected {expected}")
    if plan.areas is not None and len(plan.areas) != rooms:
        yield Fault("areas", f"{rooms} rooms, but {len(plan.areas)} areas")
    for text in plan.areas or ():
        if parse_area(text) is None:
            expected = '"8 to 10 m2", "at least 8 m2" or "at most 10 m2"'
            yield Fault("areas", f'invalid area "{text}", expected {expected}')
