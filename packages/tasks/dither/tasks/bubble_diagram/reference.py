"""Real diagrams beside which samples are judged, and the noise floor: what as many real diagrams score.

Letters: N samples, L tokens.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
from jaxtyping import Int

from .archetypes import Archetypes
from .frequencies import Frequencies
from .isomorphism import Library, first_of_their_kind
from .levels import Levels, levels_of
from .plans import PlanSplits
from .topology import Topology

__all__ = ["Reference"]


class Reference:
    """Training, validation and test plans.

    Samples are compared with the validation plans, and are new if they are none of the training plans. Test plans,
    compared in the same way, give the noise floor.

    Args:
        plans: The plans; without test plans there is no noise floor.
        rooms: Room slots of a diagram.
    """

    def __init__(self, plans: PlanSplits, rooms: int) -> None:
        self.rooms = rooms
        self._plans = plans
        self._valid = plans.valid.tokens(rooms)
        self._floors: dict[int, dict[str, float]] = {}

    @cached_property
    def frequencies(self) -> Frequencies:
        """Those of the validation plans."""
        return Frequencies.of(self._valid, self.rooms)

    @cached_property
    def _topology(self) -> Topology:
        return Topology.of(self._valid, self.rooms)

    @cached_property
    def _archetypes(self) -> Archetypes:
        return Archetypes.of(self._valid, self.rooms)

    @cached_property
    def _library(self) -> Library:
        train, rooms = self._plans.train, self.rooms
        boxes = np.pad(train.boxes, ((0, 0), (0, rooms - train.boxes.shape[1]), (0, 0)))
        return Library(train.tokens(rooms), rooms, boxes)

    def figures(self, samples: Int[np.ndarray, "N L"]) -> dict[str, float]:
        """Return levels, how far the legal samples are from real plans, how many differ, and how many are new.

        See `Frequencies.distances`, `Topology.distances` and `Archetypes.figures`. `unique` and `novel` are the shares
        of all samples that are legal and none of the samples before, and none of the training plans, in any order of
        their rooms; `valid_unique_novel` the share that are both and reach level 4.
        """
        return self._figures(samples, levels_of(samples, self.rooms))

    def floor(self, count: int) -> dict[str, float]:
        """Return what `count` test plans score, or all of them if there are fewer; nothing if there is none."""
        plans = self._plans.test[: self.floor_plans(count)]
        if not len(plans):
            return {}
        if len(plans) not in self._floors:
            rooms = self.rooms
            boxes = np.pad(plans.boxes, ((0, 0), (0, rooms - plans.boxes.shape[1]), (0, 0)))
            tokens = plans.tokens(rooms)
            self._floors[len(plans)] = self._figures(tokens, levels_of(tokens, rooms, boxes=boxes))
        return self._floors[len(plans)]

    def floor_plans(self, count: int) -> int:
        """Return on how many test plans the floor of `count` samples rests; with fewer plans it lies too high."""
        return max(min(count, len(self._plans.test)), 0)

    def _figures(self, samples: Int[np.ndarray, "N L"], levels: Levels) -> dict[str, float]:
        legal = np.flatnonzero(levels.structure.tokens)
        tokens, rooms = samples[legal], self.rooms
        figures = levels.rates() | {
            "connected": float(levels.structure.connected.mean()),
            "one_living_room": float(levels.structure.one_living_room.mean()),
        }
        first, new = first_of_their_kind(tokens, rooms), ~self._library.holds(tokens)
        good = first & new & levels.realisable[legal]
        figures |= {
            "unique": float(first.sum()) / len(samples),
            "novel": float(new.sum()) / len(samples),
            "valid_unique_novel": float(good.sum()) / len(samples),
        }
        if not len(legal):
            return figures
        return (
            figures
            | Frequencies.of(tokens, rooms).distances(self.frequencies)
            | Topology.of(tokens, rooms).distances(self._topology)
            | Archetypes.of(tokens, rooms).figures(self._archetypes)
        )
