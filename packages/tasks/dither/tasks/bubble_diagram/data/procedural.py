"""Made-up floor plans: synthetic, RPLAN-like, not RPLAN, whose terms forbid to pass on any part of it.

An outline is cut into pieces, some pieces join to a living room from which most others are reached, and the rest are
given the types that suit them. A plan that breaks a rule is drawn anew with the same number of rooms, so that their
histogram is the one asked for.

Letters: P plans, K pieces, R room slots.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy.optimize import linear_sum_assignment

from ..plans import Plans
from ..relations import GRID
from ..vocabulary import LIVING, NODE_PAD, ROOM_COUNTS, ROOM_IDS, ROOMS

__all__ = [
    "BLOCK",
    "LARGER_COUNTS",
    "SHARED",
    "assign_types",
    "draw_counts",
    "draw_room_programs",
    "grow_living_rooms",
    "make_plans",
    "partition_outlines",
    "shared_walls",
    "well_shaped",
]

BLOCK: Final = 512
"""Plans that are drawn together; one plan costs as much as its block, about a tenth of a second."""

_EXTRA_PIECES: Final = (0.22, 0.46, 0.32)
"""Share of the plans whose living room is made of 1, 2 or 3 pieces."""

_REACH: Final = 3
"""One more piece of living room for so many rooms beyond RPLAN's largest plans, or not all could be reached from it."""

_WALL: Final = 2
"""Half the thickness of a wall in pixels."""

_SHIFT: Final = 15
"""Farthest that a plan lies from the middle of the canvas, in pixels along an axis, if there is room."""


