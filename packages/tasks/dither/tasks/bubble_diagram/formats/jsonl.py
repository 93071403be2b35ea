"""Plans as lines of JSON, one plan a line.

    {"name": "a", "types": ["LivingRoom", "Kitchen"], "boxes": [[60, 60, 140, 160], [144, 60, 200, 110]]}
    {"types": ["LivingRoom", "Kitchen"], "edges": [[0, 1, "left-of"]]}

`types` must be given, and `boxes` (x0, y0, x1, y1 in pixels on a 256 x 256 grid, x1 and y1 exclusive, y downwards), or
`edges` (i, j, how room i lies to room j; i < j, rooms counted from 0). Where there are boxes, the relations follow from
them and edges are not looked at. `name` is free.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dither.registry.config.errors import Origin, Problem, Refused, nearest

from ..plans import Diagram
from ..relations import GRID
from ..vocabulary import RELATIONS, ROOMS
from .common import Entry, Fault, RejectedPlan, entry_of

__all__ = ["find_file", "plan_line", "read_plans", "scan_plans"]

KEYS = ("name", "types", "boxes", "edges")
SHOWN = 20
"""Lines that are named before the rest is only counted."""


def plan_line(diagram: Diagram) -> str:
    """Return a diagram as one line, without its end.

    Boxes are left out where the relations do not follow from them, as in a diagram of doors: they would win.
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
        path: The file, UTF-8. Blank lines are passed over.
        most: Rooms that a plan may have.

    Raises:
        Refused: The file cannot be read or holds no plan; or some lines are wrong, and then each is named with all that
            is wrong with it.
    """
    plans: list[Diagram] = []
    wrong: list[Problem] = []
    for number, entry in _scan(path, most):
        if entry.diagram is None:
            wrong += [Problem(fault.message, origin=Origin(str(path), number)) for fault in entry.faults]
        else:
            plans.append(entry.diagram)
    if wrong:
        lines = list(dict.fromkeys(str(problem.origin) for problem in wrong))
        shown = [problem for problem in wrong if str(problem.origin) in lines[:SHOWN]]
        more = [Problem(f"{path}: {len(lines) - SHOWN} more lines are wrong")] if len(lines) > SHOWN else []
        raise Refused(shown + more)
    if not plans:
        raise Refused(f"{path} holds no plan")
    return plans


def scan_plans(path: Path, most: int) -> Iterator[Entry]:
    """Yield each line of a file as a diagram or with all that is wrong with it; so too a file that cannot be read."""
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
    """Refuse a path that names no file.

    Raises:
        Refused: There is none, or it is a folder or the like.
    """
    if not path.exists():
        found = nearest(path.name, (other.name for other in path.parent.glob("*"))) if path.parent.is_dir() else None
        where = "" if path.is_absolute() else f" (from {Path.cwd()})"
        hint = f'did you mean "{found}"?' if found else None
        raise Refused(Problem(f"there is no file {path}{where}", help=hint))
    if not path.is_file():
        raise Refused(f"{path} is no plain file")


def _lines(path: Path) -> list[bytes]:
    find_file(path)
    try:
        return path.read_bytes().removeprefix(b"\xef\xbb\xbf").splitlines()
    except OSError as error:
        raise Refused(f"{path} cannot be read: {error.strerror}") from error


def _parse(line: bytes, most: int) -> Diagram:
    """Read one line.

    Raises:
        Unfit: With all that is wrong.
    """
    try:
        plan = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        where = f"byte 0x{error.object[error.start]:02x} at column {error.start + 1}"
        raise RejectedPlan(Fault("text", f"is not UTF-8: {where}")) from None
    except json.JSONDecodeError as error:
        raise RejectedPlan(Fault("text", f"is not JSON: {error.msg} at column {error.colno}")) from None
    except (ValueError, RecursionError) as error:
        raise RejectedPlan(Fault("text", f"is not JSON that can be read: {error}")) from None
    if not isinstance(plan, dict):
        raise RejectedPlan(Fault("text", 'is no table; expected {"types": [...], "boxes": [...]}'))
    wrong = list(_problems(plan, most))
    if wrong:
        raise RejectedPlan(*wrong)
    types = tuple(ROOMS.index(kind) for kind in plan["types"])
    name = plan.get("name", "")
    if "boxes" in plan:
        return Diagram.from_boxes(types, [tuple(box) for box in plan["boxes"]], name)
    edges = sorted((i, j, RELATIONS.index(relation)) for i, j, relation in plan["edges"])
    return Diagram(types, tuple(edges), name=name)


def _problems(plan: dict[str, Any], most: int) -> Iterator[Fault]:
    for key in plan:
        if key not in KEYS:
            yield Fault("text", f'unknown key "{key}"; {_instead(key, KEYS)}')
    if not isinstance(plan.get("name", ""), str):
        yield Fault("text", f"name: expected a string, got {_short(plan['name'])}")
    types = plan.get("types")
    if not isinstance(types, list):
        missing = "missing" if types is None else f"expected a list of room types, got {_short(types)}"
        yield Fault("types", f"types: {missing}")
        return
    if not 2 <= len(types) <= most:
        yield Fault("rooms", f"types: a plan has 2 to {most} rooms here, this one has {len(types)}")
    for room, kind in enumerate(types):
        if kind not in ROOMS:
            yield Fault("types", f"types[{room}]: {_short(kind)} is no type of room; {_instead(kind, ROOMS)}")
    if "boxes" in plan:
        yield from _box_problems(plan["boxes"], len(types))
    elif "edges" in plan:
        yield from _edge_problems(plan["edges"], len(types))
    else:
        yield Fault("boxes", "there are neither boxes nor edges")


def _box_problems(boxes: Any, rooms: int) -> Iterator[Fault]:
    if not isinstance(boxes, list) or len(boxes) != rooms:
        count = f"{len(boxes)} boxes" if isinstance(boxes, list) else _short(boxes)
        yield Fault("boxes", f"boxes: expected a list of {rooms} boxes, one for each room, got {count}")
        return
    for room, box in enumerate(boxes):
        if not (isinstance(box, list) and len(box) == 4 and all(type(wall) is int for wall in box)):
            yield Fault("boxes", f"boxes[{room}]: expected four whole numbers x0, y0, x1, y1, got {_short(box)}")
        elif not all(0 <= wall <= GRID for wall in box):
            yield Fault("boxes", f"boxes[{room}]: {_short(box)} reaches beyond the {GRID} x {GRID} grid")
        elif box[0] >= box[2] or box[1] >= box[3]:
            yield Fault("boxes", f"boxes[{room}]: {_short(box)} is empty or inverted, x0 < x1 and y0 < y1 is expected")


def _edge_problems(edges: Any, rooms: int) -> Iterator[Fault]:
    if not isinstance(edges, list):
        yield Fault("edges", f"edges: expected a list of [i, j, relation], got {_short(edges)}")
        return
    seen: set[tuple[int, int]] = set()
    for place, edge in enumerate(edges):
        where = f"edges[{place}]"
        if not (isinstance(edge, list) and len(edge) == 3 and type(edge[0]) is int and type(edge[1]) is int):
            yield Fault("edges", f"{where}: expected [i, j, relation], got {_short(edge)}")
            continue
        i, j, relation = edge
        if relation not in RELATIONS:
            yield Fault("edges", f"{where}: {_short(relation)} is no relation; {_instead(relation, RELATIONS)}")
        if not (0 <= i < rooms and 0 <= j < rooms):
            yield Fault("edges", f"{where}: rooms are numbered 0..{rooms - 1}, got {_short(edge)}")
        elif i == j:
            yield Fault("edges", f"{where}: room {i} has no relation to itself")
        elif i > j:
            yield Fault(
                "edges", f"{where}: give how room {j} lies to room {i}; it does not follow from how {i} lies to {j}"
            )
        elif (i, j) in seen:
            yield Fault("edges", f"{where}: rooms {i} and {j} have a relation already")
        seen.add((i, j))


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else text[:57] + "..."


def _instead(word: Any, allowed: tuple[str, ...]) -> str:
    close = nearest(word, allowed)
    return f'did you mean "{close}"?' if close else f"allowed are {', '.join(allowed)}"
