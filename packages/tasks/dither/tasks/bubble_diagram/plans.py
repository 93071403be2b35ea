"""Diagrams: one as an object, many as arrays, and their token encoding.

Letters: N plans, R room slots, E pairs of slots, D doors (E + R), L tokens: R + E, and D and R more
with doors and areas. Empty slots come last and hold PAD.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any, Final, NamedTuple, TypedDict

import numpy as np
from jaxtyping import Bool, Float, Int, Shaped

from dither.registry.config.errors import Problem, Refused

from .relations import GRID, METRES, edges_of, labels_of, net_areas, pair_ends
from .vocabulary import (
    AREA_PAD,
    AREAS,
    BOUNDARY_POINTS,
    DOOR,
    DOOR_MASK,
    DOOR_PAD,
    EDGE_PAD,
    IDS,
    LIVING,
    NO_DOOR,
    NO_EDGE,
    NODE_MASK,
    NODE_PAD,
    ROOMS,
    door_ends,
    door_index,
    pairs,
)

__all__ = [
    "RESIDENT",
    "Box",
    "Diagram",
    "Doors",
    "LazyPlans",
    "Modelled",
    "PlanSplits",
    "Plans",
    "area_bins",
    "clockwise",
    "decode",
    "encode",
    "outline_areas",
    "real_edges",
    "sort_doors",
    "split_fields",
]

RESIDENT: Final = 1 << 20
"""Plans beyond which nothing of the size of a split is kept in memory; prepared plans are
memory-mapped."""


class Modelled(TypedDict):
    """Which optional fields diagrams have."""

    doors: bool
    areas: bool


Doors = tuple[tuple[int, int | None], ...]
"""Pairs of rooms i < j that a door joins, and (i, None) for a front door of room i."""

Box = tuple[int, int, int, int]
"""(x0, y0, x1, y1) in pixels, x1 and y1 exclusive, y pointing down."""


@dataclass(frozen=True)
class Diagram:
    """A bubble diagram: room type ids, (i, j, relation of room i to room j) for related pairs i < j, boxes if known.

    `boundary` is the outline with the front door; see `geometry.boundary`. It, `doors`, and `areas`
    as bounds in square metres, are None if they are unknown.
    """

    types: tuple[int, ...]
    edges: tuple[tuple[int, int, int], ...]
    boxes: tuple[Box, ...] | None = None
    name: str = ""
    boundary: tuple[tuple[int, int], ...] | None = None
    doors: Doors | None = None
    areas: tuple[tuple[float, float], ...] | None = None

    def __post_init__(self) -> None:
        rooms = len(self.types)
        if not all(0 <= kind < NODE_MASK for kind in self.types):
            raise ValueError(f"room types are 0..{len(ROOMS) - 1}, got {self.types}")
        for i, j, relation in self.edges:
            if not (0 <= i < j < rooms and 0 <= relation < NO_EDGE):
                wanted = f"(i, j, relation), i < j < {rooms}, relation < {NO_EDGE}"
                raise ValueError(f"an edge is {wanted}; got {i, j, relation}")
        if len({edge[:2] for edge in self.edges}) < len(self.edges):
            raise ValueError(f"a pair of rooms has more than one relation: {self.edges}")
        for values, what in ((self.boxes, "boxes"), (self.areas, "areas")):
            if values is not None and len(values) != rooms:
                raise ValueError(f"{rooms} rooms, but {len(values)} {what}")
        for ends in self.doors or ():
            if (
                not 0 <= ends[0] < (rooms if ends[1] is None else min(ends[1], rooms))
                or (ends[1] or 0) >= rooms
            ):
                raise ValueError(f"a door is (i, j), i < j < {rooms}, or (i, None); got {ends}")

    @property
    def front_door(self) -> tuple[float, float] | None:
        """The middle of the front door, if its boundary has one."""
        if self.boundary is None or self.boundary[0][0] < 0:
            return None
        (x0, y0), (x1, y1) = self.boundary[:2]
        return (x0 + x1) / 2, (y0 + y1) / 2

    @classmethod
    def from_boxes(cls, types: Sequence[int], boxes: Sequence[Box], name: str = "") -> Diagram:
        """Return the diagram of rooms at given boxes; the relations follow from Graph2Plan's rule."""
        row = edges_of(np.array(boxes, np.int64).reshape(-1, 4))
        return cls(tuple(types), _edge_list(row, len(types)), tuple(boxes), name)


