"""What reading a plan gives: a diagram, or all that is wrong with it; and the checks that every layout shares.

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

from ..plans import Diagram
from ..relations import GRID
from ..vocabulary import NO_EDGE, RELATIONS, ROOMS

__all__ = [
    "Adjacency",
    "Bedrooms",
    "Entry",
    "Fault",
    "ReadOptions",
    "RejectedPlan",
    "Sort",
    "diagram_of_boxes",
    "diagram_of_edges",
    "entry_of",
    "name_bedrooms",
    "read_json",
]

Sort = Literal["file", "rooms", "types", "boxes", "edges", "text", "duplicate"]
"""What a fault is about, to count by."""

Adjacency = Literal["proximity", "door"]
"""Which rooms are related: those near each other, or those that a door joins."""

Bedrooms = Literal["largest-is-master", "all-second"]
"""Which of Graph2Plan's bedrooms a bedroom is, where a layout knows one sort of bedroom only."""

_MASTER, _SECOND = ROOMS.index("MasterRoom"), ROOMS.index("SecondRoom")
_LARGEST: Final = 1e6
"""Beyond this a coordinate is nonsense, whatever the grid."""


class Fault(NamedTuple):
    """One thing that is wrong with a plan."""

    sort: Sort
    message: str


class RejectedPlan(ValueError):  # noqa: N818 - it is no error of the program
    """A plan that cannot be taken, with all that is wrong with it."""

    def __init__(self, *faults: Fault) -> None:
        super().__init__(*(fault.message for fault in faults))
        self.faults = faults


@dataclass(frozen=True)
class ReadOptions:
    """What a person may choose about reading.

    Attributes:
        most: Rooms that a plan may have.
        adjacency: Which rooms are related, where a layout knows both.
        bedrooms: What a bedroom becomes, where a layout knows one sort only.
        pickles: Whether the plain data in a pickle may be read; nothing of it is run in any case.
    """

    most: int = 8
    adjacency: Adjacency = "proximity"
    bedrooms: Bedrooms = "largest-is-master"
    pickles: bool = False


@dataclass(frozen=True)
class Entry:
    """One plan of a file, or a file that could not be read.

    Attributes:
        file: The file.
        plan: Which plan of the file, such as "line 3"; empty where the file is one plan.
        diagram: What was read; None if something is wrong.
        faults: What is wrong.
    """

    file: Path
    plan: str = ""
    diagram: Diagram | None = None
    faults: tuple[Fault, ...] = ()

    @property
    def place(self) -> str:
        """File and plan, as a person would say it."""
        return f"{self.file}, {self.plan}" if self.plan else str(self.file)

    def refused(self, *faults: Fault) -> Entry:
        """Return the same place without its diagram, and why."""
        return replace(self, diagram=None, faults=faults)


def entry_of(file: Path, plan: str, read: Callable[..., Diagram], *given: Any) -> Entry:
    """Return what `read` makes of what it is given, or what it finds wrong (`RejectedPlan`)."""
    try:
        return Entry(file, plan, read(*given))
    except RejectedPlan as unfit:
        return Entry(file, plan, faults=unfit.faults)


def read_json(file: Path) -> Any:
    """Return what a JSON file says.

    Raises:
        Unfit: It cannot be read, or is no UTF-8, or no JSON.
    """
    try:
        return json.loads(file.read_bytes().removeprefix(b"\xef\xbb\xbf").decode("utf-8"))
    except OSError as error:
        raise RejectedPlan(Fault("file", f"cannot be read: {error.strerror}")) from None
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        raise RejectedPlan(Fault("text", f"is not UTF-8: byte 0x{byte:02x} at place {error.start}")) from None
    except json.JSONDecodeError as error:
        raise RejectedPlan(
            Fault("text", f"is not JSON: {error.msg} at line {error.lineno}, column {error.colno}")
        ) from None
    except (ValueError, RecursionError) as error:
        raise RejectedPlan(Fault("text", f"is not JSON that can be read: {error}")) from None


