"""Procedural floor plans: synthetic and RPLAN-like, but not RPLAN, whose licence forbids redistribution.

An outline is partitioned into pieces, some pieces are merged into a living room, and types are
assigned to the rest at minimum cost. A plan that violates a rule is redrawn with the same number of
rooms.
Letters: P plans, K pieces, R room slots.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from typing import Final

import numpy as np
from jaxtyping import Bool, Float, Int

from dither.registry.config.errors import Refused
from dither.registry.files.cache import cache_folder

from ...prepared.manifest import Kind, read_manifest
from ...prepared.store import open_arrays, verify, write_folder
from .. import plans as plan_arrays
from .. import relations, vocabulary
from ..plans import Plans
from ..relations import GRID
from ..vocabulary import (
    BEDROOMS,
    DOOR_PAD,
    ENTRANCE,
    LIVING,
    NODE_PAD,
    ROOM_COUNTS,
    ROOM_IDS,
    ROOMS,
    door_ends,
)

__all__ = ["make_plans"]

BLOCK: Final = 512
"""Plans generated at once; a single plan costs as much as its block, about 0.1 s."""

PLANS: Final = Kind("procedural-plans", 1, "dither run")
CACHED: Final = 10_000
"""Number of plans from which on they are cached on disk."""

_EXTRA_PIECES: Final = (0.22, 0.46, 0.32)
"""Probability that the living room consists of 1, 2 or 3 pieces."""

_REACH = 3
_WALL = 2
_SHIFT = 15
"""Rooms beyond RPLAN's largest plans per further piece of living room, so that all rooms can be
reached; half the thickness of a wall; largest offset of a plan from the centre of the canvas along
an axis."""


def make_plans(
    seed: int,
    start: int,
    stop: int,
    most: int = 8,
) -> Plans:
    """Return the plans `start` to `stop` (exclusive) of an infinite sequence; many are cached on disk.

    A plan is a function of `seed`, `most` and its number only; the largest plans have `most` rooms,
    4..14.
    """
    if stop - start < CACHED:
        return _make_plans(seed, start, stop, most)
    sources = b"".join(
        Path(str(module.__file__)).read_bytes()
        for module in (sys.modules[__name__], plan_arrays, relations, vocabulary)
    )
    digest = blake2b(repr((seed, start, stop, most)).encode() + sources, digest_size=16).hexdigest()
    folder = cache_folder() / "procedural-plans" / digest
    with suppress(Refused, OSError):  # another process may replace it at the same time
        return _map_plans(folder)
    with suppress(Refused), write_folder(folder, PLANS, {}) as writer:
        for first in range(start, stop, BLOCK):
            for name, array in vars(
                _make_plans(seed, first, min(first + BLOCK, stop), most)
            ).items():
                if array is not None:
                    writer.append(name, array)
    with suppress(Refused, OSError):
        return _map_plans(folder)
    return _make_plans(seed, start, stop, most)  # nothing can be cached


def _map_plans(folder: Path) -> Plans:
    manifest = read_manifest(folder, PLANS)
    verify(folder, manifest, PLANS, once=True)
    return Plans(
        **{name: np.asarray(array) for name, array in open_arrays(folder, manifest, PLANS).items()}
    )


def _make_plans(
    seed: int,
    start: int,
    stop: int,
    most: int,
) -> Plans:
    first = start // BLOCK
    blocks = [
        _make_block(seed, block, most) for block in range(first, max(-(-stop // BLOCK), first + 1))
    ]
    names = [name for name, array in vars(blocks[0]).items() if array is not None]
    plans = Plans(
        **{name: np.concatenate([getattr(block, name) for block in blocks]) for name in names}
    )
    return plans[start - first * BLOCK : stop - first * BLOCK]


@lru_cache(maxsize=64)  # experiments may build their data more than once
def _make_block(seed: int, block: int, most: int) -> Plans:
    random = np.random.default_rng((seed, most, block))
    weights = {
        size: share for size, share in {**ROOM_COUNTS, **LARGER_COUNTS}.items() if size <= most
    }
    sizes = np.array(list(weights))
    shares = np.cumsum(list(weights.values()))
    rooms = sizes[np.searchsorted(shares, random.random(BLOCK) * shares[-1], side="right")]
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
    real = np.pad(types != NODE_PAD, ((0, 0), (0, 1)), constant_values=True)
    tokens = np.where(real[:, i] & real[:, j], doors[:, i, j], DOOR_PAD).astype(np.int8)
    return replace(Plans.from_boxes(types, boxes), doors=tokens)


def _draw(
    rooms: Int[np.ndarray, " P"], most: int, random: np.random.Generator
) -> tuple[
    Int[np.ndarray, "P R"],
    Int[np.ndarray, "P R 4"],
    Bool[np.ndarray, "P R R_1"],
    Bool[np.ndarray, " P"],
]:
    """Draw types, boxes and doors (the last column is the outside) for each number of rooms, and which are valid."""
    extra = np.searchsorted(np.cumsum(_EXTRA_PIECES)[:-1], random.random(len(rooms)), side="right")
    extra += np.maximum(rooms - max(ROOM_COUNTS), 0) // _REACH
    pieces = partition_outlines(rooms + extra, random)
    touching = shared_walls(pieces)
    living = grow_living_rooms(pieces, touching, extra, random)
    kinds, good = assign_types(pieces, touching, living, draw_room_programs(rooms, random), random)
    sides = pieces[..., 2:] - pieces[..., :2]
    short = sides.min(-1)
    long = sides.max(-1)
    good &= ((long == 0) | ((short >= _NARROWEST) & (long <= _LONGEST * short))).all(1)
    good &= living.sum(1) == 1 + extra
    types, boxes, doors = _join(pieces, kinds, place_doors(pieces, touching, kinds), most)
    # Around the centre of the canvas, turned by a random number of quarters.
    margin = (GRID - pieces.max(1)[:, 2:]) / 2
    real = types != NODE_PAD
    shift = (margin + np.minimum(_SHIFT, margin) * (2 * random.random(margin.shape) - 1)).astype(
        np.int64
    )
    boxes = boxes + np.tile(shift, 2)[:, None]
    turns = (4 * random.random(len(boxes))).astype(np.int64)
    for turn in (1, 2, 3):
        x0, y0, x1, y1 = np.moveaxis(boxes[turns >= turn], -1, 0)
        boxes[turns >= turn] = np.stack([GRID - y1, x0, GRID - y0, x1], -1)
    boxes = np.where(real[..., None], boxes, 0).astype(np.int16)
    order = np.argsort(np.where(real, random.random(types.shape), 2.0), 1, kind="stable")
    columns = np.pad(order, ((0, 0), (0, 1)), constant_values=most)
    doors = np.take_along_axis(np.take_along_axis(doors, order[..., None], 1), columns[:, None], 2)
    return (
        np.take_along_axis(types, order, 1),
        np.take_along_axis(boxes, order[..., None], 1),
        doors,
        good,
    )


def place_doors(
    pieces: Int[np.ndarray, "P K 4"],
    touching: Bool[np.ndarray, "P K K"],
    kinds: Int[np.ndarray, "P K"],
) -> Bool[np.ndarray, "P K K_1"]:
    """Return which pieces are joined by doors, and in the last column which has the front door.

    Each room has one door to a room nearer to the living room: to the living room itself, or else
    to the largest bedroom next to it; so have bathrooms besides the largest one at the living room.
    The front door is that of the entrance, or of the living room if it has an outer wall, or of the
    largest other room with one.
    """
    plans = np.arange(len(pieces))
    every = np.arange(pieces.shape[1])
    area = (pieces[..., 2:] - pieces[..., :2]).prod(-1)
    living = kinds == LIVING
    bath = kinds == ROOM_IDS["Bathroom"]
    at_living = touching & living[:, None]
    reached = at_living.any(2)
    at_bedroom = touching & np.isin(kinds, _BEDROOMS)[:, None]
    guest = np.where(bath & reached, area, -1).argmax(1)
    ensuite = bath & at_bedroom.any(2) & ~(reached & (every == guest[:, None]))
    way = np.where((reached & ~ensuite)[..., None], at_living, at_bedroom)
    parent = np.where(way, area[:, None], -1).argmax(2)
    doors = np.zeros((*kinds.shape, kinds.shape[1] + 1), bool)
    joined = way.any(2) & (kinds >= 0) & ~living
    row, piece = np.nonzero(joined)
    doors[row, piece, parent[joined]] = doors[row, parent[joined], piece] = True
    outline = pieces.max(1)[:, None, 2:]
    outer = ((pieces[..., :2] == 0) | (pieces[..., 2:] == outline)).any(-1) & (kinds >= 0)
    rank = area + GRID**2 * (2 * (kinds == ENTRANCE) + living)
    doors[plans, np.where(outer, rank, -1).argmax(1), -1] = True
    return doors


def _join(
    pieces: Int[np.ndarray, "P K 4"],
    kinds: Int[np.ndarray, "P K"],
    doors: Bool[np.ndarray, "P K K_1"],
    most: int,
) -> tuple[Int[np.ndarray, "P R"], Int[np.ndarray, "P R 4"], Bool[np.ndarray, "P R R_1"]]:
    """Return types, boxes without walls and doors of rooms: the living room, which bounds its pieces, then the others.

    The last column of doors is the outside.
    """
    inner = pieces + np.array([_WALL, _WALL, -_WALL, -_WALL])
    living = (kinds == LIVING)[..., None]
    low = np.where(living, inner[..., :2], GRID).min(1)
    high = np.where(living, inner[..., 2:], 0).max(1)
    other = (kinds >= 0) & (kinds != LIVING)
    order = np.argsort(~other, 1, kind="stable")[:, : most - 1]
    types = np.take_along_axis(np.where(other, kinds, NODE_PAD), order, 1)
    boxes = np.take_along_axis(np.where(other[..., None], inner, 0), order[..., None], 1)
    padding = (
        (0, 0),
        (1, most - 1 - types.shape[1]),
    )  # one slot before for the living room, empty slots after
    types = np.pad(types, padding, constant_values=NODE_PAD)
    boxes = np.pad(boxes, (*padding, (0, 0)))
    types[:, 0] = LIVING
    boxes[:, 0] = np.concatenate([low, high], 1)
    # Rows and columns by room: the pieces of the living room together, then the others.
    rows = np.concatenate(
        [(doors & living).any(1)[:, None], np.take_along_axis(doors, order[..., None], 1)], 1
    )
    columns = np.take_along_axis(
        rows[..., :-1], np.broadcast_to(order[:, None], (*rows.shape[:2], order.shape[1])), 2
    )
    to_living = (rows[..., :-1] & living[:, None, :, 0]).any(-1, keepdims=True)
    joined = np.zeros((len(types), most, most + 1), bool)
    joined[:, : rows.shape[1], : rows.shape[1]] = np.concatenate([to_living, columns], 2)
    joined[:, : rows.shape[1], -1] = rows[..., -1]
    return types.astype(np.int8), boxes, joined


LARGER_COUNTS: Final = {9: 0.2, 10: 0.15, 11: 0.1, 12: 0.06, 13: 0.03, 14: 0.015}
"""Weights of larger numbers of rooms, relative to all smaller ones together."""

_USUAL_ROOMS: Final = {"MasterRoom": 0.985, "Kitchen": 0.985, "Bathroom": 1.0}
"""Probability of these room types; every plan has a living room."""

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
"""Weights of the remaining rooms, drawn without replacement."""


def draw_room_programs(
    rooms: Int[np.ndarray, " P"], random: np.random.Generator
) -> Int[np.ndarray, "P M"]:
    """Draw the types of the `rooms` - 1 rooms besides the living room; -1 in empty positions."""
    most = int(rooms.max()) - 1
    types = np.array([ROOM_IDS[name] for name in (*_USUAL_ROOMS, *(name for name, _ in _EXTRA))])
    shares = np.array(list(_USUAL_ROOMS.values()))
    weights = np.array([weight for _, weight in _EXTRA])
    # Sorting by u^(1/w) is weighted sampling without replacement (Efraimidis and Spirakis, 2006).
    keys: Float[np.ndarray, "P all"] = np.concatenate(
        [
            np.where(random.random((len(rooms), len(shares))) < shares, 2.0, -1.0),
            random.random((len(rooms), len(weights))) ** (1 / weights),
        ],
        axis=1,
    )
    chosen = types[np.argsort(-keys, axis=1, kind="stable")[:, :most]]
    return np.where(np.arange(most) < rooms[:, None] - 1, chosen, -1).astype(np.int8)


SHARED = 13
_NARROWEST = 17
_LONGEST = 3.6
_USUAL_PIECES = 10
"""Shared wall in pixels, about 0.9 m, that a door between two pieces requires; shortest side and
largest aspect of a piece; number of pieces above which outlines are scaled up."""


def partition_outlines(
    pieces: Int[np.ndarray, " P"], random: np.random.Generator
) -> Int[np.ndarray, "P K 4"]:
    """Draw outlines of 110..180 x 100..175 pixels and partition each into `pieces` pieces by successive straight cuts.

    Outlines for more than `_USUAL_PIECES` pieces are scaled up, so that pieces keep their size.
    Large pieces are more likely to be cut next, mostly across their longer side. Zeros after the
    last piece.
    """
    plans = len(pieces)
    most = int(pieces.max())
    sides = np.stack([110 + 71 * random.random(plans), 100 + 76 * random.random(plans)], 1)
    sides = (sides * np.sqrt(np.maximum(pieces / _USUAL_PIECES, 1.0))[:, None]).astype(np.int64)
    boxes = np.zeros((plans, most, 4), np.int64)
    boxes[:, 0, 2:] = sides
    every = np.arange(plans)
    for done in range(1, most):
        active = done < pieces
        width = boxes[..., 2] - boxes[..., 0]
        height = boxes[..., 3] - boxes[..., 1]
        piece = np.argmax(width * height * (0.45 + random.random((plans, most))), 1)
        wide = width[every, piece]
        high = height[every, piece]
        axis = np.where(wide * (0.7 + 0.6 * random.random(plans)) > high, 0, 1)
        share = 0.28 + 0.44 * random.random(plans)
        start = boxes[every, piece, axis]
        cut = start + np.round(share * (boxes[every, piece, axis + 2] - start)).astype(np.int64)
        rest = boxes[every, piece]
        rest[every, axis] = cut
        boxes[:, done] = np.where(active[:, None], rest, 0)
        boxes[every[active], piece[active], axis[active] + 2] = cut[active]
    return boxes


def shared_walls(boxes: Int[np.ndarray, "P K 4"]) -> Bool[np.ndarray, "P K K"]:
    """True where two pieces share at least `SHARED` pixels of wall."""
    u = boxes[:, :, None]
    v = boxes[:, None, :]
    overlap = np.minimum(u[..., 2:], v[..., 2:]) - np.maximum(u[..., :2], v[..., :2])
    return np.asarray((overlap.min(-1) == 0) & (overlap.max(-1) >= SHARED))


def grow_living_rooms(
    boxes: Int[np.ndarray, "P K 4"],
    touching: Bool[np.ndarray, "P K K"],
    extra: Int[np.ndarray, " P"],
    random: np.random.Generator,
) -> Bool[np.ndarray, "P K"]:
    """Choose the pieces of the living room: one, and `extra` more that extend it to an L, T or Z.

    Greedily selects the piece that brings the living room into contact with most others; the first
    also by area.
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

