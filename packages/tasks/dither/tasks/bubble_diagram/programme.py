"""Which rooms a made-up plan has. Letters: P plans, M other rooms than the living room.

The counts of rooms are those published for RPLAN; the weights of the types are guesses, since RPLAN's are not public.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from jaxtyping import Float, Int

from .vocabulary import ROOMS

__all__ = ["ROOM_COUNTS", "draw_counts", "draw_programmes"]

ROOM_COUNTS: Final = {4: 0.003, 5: 0.072, 6: 0.311, 7: 0.362, 8: 0.252}
"""Share of the plans with so many rooms."""

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
    sizes = np.array([size for size in ROOM_COUNTS if size <= most])
    shares = np.cumsum([ROOM_COUNTS[int(size)] for size in sizes])
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