def make_plans(seed: int, start: int, stop: int, most: int = 8) -> Plans:
    """Return the plans number `start` to `stop` (exclusive) of an endless row.

    A plan follows from `seed`, `most` and its number alone, whichever others are asked for.

    Args:
        seed: Which row of plans, at least 0.
        start: Number of the first.
        stop: Number behind the last.
        most: Rooms of the largest plans, 4..14, and the number of room slots.
    """
    least, largest = min(ROOM_COUNTS), max(LARGER_COUNTS)
    if not least <= most <= largest:
        raise ValueError(f"plans have {least} to {largest} rooms, so most cannot be {most}")
    if not 0 <= start <= stop:
        raise ValueError(f"plans are numbered from 0, {start} to {stop} is no range of them")
    first = start // BLOCK
    made = [_make_block(seed, block, most) for block in range(first, -(-stop // BLOCK))]
    some = slice(start - first * BLOCK, stop - first * BLOCK)
    types = np.concatenate([np.zeros((0, most), np.int8), *(types for types, _ in made)])[some]
    boxes = np.concatenate([np.zeros((0, most, 4), np.int16), *(boxes for _, boxes in made)])[some]
    return Plans.from_boxes(types, boxes)


@lru_cache(maxsize=64)  # an experiment may build its data more than once
def _make_block(seed: int, block: int, most: int) -> tuple[Int[np.ndarray, "P R"], Int[np.ndarray, "P R 4"]]:
    random = np.random.default_rng((seed, most, block))
    rooms = draw_counts(BLOCK, most, random)
    types = np.full((BLOCK, most), NODE_PAD, np.int8)
    boxes = np.zeros((BLOCK, most, 4), np.int16)
    left = np.arange(BLOCK)
    while len(left):
        drawn_types, drawn_boxes, good = _draw(rooms[left], most, random)
        types[left[good]], boxes[left[good]] = drawn_types[good], drawn_boxes[good]
        left = left[~good]
    return types, boxes


def _draw(
    rooms: Int[np.ndarray, " P"], most: int, random: np.random.Generator
) -> tuple[Int[np.ndarray, "P R"], Int[np.ndarray, "P R 4"], Bool[np.ndarray, " P"]]:
    """Draw one plan for each number of rooms, and say which came out well."""
    extra = np.searchsorted(np.cumsum(_EXTRA_PIECES)[:-1], random.random(len(rooms)), side="right")
    extra += np.maximum(rooms - max(ROOM_COUNTS), 0) // _REACH
    pieces = partition_outlines(rooms + extra, random)
    touching = shared_walls(pieces)
    living = grow_living_rooms(pieces, touching, extra, random)
    kinds, good = assign_types(pieces, touching, living, draw_room_programs(rooms, random), random)
    good &= well_shaped(pieces).all(1) & (living.sum(1) == 1 + extra)
    types, boxes = _join(pieces, kinds, most)
    boxes = _place(boxes, types != NODE_PAD, pieces.max(1)[:, 2:], random)
    order = np.argsort(np.where(types != NODE_PAD, random.random(types.shape), 2.0), 1, kind="stable")
    return np.take_along_axis(types, order, 1), np.take_along_axis(boxes, order[..., None], 1), good


def _join(
    pieces: Int[np.ndarray, "P K 4"], kinds: Int[np.ndarray, "P K"], most: int
) -> tuple[Int[np.ndarray, "P R"], Int[np.ndarray, "P R 4"]]:
    """Return the living room first, as the box around its pieces, then the others; walls are taken off all."""
    inner = pieces + np.array([_WALL, _WALL, -_WALL, -_WALL])
    living = (kinds == LIVING)[..., None]
    low, high = np.where(living, inner[..., :2], GRID).min(1), np.where(living, inner[..., 2:], 0).max(1)
    other = (kinds >= 0) & (kinds != LIVING)
    order = np.argsort(~other, 1, kind="stable")[:, : most - 1]
    types = np.take_along_axis(np.where(other, kinds, NODE_PAD), order, 1)
    boxes = np.take_along_axis(np.where(other[..., None], inner, 0), order[..., None], 1)
    room = ((0, 0), (1, most - 1 - types.shape[1]))  # in front for the living room, behind up to the last slot
    types, boxes = np.pad(types, room, constant_values=NODE_PAD), np.pad(boxes, (*room, (0, 0)))
    types[:, 0], boxes[:, 0] = LIVING, np.concatenate([low, high], 1)
    return types.astype(np.int8), boxes


def _place(
    boxes: Int[np.ndarray, "P R 4"],
    real: Bool[np.ndarray, "P R"],
    outline: Int[np.ndarray, "P 2"],
    random: np.random.Generator,
) -> Int[np.ndarray, "P R 4"]:
    """Put plans somewhere about the middle of the canvas, and turn each by a random number of quarters."""
    plans = len(boxes)
    spare = (GRID - outline) / 2
    shift = (spare + np.minimum(_SHIFT, spare) * (2 * random.random((plans, 2)) - 1)).astype(np.int64)
    boxes = boxes + np.tile(shift, 2)[:, None]
    turns = (4 * random.random(plans)).astype(np.int64)
    for turn in (1, 2, 3):
        x0, y0, x1, y1 = np.moveaxis(boxes[turns >= turn], -1, 0)
        boxes[turns >= turn] = np.stack([GRID - y1, x0, GRID - y0, x1], -1)
    return np.where(real[..., None], boxes, 0).astype(np.int16)


LARGER_COUNTS: Final = {9: 0.2, 10: 0.15, 11: 0.1, 12: 0.06, 13: 0.03, 14: 0.015}
"""Plans with more rooms, where they are asked for, as a multiple of all smaller ones together."""

_TYPE = {name: index for index, name in enumerate(ROOMS)}

_USUAL_ROOMS: Final = {"MasterRoom": 0.985, "Kitchen": 0.985, "Bathroom": 1.0}
"""How often a plan has these; the living room it always has."""

_EXTRA: Final = (
    *[("SecondRoom", weight) for weight in (12.0, 4.0, 0.5)],
    *[("Balcony", weight) for weight in (6.0, 0.6)],
    *[("Bathroom", weight) for weight in (1.6, 0.12)],
    ("StudyRoom", 1.1),
    ("ChildRoom", 0.7),
    ("Storage", 0.45),
    ("DiningRoom", 0.35),
    ("GuestRoom", 0.25),
    ("Wall-in", 0.15),
    ("Entrance", 0.08),
)
"""What fills the rest, drawn one after the other without putting back, by weight."""


def draw_counts(count: int, most: int, random: np.random.Generator) -> Int[np.ndarray, " P"]:
    """Draw numbers of rooms, from 4 to `most`."""
    wanted = {size: share for size, share in {**ROOM_COUNTS, **LARGER_COUNTS}.items() if size <= most}
    sizes, shares = np.array(list(wanted)), np.cumsum(list(wanted.values()))
    drawn: Int[np.ndarray, " P"] = sizes[np.searchsorted(shares, random.random(count) * shares[-1], side="right")]
    return drawn


def draw_room_programs(rooms: Int[np.ndarray, " P"], random: np.random.Generator) -> Int[np.ndarray, "P M"]:
    """Draw the types of the other rooms of each plan; -1 behind the last of its `rooms` - 1."""
    most = int(rooms.max()) - 1
    types = np.array([_TYPE[name] for name in (*_USUAL_ROOMS, *(name for name, _ in _EXTRA))])
    shares = np.array(list(_USUAL_ROOMS.values()))
    weights = np.array([weight for _, weight in _EXTRA])
    # Sorting u^(1/w) is drawing by weight without putting back (Efraimidis and Spirakis, 2006).
    keys: Float[np.ndarray, "P all"] = np.concatenate(
        [
            np.where(random.random((len(rooms), len(shares))) < shares, 2.0, -1.0),
            random.random((len(rooms), len(weights))) ** (1 / weights),
        ],
        axis=1,
    )
    chosen = types[np.argsort(-keys, axis=1, kind="stable")[:, :most]]
    return np.where(np.arange(most) < rooms[:, None] - 1, chosen, -1).astype(np.int8)


SHARED: Final = 13
"""Pixels of wall, about 0.9 m, that two pieces must share for a door to fit in."""

_NARROWEST: Final = 17
_LONGEST: Final = 3.6
_USUAL_PIECES: Final = 10


def partition_outlines(pieces: Int[np.ndarray, " P"], random: np.random.Generator) -> Int[np.ndarray, "P K 4"]:
    """Draw outlines of 110..180 x 100..175 pixels and cut each into so many pieces, one straight cut after the other.

    Outlines for more than `_USUAL_PIECES` pieces are larger, so that pieces keep their size. A large piece is the
    likeliest to be cut next, mostly across its longer side. Zeros behind the last piece.
    """
    plans, most = len(pieces), int(pieces.max())
    sides = np.stack([110 + 71 * random.random(plans), 100 + 76 * random.random(plans)], 1)
    sides = (sides * np.sqrt(np.maximum(pieces / _USUAL_PIECES, 1.0))[:, None]).astype(np.int64)
    boxes = np.zeros((plans, most, 4), np.int64)
    boxes[:, 0, 2:] = sides
    every = np.arange(plans)
    for done in range(1, most):
        going = done < pieces
        width, height = boxes[..., 2] - boxes[..., 0], boxes[..., 3] - boxes[..., 1]
        piece = np.argmax(width * height * (0.45 + random.random((plans, most))), 1)
        wide, high = width[every, piece], height[every, piece]
        axis = np.where(wide * (0.7 + 0.6 * random.random(plans)) > high, 0, 1)
        share = 0.28 + 0.44 * random.random(plans)
        start = boxes[every, piece, axis]
        cut = start + np.round(share * (boxes[every, piece, axis + 2] - start)).astype(np.int64)
        rest = boxes[every, piece]
        rest[every, axis] = cut
        boxes[:, done] = np.where(going[:, None], rest, 0)
        boxes[every[going], piece[going], axis[going] + 2] = cut[going]
    return boxes


def well_shaped(boxes: Int[np.ndarray, "P K 4"]) -> Bool[np.ndarray, "P K"]:
    """False where a piece is a sliver: too narrow, or too long for its width. Missing pieces pass."""
    sides = boxes[..., 2:] - boxes[..., :2]
    short, long = sides.min(-1), sides.max(-1)
    shaped: Bool[np.ndarray, "P K"] = (long == 0) | ((short >= _NARROWEST) & (long <= _LONGEST * short))
    return shaped


def shared_walls(boxes: Int[np.ndarray, "P K 4"]) -> Bool[np.ndarray, "P K K"]:
    """True where two pieces share at least `SHARED` pixels of wall."""
    u, v = boxes[:, :, None], boxes[:, None, :]
    overlap = np.minimum(u[..., 2:], v[..., 2:]) - np.maximum(u[..., :2], v[..., :2])
    touching: Bool[np.ndarray, "P K K"] = (overlap.min(-1) == 0) & (overlap.max(-1) >= SHARED)
    return touching


def grow_living_rooms(
    boxes: Int[np.ndarray, "P K 4"],
    touching: Bool[np.ndarray, "P K K"],
    extra: Int[np.ndarray, " P"],
    random: np.random.Generator,
) -> Bool[np.ndarray, "P K"]:
    """Choose the pieces of the living room: one, and `extra` more that join it to an L, T or Z.

    Each is the piece through which the living room touches most others; the first one also by its area.
    """
    plans, most = boxes.shape[:2]
    every = np.arange(plans)
    area = (boxes[..., 2:] - boxes[..., :2]).prod(-1)
    real = area > 0
    share = area / area.sum(1, keepdims=True)
    score = touching.sum(2) + 8 * share + 1.5 * random.random((plans, most))
    living = np.zeros((plans, most), bool)
    living[every, np.argmax(np.where(real, score, -1), 1)] = True
    for step in range(int(extra.max(initial=0))):
        reached = (touching & living[:, :, None]).any(1)
        gain = (touching & ~(reached | living)[:, None, :]).sum(2) + random.random((plans, most))
        piece = np.argmax(np.where(reached & ~living, gain, -1), 1)
        joins = step < extra
        living[every[joins], piece[joins]] = True
    return living


_AREA_SHARE: Final = {
    "MasterRoom": 0.2, "SecondRoom": 0.14, "ChildRoom": 0.12, "GuestRoom": 0.12, "DiningRoom": 0.11, "StudyRoom": 0.1,
    "Kitchen": 0.09, "Bathroom": 0.06, "Balcony": 0.06, "Entrance": 0.05, "Storage": 0.04, "Wall-in": 0.03,
}  # fmt: skip
"""Share of the flat that a room would like to have."""

_WANTED: Final = np.array([_AREA_SHARE.get(name, 0.0) for name in ROOMS])
_BEDROOMS: Final = [ROOM_IDS[name] for name in ("MasterRoom", "ChildRoom", "StudyRoom", "SecondRoom", "GuestRoom")]
_OUTSIDE: Final = np.isin(np.arange(len(ROOMS)), [*_BEDROOMS, ROOM_IDS["Balcony"], ROOM_IDS["Entrance"]])
"""Rooms that must have an outer wall."""
_APART: Final = np.isin(np.arange(len(ROOMS)), [ROOM_IDS["Bathroom"], ROOM_IDS["Balcony"]])
"""Rooms that may be reached through a bedroom instead of the living room."""

_SIZE, _NOISE, _TAKES_PLACE = 12.0, 0.25, 0.3
_IMPOSSIBLE = 100.0
_USUAL_COUNT = 8
_POOR = 0.85
"""Cost per room beyond which a plan is not worth keeping."""


def assign_types(
    pieces: Int[np.ndarray, "P K 4"],
    touching: Bool[np.ndarray, "P K K"],
    living: Bool[np.ndarray, "P K"],
    programme: Int[np.ndarray, "P M"],
    random: np.random.Generator,
) -> tuple[Int[np.ndarray, "P K"], Bool[np.ndarray, " P"]]:
    """Give each piece outside the living room the type that suits it, at the least cost for the plan as a whole.

    Returns:
        The types, -1 where there is no piece; and True for plans in which each room can be reached and has daylight
        where it needs it, sizes are likely, and no room is larger than the living room.
    """
    outline = pieces.max(1)[:, 2:]
    share = (pieces[..., 2:] - pieces[..., :2]).prod(-1) / outline.prod(-1)[:, None]
    outer = ((pieces[..., :2] == 0) | (pieces[..., 2:] == outline[:, None])).any(-1)
    reached = (touching & living[:, :, None]).any(1)
    cost = _costs(programme, share, outer, reached) + _NOISE * random.random((*programme.shape, pieces.shape[1]))
    types = np.where(living, LIVING, -1).astype(np.int8)
    free = (share > 0) & ~living
    good = (share * living).sum(1) >= (share * free).max(1)
    for plan in np.flatnonzero(good):
        rooms = programme[plan] >= 0
        part = cost[plan][rooms][:, free[plan]]
        row, column = linear_sum_assignment(part)
        good[plan] = part[row, column].sum() <= _POOR * len(row)
        types[plan, np.flatnonzero(free[plan])[column]] = programme[plan, row]
    hanging = (touching & np.isin(types, _BEDROOMS)[:, :, None]).any(1)
    return types, good & (reached | living | hanging | (types < 0)).all(1)


def _costs(
    programme: Int[np.ndarray, "P M"],
    share: Float[np.ndarray, "P K"],
    outer: Bool[np.ndarray, "P K"],
    reached: Bool[np.ndarray, "P K"],
) -> Float[np.ndarray, "P M K"]:
    """Cost of each room of the programme in each piece."""
    apart, outside = _APART[programme][..., None], _OUTSIDE[programme][..., None]
    reached, outer = reached[:, None], outer[:, None]
    crowded = np.minimum(_USUAL_COUNT / (1 + (programme >= 0).sum(1)), 1.0)[
        :, None, None
    ]  # many rooms are smaller ones
    size = _SIZE * np.abs(share[:, None] - crowded * _WANTED[programme][..., None])
    access = np.where(apart, np.where(reached, _TAKES_PLACE, 0.0), np.where(reached, 0.0, _IMPOSSIBLE))
    total: Float[np.ndarray, "P M K"] = size + access + np.where(outside & ~outer, _IMPOSSIBLE, 0.0)
    return total
