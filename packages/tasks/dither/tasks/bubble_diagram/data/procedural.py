"""Procedural floor plans: RPLAN-like, but not RPLAN, whose licence forbids redistribution.

An outline is partitioned into pieces, some pieces are merged into a living room, and types are
assigned to the rest at minimum cost. A plan that violates a rule is redrawn with the same number of
rooms.
Letters: P plans, K pieces, R room slots.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Int
from numpy import ndarray

from dither.registry.config.errors import Refused
from dither.registry.files.cache import cache_folder

from ...prepared.manifest import Kind, read_manifest
from ...prepared.store import open_arrays, verify, write_folder
from ..arrays import BoxBatch, Rows, Types
from ..plans import Plans, boxes_between, turned
from ..relations import areas_of, corners, sides_of
from ..vocabulary import (
    BALCONY,
    BEDROOM_IDS,
    DOOR_PAD,
    ENTRANCE,
    GRID,
    LIVING,
    NODE_PAD,
    ROOM_COUNTS,
    ROOM_IDS,
    ROOMS,
    door_ends,
)

BLOCK = 512
"""Plans generated at once; a single plan costs as much as its block, about 0.1 s."""

PLANS = Kind("procedural-plans", 1, "dither run")
"""Cached plans; the version increases with every change of the generator."""

CACHED = 10_000
"""Number of plans from which on they are cached on disk."""

_EXTRA_PIECES = (0.22, 0.46, 0.32)
"""Probability that the living room consists of 1, 2 or 3 pieces."""

_REACH = 3
"""Rooms beyond RPLAN's largest plans per further piece of living room, to reach all rooms."""

_WALL = 2
"""Half the thickness of a wall."""

_SHIFT = 15
"""Largest offset of a plan from the centre of the canvas along an axis."""

_Pieces = Int[ndarray, "P K 4"]
_Kinds = Int[ndarray, "P K"]
_Touching = Bool[ndarray, "P K K"]
_PieceFlags = Bool[ndarray, "P K"]
_PerPlan = Int[ndarray, " P"]
_RoomDoors = Bool[ndarray, "P R R_1"]


def make_plans(
    seed: int,
    start: int,
    stop: int,
    most: int = 8,
) -> Plans:
    """Return plans `start` to `stop` (exclusive) of an infinite sequence; many are cached on disk.

    A plan is a function of `seed`, `most` and its number only; the largest plans have `most` rooms,
    4..14.
    """
    if stop - start < CACHED:
        return _make_plans(seed, start, stop, most)
    name = f"v{PLANS.version}-{seed}-{start}-{stop}-{most}"
    folder = cache_folder() / "procedural-plans" / name
    # Another process may replace it at the same time.
    with suppress(Refused, OSError):
        return _map_plans(folder)
    with suppress(Refused, OSError):
        with write_folder(folder, PLANS, {}) as writer:
            for first in range(start, stop, BLOCK):
                plans = _make_plans(
                    seed=seed,
                    start=first,
                    stop=min(first + BLOCK, stop),
                    most=most,
                )
                for name, array in plans.arrays().items():
                    writer.append(name, array)
        return _map_plans(folder)
    # Nothing can be cached.
    return _make_plans(seed, start, stop, most)


def _map_plans(folder: Path) -> Plans:
    manifest = read_manifest(folder, PLANS)
    verify(folder, manifest, PLANS, once=True)
    mapped = open_arrays(folder, manifest, PLANS)
    return Plans(**{name: np.asarray(array) for name, array in mapped.items()})


