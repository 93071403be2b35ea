"""Diagrams: one as an object, many as arrays, and their token encoding.

Letters: N plans, R room slots, E pairs of slots, D doors (E + R), L tokens: R + E, and D and R more
with doors and areas. Empty slots come last and hold PAD.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypedDict

import numpy as np
from jaxtyping import Float, Int, Shaped
from numpy import ndarray

from dither.registry.config.errors import Problem, Refused

from .arrays import (
    Boundaries,
    BoxBatch,
    Boxes,
    Numbers,
    Pairs,
    RelationRow,
    Relations,
    Rows,
    TokenRow,
    Tokens,
    Types,
)
from .relations import (
    areas_of,
    corners,
    edges_of,
    labels_of,
    net_areas,
    pair_ends,
    pair_labels,
)
from .vocabulary import (
    AREA_PAD,
    AREAS,
    BOUNDARY_POINTS,
    DOOR,
    DOOR_MASK,
    DOOR_PAD,
    EDGE_PAD,
    GRID,
    IDS,
    LIVING,
    METRES,
    NO_DOOR,
    NO_EDGE,
    NODE_MASK,
    NODE_PAD,
    ROOMS,
    SHORT,
    door_ends,
    door_index,
    pairs,
)

UNKNOWN = {"boundaries": -1, "doors": DOOR_MASK}
"""Values of plans whose outline or doors are unknown."""
BLOCK = 1 << 14
"""Plans that are changed or counted at once, which bounds the memory of intermediate arrays."""


class Modelled(TypedDict):
    """Which optional fields diagrams have."""

    doors: bool
    areas: bool


Doors = tuple[tuple[int, int | None], ...]
"""Pairs of rooms i < j that a door joins, and (i, None) for a front door of room i."""

Box = tuple[int, int, int, int]
"""(x0, y0, x1, y1) in pixels, x1 and y1 exclusive, y pointing down."""


@dataclass(frozen=True)
class Edit:
    """Rooms that an edited plan keeps, and how to turn it back.

    Attributes:
        slots: Of each kept room, in the order of the plan.
        boxes: Of each kept room, as the model sees the plan.
        turns: Quarter turns that the plan was given, before it was mirrored.
        mirrored: Whether it was mirrored from top to bottom.
    """

    slots: tuple[int, ...]
    boxes: tuple[Box, ...]
    turns: int = 0
    mirrored: bool = False

    @property
    def pinned(self) -> dict[int, int]:
        """The place of each wall (4 room + side) of the kept rooms."""
        walls: dict[int, int] = {}
        for slot, box in zip(self.slots, self.boxes, strict=True):
            walls |= {4 * slot + side: place for side, place in enumerate(box)}
        return walls

    def turned_back(self, boxes: BoxBatch) -> BoxBatch:
        """Return boxes as they are in the plan."""
        points = boxes.astype(np.int64).reshape(len(boxes), -1, 2)
        # It was mirrored last.
        if self.mirrored:
            x, y = np.moveaxis(points, -1, 0)
            points = np.stack([x, GRID - y], -1)
        turns = np.full(len(boxes), -self.turns % 4)
        return boxes_between(turned(points, turns))


@dataclass(frozen=True)
class Diagram:
    """A bubble diagram: room type ids, and (i, j, relation of room i to room j) for related i < j.

    `boxes`, `boundary` (the outline with the front door; see `geometry.boundary`), `doors`, and
    `areas` as bounds in square metres are None if they are unknown; `edit` is that of a sample of an
    edited plan.
    """

    types: tuple[int, ...]
    edges: tuple[tuple[int, int, int], ...]
    boxes: tuple[Box, ...] | None = None
    name: str = ""
    boundary: tuple[tuple[int, int], ...] | None = None
    doors: Doors | None = None
    areas: tuple[tuple[float, float], ...] | None = None
    edit: Edit | None = None

    def __post_init__(self) -> None:
        rooms = len(self.types)
        if not all(0 <= kind < NODE_MASK for kind in self.types):
            raise ValueError(f"room types are 0..{len(ROOMS) - 1}, got {self.types}")

        for i, j, relation in self.edges:
            if not (0 <= i < j < rooms and 0 <= relation < NO_EDGE):
                expected = f"(i, j, relation), i < j < {rooms}, relation < {NO_EDGE}"
                raise ValueError(f"an edge is {expected}; got {i, j, relation}")
        if len({edge[:2] for edge in self.edges}) < len(self.edges):
            raise ValueError(
                f"a pair of rooms has more than one relation: {self.edges}"
            )

        # Both are known for all rooms, or for none.
        for name, values in (("boxes", self.boxes), ("areas", self.areas)):
            if values is not None and len(values) != rooms:
                raise ValueError(f"{rooms} rooms, but {len(values)} {name}")
        for ends in self.doors or ():
            if not is_door(ends, rooms):
                raise ValueError(
                    f"a door is (i, j), i < j < {rooms}, or (i, None); got {ends}"
                )

    @property
    def front_door(self) -> tuple[float, float] | None:
        """The middle of the front door, if its boundary has one."""
        if self.boundary is None or self.boundary[0][0] < 0:
            return None
        (x0, y0), (x1, y1) = self.boundary[:2]
        return (x0 + x1) / 2, (y0 + y1) / 2

    @property
    def relations(self) -> RelationRow:
        """Relation of every pair of rooms, `NO_EDGE` where they are not close."""
        rooms = len(self.types)
        return encode(self, rooms)[rooms:]

    def restored(self, boxes: Boxes) -> Diagram:
        """Return a sample of an edited plan as the plan is, kept rooms first; `boxes` of its rooms.

        Related pairs have the relations of their boxes.
        """
        assert self.edit is not None
        others = (k for k in range(len(self.types)) if k not in self.edit.slots)
        order = [*self.edit.slots, *others]
        place = {room: slot for slot, room in enumerate(order)}
        row = self.edit.turned_back(boxes[None])[0][order]
        edges = []
        for i, j, _ in self.edges:
            u, v = sorted((place[i], place[j]))
            edges.append((u, v, int(labels_of(row[u], row[v]))))
        doors = None
        if self.doors is not None:
            ends: list[tuple[int, int | None]] = []
            for room, other in self.doors:
                if other is None:
                    ends.append((place[room], None))
                else:
                    first, second = sorted((place[room], place[other]))
                    ends.append((first, second))
            doors = sort_doors(ends)
        return replace(
            self,
            types=tuple(self.types[room] for room in order),
            edges=tuple(sorted(edges)),
            boxes=tuple(map(tuple, row.tolist())),
            doors=doors,
            areas=self.areas and tuple(self.areas[room] for room in order),
            edit=None,
        )

    @classmethod
    def from_boxes(
        cls,
        types: Sequence[int],
        boxes: Sequence[Box] | Boxes,
        name: str = "",
    ) -> Diagram:
        """Return the diagram of rooms at boxes; the relations follow from Graph2Plan's rule."""
        walls = np.array(boxes, np.int64).reshape(-1, 4)
        labelled = zip(pairs(len(types)), edges_of(walls).tolist(), strict=True)
        edges = tuple((i, j, r) for (i, j), r in labelled if r != NO_EDGE)
        rows = tuple((x0, y0, x1, y1) for x0, y0, x1, y1 in walls.tolist())
        return cls(tuple(types), edges, rows, name)


