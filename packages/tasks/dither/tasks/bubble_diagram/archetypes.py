"""Which rooms diagrams have, relations left aside: the archetype of a diagram says how many rooms of each type it has.

Letters: N diagrams, L tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Int

from .vocabulary import NODE_MASK

__all__ = ["Archetypes"]


@dataclass(frozen=True)
class Archetypes:
    """The different archetypes of a set of diagrams.

    Attributes:
        counts: Rooms of each type, one archetype a row.
        times: How many diagrams are of it.
    """

    counts: Int[np.ndarray, "A 13"]
    times: Int[np.ndarray, " A"]

    @classmethod
    def of(cls, tokens: Int[np.ndarray, "N L"], rooms: int) -> Archetypes:
        """Count; tokens that are no types of room are left out."""
        counts = (tokens[:, :rooms, None] == np.arange(NODE_MASK)).sum(1)
        distinct, times = np.unique(counts, axis=0, return_counts=True)
        return cls(distinct, times)

    def figures(self, reference: Archetypes) -> dict[str, float]:
        """Return how many archetypes there are, how many of the reference's are among them, and how even they are.

        `archetype_coverage` counts each archetype of the reference once, `archetype_coverage_weighted` as often as
        it occurs there. `diversity` is the chance that two different diagrams of the set are of different archetypes.
        """
        mine = {row.tobytes() for row in self.counts}
        found = np.array([row.tobytes() in mine for row in reference.counts], bool)
        total = int(self.times.sum())
        alike = float((self.times * (self.times - 1)).sum()) / max(total * (total - 1), 1)
        return {
            "archetypes": float(len(self.times)),
            "archetype_coverage": float(found.mean()),
            "archetype_coverage_weighted": float(reference.times[found].sum() / reference.times.sum()),
            "diversity": 1 - alike,
        }