def _make_plans(
    seed: int,
    start: int,
    stop: int,
    most: int,
) -> Plans:
    first = start // BLOCK
    last = max((stop - 1) // BLOCK, first)
    plans = Plans.concatenate(
        [_make_block(seed, b, most) for b in range(first, last + 1)]
    )
    return plans[start - first * BLOCK : stop - first * BLOCK]


# Experiments may build their data more than once.
@lru_cache(maxsize=64)
def _make_block(
    seed: int,
    block: int,
    most: int,
) -> Plans:
    random = np.random.default_rng((seed, most, block))
    weights = ROOM_COUNTS | LARGER_COUNTS
    sizes = np.array([size for size in weights if size <= most])
    # Drawn from the cumulative distribution; the number of rooms stays when a plan is redrawn.
    shares = np.cumsum([weights[size] for size in sizes.tolist()])
    draws = random.random(BLOCK) * shares[-1]
    rooms = sizes[np.searchsorted(shares, draws, side="right")]

    types = np.full((BLOCK, most), NODE_PAD, np.int8)
    boxes = np.zeros((BLOCK, most, 4), np.int16)
    doors = np.zeros((BLOCK, most, most + 1), bool)
    remaining = np.arange(BLOCK)
    while len(remaining):
        new_types, new_boxes, new_doors, good = _draw(rooms[remaining], most, random)
        rows = remaining[good]
        types[rows] = new_types[good]
        boxes[rows] = new_boxes[good]
        doors[rows] = new_doors[good]
        remaining = remaining[~good]

    i, j = np.array(door_ends(most)).T
    # The outside is one more side of a door, which every plan has.
    real = np.pad(types != NODE_PAD, ((0, 0), (0, 1)), constant_values=True)
    exists = real[:, i] & real[:, j]
    tokens = np.where(exists, doors[:, i, j], DOOR_PAD).astype(np.int8)
    return replace(Plans.from_boxes(types, boxes), doors=tokens)


def _draw(
    rooms: _PerPlan,
    most: int,
    random: np.random.Generator,
) -> tuple[Types, BoxBatch, _RoomDoors, Rows]:
    """Draw types, boxes and doors for each number of rooms, and which plans are valid.

    The last column of doors is the outside.
    """
    bounds = np.cumsum(_EXTRA_PIECES)[:-1]
    extra = np.searchsorted(bounds, random.random(len(rooms)), side="right")
    extra += np.maximum(rooms - max(ROOM_COUNTS), 0) // _REACH
    pieces = partition_outlines(rooms + extra, random)
    touching = shared_walls(pieces)
    living = grow_living_rooms(pieces, touching, extra, random)
    programs = draw_room_programs(rooms, random)
    kinds, good = assign_types(
        pieces=pieces,
        touching=touching,
        living=living,
        program=programs,
        random=random,
    )

    sides = sides_of(pieces)
    short = sides.min(-1)
    long = sides.max(-1)
    well_shaped = (short >= _NARROWEST) & (long <= _LONGEST * short)
    good &= ((long == 0) | well_shaped).all(1)
    good &= living.sum(1) == 1 + extra
    joined = place_doors(pieces, touching, kinds)
    types, boxes, doors = _join(pieces, kinds, joined, most)

    # Around the centre of the canvas, turned by a random number of quarters.
    outline = pieces.max(1)[:, 2:]
    margin = (GRID - outline) / 2
    draws = 2 * random.random(margin.shape) - 1
    shift = (margin + np.minimum(_SHIFT, margin) * draws).astype(np.int64)
    boxes = boxes + np.tile(shift, 2)[:, None]
    turns = (4 * random.random(len(boxes))).astype(np.int64)
    # Both corners of a box turn as points.
    boxes = boxes_between(turned(boxes.reshape(len(boxes), -1, 2), turns))
    real = types != NODE_PAD
    boxes = np.where(real[..., None], boxes, 0).astype(np.int16)

    # In random order, empty slots last.
    rank = np.where(real, random.random(types.shape), 2.0)
    order = np.argsort(rank, 1, kind="stable")
    columns = np.pad(order, ((0, 0), (0, 1)), constant_values=most)
    doors = np.take_along_axis(doors, order[..., None], 1)
    return (
        np.take_along_axis(types, order, 1),
        np.take_along_axis(boxes, order[..., None], 1),
        np.take_along_axis(doors, columns[:, None], 2),
        good,
    )


def place_doors(
    pieces: _Pieces,
    touching: _Touching,
    kinds: _Kinds,
) -> Bool[ndarray, "P K K_1"]:
    """Return which pieces are joined by doors, and in the last column which has the front door.

    Each room has one door to a room nearer to the living room: to the living room itself, or else
    to the largest bedroom next to it; so have bathrooms besides the largest one at the living room.
    The front door is that of the entrance, or of the living room if it has an outer wall, or of the
    largest other room with one.
    """
    count = kinds.shape[1]
    area = areas_of(pieces)
    living = kinds == LIVING
    bath = kinds == ROOM_IDS["Bathroom"]
    at_living = touching & living[:, None]
    at_bedroom = touching & np.isin(kinds, [*BEDROOM_IDS])[:, None]
    reached = at_living.any(2)
    # The largest bathroom at the living room is that of guests, others belong to bedrooms.
    guest = np.where(bath & reached, area, -1).argmax(1)
    is_guest = reached & (np.arange(count) == guest[:, None])
    ensuite = bath & at_bedroom.any(2) & ~is_guest

    via_living = reached & ~ensuite
    way = np.where(via_living[..., None], at_living, at_bedroom)
    parent = np.where(way, area[:, None], -1).argmax(2)
    doors = np.zeros((*kinds.shape, count + 1), bool)
    joined = way.any(2) & (kinds >= 0) & ~living
    row, piece = np.nonzero(joined)
    doors[row, piece, parent[joined]] = True
    doors[row, parent[joined], piece] = True

    outer = _at_outline(pieces) & (kinds >= 0)
    # An entrance outweighs the living room, and that any area.
    rank = area + GRID**2 * (2 * (kinds == ENTRANCE) + living)
    host = np.where(outer, rank, -1).argmax(1)
    doors[np.arange(len(doors)), host, -1] = True
    return doors


def _at_outline(pieces: _Pieces) -> _PieceFlags:
    """Return which pieces have an outer wall."""
    low, high = corners(pieces)
    outline = high.max(1, keepdims=True)
    return ((low == 0) | (high == outline)).any(-1)


def _join(
    pieces: _Pieces,
    kinds: _Kinds,
    doors: Bool[ndarray, "P K K_1"],
    most: int,
) -> tuple[Types, BoxBatch, _RoomDoors]:
    """Return types, boxes without walls and doors of rooms: the living room, then the others.

    The box of the living room bounds its pieces. The last column of doors is the outside.
    """
    inner = pieces + np.array([_WALL, _WALL, -_WALL, -_WALL])
    living = (kinds == LIVING)[..., None]
    low, high = corners(inner)
    low = np.where(living, low, GRID).min(1)
    high = np.where(living, high, 0).max(1)
    other = (kinds >= 0) & (kinds != LIVING)
    order = np.argsort(~other, 1, kind="stable")[:, : most - 1]
    types = np.where(other, kinds, NODE_PAD)
    types = np.take_along_axis(types, order, 1)
    boxes = np.where(other[..., None], inner, 0)
    boxes = np.take_along_axis(boxes, order[..., None], 1)

    # One slot before for the living room, empty slots after.
    padding = ((0, 0), (1, most - 1 - types.shape[1]))
    types = np.pad(types, padding, constant_values=NODE_PAD)
    boxes = np.pad(boxes, (*padding, (0, 0)))
    types[:, 0] = LIVING
    boxes[:, 0] = np.concatenate([low, high], 1)

    # The pieces of each room: those of the living room, then one for each other room.
    count = kinds.shape[1]
    member = np.zeros((len(types), most, count), np.float32)
    member[:, 0] = living[..., 0]
    member[:, 1 : 1 + order.shape[1]] = order[..., None] == np.arange(count)
    # Two rooms have a door if some of their pieces do.
    of_rooms = member @ doors.astype(np.float32)
    inside = of_rooms[..., :-1] @ member.swapaxes(1, 2)
    joined = np.concatenate([inside, of_rooms[..., -1:]], 2) > 0
    return types.astype(np.int8), boxes, joined


LARGER_COUNTS = {9: 0.2, 10: 0.15, 11: 0.1, 12: 0.06, 13: 0.03, 14: 0.015}
"""Weights of larger numbers of rooms, relative to all smaller ones together."""

_USUAL_ROOMS = {"MasterRoom": 0.985, "Kitchen": 0.985, "Bathroom": 1.0}
"""Probability of these room types; every plan has a living room."""

_EXTRA = (
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
"""Weights of the remaining rooms, drawn without replacement."""


def draw_room_programs(
    rooms: _PerPlan, random: np.random.Generator
) -> Int[ndarray, "P M"]:
    """Draw the types of the `rooms` - 1 rooms besides the living room; -1 in empty positions."""
    most = int(rooms.max()) - 1
    names = [*_USUAL_ROOMS, *(name for name, _ in _EXTRA)]
    types = np.array([ROOM_IDS[name] for name in names])
    shares = np.array(list(_USUAL_ROOMS.values()))
    weights = np.array([weight for _, weight in _EXTRA])

    # Sorting by u^(1/w) is weighted sampling without replacement (Efraimidis and Spirakis, 2006).
    # Keys of the others are between 0 and 1: usual rooms come before them, or after.
    plans = len(rooms)
    is_usual = random.random((plans, len(shares))) < shares
    usual = np.where(is_usual, 2.0, -1.0)
    draws = random.random((plans, len(weights)))
    others = draws ** (1 / weights)
    keys = np.concatenate([usual, others], axis=1)
    order = np.argsort(-keys, axis=1, kind="stable")
    chosen = types[order[:, :most]]
    exists = np.arange(most) < rooms[:, None] - 1
    return np.where(exists, chosen, -1).astype(np.int8)


SHARED = 13
"""Shared wall in pixels, about 0.9 m, that a door between two pieces requires."""

_NARROWEST = 17
"""Shortest side of a piece."""

_LONGEST = 3.6
"""Largest aspect of a piece."""

_USUAL_PIECES = 10
"""Number of pieces above which outlines are scaled up."""


def partition_outlines(pieces: _PerPlan, random: np.random.Generator) -> _Pieces:
    """Draw outlines and partition each into `pieces` pieces by successive straight cuts.

    Outlines have 110..180 x 100..175 pixels; those for more than `_USUAL_PIECES` pieces are scaled
    up, so that pieces keep their size. Large pieces are more likely to be cut next, mostly across
    their longer side. Zeros after the last piece.
    """
    plans = len(pieces)
    most = int(pieces.max())
    width = 110 + 71 * random.random(plans)
    height = 100 + 76 * random.random(plans)
    scale = np.sqrt(np.maximum(pieces / _USUAL_PIECES, 1.0))
    boxes = np.zeros((plans, most, 4), np.int64)
    # The first piece is the whole outline, from the origin.
    boxes[:, 0, 2] = width * scale
    boxes[:, 0, 3] = height * scale
    every = np.arange(plans)
    for done in range(1, most):
        draws = random.random((plans, most))
        piece = np.argmax(areas_of(boxes) * (0.45 + draws), 1)
        rest = boxes[every, piece]
        width, height = sides_of(rest).T
        preference = 0.7 + 0.6 * random.random(plans)
        axis = np.where(width * preference > height, 0, 1)
        share = 0.28 + 0.44 * random.random(plans)
        start = rest[every, axis]
        length = rest[every, axis + 2] - start
        cut = start + np.round(share * length).astype(np.int64)

        # The piece ends at the cut, and a new one starts there.
        rest[every, axis] = cut
        active = np.flatnonzero(done < pieces)
        boxes[active, done] = rest[active]
        boxes[active, piece[active], axis[active] + 2] = cut[active]
    return boxes


def shared_walls(boxes: _Pieces) -> _Touching:
    """True where two pieces share at least `SHARED` pixels of wall."""
    low, high = corners(boxes)
    start = np.maximum(low[:, :, None], low[:, None])
    end = np.minimum(high[:, :, None], high[:, None])
    # Pieces do not overlap: they touch where they share 0 along one axis and more along the other.
    overlap = end - start
    return (overlap.min(-1) == 0) & (overlap.max(-1) >= SHARED)


def grow_living_rooms(
    boxes: _Pieces,
    touching: _Touching,
    extra: _PerPlan,
    random: np.random.Generator,
) -> _PieceFlags:
    """Choose the pieces of the living room: one, and `extra` more that extend it to an L, T or Z.

    Greedily selects the piece that brings the living room into contact with most others; the first
    also by area.
    """
    plans, most = boxes.shape[:2]
    every = np.arange(plans)
    area = areas_of(boxes)
    share = area / area.sum(1, keepdims=True)
    noise = random.random((plans, most))
    score = touching.sum(2) + 8 * share + 1.5 * noise
    first = np.where(area > 0, score, -1).argmax(1)
    living = np.zeros((plans, most), bool)
    living[every, first] = True
    for step in range(int(extra.max(initial=0))):
        # The gain of a piece is the number of others that only it would bring into contact.
        reached = (touching & living[:, :, None]).any(1)
        unreached = ~(reached | living)[:, None, :]
        # Noise below 1 decides between equal gains.
        gain = (touching & unreached).sum(2) + random.random((plans, most))
        piece = np.where(reached & ~living, gain, -1).argmax(1)
        joins = np.flatnonzero(step < extra)
        living[joins, piece[joins]] = True
    return living


_AREA_SHARE = {
    "MasterRoom": 0.2,
    "SecondRoom": 0.14,
    "ChildRoom": 0.12,
    "GuestRoom": 0.12,
    "DiningRoom": 0.11,
    "StudyRoom": 0.1,
    "Kitchen": 0.09,
    "Bathroom": 0.06,
    "Balcony": 0.06,
    "Entrance": 0.05,
    "Storage": 0.04,
    "Wall-in": 0.03,
}
"""Preferred share of the area of the flat."""

_PREFERRED_SHARE = np.array([_AREA_SHARE.get(name, 0.0) for name in ROOMS])
_OUTSIDE = np.isin(np.arange(len(ROOMS)), [*BEDROOM_IDS, BALCONY, ENTRANCE])
"""Room types that require an outer wall."""
_REACHABLE_VIA_BEDROOM = np.isin(np.arange(len(ROOMS)), [ROOM_IDS["Bathroom"], BALCONY])
"""Room types that may be reached through a bedroom instead of the living room."""

# Costs: deviation from the preferred share, noise, a bathroom or balcony at the living room.
_SIZE = 12.0
_NOISE = 0.25
_BLOCKS_LIVING_ROOM = 0.3
_IMPOSSIBLE = 100.0

_USUAL_COUNT = 8
"""Rooms besides the living room above which each is smaller."""

_MAX_COST = 0.85
"""Cost per room above which a plan is redrawn."""


def assign_types(
    pieces: _Pieces,
    touching: _Touching,
    living: _PieceFlags,
    program: Int[ndarray, "P M"],
    random: np.random.Generator,
) -> tuple[_Kinds, Rows]:
    """Assign types to the pieces outside the living room at minimum total cost.

    Returns the types, -1 for missing pieces; and True for plans in which each room can be reached,
    has an outer wall if required, and a plausible size, and no room is larger than the living room.
    """
    from scipy.optimize import linear_sum_assignment

    outline = pieces.max(1)[:, 2:]
    share = areas_of(pieces) / outline.prod(-1)[:, None]
    reached = (touching & living[:, :, None]).any(1)

    # Costs of each room of the program at each piece.
    count = (program >= 0).sum(1)
    crowded = np.minimum(_USUAL_COUNT / (1 + count), 1.0)
    preferred = crowded[:, None] * _PREFERRED_SHARE[program]
    cost = _SIZE * np.abs(share[:, None] - preferred[..., None])
    at_living = reached[:, None]
    via_bedroom = _REACHABLE_VIA_BEDROOM[program][..., None]
    of_bath = np.where(at_living, _BLOCKS_LIVING_ROOM, 0.0)
    of_others = np.where(at_living, 0.0, _IMPOSSIBLE)
    cost = cost + np.where(via_bedroom, of_bath, of_others)
    dark = _OUTSIDE[program][..., None] & ~_at_outline(pieces)[:, None]
    cost = cost + np.where(dark, _IMPOSSIBLE, 0.0)
    cost += _NOISE * random.random((*program.shape, pieces.shape[1]))

    types = np.where(living, LIVING, -1).astype(np.int8)
    free = (share > 0) & ~living
    good = (share * living).sum(1) >= (share * free).max(1)
    for plan in np.flatnonzero(good):
        rooms = np.flatnonzero(program[plan] >= 0)
        places = np.flatnonzero(free[plan])
        costs = cost[plan][np.ix_(rooms, places)]
        row, column = linear_sum_assignment(costs)
        good[plan] = costs[row, column].sum() <= _MAX_COST * len(row)
        types[plan, places[column]] = program[plan, row]
    is_bedroom = np.isin(types, [*BEDROOM_IDS])
    at_bedroom = (touching & is_bedroom[:, :, None]).any(1)
    accessible = reached | living | at_bedroom | (types < 0)
    return types, good & accessible.all(1)