def room_names(diagram: Diagram) -> list[str]:
    """Return a short name for each room; rooms of the same type are numbered."""
    types = diagram.types
    names = []
    for room, kind in enumerate(types):
        name = SHORT[kind]
        if types.count(kind) > 1:
            name += f" {types[: room + 1].count(kind)}"
        names.append(name)
    return names


def is_door(ends: tuple[int, int | None], rooms: int) -> bool:
    """Whether a door joins two of `rooms` rooms i < j, or one of them and the outside."""
    i, j = ends
    if j is None:
        return 0 <= i < rooms
    return 0 <= i < j < rooms


def sort_doors(doors: Iterable[tuple[int, int | None]]) -> Doors:
    """Return distinct doors in the order of their tokens."""
    return tuple(
        sorted(set(doors), key=lambda ends: (ends[1] is None, ends[0], ends[1] or 0))
    )


@dataclass(frozen=True)
class Plans:
    """A batch of diagrams: types, relations of all pairs of slots, boxes, and door tokens.

    Boxes are zeros in empty slots, and throughout a plan whose boxes are unknown. `boundaries` are
    None if no plan has one, and -1 throughout a plan without one; see `geometry.boundary`. Doors
    are MASK in a plan whose doors are unknown, and None if they are in all plans.
    """

    types: Types
    edges: Relations
    boxes: BoxBatch
    boundaries: Boundaries | None = None
    doors: Int[ndarray, "N D"] | None = None

    @classmethod
    def from_boxes(cls, types: Types, boxes: BoxBatch) -> Plans:
        """Return plans whose relations follow from their boxes."""
        edges = np.where(real_edges(types != NODE_PAD), edges_of(boxes), EDGE_PAD)
        return cls(types, edges.astype(np.int8), boxes)

    @classmethod
    def from_diagrams(cls, diagrams: Sequence[Diagram], rooms: int) -> Plans:
        """Batch diagrams of up to `rooms` rooms."""
        count = len(diagrams)
        length = rooms * (rooms + 1) // 2
        tokens = np.zeros((count, length), np.int8)
        boxes = np.zeros((count, rooms, 4), np.int16)
        doors = np.full((count, length), DOOR_MASK, np.int8)
        boundaries = np.full((count, BOUNDARY_POINTS, 2), -1, np.int16)

        for row, diagram in enumerate(diagrams):
            tokens[row] = encode(diagram, rooms)
            if diagram.boxes is not None:
                boxes[row, : len(diagram.boxes)] = diagram.boxes
            if diagram.doors is not None:
                exist = _doors_exist(len(diagram.types), rooms)
                doors[row] = np.where(exist, NO_DOOR, DOOR_PAD)
                doors[row, [door_index(i, j, rooms) for i, j in diagram.doors]] = DOOR
            if diagram.boundary is not None:
                boundaries[row] = diagram.boundary

        return cls(
            types=tokens[:, :rooms],
            edges=tokens[:, rooms:],
            boxes=boxes,
            boundaries=boundaries if (boundaries >= 0).any() else None,
            doors=doors if (doors != DOOR_MASK).any() else None,
        )

    @classmethod
    def concatenate(cls, parts: Sequence[Plans]) -> Plans:
        """Join plans; boundaries and doors are unknown in those parts that lack the array."""
        known: dict[str, Any] = {}
        for part in parts:
            known |= part.arrays()
        columns = {}
        for name, like in known.items():
            arrays = []
            for part in parts:
                array = part.arrays().get(name)
                if array is None:
                    shape = (len(part), *like.shape[1:])
                    array = np.full(shape, UNKNOWN[name], like.dtype)
                arrays.append(array)
            columns[name] = np.concatenate(arrays)
        return cls(**columns)

    def arrays(self) -> dict[str, Shaped[ndarray, "N *n"]]:
        """Return the arrays that are known, by name."""
        return {name: array for name, array in vars(self).items() if array is not None}

    def __len__(self) -> int:
        return len(self.types)

    def __getitem__(self, rows: slice | Numbers) -> Plans:
        return replace(
            self, **{name: array[rows] for name, array in self.arrays().items()}
        )

    @property
    def rooms(self) -> Numbers:
        """Number of rooms of each plan."""
        return (self.types != NODE_PAD).sum(1)

    @property
    def has_boxes(self) -> Rows:
        """True for plans whose boxes are known."""
        return np.asarray(self.boxes.any((1, 2)))

    def upright(self) -> Plans:
        """Return the plans turned and mirrored so that a certain room is left, above the middle.

        The room is the largest of the lowest type id besides the living room, mostly the main
        bedroom. Its centre has -x >= |y| and y <= 0 relative to the middle of the plan. Plans
        without boxes are unchanged.
        """
        known = self.has_boxes[:, None]
        turns, mirrored = self.upright_turns()
        slots = self.types.shape[1]

        # Both corners of every box, and the outline, are turned together as points.
        points = self.boxes.astype(np.int64).reshape(len(self), 2 * slots, 2)
        if self.boundaries is not None:
            points = np.concatenate([points, self.boundaries], 1)
        points = turned(points, turns)
        x, y = np.moveaxis(points, -1, 0)
        y = np.where(mirrored[:, None], GRID - y, y)
        points = np.stack([x, y], -1)
        ends, outline = np.split(points, [2 * slots], 1)
        boxes = boxes_between(ends)
        real = (self.types != NODE_PAD) & known
        boxes = np.where(real[..., None], boxes, 0).astype(np.int16)
        boundaries = self.boundaries
        if boundaries is not None:
            outline = np.where(boundaries < 0, -1, outline)
            boundaries = clockwise(outline.astype(np.int16))

        related = known & (self.edges < NO_EDGE)
        edges = np.where(related, pair_labels(boxes), self.edges)
        return replace(
            self, edges=edges.astype(np.int8), boxes=boxes, boundaries=boundaries
        )

    def upright_turns(self) -> tuple[Numbers, Rows]:
        """Return how many quarter turns make a plan upright, and whether it is mirrored after."""
        boxes = self.boxes.astype(np.int64)
        real = self.types != NODE_PAD
        low, high = corners(boxes)

        # A type outweighs any area: the canvas has GRID^2 pixels.
        rank = self.types.astype(np.int64) * GRID**2 - areas_of(boxes)
        rank = np.where(real & (self.types != LIVING), rank, NODE_PAD * GRID**2)
        rows = np.arange(len(boxes))
        room = rank.argmin(1)

        # Twice the centre of the room relative to the middle of the plan, which stays whole.
        low_end = np.where(real[..., None], low, GRID).min(1)
        high_end = high.max(1)
        centre = (low + high)[rows, room]
        x, y = (centre - low_end - high_end).T
        # Quadrants between the diagonals: left needs no turn, below one, right two, above three.
        left = (x <= 0) & (-x >= abs(y))
        below = (y > 0) & (y >= abs(x))
        right = x >= abs(y)
        turns = np.select([left, below, right], [0, 1, 2], 3)

        # y of the room after the turns, relative to the middle.
        turned_y = np.choose(turns, [y, x, -y, -x])
        return turns, turned_y > 0

    def order(self) -> Types:
        """Return the rooms in the order of `from_left_to_right`."""
        low, high = corners(self.boxes)
        # The last key is the first one: rooms before empty slots, the living room before others.
        x, y = np.moveaxis(low + high, -1, 0)
        not_living = self.types != LIVING
        empty = self.types == NODE_PAD
        order = np.lexsort([y, x, not_living, empty], axis=1)
        slots = np.arange(self.types.shape[1])
        return np.where(self.has_boxes[:, None], order, slots)

    def from_left_to_right(self) -> Plans:
        """Return the plans with the living room first, and the others by their centres, x then y.

        Plans without boxes are unchanged, as the reverse of a relation does not follow from it.
        """
        order = self.order()
        slots = self.types.shape[1]
        types = np.take_along_axis(self.types, order, 1)
        boxes = np.take_along_axis(self.boxes, order[..., None], 1)

        related = _reorder_pairs(self.edges < NO_EDGE, pair_ends(slots), order)
        edges = np.where(related, pair_labels(boxes), NO_EDGE)
        edges = np.where(real_edges(types != NODE_PAD), edges, EDGE_PAD)
        edges = np.where(self.has_boxes[:, None], edges, self.edges)

        doors = self.doors
        if doors is not None:
            # The outside is one more side, which stays the last.
            sides = np.pad(order, ((0, 0), (0, 1)), constant_values=slots)
            doors = _reorder_pairs(doors, np.array(door_ends(slots)).T, sides)
        return replace(
            self, types=types, edges=edges.astype(np.int8), boxes=boxes, doors=doors
        )

    def diagram(self, row: int) -> Diagram:
        plan = self[row : row + 1]
        slots = self.types.shape[1]
        # Unknown doors are MASK, which does not decode.
        has_doors = plan.doors is not None and not (plan.doors == DOOR_MASK).any()
        diagram = decode(plan.tokens(slots, doors=has_doors)[0], slots)
        if not plan.boxes.any():
            return diagram
        boxes = plan.boxes[0, : len(diagram.types)].tolist()
        return replace(diagram, boxes=tuple(map(tuple, boxes)))

    def tokens(
        self,
        rooms: int,
        *,
        doors: bool = False,
        areas: bool = False,
    ) -> Tokens:
        """Return the plans as tokens for `rooms` room slots, at least as many as the plans have.

        Raises:
            Refused: Doors or boxes are unknown in some plans, but `doors` or `areas` are required
                (`misfit`).
        """
        slots = self.types.shape[1]
        if slots > rooms:
            raise ValueError(
                f"plans of up to {slots} rooms do not fit into {rooms} slots"
            )
        base = rooms * (rooms + 1) // 2
        tokens = np.full((len(self), base), EDGE_PAD, np.int8)
        tokens[:, :rooms] = NODE_PAD
        tokens[:, :slots] = self.types
        # Pairs of the first slots keep their order among the pairs of more slots.
        related = np.array([j < slots for _, j in pairs(rooms)], bool)
        tokens[:, rooms:][:, related] = self.edges
        fields = [tokens]
        if doors:
            fields.append(self._door_tokens(rooms))
        if areas:
            fields.append(self._area_tokens(rooms))
        return np.concatenate(fields, 1)

    def _door_tokens(self, rooms: int) -> Int[ndarray, "N D"]:
        given = self.doors
        if given is None:
            given = np.full((len(self), 1), DOOR_MASK, np.int8)
        unknown = np.asarray((given == DOOR_MASK).any(1))
        hint = "read a format with doors, and prepare the plans again"
        require_known(unknown, "doors", option="doors", hint=hint)

        exist = _doors_exist(self.types.shape[1], rooms)
        tokens = np.full((len(self), len(exist)), DOOR_PAD, np.int8)
        tokens[:, exist] = given
        return tokens

    def _area_tokens(self, rooms: int) -> Types:
        hint = "areas follow from boxes"
        require_known(~self.has_boxes, "boxes", option="areas", hint=hint)
        tokens = np.full((len(self), rooms), AREA_PAD, np.int8)
        slots = self.types.shape[1]
        for rows in blocks(len(self)):
            types = self.types[rows]
            areas = net_areas(types, self.boxes[rows]) * METRES**2
            real = types != NODE_PAD
            tokens[rows, :slots] = np.where(real, area_bins(areas), AREA_PAD)
        return tokens


