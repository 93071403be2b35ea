"""A linear programme over the walls of rooms: what must hold, and what is worth its price.

Room r has the walls 4r .. 4r+3: x0, y0, x1, y1, in pixels, at least 0. Letters: R rooms, B bounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from scipy.optimize import linprog
from scipy.sparse import csr_array

__all__ = ["Wall", "WallProgram"]

Wall = tuple[int, float]
"""Number and factor."""


class WallProgram:
    """Wishes and demands; `solve` keeps all demands, and the wishes as far as they are worth it.

    Args:
        rooms: Number of rooms.
        side: Of the canvas that they must stay on; None where they may stand anywhere.
    """

    def __init__(self, rooms: int, side: float | None = None) -> None:
        self.walls, self.side = 4 * rooms, side
        self.sums: list[Sequence[Wall]] = []
        self.bounds: list[float] = []
        self.prices: list[float] = []

    def ask(self, total: Sequence[Wall], most: float, price: float) -> None:
        """Ask that a sum of walls times factors be at most `most`; each pixel beyond costs `price`."""
        self.sums.append(total)
        self.bounds.append(most)
        self.prices.append(price)

    def order(self, first: int, second: int, gap: float, price: float) -> None:
        """Ask that one wall be at least `gap` before another."""
        self.ask([(first, 1.0), (second, -1.0)], -gap, price)

    def demand(self, bounds: Int[np.ndarray, "B 4"], spare: float) -> None:
        """Demand bounds on marks (see `demands.Bound`), kept with `spare` half pixels left."""
        for axis, first, second, most in bounds.tolist():
            total: dict[int, float] = {}
            for mark, sign in ((first, 1.0), (second, -1.0)):
                room, place = divmod(mark, 3)
                for wall, share in ((4 * room + axis, 2 - place), (4 * room + axis + 2, place)):
                    total[wall] = total.get(wall, 0.0) + sign * share
            self.ask(list(total.items()), most - spare, np.inf)

    def solve(self) -> Float[np.ndarray, "R 4"] | None:
        """Return the walls at the least price; None if the demands contradict each other."""
        prices = np.array(self.prices)
        paid = np.flatnonzero(prices < np.inf)
        entries = [(row, *wall) for row, total in enumerate(self.sums) for wall in total]
        entries += [(row, self.walls + place, -1.0) for place, row in enumerate(paid.tolist())]
        row, column, factor = zip(*entries, strict=True)
        unknowns = self.walls + len(paid)
        matrix: Any = csr_array((factor, (row, column)), shape=(len(prices), unknowns))
        price = np.concatenate([np.zeros(self.walls), prices[paid]])
        most = np.full(unknowns, np.inf)
        most[: self.walls] = np.inf if self.side is None else self.side
        limits: Any = np.stack([np.zeros(unknowns), most], 1)
        found = linprog(price, matrix, self.bounds, bounds=limits, method="highs-ds")
        if found.x is None:
            return None
        walls: Float[np.ndarray, "R 4"] = found.x[: self.walls].reshape(-1, 4)
        return walls