_PREFERRED_SHARE: Final = np.array([_AREA_SHARE.get(name, 0.0) for name in ROOMS])
_BEDROOMS: Final = [ROOM_IDS[name] for name in BEDROOMS]
_OUTSIDE: Final = np.isin(
    np.arange(len(ROOMS)), [*_BEDROOMS, ROOM_IDS["Balcony"], ROOM_IDS["Entrance"]]
)
"""Room types that require an outer wall."""
_REACHABLE_VIA_BEDROOM: Final = np.isin(
    np.arange(len(ROOMS)), [ROOM_IDS["Bathroom"], ROOM_IDS["Balcony"]]
)
"""Room types that may be reached through a bedroom instead of the living room."""

_SIZE = 12.0
_NOISE = 0.25
_BLOCKS_LIVING_ROOM = 0.3
"""Costs: deviation from the preferred share, noise, a bathroom or balcony at the living room."""
_IMPOSSIBLE = 100.0
_USUAL_COUNT = 8
_MAX_COST = 0.85
"""Cost per room above which a plan is redrawn."""


def assign_types(
    pieces: Int[np.ndarray, "P K 4"],
    touching: Bool[np.ndarray, "P K K"],
    living: Bool[np.ndarray, "P K"],
    program: Int[np.ndarray, "P M"],
    random: np.random.Generator,
) -> tuple[Int[np.ndarray, "P K"], Bool[np.ndarray, " P"]]:
    """Assign types to the pieces outside the living room at minimum total cost.

    Returns the types, -1 for missing pieces; and True for plans in which each room can be reached,
    has an outer wall if required, and a plausible size, and no room is larger than the living room.
    """
    from scipy.optimize import linear_sum_assignment

    outline = pieces.max(1)[:, 2:]
    share = (pieces[..., 2:] - pieces[..., :2]).prod(-1) / outline.prod(-1)[:, None]
    outer = ((pieces[..., :2] == 0) | (pieces[..., 2:] == outline[:, None])).any(-1)
    reached = (touching & living[:, :, None]).any(1)
    via_bedroom = _REACHABLE_VIA_BEDROOM[program][..., None]
    outside = _OUTSIDE[program][..., None]
    # With many rooms, each is smaller.
    crowded = np.minimum(_USUAL_COUNT / (1 + (program >= 0).sum(1)), 1.0)[:, None, None]
    size = _SIZE * np.abs(share[:, None] - crowded * _PREFERRED_SHARE[program][..., None])
    at_living = reached[:, None]
    access = np.where(
        via_bedroom,
        np.where(at_living, _BLOCKS_LIVING_ROOM, 0.0),
        np.where(at_living, 0.0, _IMPOSSIBLE),
    )
    cost = size + access + np.where(outside & ~outer[:, None], _IMPOSSIBLE, 0.0)
    cost += _NOISE * random.random((*program.shape, pieces.shape[1]))
    types = np.where(living, LIVING, -1).astype(np.int8)
    free = (share > 0) & ~living
    good = (share * living).sum(1) >= (share * free).max(1)
    for plan in np.flatnonzero(good):
        rooms = program[plan] >= 0
        costs = cost[plan][rooms][:, free[plan]]
        row, column = linear_sum_assignment(costs)
        good[plan] = costs[row, column].sum() <= _MAX_COST * len(row)
        types[plan, np.flatnonzero(free[plan])[column]] = program[plan, row]
    at_bedroom = (touching & np.isin(types, _BEDROOMS)[:, :, None]).any(1)
    return types, good & (reached | living | at_bedroom | (types < 0)).all(1)