def blocks(count: int) -> Iterator[slice]:
    """Yield slices of at most `BLOCK` of `count` plans; one, which is empty, if there are none."""
    for start in range(0, max(count, 1), BLOCK):
        yield slice(start, min(start + BLOCK, count))


@dataclass(frozen=True)
class PlanSplits:
    """Training, validation and test plans."""

    train: Plans
    valid: Plans
    test: Plans
    remarks: tuple[str, ...] = ()
    """What a user should know of the source."""

    def map(self, change: Callable[[Plans], Plans]) -> PlanSplits:
        """Apply a change of each plan by itself."""
        parts = []
        for plans in (self.train, self.valid, self.test):
            changed = [change(plans[rows]) for rows in blocks(len(plans))]
            parts.append(Plans.concatenate(changed))
        train, valid, test = parts
        return replace(self, train=train, valid=valid, test=test)


def turned(points: Int[ndarray, "N P 2"], turns: Numbers) -> Int[ndarray, "N P 2"]:
    """Return points on the canvas after quarter turns clockwise, from 0 to 3 for each plan."""
    for turn in (1, 2, 3):
        x, y = np.moveaxis(points, -1, 0)
        once_more = (turns >= turn)[:, None, None]
        points = np.where(once_more, np.stack([GRID - y, x], -1), points)
    return points