def sort_doors(doors: Iterable[tuple[int, int | None]]) -> Doors:
    """Return distinct doors in the order of their tokens."""
    return tuple(sorted(set(doors), key=lambda ends: (ends[1] is None, ends[0], ends[1] or 0)))


def _edge_list(row: Int[np.ndarray, " E"], rooms: int) -> tuple[tuple[int, int, int], ...]:
    return tuple(
        (i, j, int(r)) for (i, j), r in zip(pairs(rooms), row, strict=True) if r != NO_EDGE
    )


@dataclass(frozen=True)
class Plans:
    """A batch of diagrams: room types, relations of all pairs of slots, room boxes, and door tokens.

    Boxes are zeros in empty slots, and throughout a plan whose boxes are unknown. `boundaries` are
    None if no plan has one, and -1 throughout a plan without one; see `geometry.boundary`. Doors
    are MASK in a plan whose doors are unknown, and None if they are in all plans.
    """

    types: Int[np.ndarray, "N R"]
    edges: Int[np.ndarray, "N E"]
    boxes: Int[np.ndarray, "N R 4"]
    boundaries: Int[np.ndarray, "N P 2"] | None = None
    doors: Int[np.ndarray, "N D"] | None = None

    @classmethod
    def from_boxes(cls, types: Int[np.ndarray, "N R"], boxes: Int[np.ndarray, "N R 4"]) -> Plans:
        """Return plans whose relations follow from their boxes."""
        return cls(
            types,
            np.where(real_edges(types != NODE_PAD), edges_of(boxes), EDGE_PAD).astype(np.int8),
            boxes,
        )

    @classmethod
    def from_diagrams(cls, diagrams: Sequence[Diagram], rooms: int) -> Plans:
        """Batch diagrams of up to `rooms` rooms."""
        tokens = rooms + rooms * (rooms - 1) // 2
        rows = np.array([encode(diagram, rooms) for diagram in diagrams], np.int8).reshape(
            len(diagrams), tokens
        )
        boxes = np.zeros((len(diagrams), rooms, 4), np.int16)
        doors = np.full((len(diagrams), tokens), DOOR_MASK, np.int8)
        boundaries = np.full((len(diagrams), BOUNDARY_POINTS, 2), -1, np.int16)
        for row, diagram in enumerate(diagrams):
            if diagram.boxes is not None:
                boxes[row, : len(diagram.boxes)] = diagram.boxes
            if diagram.doors is not None:
                doors[row] = [
                    NO_DOOR if _ends_exist(ends, len(diagram.types), rooms) else DOOR_PAD
                    for ends in door_ends(rooms)
                ]
                doors[row, [door_index(i, j, rooms) for i, j in diagram.doors]] = DOOR
            if diagram.boundary is not None:
                boundaries[row] = diagram.boundary
        known = boundaries if (boundaries >= 0).any() else None
        return cls(
            rows[:, :rooms],
            rows[:, rooms:],
            boxes,
            known,
            doors if (doors != DOOR_MASK).any() else None,
        )

    def __len__(self) -> int:
        return len(self.types)

    def __getitem__(self, rows: slice | Int[np.ndarray, " n"]) -> Plans:
        return replace(
            self, **{name: part[rows] for name, part in vars(self).items() if part is not None}
        )

    def upright(self) -> Plans:
        """Return the plans turned by quarter turns and mirrored so that a certain room is left, above the middle.

        The room is the largest of the lowest type id besides the living room, mostly the main
        bedroom. Its centre has -x >= |y| and y <= 0 relative to the middle of the plan. Plans
        without boxes are unchanged.
        """
        boxes = self.boxes.astype(np.int64)
        real = self.types != NODE_PAD
        areas = (boxes[..., 2:] - boxes[..., :2]).prod(-1)
        key = np.where(
            real & (self.types != LIVING),
            self.types.astype(np.int64) * GRID**2 - areas,
            NODE_PAD * GRID**2,
        )
        low = np.where(real[..., None], boxes[..., :2], GRID).min(1)
        high = boxes[..., 2:].max(1)
        room = boxes[np.arange(len(boxes)), key.argmin(1)]
        x, y = (room[:, :2] + room[:, 2:] - low - high).T
        turns = np.select(
            [(x <= 0) & (-x >= abs(y)), (y > 0) & (y >= abs(x)), x >= abs(y)], [0, 1, 2], 3
        )
        known = np.asarray(self.boxes.any((1, 2)))
        points = boxes.reshape(len(boxes), 2 * self.types.shape[1], 2)
        if self.boundaries is not None:
            points = np.concatenate([points, self.boundaries], 1)
        for turn in (1, 2, 3):  # each by a quarter clockwise
            points = np.where(
                (turns >= turn)[:, None, None],
                np.stack([GRID - points[..., 1], points[..., 0]], -1),
                points,
            )
            x, y = np.where(turns >= turn, [-y, x], [x, y])
        mirrored = np.stack([points[..., 0], GRID - points[..., 1]], -1)
        points = np.where((y > 0)[:, None, None], mirrored, points)
        corners, rest = np.split(points, [2 * self.types.shape[1]], 1)
        corners = corners.reshape(*self.types.shape, 2, 2)
        boxes = np.concatenate([corners.min(2), corners.max(2)], -1)
        boxes = np.where((real & known[:, None])[..., None], boxes, 0).astype(np.int16)
        boundaries = self.boundaries
        if boundaries is not None:
            boundaries = clockwise(np.where(boundaries < 0, -1, rest).astype(np.int16))
        i, j = pair_ends(self.types.shape[1])
        edges = np.where(
            known[:, None] & (self.edges < NO_EDGE), labels_of(boxes[:, i], boxes[:, j]), self.edges
        )
        return replace(self, edges=edges.astype(np.int8), boxes=boxes, boundaries=boundaries)

    def order(self) -> Int[np.ndarray, "N R"]:
        """Return the rooms of `from_left_to_right`: the number of the room that is first, second, ..."""
        known = np.asarray(self.boxes.any((1, 2)))
        x, y = np.moveaxis(self.boxes[..., :2] + self.boxes[..., 2:], -1, 0)
        order = np.lexsort([y, x, self.types != LIVING, self.types == NODE_PAD], axis=1)
        return np.where(known[:, None], order, np.arange(self.types.shape[1]))

    def from_left_to_right(self) -> Plans:
        """Return the plans with the living room first, and the others by the centres of their boxes, along x then y.

        Plans without boxes are unchanged, as the reverse of a relation does not follow from it.
        """
        known = np.asarray(self.boxes.any((1, 2)))
        order = self.order()
        slots = self.types.shape[1]
        i, j = pair_ends(slots)
        types = np.take_along_axis(self.types, order, 1)
        boxes = np.take_along_axis(self.boxes, order[..., None], 1)
        related = _reorder_pairs(self.edges < NO_EDGE, pair_ends(slots), order)
        labels = np.where(related, labels_of(boxes[:, i], boxes[:, j]), NO_EDGE)
        edges = np.where(
            known[:, None], np.where(real_edges(types != NODE_PAD), labels, EDGE_PAD), self.edges
        )
        sides = np.pad(order, ((0, 0), (0, 1)), constant_values=slots)
        doors = self.doors
        doors = (
            None if doors is None else _reorder_pairs(doors, np.array(door_ends(slots)).T, sides)
        )
        return replace(
            self,
            types=types,
            edges=edges.astype(np.int8),
            boxes=boxes,
            doors=doors,
        )

    @property
    def rooms(self) -> Int[np.ndarray, " N"]:
        """Number of rooms of each plan."""
        return np.asarray((self.types != NODE_PAD).sum(1))

    def diagram(self, row: int) -> Diagram:
        known = self.doors is not None and not (self.doors[row] == DOOR_MASK).any()
        bare = decode(
            self[row : row + 1].tokens(self.types.shape[1], doors=known)[0], self.types.shape[1]
        )
        boxes = self.boxes[row, : len(bare.types)]
        return replace(bare, boxes=tuple(map(tuple, boxes.tolist())) if boxes.any() else None)

    def tokens(
        self, rooms: int, *, doors: bool = False, areas: bool = False
    ) -> Int[np.ndarray, "N L"]:
        """Return the plans as tokens for `rooms` room slots, which must not be fewer than the plans have.

        Raises:
            Refused: Doors or boxes are unknown in some plans, but `doors` or `areas` are required
                (`misfit`).
        """
        slots = self.types.shape[1]
        if slots > rooms:
            raise ValueError(f"plans of up to {slots} rooms do not fit into {rooms} slots")
        types = np.full((len(self), rooms), NODE_PAD, np.int8)
        types[:, :slots] = self.types
        edges = np.full((len(self), rooms * (rooms - 1) // 2), EDGE_PAD, np.int8)
        edges[:, [j < slots for _, j in pairs(rooms)]] = self.edges
        fields = [types, edges]
        if doors:
            given = (
                np.full((len(self), 1), DOOR_MASK, np.int8) if self.doors is None else self.doors
            )
            unknown = np.asarray((given == DOOR_MASK).any(1))
            _require_known(
                unknown, "doors", "read a format with doors, and prepare the plans again"
            )
            tokens = np.full((len(self), types.shape[1] + edges.shape[1]), DOOR_PAD, np.int8)
            tokens[:, [_ends_exist(ends, slots, rooms) for ends in door_ends(rooms)]] = given
            fields.append(tokens)
        if areas:
            _require_known(~np.asarray(self.boxes.any((1, 2))), "boxes", "areas follow from boxes")
            bins = np.full((len(self), rooms), AREA_PAD, np.int8)
            shares = area_bins(net_areas(self.types, self.boxes) * METRES**2)
            bins[:, :slots] = np.where(self.types == NODE_PAD, AREA_PAD, shares)
            fields.append(bins)
        return np.concatenate(fields, 1)


def outline_areas(boundaries: Int[np.ndarray, "N P 2"]) -> Float[np.ndarray, " N"]:
    """Return the areas inside outlines in pixels (shoelace formula): negative if not clockwise, 0 if unknown."""
    corners = boundaries[:, 2:].astype(float)
    real = boundaries[:, 2:, 0] >= 0
    last = real & ~np.pad(real[:, 1:], ((0, 0), (0, 1)))
    following = np.where(last[..., None], corners[:, :1], np.roll(corners, -1, 1))
    cross = corners[..., 0] * following[..., 1] - corners[..., 1] * following[..., 0]
    return np.asarray((cross * real).sum(1) / 2)


def clockwise(boundaries: Int[np.ndarray, "N P 2"]) -> Int[np.ndarray, "N P 2"]:
    """Return boundaries with clockwise corners as seen on the page, and the upper or left end of the door first."""
    corners = boundaries[:, 2:]
    place = np.arange(boundaries.shape[1] - 2)
    count = (corners[..., 0] >= 0).sum(1)[:, None]
    backwards = (outline_areas(boundaries) < 0)[:, None] & (place < count)
    order = np.where(backwards, count - 1 - place, place)
    ends = np.argsort(boundaries[:, :2].sum(2), 1, kind="stable")
    return np.asarray(
        np.take_along_axis(boundaries, np.concatenate([ends, order + 2], 1)[..., None], 1)
    )


def _reorder_pairs(
    values: Shaped[np.ndarray, "N P"], ends: Int[np.ndarray, "2 P"], order: Int[np.ndarray, "N S"]
) -> Shaped[np.ndarray, "N P"]:
    """Return values of pairs whose side k was `order[k]` before."""
    (i, j), (n, sides) = ends, order.shape
    matrix = np.zeros((n, sides, sides), values.dtype)
    rows = np.arange(n)[:, None]
    matrix[:, i, j] = matrix[:, j, i] = values
    return np.asarray(matrix[rows, order[:, i], order[:, j]])


def _ends_exist(ends: tuple[int, int], count: int, rooms: int) -> bool:
    """Whether both sides of a door are among the first `count` rooms, or the outside."""
    return ends[0] < count and (ends[1] < count or ends[1] == rooms)


def _require_known(unknown: Bool[np.ndarray, " N"], what: str, hint: str) -> None:
    if unknown.any():
        message = f"{what} are unknown in {int(unknown.sum()):,} of {len(unknown):,} plans"
        raise Refused(
            Problem(
                message, ("task", "areas" if what == "boxes" else what), help=hint, code="misfit"
            )
        )


def area_bins(areas: Float[np.ndarray, "*n"]) -> Int[np.ndarray, "*n"]:
    """Return the bin of each area in square metres."""
    return np.searchsorted(AREAS[1:-1], areas, side="right").astype(np.int8)


class Fields(NamedTuple):
    """Tokens by field; doors and areas are None in samples without them."""

    types: Any
    edges: Any
    doors: Any = None
    areas: Any = None


def split_fields(tokens: Any, rooms: int) -> Fields:
    """Split the last axis of an array or tensor; its length tells which fields there are.

    Raises:
        ValueError: No diagram of `rooms` slots has as many tokens.
    """
    base = rooms * (rooms + 1) // 2  # there are as many doors as types and relations
    length = tokens.shape[-1]
    first = base if length in (base, base + rooms) else 2 * base
    if length not in (first, first + rooms):
        what = f"{base} tokens, with doors {base} more, with areas {rooms}"
        raise ValueError(f"diagrams of {rooms} slots have {what}; got {length}")
    return Fields(
        tokens[..., :rooms],
        tokens[..., rooms:base],
        tokens[..., base:first] if first > base else None,
        tokens[..., first:] if length > first else None,
    )


@dataclass(frozen=True)
class LazyPlans:
    """Plans that are changed on access."""

    stored: Plans
    changes: tuple[Callable[[Plans], Plans], ...]

    def __len__(self) -> int:
        return len(self.stored)

    def __getitem__(self, rows: slice | Int[np.ndarray, " n"]) -> Plans:
        return reduce(lambda plans, change: change(plans), self.changes, self.stored[rows])


@dataclass(frozen=True)
class PlanSplits:
    """Training, validation and test plans."""

    train: Plans | LazyPlans
    valid: Plans | LazyPlans
    test: Plans | LazyPlans

    def map(self, change: Callable[[Plans], Plans]) -> PlanSplits:
        """Apply a change of each plan by itself: now, or on access to parts of more than `RESIDENT` plans."""

        def changed(part: Plans | LazyPlans) -> Plans | LazyPlans:
            if isinstance(part, LazyPlans):
                return replace(part, changes=(*part.changes, change))
            return change(part) if len(part) <= RESIDENT else LazyPlans(part, (change,))

        return PlanSplits(*map(changed, vars(self).values()))


def real_edges(real: Bool[np.ndarray, "N R"]) -> Bool[np.ndarray, "N E"]:
    """True for the pairs whose two slots hold rooms."""
    i, j = pair_ends(real.shape[1])
    return np.asarray(real[:, i] & real[:, j])


def encode(diagram: Diagram, rooms: int) -> Int[np.ndarray, " L"]:
    """Return types and relations of a diagram as tokens for `rooms` room slots.

    Raises:
        ValueError: The diagram has more rooms.
    """
    count = len(diagram.types)
    if count > rooms:
        raise ValueError(f"a diagram of {count} rooms does not fit into {rooms} slots")
    relation = {(i, j): r for i, j, r in diagram.edges}
    edges = [relation.get(pair, NO_EDGE) if pair[1] < count else EDGE_PAD for pair in pairs(rooms)]
    return np.array([*diagram.types, *[NODE_PAD] * (rooms - count), *edges], np.int8)


def decode(tokens: Int[np.ndarray, " L"], rooms: int) -> Diagram:
    """Decode the tokens of one diagram.

    Raises:
        Refused: Lists every invalid token: a remaining MASK, a PAD between rooms, an unknown id
            (`invalid-sample`).
    """
    fields = split_fields(tokens, rooms)
    ends = door_ends(rooms)
    slots = [(room,) for room in range(rooms)]
    values: list[Any] = [None if part is None else np.asarray(part).tolist() for part in fields]
    types, edges, doors, areas = values
    count = max((slot + 1 for slot, kind in enumerate(types) if kind != NODE_PAD), default=0)
    errors = []
    places: tuple[tuple[str, Any], ...] = (
        ("room", slots),
        ("pair", pairs(rooms)),
        ("door", ends),
        ("area", slots),
    )
    for (what, each), ids, part in zip(places, IDS.values(), values, strict=True):
        for place, token in zip(each, part or (), strict=part is not None):
            exists = all(end < count or end == rooms for end in place)
            if not 0 <= token < ids if exists else token != ids + 1:
                known = {ids: "remaining MASK", ids + 1: "PAD between rooms"}
                wording = (
                    known.get(token, f"invalid id {token}")
                    if exists
                    else f"{token} although there is no room"
                )
                errors.append(f"{what} {', '.join(map(str, place))}: {wording}")
    if not count:
        errors.append("no rooms")
    if errors:
        raise Refused([Problem(error, code="invalid-sample") for error in errors])
    relations = (r for (_, j), r in zip(pairs(rooms), edges, strict=True) if j < count)
    edge_list = _edge_list(np.fromiter(relations, int), count)
    joined = (
        None
        if doors is None
        else tuple(
            (i, j if j < rooms else None)
            for (i, j), door in zip(ends, doors, strict=True)
            if door == DOOR
        )
    )
    bounds = (
        None if areas is None else tuple((AREAS[area], AREAS[area + 1]) for area in areas[:count])
    )
    return Diagram(tuple(types[:count]), edge_list, doors=joined, areas=bounds)