def diagram_of_boxes(types: Sequence[int], boxes: Any, name: str, choices: ReadOptions) -> Diagram:
    """Return the diagram of rooms at these boxes; walls between pixels are moved to the nearest.

    Args:
        types: Id of each room's type.
        boxes: x0, y0, x1, y1 of each room, x1 and y1 exclusive, in pixels of the grid.
        name: What the plan is called.
        choices: How many rooms there may be.

    Raises:
        Unfit: Names everything that is wrong.
    """
    faults = list(_count_faults(len(types), choices.most))
    walls = _numbers(boxes)
    if walls is None or walls.shape != (len(types), 4):
        given = f"an array of shape {walls.shape}" if walls is not None else "something else"
        faults.append(Fault("boxes", f"four walls are due for each of {len(types)} rooms, there is {given}"))
        raise RejectedPlan(*faults)
    for room, box in enumerate(walls.tolist()):
        faults += _box_faults(f"room {room} ({ROOMS[types[room]]})", box)
    if faults:
        raise RejectedPlan(*faults)
    whole = [tuple(box) for box in np.rint(walls).astype(int).tolist()]
    return Diagram.from_boxes(types, whole, name)


def diagram_of_edges(types: Sequence[int], edges: Any, name: str, choices: ReadOptions) -> Diagram:
    """Return the diagram of rooms of which only relations are known.

    Args:
        types: Id of each room's type.
        edges: (i, j, id of how room i lies to room j), i < j.
        name: What the plan is called.
        choices: How many rooms there may be.

    Raises:
        Unfit: Names everything that is wrong.
    """
    faults = list(_count_faults(len(types), choices.most))
    rows = _numbers(edges)
    if rows is None or (rows.size and (rows.ndim != 2 or rows.shape[1] != 3)):
        raise RejectedPlan(*faults, Fault("edges", "an edge is i, j and the id of a relation"))
    seen: dict[tuple[int, int], int] = {}
    for i, j, relation in rows.reshape(-1, 3).tolist():
        fault = _edge_fault(i, j, relation, len(types))
        if fault is None and seen.setdefault((int(i), int(j)), int(relation)) != relation:
            fault = f"rooms {i:g} and {j:g} have two relations"
        faults += [Fault("edges", fault)] if fault else []
    if faults:
        raise RejectedPlan(*faults)
    return Diagram(tuple(types), tuple(sorted((i, j, relation) for (i, j), relation in seen.items())), name=name)


def name_bedrooms(types: Sequence[int], areas: Sequence[float], policy: Bedrooms) -> tuple[int, ...]:
    """Return the types, bedrooms (given as SecondRoom) named by the policy."""
    rooms = [room for room, kind in enumerate(types) if kind == _SECOND]
    if policy == "all-second" or not rooms:
        return tuple(types)
    largest = max(rooms, key=lambda room: areas[room])
    return tuple(_MASTER if room == largest else kind for room, kind in enumerate(types))


def _numbers(given: Any) -> Float[np.ndarray, "*n"] | None:
    try:
        found = np.asarray(given, np.float64)
    except (ValueError, TypeError, OverflowError):
        return None
    return found


def _count_faults(rooms: int, most: int) -> Iterator[Fault]:
    if not 2 <= rooms <= most:
        yield Fault("rooms", f"a plan has 2 to {most} rooms here, this one has {rooms}")


def _box_faults(room: str, box: list[float]) -> Iterator[Fault]:
    shown = f"[{', '.join(f'{wall:g}' for wall in box)}]"
    if not all(abs(wall) < _LARGEST for wall in box):  # nan is not less
        yield Fault("boxes", f"{room}: {shown} are no coordinates")
        return
    x0, y0, x1, y1 = (round(wall) for wall in box)
    if x0 >= x1 or y0 >= y1:
        yield Fault("boxes", f"{room}: {shown} is empty or inverted, x0 < x1 and y0 < y1 is expected")
    elif min(x0, y0) < 0 or max(x1, y1) > GRID:
        yield Fault("boxes", f"{room}: {shown} reaches beyond the {GRID} x {GRID} grid")


def _edge_fault(i: float, j: float, relation: float, rooms: int) -> str | None:
    if relation not in range(NO_EDGE):
        return f"{relation:g} is no relation, they are 0..{len(RELATIONS) - 1}"
    if i not in range(rooms) or j not in range(rooms):
        return f"rooms are numbered 0..{rooms - 1}, an edge names {i:g} and {j:g}"
    if i == j:
        return f"room {i:g} has no relation to itself"
    if i > j:
        return f"how room {i:g} lies to {j:g} does not say how {j:g} lies to {i:g}; give that, or boxes"
    return None