def boxes_between(points: Int[ndarray, "N P 2"]) -> BoxBatch:
    """Return the boxes between each two points, which are opposite corners in any order."""
    # A turn may make the lower right corner the upper left one.
    ends = points.reshape(len(points), -1, 2, 2)
    return np.concatenate([ends.min(2), ends.max(2)], -1)


def outline_areas(boundaries: Boundaries) -> Float[ndarray, " N"]:
    """Return the areas inside outlines in pixels (shoelace formula).

    Negative if the corners are not clockwise, 0 if the outline is unknown.
    """
    points = boundaries[:, 2:].astype(float)
    real = points[..., 0] >= 0

    # The first corner follows the last one.
    continues = np.pad(real[:, 1:], ((0, 0), (0, 1)))
    is_last = (real & ~continues)[..., None]
    following = np.where(is_last, points[:, :1], np.roll(points, -1, 1))
    x, y = np.moveaxis(points, -1, 0)
    next_x, next_y = np.moveaxis(following, -1, 0)
    cross = x * next_y - y * next_x
    return (cross * real).sum(1) / 2


def clockwise(boundaries: Boundaries) -> Boundaries:
    """Return boundaries with clockwise corners, and the upper or left end of the door first."""
    corner_x = boundaries[:, 2:, 0]
    place = np.arange(corner_x.shape[1])
    count = (corner_x >= 0).sum(1, keepdims=True)
    # The order of the corners is reversed; missing points after them stay.
    backwards = outline_areas(boundaries)[:, None] < 0
    order = np.where(backwards & (place < count), count - 1 - place, place)
    # x + y is smaller at the upper or left end.
    ends = np.argsort(boundaries[:, :2].sum(2), 1, kind="stable")
    points = np.concatenate([ends, order + 2], 1)
    return np.take_along_axis(boundaries, points[..., None], 1)


