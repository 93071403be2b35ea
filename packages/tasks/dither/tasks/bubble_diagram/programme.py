"""Which rooms a made-up plan has. Letters: P plans, M other rooms than the living room.

The counts of rooms up to 8 are those published for RPLAN; those beyond, and the weights of the types, are guesses,
since RPLAN has no larger plans and its types are not public.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from jaxtyping import Float, Int

from .vocabulary import ROOM_COUNTS, ROOMS

__all__ = ["LARGER_COUNTS", "draw_counts", "draw_programmes"]

LARGER_COUNTS: Final = {9: 0.2, 10: 0.15, 11: 0.1, 12: 0.06, 13: 0.03, 14: 0.015}
"""Plans with more rooms, where they are asked for, as a multiple of all smaller ones together."""

_TYPE = {name: index for index, name in enumerate(ROOMS)}

_USUAL: Final = {"MasterRoom": 0.985, "Kitchen": 0.985, "Bathroom": 1.0}
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


def draw_programmes(rooms: Int[np.ndarray, " P"], random: np.random.Generator) -> Int[np.ndarray, "P M"]:
    """Draw the types of the other rooms of each plan; -1 behind the last of its `rooms` - 1."""
    most = int(rooms.max()) - 1
    types = np.array([_TYPE[name] for name in (*_USUAL, *(name for name, _ in _EXTRA))])
    shares = np.array(list(_USUAL.values()))
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
