"""Which piece of a made-up plan becomes which room. Letters: P plans, K pieces, M other rooms than the living room."""

from __future__ import annotations

from typing import Final

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy.optimize import linear_sum_assignment

from .vocabulary import ROOMS

__all__ = ["LIVING", "give_types"]

_ID = {name: index for index, name in enumerate(ROOMS)}
LIVING: Final = _ID["LivingRoom"]

_SHARE: Final = {
    "MasterRoom": 0.2, "SecondRoom": 0.14, "ChildRoom": 0.12, "GuestRoom": 0.12, "DiningRoom": 0.11, "StudyRoom": 0.1,
    "Kitchen": 0.09, "Bathroom": 0.06, "Balcony": 0.06, "Entrance": 0.05, "Storage": 0.04, "Wall-in": 0.03,
}  # fmt: skip
"""Share of the flat that a room would like to have."""

_WANTED: Final = np.array([_SHARE.get(name, 0.0) for name in ROOMS])
_BEDROOMS: Final = [_ID[name] for name in ("MasterRoom", "ChildRoom", "StudyRoom", "SecondRoom", "GuestRoom")]
_OUTSIDE: Final = np.isin(np.arange(len(ROOMS)), [*_BEDROOMS, _ID["Balcony"], _ID["Entrance"]])
"""Rooms that must have an outer wall."""
_APART: Final = np.isin(np.arange(len(ROOMS)), [_ID["Bathroom"], _ID["Balcony"]])
"""Rooms that may be reached through a bedroom instead of the living room."""

_SIZE, _NOISE, _TAKES_PLACE = 12.0, 0.25, 0.3
_IMPOSSIBLE = 100.0
_USUAL = 8
_POOR = 0.85
"""Cost per room beyond which a plan is not worth keeping."""


def give_types(
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
    crowded = np.minimum(_USUAL / (1 + (programme >= 0).sum(1)), 1.0)[:, None, None]  # many rooms are smaller ones
    size = _SIZE * np.abs(share[:, None] - crowded * _WANTED[programme][..., None])
    access = np.where(apart, np.where(reached, _TAKES_PLACE, 0.0), np.where(reached, 0.0, _IMPOSSIBLE))
    total: Float[np.ndarray, "P M K"] = size + access + np.where(outside & ~outer, _IMPOSSIBLE, 0.0)
    return total
