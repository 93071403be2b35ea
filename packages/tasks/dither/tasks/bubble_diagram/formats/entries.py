"""Shared code of the format readers: results, faults, and checks of types, boxes and edges.

Letters: R rooms.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import update_wrapper
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, TypeVar

import numpy as np
from jaxtyping import Float
from pydantic import BaseModel, ValidationError

from dither.registry.config.errors import Problem, Refused, did_you_mean, dotted

from ..plans import Diagram
from ..relations import GRID
from ..vocabulary import NO_EDGE, RELATIONS, ROOM_IDS, ROOMS, Adjacency, Bedrooms

__all__ = [
    "Entry",
    "Fault",
    "ReadOptions",
    "RejectedPlan",
    "diagram_of_boxes",
    "diagram_of_edges",
    "entry_of",
    "name_bedrooms",
    "parse_json",
    "path_not_found",
    "single_plan",
]

Sort = Literal["file", "rooms", "types", "boxes", "edges", "doors", "areas", "text", "duplicate"]
"""Category of a fault."""

_MAX_COORDINATE: Final = 1e6
"""Larger coordinates are rejected as meaningless."""

_SORT_OF: Final[dict[Any, Sort]] = {
    "types": "types",
    "room_type": "types",
    "boxes": "boxes",
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
    """One plan of a file, or a file that cannot be read: its diagram, or None and why it is rejected.

    `plan` is the position in the file, such as "line 3"; empty if the file holds a single plan.
    """

    file: Path
    plan: str = ""
    diagram: Diagram | None = None
    faults: tuple[Fault, ...] = ()

    @property
    def place(self) -> str:
        return f"{self.file}, {self.plan}" if self.plan else str(self.file)

    def rejected(self, *faults: Fault) -> Entry:
        """Return the entry without its diagram and with faults."""
        return replace(self, diagram=None, faults=faults)


def entry_of(
    file: Path,
    plan: str,
    read: Callable[..., Diagram],
    *arguments: Any,
) -> Entry:
    """Call `read` and return its diagram, or the faults of the `RejectedPlan` that it raises."""
    try:
        return Entry(file, plan, read(*arguments))
    except RejectedPlan as rejected:
        return Entry(file, plan, faults=rejected.faults)
    except OSError as error:
        return Entry(
            file, plan, faults=(Fault("file", f"cannot be read: {error.strerror or error}"),)
        )


def single_plan(
    read: Callable[[Path, ReadOptions], Diagram],
) -> Callable[[Path, ReadOptions], Iterator[Entry]]:
    """Return a reader of files that hold one plan each."""
    return update_wrapper(
        lambda file, options: iter([entry_of(file, "", read, file, options)]), read
    )


def path_not_found(path: Path, what: str) -> Refused:
    """Return the problem of a path that does not exist, with the most similar name in its folder."""
    folder = path.parent
    hint = (
        did_you_mean(path.name, (other.name for other in folder.glob("*")))
        if folder.is_dir()
        else None
    )
    where = "" if path.is_absolute() else f" (from {Path.cwd()})"
    return Refused(Problem(f"{what} not found: {path}{where}", help=hint, code="file-not-found"))


def parse_json(model: type[_Model], content: bytes) -> _Model:
    """Return the JSON object `content`, checked against a model.

    Raises:
        RejectedPlan: It is not JSON, or does not match the model.
    """
    try:
        return model.model_validate_json(content)
    except ValidationError as error:
        faults = []
        for fault in error.errors(include_url=False):
            path = fault["loc"]
            message = fault["msg"]
            if fault["type"] == "extra_forbidden":
                hint = did_you_mean(path[-1], model.model_fields)
            else:
                hint = (
                    did_you_mean(fault["input"], (*ROOMS, *RELATIONS))
                    if fault["type"] == "literal_error"
                    else None
                )
            message = (
                f"{dotted(path)}: {message}, got {str(fault['input'])[:60]}" if path else message
            )
            message += f"; {hint}" if hint else ""
            faults.append(Fault(_SORT_OF.get(next(iter(path), None), "text"), message))
        raise RejectedPlan(*faults) from None


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
        actual = f"an array of shape {walls.shape}" if walls is not None else "no numeric array"
        message = f"expected 4 coordinates for each of {len(types)} rooms, got {actual}"
        raise RejectedPlan(*faults, Fault("boxes", message))
    for room, box in enumerate(walls.tolist()):
        where = f"room {room} ({ROOMS[types[room]]}): [{', '.join(f'{wall:g}' for wall in box)}]"
        if not all(abs(wall) < _MAX_COORDINATE for wall in box):  # False for NaN
            faults.append(Fault("boxes", f"{where} has invalid coordinates"))
            continue
        x0, y0, x1, y1 = map(round, box)
        if x0 >= x1 or y0 >= y1:
            faults.append(
                Fault("boxes", f"{where} is empty or inverted; expected x0 < x1 and y0 < y1")
            )
        elif min(x0, y0) < 0 or max(x1, y1) > GRID:
            faults.append(Fault("boxes", f"{where} exceeds the {GRID} x {GRID} grid"))
    if faults:
        raise RejectedPlan(*faults)
    return Diagram.from_boxes(
        types, [tuple(box) for box in np.rint(walls).astype(int).tolist()], name
    )


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
    seen: dict[tuple[int, int], int] = {}
    for i, j, relation in rows.reshape(-1, 3).tolist():
        where = f"edge between rooms {i:g} and {j:g}"
        if i not in range(len(types)) or j not in range(len(types)):
            faults.append(Fault("edges", f"{where}, but rooms are numbered 0..{len(types) - 1}"))
        elif i >= j:
            faults.append(
                Fault(
                    "edges",
                    f"{where}: the smaller room number comes first; relations are not reversed",
                )
            )
        elif relation not in range(NO_EDGE):
            faults.append(
                Fault("edges", f"{where}: invalid relation {relation:g}, expected 0..{NO_EDGE - 1}")
            )
        elif seen.setdefault((int(i), int(j)), int(relation)) != relation:
            faults.append(Fault("edges", f"{where}: two relations"))
    if faults:
        raise RejectedPlan(*faults)
    return Diagram(
        tuple(types),
        tuple(sorted((i, j, relation) for (i, j), relation in seen.items())),
        name=name,
    )


def name_bedrooms(
    types: Sequence[int], areas: Sequence[float], policy: Bedrooms
) -> tuple[int, ...]:
    """Return the types with bedrooms, given as SecondRoom, mapped according to the policy."""
    second = ROOM_IDS["SecondRoom"]
    rooms = [room for room, kind in enumerate(types) if kind == second]
    if policy == "all-second" or not rooms:
        return tuple(types)
    largest = max(rooms, key=lambda room: areas[room])
    return tuple(
        ROOM_IDS["MasterRoom"] if room == largest else kind for room, kind in enumerate(types)
    )


def _numbers(values: Any) -> Float[np.ndarray, "*n"] | None:
    try:
        return np.asarray(values, np.float64)
    except (ValueError, TypeError, OverflowError):
        return None


def _count_faults(types: Sequence[int], most: int) -> Iterator[Fault]:
    if not 2 <= len(types) <= most:
        yield Fault("rooms", f"{len(types)} rooms, expected 2 to {most}")
