"""Real diagrams beside which samples are judged, and the noise floor: what as many real diagrams score.

Letters: N samples, L tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy.spatial.distance import cdist

from ..isomorphism import PlanIndex, is_first_occurrence
from ..plans import PlanSplits
from ..validity import Levels, validity_levels
from ..vocabulary import NO_EDGE, NODE_MASK, NODE_PAD, pairs
from .frequencies import Frequencies

__all__ = ["Archetypes", "Reference", "Topology", "mmd", "sample_metrics"]


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
    def _library(self) -> PlanIndex:
        train, rooms = self._plans.train, self.rooms
        boxes = np.pad(train.boxes, ((0, 0), (0, rooms - train.boxes.shape[1]), (0, 0)))
        return PlanIndex(train.tokens(rooms), rooms, boxes)

    def figures(self, samples: Int[np.ndarray, "N L"]) -> dict[str, float]:
        """Return levels, how far the legal samples are from real plans, how many differ, and how many are new.

        See `Frequencies.distances`, `Topology.distances` and `Archetypes.figures`. `unique` and `novel` are the shares
        of all samples that are legal and none of the samples before, and none of the training plans, in any order of
        their rooms; `valid_unique_novel` the share that are both and reach level 4.
        """
        return self._figures(samples, validity_levels(samples, self.rooms))

    def floor(self, count: int) -> dict[str, float]:
        """Return what `count` test plans score, or all of them if there are fewer; nothing if there is none."""
        plans = self._plans.test[: self.floor_plans(count)]
        if not len(plans):
            return {}
        if len(plans) not in self._floors:
            rooms = self.rooms
            boxes = np.pad(plans.boxes, ((0, 0), (0, rooms - plans.boxes.shape[1]), (0, 0)))
            tokens = plans.tokens(rooms)
            self._floors[len(plans)] = self._figures(tokens, validity_levels(tokens, rooms, boxes=boxes))
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
        first, new = is_first_occurrence(tokens, rooms), ~self._library.holds(tokens)
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


def sample_metrics(samples: Int[np.ndarray, "N L"], reference: Reference) -> dict[str, float]:
    """Return what `Reference.figures` says of samples, and beside each `name` the noise floor `name_floor`.

    The floor is what as many real plans score: no model can be told from the truth below it. With few samples it is
    far from zero. Rates of the levels have none: real plans reach them all. `floor_plans` is the number of plans that
    it rests on; where there are fewer than samples, it lies too high.
    """
    if not len(samples):
        return {}
    found, floor = reference.figures(samples), reference.floor(len(samples))
    bare = {name for name in found if name.startswith("level_")} | {"unknown", "connected", "one_living_room"}
    floors = {f"{name}_floor": value for name, value in floor.items() if name in found.keys() - bare}
    return found | floors | {"floor_plans": float(reference.floor_plans(len(samples)))}


_CLUSTERING_BINS: Final = 100
_SPECTRAL_BINS: Final = 200
_WIDTHS: Final = {"degree": 1.0, "clustering": 0.1, "spectral": 1.0}
"""Widths sigma of the kernel."""


@dataclass(frozen=True)
class Topology:
    """A histogram of each kind for every graph; each sums to 1.

    Attributes:
        degree: Rooms by number of neighbours.
        clustering: Rooms by share of the pairs of its neighbours that are neighbours themselves; 0 below two.
        spectral: Eigenvalues of the normalised Laplacian, between 0 and 2.
    """

    degree: Float[np.ndarray, "N K"]
    clustering: Float[np.ndarray, "N K"]
    spectral: Float[np.ndarray, "N K"]

    @classmethod
    def of(cls, tokens: Int[np.ndarray, "N L"], rooms: int) -> Topology:
        """Measure diagrams of `rooms` room slots, each with one room or more; a pair without a relation is no edge."""
        near, real = _adjacency(tokens, rooms)
        degrees = near.sum(2)
        links = np.einsum("nij,njk,nki->ni", near, near, near, optimize=True)
        clustering = links / np.maximum(degrees * (degrees - 1.0), 1.0)
        return cls(
            _histograms(degrees / rooms, real, rooms, 1.0),
            _histograms(clustering, real, _CLUSTERING_BINS, 1.0),
            _histograms(_spectra(near, real), real, _SPECTRAL_BINS, 2.0),
        )

    def distances(self, other: Topology) -> dict[str, float]:
        """Return the squared maximum mean discrepancy of each kind of histogram."""
        return {f"mmd_{name}": mmd(getattr(self, name), getattr(other, name), width) for name, width in _WIDTHS.items()}


def mmd(first: Float[np.ndarray, "N K"], second: Float[np.ndarray, "M K"], width: float) -> float:
    """Return the squared maximum mean discrepancy of two sets of histograms; nan where one of them is empty."""
    if not (len(first) and len(second)):
        return float("nan")
    # Equal histograms count as one, with a weight: the sums over pairs stay the same and become short.
    distinct, place = np.unique(np.concatenate([first, second]), axis=0, return_inverse=True)
    place = place.reshape(-1)
    weight = np.bincount(place[: len(first)], minlength=len(distinct)) / len(first)
    weight -= np.bincount(place[len(first) :], minlength=len(distinct)) / len(second)
    some = distinct[weight != 0]
    weight = weight[weight != 0]
    variation = cdist(some, some, "cityblock") / 2
    return float(weight @ np.exp(-(variation**2) / (2 * width**2)) @ weight)


def _adjacency(
    tokens: Int[np.ndarray, "N L"], rooms: int
) -> tuple[Float[np.ndarray, "N R R"], Bool[np.ndarray, "N R"]]:
    real = tokens[:, :rooms] != NODE_PAD
    i, j = np.array(pairs(rooms), int).reshape(-1, 2).T
    near = np.zeros((len(tokens), rooms, rooms))
    near[:, i, j] = near[:, j, i] = (tokens[:, rooms:] >= 0) & (tokens[:, rooms:] < NO_EDGE)
    return near * real[:, :, None] * real[:, None, :], real


def _spectra(near: Float[np.ndarray, "N R R"], real: Bool[np.ndarray, "N R"]) -> Float[np.ndarray, "N R"]:
    """Eigenvalues of each graph, as many as it has rooms, in the places of its rooms."""
    degrees = near.sum(2)
    scale = np.where(degrees > 0, 1 / np.sqrt(np.maximum(degrees, 1)), 0.0)
    diagonal = np.where(real, (degrees > 0) * 1.0, 10.0)  # what is no room comes out last, whatever its place
    laplacian = -near * scale[:, :, None] * scale[:, None, :]
    every = np.arange(near.shape[1])
    laplacian[:, every, every] = diagonal
    values: Float[np.ndarray, "N R"] = np.linalg.eigvalsh(laplacian)
    spread = np.zeros_like(values)
    spread[real] = values[every < real.sum(1, keepdims=True)]
    return np.clip(np.round(spread, 9), 0.0, 2.0)


def _histograms(
    values: Float[np.ndarray, "N R"], real: Bool[np.ndarray, "N R"], bins: int, most: float
) -> Float[np.ndarray, "N K"]:
    """Share of the values of each row that fall into each of `bins` bins from 0 to `most`."""
    place = np.minimum((values / most * bins).round(9).astype(int), bins - 1)
    rows = np.broadcast_to(np.arange(len(values))[:, None], values.shape)
    counts = np.bincount((rows * bins + place)[real], minlength=len(values) * bins).reshape(-1, bins)
    shares: Float[np.ndarray, "N K"] = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    return shares


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