def _reorder_pairs(
    values: Shaped[ndarray, "N P"],
    ends: Int[ndarray, "2 P"],
    order: Int[ndarray, "N S"],
) -> Shaped[ndarray, "N P"]:
    """Return values of pairs whose side k was `order[k]` before."""
    i, j = ends
    count, sides = order.shape
    matrix = np.zeros((count, sides, sides), values.dtype)
    # In both directions, since the sides of a pair may change places.
    matrix[:, i, j] = values
    matrix[:, j, i] = values
    rows = np.arange(count)[:, None]
    return matrix[rows, order[:, i], order[:, j]]


def _doors_exist(count: int, rooms: int) -> list[bool]:
    """For each door token, whether both sides are among the first `count` rooms, or the outside."""
    return [i < count and (j < count or j == rooms) for i, j in door_ends(rooms)]


def require_known(
    unknown: Rows,
    name: str,
    *,
    option: str,
    hint: str,
) -> None:
    """Raise `Refused` if an array is unknown in some plans, but an option of the task requires it."""
    if unknown.any():
        message = (
            f"{name} are unknown in {int(unknown.sum()):,} of {len(unknown):,} plans"
        )
        raise Refused(message, ("task", option), help=hint, code="misfit")


def area_bins(areas: Float[ndarray, "*n"]) -> Int[ndarray, "*n"]:
    """Return the bin of each area in square metres."""
    return np.searchsorted(AREAS[1:-1], areas, side="right").astype(np.int8)


