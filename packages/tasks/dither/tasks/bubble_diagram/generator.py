"""Made-up floor plans: synthetic, RPLAN-like, not RPLAN. RPLAN's terms forbid to pass on any part of it.

An outline is cut into pieces, some pieces join to a living room from which most others are reached, and the programme is
given to the rest so that it fits best: bedrooms large and at the façade, baths small, balconies outside. A plan that breaks a rule is drawn
anew, with the same number of rooms, so that their histogram is the one asked for.

Letters: P plans, K pieces, M other rooms than the living room, R rooms.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy.optimize import linear_sum_assignment

from .dissection import cut_outlines, grow_living_rooms, shared_walls, well_shaped
from .programme import draw_counts, draw_programmes
from .relations import GRID, edges_of
from .vocabulary import NODE_PAD, NO_EDGE, ROOMS

__all__ = ["BLOCK", "LARGEST", "REVISION", "make_plans"]

LARGEST: Final = 8
"""Rooms of the largest plans that can be made."""

BLOCK: Final = 512
"""Plans that are drawn together; any plan costs at most as much as its block."""

REVISION: Final = 1
"""Raise it when the same seed begins to give other plans; kept files carry it in their name."""

_TYPE = {name: index for index, name in enumerate(ROOMS)}
_EXTRA_PIECES: Final = (0.2, 0.45, 0.35)
_WALL: Final = 2
_OUTSIDE: Final = tuple(_TYPE[n] for n in ("MasterRoom", "ChildRoom", "StudyRoom", "SecondRoom", "GuestRoom", "Balcony", "Entrance"))
_APART: Final = (_TYPE["Bathroom"], _TYPE["Balcony"])


def make_plans(seed, start, stop, most=LARGEST):
    first, last = start // BLOCK, -(-stop // BLOCK)
    made = [_make_block(seed, b, most) for b in range(first, last)]
    types = np.concatenate([t for t, _ in made])[start - first * BLOCK : stop - first * BLOCK]
    boxes = np.concatenate([b for _, b in made])[start - first * BLOCK : stop - first * BLOCK]
    return types, boxes


def _make_block(seed, block, most):
    random = np.random.default_rng((seed, most, block))
    rooms = draw_counts(BLOCK, most, random)
    types = np.full((BLOCK, most), NODE_PAD, np.int8)
    boxes = np.zeros((BLOCK, most, 4), np.int16)
    left = np.arange(BLOCK)
    global ROUNDS
    while len(left):
        t, b, good = _draw(rooms[left], most, random)
        done = left[good]
        types[done], boxes[done] = t[good], b[good]
        left = left[~good]
        ROUNDS += 1
    return types, boxes
ROUNDS=0
WHY={}

def _draw(rooms, most, random):
    plans = len(rooms)
    extra = np.searchsorted(np.cumsum(_EXTRA_PIECES), random.random(plans) * sum(_EXTRA_PIECES), side="right")
    pieces = cut_outlines(rooms + extra, random)
    programme = draw_programmes(rooms, random)
    good = well_shaped(pieces).all(1)
    WHY['n']=WHY.get('n',0)+plans
    WHY['shape']=WHY.get('shape',0)+good.sum()
    touching = shared_walls(pieces)
    living = grow_living_rooms(pieces, touching, extra, random)
    good &= living.sum(1) == 1 + extra
    reached = (touching & living[:, :, None]).any(1)
    outline = pieces.max(1)[:, 2:]
    facade = ((pieces[..., :2] == 0) | (pieces[..., 2:] == outline[:, None])).any(-1)
    area = (pieces[..., 2:] - pieces[..., :2]).prod(-1) / outline.prod(-1)[:, None]
    noise = random.random((plans, programme.shape[1], pieces.shape[1]))
    types = np.full(pieces.shape[:2], -1, np.int8)
    for p in np.flatnonzero(good):
        free = np.flatnonzero((area[p] > 0) & ~living[p])
        kinds = programme[p, : rooms[p] - 1]
        cost = _cost(kinds, area[p, free], facade[p, free], reached[p, free], rooms[p]) + 0.25 * noise[p][: len(kinds), free]
        rows, cols = linear_sum_assignment(cost)
        if cost[rows, cols].max() > 50:
            good[p] = False
        types[p, free[cols]] = kinds[rows]
    WHY['assign']=WHY.get('assign',0)+good.sum()
    types[living] = 0
    # apart rooms not touching the living room hang on a bedroom
    bedroom = np.isin(types, [1, 5, 6, 7, 8])
    hang = (touching & bedroom[:, :, None]).any(1)
    good &= (reached | living | hang | (types < 0)).all(1)
    WHY['hang']=WHY.get('hang',0)+good.sum()
    boxes, kinds = _boxes(pieces, living, types, rooms, most, outline, random)
    return kinds, boxes, good

WANT = np.zeros(13)
for n, a in dict(MasterRoom=.2, SecondRoom=.14, ChildRoom=.12, GuestRoom=.12, StudyRoom=.1, Kitchen=.09, DiningRoom=.11, Bathroom=.06, Balcony=.06, Entrance=.05, Storage=.04).items():
    WANT[_TYPE[n]] = a
WANT[12]=.03

def _cost(kinds, area, facade, reached, n):
    cost = 12 * np.abs(area[None] - WANT[kinds][:, None])
    apart = np.isin(kinds, _APART)[:, None]
    cost = cost + np.where(~reached[None], np.where(apart, 0.0, 100.0), np.where(apart, .3, 0))
    cost = cost + np.where(~facade[None] & np.isin(kinds, _OUTSIDE)[:, None], 100.0, 0)
    return cost

def _boxes(pieces, living, types, rooms, most, outline, random):
    plans, most_pieces = types.shape
    shrunk = pieces + np.array([_WALL, _WALL, -_WALL, -_WALL])
    big = np.where(living[..., None], shrunk, [9999, 9999, -9999, -9999])
    whole = np.concatenate([big[..., :2].min(1), big[..., 2:].max(1)], -1)
    # rooms: living first, then others; then shuffled
    other = (types >= 0) & ~living
    keys = np.where(other, random.random(types.shape), 2.0)
    order = np.argsort(keys, 1, kind="stable")[:, : most - 1]
    t = np.take_along_axis(np.where(other, types, NODE_PAD), order, 1)
    b = np.take_along_axis(np.where(other[..., None], shrunk, 0), order[..., None], 1)
    pad = most - 1 - t.shape[1]
    t = np.pad(t, ((0, 0), (0, pad)), constant_values=NODE_PAD)
    b = np.pad(b, ((0, 0), (0, pad), (0, 0)))
    t = np.concatenate([np.zeros((plans, 1), np.int8), t], 1)
    b = np.concatenate([whole[:, None], b], 1)
    real = np.arange(most) < rooms[:, None]
    order = np.argsort(np.where(real, random.random((plans, most)), 2.0), 1, kind="stable")
    t = np.take_along_axis(t, order, 1)
    b = np.take_along_axis(b, order[..., None], 1)
    shift = ((GRID - outline) / 2 + 30 * (random.random((plans, 2)) - .5)).astype(np.int64)
    b = b + np.concatenate([shift, shift], -1)[:, None]
    turns = (4 * random.random(plans)).astype(np.int64)
    for k in (1, 2, 3):
        some = turns >= k
        x0, y0, x1, y1 = np.moveaxis(b[some], -1, 0)
        b[some] = np.stack([GRID - y1, x0, GRID - y0, x1], -1)
    b = np.where(real[..., None], b, 0)
    return b, t
