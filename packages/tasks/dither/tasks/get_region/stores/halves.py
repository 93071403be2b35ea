"""Motifs as float16: what is too large for it is refused, what is so small that it becomes coarse is noted.

Letters: n regions, M motifs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import numpy as np
from jaxtyping import Float, Float16, Shaped

from dither.registry.problems import Problem, Refused

from ..found import Place
from ..region_order import SHOWN, first_of

__all__ = ["Halves"]

LARGEST: Final = float(np.finfo(np.float16).max)
SMALLEST: Final = float(np.finfo(np.float16).smallest_normal)
"""Below this, numbers are no longer kept to 11 bits, but in steps that are all alike."""
HALF_A_STEP: Final = float(np.finfo(np.float16).smallest_subnormal) / 2


class Halves:
    """Rounds a matrix to float16, a block of rows after the other, and remembers what that does to it.

    Args:
        path: Where the matrix is from, for messages.
        motifs: Names of its columns.
        place: Says where a number stands.
    """

    def __init__(self, path: Path, motifs: Sequence[str] | Shaped[np.ndarray, " M"], place: Place) -> None:
        self.path, self.motifs, self.place = path, [*map(str, motifs)], place
        self._largest = np.zeros(len(self.motifs))
        self._wrong: list[str] = []
        self._count = 0

    def rounded(self, block: Float[np.ndarray, "n M"], first: int) -> Float16[np.ndarray, "n M"]:
        """Return the next rows, of which the first is row `first`; what is too large is as large as can be."""
        self._largest = np.maximum(self._largest, block.max(0, initial=0))
        if self._largest.max(initial=0) > LARGEST:
            large = block > LARGEST
            self._count += int(large.sum())
            for row, column in np.argwhere(large)[: SHOWN - len(self._wrong)].tolist():
                where = self.place("features", first + row, self.motifs[column])
                what = f"{block[row, column]:g} is more than float16 holds ({LARGEST:g})"
                self._wrong.append(f"{self.path}: {where}: {what}")
        kept: Float16[np.ndarray, "n M"] = np.minimum(block, LARGEST).astype(np.float16)
        return kept

    def must_fit(self) -> None:
        """Refuse a matrix that has numbers which are too large.

        Raises:
            Refused: Names the first of them with row and column.
        """
        if self._wrong:
            first, *others = first_of(iter(self._wrong), self._count)
            raise Refused([Problem(first, help="take --dtype float32"), *map(Problem, others)])

    def notes(self) -> Iterator[str]:
        """Yield which motifs become coarse: those of which even the largest value is below what float16 keeps well."""
        small = np.flatnonzero((self._largest > 0) & (self._largest < SMALLEST)).tolist()
        if not small:
            return
        small.sort(key=lambda column: self._largest[column])
        some = ", ".join(
            f"{self.motifs[column]} (at most {self._largest[column]:.2g}, "
            f"off by up to {min(HALF_A_STEP / self._largest[column], 1):.1%} of that)"
            for column in small[:SHOWN]
        )
        more = f" and {len(small) - SHOWN:,} more" if len(small) > SHOWN else ""
        yield f"float16 is coarse below {SMALLEST:.1g}, where all of {some}{more} lies; --dtype float32 keeps it"