def real_edges(real: Pairs) -> Pairs:
    """True for the pairs whose two slots hold rooms."""
    i, j = pair_ends(real.shape[1])
    return real[:, i] & real[:, j]


class Fields(NamedTuple):
    """Tokens by field; doors and areas are None in samples without them."""

    types: Any
    edges: Any
    doors: Any = None
    areas: Any = None


def split_fields(tokens: Any, rooms: int) -> Fields:
    """Split the last axis of an array or tensor; its length shows which fields there are.

    Raises:
        ValueError: No diagram of `rooms` slots has as many tokens.
    """
    base = rooms * (rooms + 1) // 2
    length = tokens.shape[-1]

    # There are as many doors as types and relations.
    areas = 2 * base
    if length in (base, base + rooms):
        areas = base

    if length not in (areas, areas + rooms):
        known = f"{base} tokens, with doors {base} more, with areas {rooms}"
        raise ValueError(f"diagrams of {rooms} slots have {known}; got {length}")
    return Fields(
        types=tokens[..., :rooms],
        edges=tokens[..., rooms:base],
        doors=tokens[..., base:areas] if areas > base else None,
        areas=tokens[..., areas:] if length > areas else None,
    )


def encode(diagram: Diagram, rooms: int) -> TokenRow:
    """Return types and relations of a diagram as tokens for `rooms` room slots.

    Raises:
        ValueError: The diagram has more rooms.
    """
    count = len(diagram.types)
    if count > rooms:
        raise ValueError(f"a diagram of {count} rooms does not fit into {rooms} slots")
    relation = {(i, j): r for i, j, r in diagram.edges}
    tokens = [*diagram.types, *[NODE_PAD] * (rooms - count)]
    for i, j in pairs(rooms):
        tokens.append(relation.get((i, j), NO_EDGE) if j < count else EDGE_PAD)
    return np.array(tokens, np.int8)


