"""Plans as JSON lines, one plan per line.

    {"name": "a", "types": ["LivingRoom", "Kitchen"], "boxes": [[60, 60, 140, 160], [144, 60, 200, 110]]}
    {"types": ["LivingRoom", "Kitchen"], "edges": [[0, 1, "left-of"]]}

`types` is required, and either `boxes` (x0, y0, x1, y1 in pixels on a 256 x 256 grid, x1 and y1 exclusive, y pointing
down) or `edges` (i, j, relation of room i to room j; i < j, rooms counted from 0). With boxes, the relations follow
from them and edges are ignored. `name` is optional.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dither.registry.config.errors import Origin, Problem, Refused, nearest

from ..plans import Diagram
from ..vocabulary import RELATIONS, ROOM_IDS, ROOMS
from .entries import Entry, Fault, RejectedPlan, box_faults, edge_fault, entry_of, path_not_found

__all__ = ["find_file", "plan_line", "read_plans", "scan_plans"]

KEYS = ("name", "types", "boxes", "edges")
SHOWN = 20
"""Invalid lines that are listed; further ones are counted."""


def plan_line(diagram: Diagram) -> str:
    """Return a diagram as one line, without newline.

    Boxes are omitted where the relations do not follow from them, as for door adjacency, because boxes take precedence.
    """
    plan: dict[str, Any] = {"name": diagram.name} if diagram.name else {}
    plan["types"] = [ROOMS[kind] for kind in diagram.types]
    if diagram.boxes is not None and Diagram.from_boxes(diagram.types, diagram.boxes).edges == diagram.edges:
        plan["boxes"] = diagram.boxes
    plan["edges"] = [[i, j, RELATIONS[relation]] for i, j, relation in diagram.edges]
    return json.dumps(plan, ensure_ascii=False)


def read_plans(path: Path, most: int) -> list[Diagram]:
    """Read a file of plans.

    Args:
        path: The file, UTF-8. Blank lines are skipped.
        most: Largest number of rooms of a plan.

    Raises:
        Refused: The file cannot be read or is empty, or some lines are invalid; all faults are listed by line.
    """
    plans: list[Diagram] = []
    problems: list[Problem] = []
    for number, entry in _scan(path, most):
        if entry.diagram is None:
            origin = Origin(str(path), number)
            problems += [Problem(fault.message, origin=origin, code="invalid-sample") for fault in entry.faults]
        else:
            plans.append(entry.diagram)
    if problems:
        lines = list(dict.fromkeys(str(problem.origin) for problem in problems))
        shown = [problem for problem in problems if str(problem.origin) in lines[:SHOWN]]
        if len(lines) > SHOWN:
            shown.append(Problem(f"{path}: {len(lines) - SHOWN} more invalid lines", code="more-problems"))
        raise Refused(shown)
    if not plans:
        raise Refused(f"{path} contains no plans", code="no-samples")
    return plans


def scan_plans(path: Path, most: int) -> Iterator[Entry]:
    """Yield each line of a file as an entry; a file that cannot be read is an entry, too."""
    try:
        for _, entry in _scan(path, most):
            yield entry
    except Refused as refused:
        yield Entry(path, faults=tuple(Fault("file", problem.message) for problem in refused.problems))


def _scan(path: Path, most: int) -> Iterator[tuple[int, Entry]]:
    for number, line in enumerate(_lines(path), 1):
        if line.strip():
            yield number, entry_of(path, f"line {number}", _parse, line, most)


def find_file(path: Path) -> None:
    """Check that a path is a regular file.

    Raises:
        Refused: It does not exist (`file-not-found`), or is a folder or a device (`unreadable-file`).
    """
    if not path.exists():
        raise path_not_found(path, "file")
    if not path.is_file():
        raise Refused(f"not a regular file: {path}", code="unreadable-file")


def _lines(path: Path) -> list[bytes]:
    find_file(path)
    try:
        return path.read_bytes().removeprefix(b"\xef\xbb\xbf").splitlines()
    except OSError as error:
        raise Refused(f"{path} cannot be read: {error.strerror}", code="unreadable-file") from error


def _parse(line: bytes, most: int) -> Diagram:
    """Parse one line.

    Raises:
        RejectedPlan: With all faults.
    """
    try:
        plan = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        where = f"byte 0x{error.object[error.start]:02x} at column {error.start + 1}"
        raise RejectedPlan(Fault("text", f"not UTF-8: {where}")) from None
    except json.JSONDecodeError as error:
        raise RejectedPlan(Fault("text", f"invalid JSON: {error.msg} at column {error.colno}")) from None
    except (ValueError, RecursionError) as error:
        raise RejectedPlan(Fault("text", f"unreadable JSON: {error}")) from None
    if not isinstance(plan, dict):
        raise RejectedPlan(Fault("text", 'expected {"types": [...], "boxes": [...]}'))
    faults = list(_faults(plan, most))
    if faults:
        raise RejectedPlan(*faults)
    types = tuple(ROOM_IDS[kind] for kind in plan["types"])
    name = plan.get("name", "")
    if "boxes" in plan:
        return Diagram.from_boxes(types, [tuple(box) for box in plan["boxes"]], name)
    edges = sorted((i, j, RELATIONS.index(relation)) for i, j, relation in plan["edges"])
    return Diagram(types, tuple(edges), name=name)


def _faults(plan: dict[str, Any], most: int) -> Iterator[Fault]:
    for key in plan:
        if key not in KEYS:
            yield Fault("text", f'unknown key "{key}"; {_suggestion(key, KEYS)}')
    if not isinstance(plan.get("name", ""), str):
        yield Fault("text", f"name: expected a string, got {_short(plan['name'])}")
    types = plan.get("types")
    if not isinstance(types, list):
        missing = "missing" if types is None else f"expected a list of room types, got {_short(types)}"
        yield Fault("types", f"types: {missing}")
        return
    if not 2 <= len(types) <= most:
        yield Fault("rooms", f"types: {len(types)} rooms, expected 2 to {most}")
    for room, kind in enumerate(types):
        if kind not in ROOMS:
            yield Fault("types", f"types[{room}]: unknown room type {_short(kind)}; {_suggestion(kind, ROOMS)}")
    if "boxes" in plan:
        yield from _box_faults(plan["boxes"], len(types))
    elif "edges" in plan:
        yield from _edge_faults(plan["edges"], len(types))
    else:
        yield Fault("boxes", "missing: boxes or edges")


def _box_faults(boxes: Any, rooms: int) -> Iterator[Fault]:
    if not isinstance(boxes, list) or len(boxes) != rooms:
        count = f"{len(boxes)} boxes" if isinstance(boxes, list) else _short(boxes)
        yield Fault("boxes", f"boxes: expected a list of {rooms} boxes, got {count}")
        return
    for room, box in enumerate(boxes):
        if not (isinstance(box, list) and len(box) == 4 and all(type(wall) is int for wall in box)):
            yield Fault("boxes", f"boxes[{room}]: expected 4 integers x0, y0, x1, y1, got {_short(box)}")
        else:
            yield from box_faults(f"boxes[{room}]", box)


def _edge_faults(edges: Any, rooms: int) -> Iterator[Fault]:
    if not isinstance(edges, list):
        yield Fault("edges", f"edges: expected a list of [i, j, relation], got {_short(edges)}")
        return
    seen: set[tuple[int, int]] = set()
    for index, edge in enumerate(edges):
        where = f"edges[{index}]"
        if not (isinstance(edge, list) and len(edge) == 3 and type(edge[0]) is int and type(edge[1]) is int):
            yield Fault("edges", f"{where}: expected [i, j, relation], got {_short(edge)}")
            continue
        i, j, relation = edge
        if relation not in RELATIONS:
            yield Fault("edges", f"{where}: unknown relation {_short(relation)}; {_suggestion(relation, RELATIONS)}")
        if fault := edge_fault(i, j, rooms):
            yield Fault("edges", f"{where}: {fault}")
        elif (i, j) in seen:
            yield Fault("edges", f"{where}: rooms {i} and {j} already have a relation")
        seen.add((i, j))


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else text[:57] + "..."


def _suggestion(word: Any, allowed: tuple[str, ...]) -> str:
    close = nearest(word, allowed)
    return f'did you mean "{close}"?' if close else f"allowed: {', '.join(allowed)}"
