"""Shared code of the format readers: results, faults, and checks of types, boxes and edges.

Letters: R rooms.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np
from jaxtyping import Float
from numpy import ndarray
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from dither.registry.config.errors import Problem, Refused, did_you_mean, dotted

from ..plans import Diagram
from ..vocabulary import GRID, NO_EDGE, RELATIONS, ROOM_IDS, ROOMS, Adjacency, Bedrooms

Sort = Literal[
    "file", "rooms", "types", "boxes", "edges", "doors", "areas", "text", "duplicate"
]
"""Category of a fault."""

_MAX_COORDINATE = 1e6
"""Larger coordinates are rejected as meaningless."""

_SORT_OF: dict[Any, Sort] = {
    "types": "types",
    "room_type": "types",
    "boxes": "boxes",
    "polygons": "boxes",
    "edges": "edges",
    "ed_rm": "edges",
    "doors": "doors",
    "areas": "areas",
}
"""Category of a fault by the key of a JSON object."""

_Model = TypeVar("_Model", bound=BaseModel)


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


@dataclass(frozen=True)
class Entry:
    """One plan of a file, or a file that cannot be read: a diagram, or None and its faults.

    `plan` is the position in the file, such as "line 3"; empty if the file holds a single plan.
    """

    file: Path
    plan: str = ""
    diagram: Diagram | None = None
    faults: tuple[Fault, ...] = ()

    def required(self) -> Diagram:
        """Return the diagram, or raise `Refused` with its faults."""
        if self.diagram is None:
            problems = []
            for fault in self.faults:
                message = f"{self.file}: {fault.message}"
                problems.append(Problem(message, code="invalid-sample"))
            raise Refused(problems)
        return self.diagram

    @property
    def place(self) -> str:
        if self.plan:
            return f"{self.file}, {self.plan}"
        return str(self.file)


def entry_of(
    file: Path, plan: str, read: Callable[..., Diagram], *arguments: Any
) -> Entry:
    """Call `read` and return its diagram, or the faults of the `RejectedPlan` that it raises."""
    try:
        return Entry(file, plan, read(*arguments))
    except RejectedPlan as rejected:
        faults = rejected.faults
    except OSError as error:
        faults = (Fault("file", f"cannot be read: {error.strerror or error}"),)
    return Entry(file, plan, faults=faults)


def single_plan(
    read: Callable[[Path, ReadOptions], Diagram],
) -> Callable[[Path, ReadOptions], Iterator[Entry]]:
    """Return a reader of files that hold one plan each."""

    @wraps(read)
    def entries(file: Path, options: ReadOptions) -> Iterator[Entry]:
        yield entry_of(file, "", read, file, options)

    return entries


def path_not_found(path: Path, what: str) -> Refused:
    """Return the problem of a missing path, with the most similar name in its folder."""
    folder = path.parent
    hint = None
    if folder.is_dir():
        hint = did_you_mean(path.name, (other.name for other in folder.glob("*")))

    where = ""
    if not path.is_absolute():
        where = f" (from {Path.cwd()})"

    return Refused(f"{what} not found: {path}{where}", help=hint, code="file-not-found")


def parse_json(model: type[_Model], content: bytes) -> _Model:
    """Return the JSON object `content`, checked against a model.

    Raises:
        RejectedPlan: It is not JSON, or does not match the model.
    """
    try:
        return model.model_validate_json(content)
    except ValidationError as error:
        details = error.errors(include_url=False)
    raise RejectedPlan(*(_fault_of(detail, model) for detail in details))


def _fault_of(detail: ErrorDetails, model: type[BaseModel]) -> Fault:
    """Return an error of pydantic as a fault, with the nearest name."""
    path = detail["loc"]
    message = detail["msg"]
    hint = None
    if detail["type"] == "extra_forbidden":
        hint = did_you_mean(path[-1], model.model_fields)
    elif detail["type"] == "literal_error":
        hint = did_you_mean(detail["input"], (*ROOMS, *RELATIONS))
    if not path:
        return Fault("text", message)
    message = f"{dotted(path)}: {message}, got {str(detail['input'])[:60]}"
    if hint:
        message += f"; {hint}"
    return Fault(_SORT_OF.get(path[0], "text"), message)


def diagram_of_boxes(
    types: Sequence[int],
    boxes: Any,
    name: str,
    most: int,
) -> Diagram:
    """Return the diagram of rooms at given boxes; fractional walls are rounded to pixels.

    `boxes` holds x0, y0, x1, y1 of each room in grid pixels, x1 and y1 exclusive; rooms are at most
    `most`.

    Raises:
        RejectedPlan: With all faults.
    """
    faults = list(_count_faults(types, most))
    walls = _numbers(boxes)
    if walls is None or walls.shape != (len(types), 4):
        actual = (
            "no numeric array" if walls is None else f"an array of shape {walls.shape}"
        )
        message = f"expected 4 coordinates for each of {len(types)} rooms, got {actual}"
        raise RejectedPlan(*faults, Fault("boxes", message))
    for room, box in enumerate(walls.tolist()):
        if wrong := _wrong_box(box):
            numbers = ", ".join(f"{wall:g}" for wall in box)
            message = f"room {room} ({ROOMS[types[room]]}): [{numbers}] {wrong}"
            faults.append(Fault("boxes", message))
    if faults:
        raise RejectedPlan(*faults)
    return Diagram.from_boxes(types, np.rint(walls), name)


def _wrong_box(box: Sequence[float]) -> str | None:
    # False for NaN.
    if not all(abs(wall) < _MAX_COORDINATE for wall in box):
        return "has invalid coordinates"
    x0, y0, x1, y1 = map(round, box)
    if x0 >= x1 or y0 >= y1:
        return "is empty or inverted; expected x0 < x1 and y0 < y1"
    if min(x0, y0) < 0 or max(x1, y1) > GRID:
        return f"exceeds the {GRID} x {GRID} grid"
    return None


def diagram_of_edges(
    types: Sequence[int],
    edges: Any,
    name: str,
    most: int,
) -> Diagram:
    """Return the diagram of rooms with known relations and unknown boxes.

    `edges` holds (i, j, relation id of room i to room j), i < j; `most` is the largest number of
    rooms.

    Raises:
        RejectedPlan: With all faults.
    """
    faults = list(_count_faults(types, most))
    rows = _numbers(edges)
    if rows is None or (rows.size and (rows.ndim != 2 or rows.shape[1] != 3)):
        raise RejectedPlan(*faults, Fault("edges", "an edge is [i, j, relation id]"))
    relations: dict[tuple[int, int], int] = {}
    for i, j, relation in rows.reshape(-1, 3).tolist():
        wrong = _wrong_edge(i, j, relation, len(types))
        # The first relation of a pair counts, another one contradicts it.
        if (
            not wrong
            and relations.setdefault((int(i), int(j)), int(relation)) != relation
        ):
            wrong = ": two relations"
        if wrong:
            faults.append(Fault("edges", f"edge between rooms {i:g} and {j:g}{wrong}"))
    if faults:
        raise RejectedPlan(*faults)
    listed = sorted((i, j, relation) for (i, j), relation in relations.items())
    return Diagram(tuple(types), tuple(listed), name=name)


def _wrong_edge(
    i: float,
    j: float,
    relation: float,
    rooms: int,
) -> str | None:
    # Numbers from a file may be fractional.
    if i not in range(rooms) or j not in range(rooms):
        return f", but rooms are numbered 0..{rooms - 1}"
    if i >= j:
        return ": the smaller room number comes first; relations are not reversed"
    if relation not in range(NO_EDGE):
        return f": invalid relation {relation:g}, expected 0..{NO_EDGE - 1}"
    return None


def name_bedrooms(
    types: Sequence[int],
    areas: Sequence[float],
    policy: Bedrooms,
) -> tuple[int, ...]:
    """Return the types with bedrooms, given as SecondRoom, mapped according to the policy."""
    second = ROOM_IDS["SecondRoom"]
    rooms = [room for room, kind in enumerate(types) if kind == second]
    named = list(types)
    if rooms and policy == "largest-is-master":
        named[max(rooms, key=lambda room: areas[room])] = ROOM_IDS["MasterRoom"]
    return tuple(named)


def _numbers(values: Any) -> Float[ndarray, "*n"] | None:
    try:
        return np.asarray(values, np.float64)
    # Lists of different lengths, text, and integers beyond float64.
    except (ValueError, TypeError, OverflowError):
        return None


def _count_faults(types: Sequence[int], most: int) -> Iterator[Fault]:
    if not 2 <= len(types) <= most:
        message = f"{len(types)} rooms, expected 2 to {most}"
        if len(types) > most:
            message += "; raise most of the data, and task.rooms"
        yield Fault("rooms", message)