def decode(tokens: TokenRow, rooms: int) -> Diagram:
    """Decode the tokens of one diagram.

    Raises:
        Refused: Lists every invalid token: a remaining MASK, a PAD between rooms, an unknown id
            (`invalid-sample`).
    """
    fields = split_fields(tokens, rooms)
    values: list[Any] = [None if part is None else part.tolist() for part in fields]
    types, edges, doors, areas = values
    # PAD may also be among the rooms, which is an error: only those at the end are empty slots.
    count = rooms
    while count and types[count - 1] == NODE_PAD:
        count -= 1

    errors = list(_token_errors(values, count, rooms))
    if errors:
        raise Refused([Problem(error, code="invalid-sample") for error in errors])

    # Without errors, the pairs that have no rooms are PAD, which is larger than `NO_EDGE`.
    labelled = zip(pairs(rooms), edges, strict=True)
    related = []
    for (i, j), relation in labelled:
        if relation < NO_EDGE:
            related.append((i, j, relation))

    bounds = None
    if areas is not None:
        bounds = tuple((AREAS[i], AREAS[i + 1]) for i in areas[:count])
    return Diagram(
        types=tuple(types[:count]),
        edges=tuple(related),
        doors=None if doors is None else _joined(doors, rooms),
        areas=bounds,
    )


def _token_errors(
    values: Sequence[Any],
    count: int,
    rooms: int,
) -> Iterator[str]:
    """Yield a message for each token that is invalid in a diagram of `count` rooms."""
    slots = [(room,) for room in range(rooms)]
    places: dict[str, Sequence[tuple[int, ...]]] = {
        "room": slots,
        "pair": pairs(rooms),
        "door": door_ends(rooms),
        "area": slots,
    }
    for (name, ends_of_tokens), ids, tokens in zip(
        places.items(), IDS.values(), values, strict=True
    ):
        if tokens is None:
            continue
        for ends, token in zip(ends_of_tokens, tokens, strict=True):
            exists = all(end < count or end == rooms for end in ends)
            if error := _token_error(token, ids, exists=exists):
                yield f"{name} {', '.join(map(str, ends))}: {error}"
    if not count:
        yield "no rooms"


def _token_error(
    token: int,
    ids: int,
    *,
    exists: bool,
) -> str:
    """Return the mistake of a token of a field with `ids` ids; empty if there is none."""
    if not exists:
        if token == ids + 1:
            return ""
        return f"{token} although there is no room"
    if 0 <= token < ids:
        return ""
    return {ids: "remaining MASK", ids + 1: "PAD between rooms"}.get(
        token, f"invalid id {token}"
    )


def _joined(doors: Sequence[int], rooms: int) -> Doors:
    """Return the sides of the doors among door tokens."""
    tokens = zip(door_ends(rooms), doors, strict=True)
    ends = [sides for sides, door in tokens if door == DOOR]
    return tuple((i, None if j == rooms else j) for i, j in ends)
