"""Shared code of the format readers: results, faults, and checks of types, boxes and edges.

Letters: R rooms.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import numpy as np
from jaxtyping import Float

from dither.registry.config.errors import Problem, Refused, nearest

from ..options import Adjacency, Bedrooms
from ..plans import Diagram
from ..relations import GRID
from ..vocabulary import NO_EDGE, RELATIONS, ROOM_IDS, ROOMS

__all__ = [
    "Entry",
    "Fault",
    "ReadOptions",
    "RejectedPlan",
    "box_faults",
    "diagram_of_boxes",
    "diagram_of_edges",
    "edge_fault",
    "entry_of",
    "name_bedrooms",
    "path_not_found",
    "read_json",
]

Sort = Literal["file", "rooms", "types", "boxes", "edges", "text", "duplicate"]
"""Category of a fault."""

_MAX_COORDINATE: Final = 1e6
"""Larger coordinates are rejected as meaningless."""


class Fault(NamedTuple):
    """One reason why a plan is rejected."""

    sort: Sort
    message: str


class RejectedPlan(ValueError):  # noqa: N818 - a property of the data, not a failure of the program
    """A plan or file that cannot be used, with all its faults."""

    def __init__(self, *faults: Fault) -> None:
        super().__init__(*(fault.message for fault in faults))
        self.faults = faults


class ReadOptions(NamedTuple):
    """Options of the data source "plans" that the readers use; see `specs.PlanFiles`."""

    most: int = 8
    adjacency: Adjacency = "proximity"
    bedrooms: Bedrooms = "largest-is-master"
    pickles: bool = False


@dataclass(frozen=True)
class Entry:
    """One plan of a file, or a file that cannot be read.

    Attributes:
        file: The file.
        plan: Position in the file, such as "line 3"; empty if the file holds a single plan.
        diagram: The plan; None if it is rejected.
        faults: Why it is rejected.
    """

    file: Path
    plan: str = ""
    diagram: Diagram | None = None
    faults: tuple[Fault, ...] = ()

    @property
    def place(self) -> str:
        """File and position."""
        return f"{self.file}, {self.plan}" if self.plan else str(self.file)

    def rejected(self, *faults: Fault) -> Entry:
        """Return the entry without its diagram and with faults."""
        return replace(self, diagram=None, faults=faults)


def entry_of(file: Path, plan: str, read: Callable[..., Diagram], *arguments: Any) -> Entry:
    """Call `read` and return its diagram, or the faults of the `RejectedPlan` that it raises."""
    try:
        return Entry(file, plan, read(*arguments))
    except RejectedPlan as rejected:
        return Entry(file, plan, faults=rejected.faults)


def path_not_found(path: Path, what: str) -> Refused:
    """Return the problem of a path that does not exist, with the most similar name in its folder."""
    folder = path.parent
    close = nearest(path.name, (other.name for other in folder.glob("*"))) if folder.is_dir() else None
    where = "" if path.is_absolute() else f" (from {Path.cwd()})"
    hint = f'did you mean "{close}"?' if close else None
    return Refused(Problem(f"{what} not found: {path}{where}", help=hint, code="file-not-found"))


def read_json(file: Path) -> Any:
    """Return the content of a JSON file.

    Raises:
        RejectedPlan: The file cannot be read or is not valid UTF-8 JSON.
    """
    try:
        return json.loads(file.read_bytes().removeprefix(b"\xef\xbb\xbf").decode("utf-8"))
    except OSError as error:
        raise RejectedPlan(Fault("file", f"cannot be read: {error.strerror}")) from None
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        raise RejectedPlan(Fault("text", f"not UTF-8: byte 0x{byte:02x} at offset {error.start}")) from None
    except json.JSONDecodeError as error:
        raise RejectedPlan(
            Fault("text", f"invalid JSON: {error.msg} at line {error.lineno}, column {error.colno}")
        ) from None
    except (ValueError, RecursionError) as error:
        raise RejectedPlan(Fault("text", f"unreadable JSON: {error}")) from None


def diagram_of_boxes(types: Sequence[int], boxes: Any, name: str, options: ReadOptions) -> Diagram:
    """Return the diagram of rooms at given boxes; fractional walls are rounded to pixels.

    Args:
        types: Room type ids.
        boxes: x0, y0, x1, y1 of each room in grid pixels, x1 and y1 exclusive.
        name: Name of the plan.
        options: Gives the largest number of rooms.

    Raises:
        RejectedPlan: With all faults.
    """
    faults = list(_count_faults(len(types), options.most))
    walls = _numbers(boxes)
    if walls is None or walls.shape != (len(types), 4):
        actual = f"an array of shape {walls.shape}" if walls is not None else "no numeric array"
        raise RejectedPlan(
            *faults, Fault("boxes", f"expected 4 coordinates for each of {len(types)} rooms, got {actual}")
        )
    for room, box in enumerate(walls.tolist()):
        faults += box_faults(f"room {room} ({ROOMS[types[room]]})", box)
    if faults:
        raise RejectedPlan(*faults)
    return Diagram.from_boxes(types, [tuple(box) for box in np.rint(walls).astype(int).tolist()], name)


def diagram_of_edges(types: Sequence[int], edges: Any, name: str, options: ReadOptions) -> Diagram:
    """Return the diagram of rooms with known relations and unknown boxes.

    Args:
        types: Room type ids.
        edges: (i, j, relation id of room i to room j), i < j.
        name: Name of the plan.
        options: Gives the largest number of rooms.

    Raises:
        RejectedPlan: With all faults.
    """
    faults = list(_count_faults(len(types), options.most))
    rows = _numbers(edges)
    if rows is None or (rows.size and (rows.ndim != 2 or rows.shape[1] != 3)):
        raise RejectedPlan(*faults, Fault("edges", "an edge is [i, j, relation id]"))
    seen: dict[tuple[int, int], int] = {}
    for i, j, relation in rows.reshape(-1, 3).tolist():
        fault = edge_fault(i, j, len(types))
        if relation not in range(NO_EDGE):
            fault = f"invalid relation {relation:g}, expected 0..{len(RELATIONS) - 1}"
        if fault is None and seen.setdefault((int(i), int(j)), int(relation)) != relation:
            fault = f"rooms {i:g} and {j:g} have two relations"
        faults += [Fault("edges", fault)] if fault else []
    if faults:
        raise RejectedPlan(*faults)
    return Diagram(tuple(types), tuple(sorted((i, j, relation) for (i, j), relation in seen.items())), name=name)


def name_bedrooms(types: Sequence[int], areas: Sequence[float], policy: Bedrooms) -> tuple[int, ...]:
    """Return the types with bedrooms, given as SecondRoom, mapped according to the policy."""
    second = ROOM_IDS["SecondRoom"]
    rooms = [room for room, kind in enumerate(types) if kind == second]
    if policy == "all-second" or not rooms:
        return tuple(types)
    largest = max(rooms, key=lambda room: areas[room])
    return tuple(ROOM_IDS["MasterRoom"] if room == largest else kind for room, kind in enumerate(types))


def _numbers(values: Any) -> Float[np.ndarray, "*n"] | None:
    try:
        array = np.asarray(values, np.float64)
    except (ValueError, TypeError, OverflowError):
        return None
    return array


def _count_faults(rooms: int, most: int) -> Iterator[Fault]:
    if not 2 <= rooms <= most:
        yield Fault("rooms", f"{rooms} rooms, expected 2 to {most}")


def box_faults(where: str, box: Sequence[float]) -> Iterator[Fault]:
    """Yield what is wrong with the coordinates of a box."""
    text = f"[{', '.join(f'{wall:g}' for wall in box)}]"
    if not all(abs(wall) < _MAX_COORDINATE for wall in box):  # False for NaN
        yield Fault("boxes", f"{where}: invalid coordinates {text}")
        return
    x0, y0, x1, y1 = (round(wall) for wall in box)
    if x0 >= x1 or y0 >= y1:
        yield Fault("boxes", f"{where}: {text} is empty or inverted; expected x0 < x1 and y0 < y1")
    elif min(x0, y0) < 0 or max(x1, y1) > GRID:
        yield Fault("boxes", f"{where}: {text} exceeds the {GRID} x {GRID} grid")


def edge_fault(i: float, j: float, rooms: int) -> str | None:
    """Return what is wrong with the rooms of an edge."""
    if i not in range(rooms) or j not in range(rooms):
        return f"edge between rooms {i:g} and {j:g}, but rooms are numbered 0..{rooms - 1}"
    if i == j:
        return f"room {i:g} is related to itself"
    if i > j:
        return f"edge {i:g}, {j:g} is reversed: the smaller room number comes first, and relations cannot be reversed"
    return None
