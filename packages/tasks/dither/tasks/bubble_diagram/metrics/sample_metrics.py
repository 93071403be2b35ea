"""Metrics of samples against real plans, with a noise floor: the score of an equal number of real plans.

Letters: N samples, L tokens, R room slots, K bins, A archetypes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy.spatial.distance import cdist

from ..isomorphism import PlanIndex, is_first_occurrence
from ..plans import Plans, PlanSplits
from ..relations import pair_ends
from ..validity import Levels, validity_levels
from ..vocabulary import NO_EDGE, NODE_MASK, NODE_PAD
from .frequencies import Frequencies

__all__ = ["Archetypes", "Reference", "Topology", "mmd", "sample_metrics"]


class Reference:
    """Training, validation and test plans that samples are compared with.

    Distances are measured to the validation plans; a sample is novel if it is isomorphic to no training plan. Test
    plans, evaluated in the same way, give the noise floor.

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
        """Frequencies of the validation plans."""
        return Frequencies.of(self._valid, self.rooms)

    @cached_property
    def _topology(self) -> Topology:
        return Topology.of(self._valid, self.rooms)

    @cached_property
    def _archetypes(self) -> Archetypes:
        return Archetypes.of(self._valid, self.rooms)

    @cached_property
    def _train_index(self) -> PlanIndex:
        train = self._plans.train
        return PlanIndex(train.tokens(self.rooms), self.rooms, self._padded_boxes(train))

    def _padded_boxes(self, plans: Plans) -> Int[np.ndarray, "N R 4"]:
        return np.pad(plans.boxes, ((0, 0), (0, self.rooms - plans.boxes.shape[1]), (0, 0)))

    def metrics(self, samples: Int[np.ndarray, "N L"]) -> dict[str, float]:
        """Return validity levels, distances of the legal samples to real plans, and uniqueness and novelty.

        See `Frequencies.distances`, `Topology.distances` and `Archetypes.metrics`. `unique` and `novel` are the shares
        of all samples that are legal and isomorphic to no earlier sample, or to no training plan;
        `valid_unique_novel` is the share that is both and reaches level 4.
        """
        return self._metrics(samples, validity_levels(samples, self.rooms))

    def floor(self, count: int) -> dict[str, float]:
        """Return the metrics of `count` test plans, or of all if there are fewer; empty without test plans."""
        plans = self._plans.test[: self.floor_plans(count)]
        if not len(plans):
            return {}
        if len(plans) not in self._floors:
            tokens, boxes = plans.tokens(self.rooms), self._padded_boxes(plans)
            self._floors[len(plans)] = self._metrics(tokens, validity_levels(tokens, self.rooms, boxes=boxes))
        return self._floors[len(plans)]

    def floor_plans(self, count: int) -> int:
        """Return the number of test plans behind the floor of `count` samples; with fewer plans it is too high."""
        return max(min(count, len(self._plans.test)), 0)

    def _metrics(self, samples: Int[np.ndarray, "N L"], levels: Levels) -> dict[str, float]:
        legal = np.flatnonzero(levels.structure.tokens)
        tokens, rooms = samples[legal], self.rooms
        metrics = levels.rates() | {
            "connected": float(levels.structure.connected.mean()),
            "one_living_room": float(levels.structure.one_living_room.mean()),
        }
        first, novel = is_first_occurrence(tokens, rooms), ~self._train_index.holds(tokens)
        good = first & novel & levels.realisable[legal]
        metrics |= {
            "unique": float(first.sum()) / len(samples),
            "novel": float(novel.sum()) / len(samples),
            "valid_unique_novel": float(good.sum()) / len(samples),
        }
        if not len(legal):
            return metrics
        return (
            metrics
            | Frequencies.of(tokens, rooms).distances(self.frequencies)
            | Topology.of(tokens, rooms).distances(self._topology)
            | Archetypes.of(tokens, rooms).metrics(self._archetypes)
        )


def sample_metrics(samples: Int[np.ndarray, "N L"], reference: Reference) -> dict[str, float]:
    """Return the metrics of samples and, for each `name`, the noise floor `name_floor`.

    The floor is the score of an equal number of real plans; a model cannot be distinguished from the data below it.
    With few samples it is far from zero. Rates of levels have no floor, because real plans reach all of them.
    `floor_plans` is the number of plans behind the floor; with fewer plans than samples, the floor is too high.
    """
    if not len(samples):
        return {}
    metrics, floor = reference.metrics(samples), reference.floor(len(samples))
    no_floor = {name for name in metrics if name.startswith("level_")} | {"unknown", "connected", "one_living_room"}
    floors = {f"{name}_floor": value for name, value in floor.items() if name in metrics.keys() - no_floor}
    return metrics | floors | {"floor_plans": float(reference.floor_plans(len(samples)))}


_CLUSTERING_BINS: Final = 100
_SPECTRAL_BINS: Final = 200
_WIDTHS: Final = {"degree": 1.0, "clustering": 0.1, "spectral": 1.0}
"""Widths sigma of the Gaussian kernel, as in GRAN."""


@dataclass(frozen=True)
class Topology:
    """Histograms of graph statistics of each diagram; each sums to 1.

    Attributes:
        degree: Rooms by number of neighbours.
        clustering: Rooms by local clustering coefficient.
        spectral: Eigenvalues of the normalised Laplacian, between 0 and 2.
    """

    degree: Float[np.ndarray, "N K"]
    clustering: Float[np.ndarray, "N K"]
    spectral: Float[np.ndarray, "N K"]

    @classmethod
    def of(cls, tokens: Int[np.ndarray, "N L"], rooms: int) -> Topology:
        """Compute the histograms of non-empty diagrams with `rooms` room slots."""
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
        """Return the squared maximum mean discrepancy of each statistic."""
        return {f"mmd_{name}": mmd(getattr(self, name), getattr(other, name), width) for name, width in _WIDTHS.items()}


def mmd(first: Float[np.ndarray, "N K"], second: Float[np.ndarray, "M K"], width: float) -> float:
    """Return the squared maximum mean discrepancy of two sets of histograms; NaN if one of them is empty."""
    if not (len(first) and len(second)):
        return float("nan")
    # Equal histograms are merged into one with a weight, which shortens the sums over pairs without changing them.
    distinct, index = np.unique(np.concatenate([first, second]), axis=0, return_inverse=True)
    index = index.reshape(-1)
    weight = np.bincount(index[: len(first)], minlength=len(distinct)) / len(first)
    weight -= np.bincount(index[len(first) :], minlength=len(distinct)) / len(second)
    points = distinct[weight != 0]
    weight = weight[weight != 0]
    variation = cdist(points, points, "cityblock") / 2
    return float(weight @ np.exp(-(variation**2) / (2 * width**2)) @ weight)


def _adjacency(
    tokens: Int[np.ndarray, "N L"], rooms: int
) -> tuple[Float[np.ndarray, "N R R"], Bool[np.ndarray, "N R"]]:
    real = tokens[:, :rooms] != NODE_PAD
    i, j = pair_ends(rooms)
    near = np.zeros((len(tokens), rooms, rooms))
    near[:, i, j] = near[:, j, i] = (tokens[:, rooms:] >= 0) & (tokens[:, rooms:] < NO_EDGE)
    return near * real[:, :, None] * real[:, None, :], real


def _spectra(near: Float[np.ndarray, "N R R"], real: Bool[np.ndarray, "N R"]) -> Float[np.ndarray, "N R"]:
    """Eigenvalues of each graph in the positions of its rooms."""
    degrees = near.sum(2)
    scale = np.where(degrees > 0, 1 / np.sqrt(np.maximum(degrees, 1)), 0.0)
    diagonal = np.where(real, (degrees > 0) * 1.0, 10.0)  # eigenvalues of empty slots are the largest
    laplacian = -near * scale[:, :, None] * scale[:, None, :]
    slots = np.arange(near.shape[1])
    laplacian[:, slots, slots] = diagonal
    values: Float[np.ndarray, "N R"] = np.linalg.eigvalsh(laplacian)
    spectra = np.zeros_like(values)
    spectra[real] = values[slots < real.sum(1, keepdims=True)]
    return np.clip(np.round(spectra, 9), 0.0, 2.0)


def _histograms(
    values: Float[np.ndarray, "N R"], real: Bool[np.ndarray, "N R"], bins: int, largest: float
) -> Float[np.ndarray, "N K"]:
    """Histogram of the values of each row with `bins` bins from 0 to `largest`."""
    index = np.minimum((values / largest * bins).round(9).astype(int), bins - 1)
    rows = np.broadcast_to(np.arange(len(values))[:, None], values.shape)
    counts = np.bincount((rows * bins + index)[real], minlength=len(values) * bins).reshape(-1, bins)
    shares: Float[np.ndarray, "N K"] = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    return shares


@dataclass(frozen=True)
class Archetypes:
    """Distinct archetypes (multisets of room types) of a set of diagrams.

    Attributes:
        counts: Rooms of each type, one archetype per row.
        times: Number of diagrams of each archetype.
    """

    counts: Int[np.ndarray, "A 13"]
    times: Int[np.ndarray, " A"]

    @classmethod
    def of(cls, tokens: Int[np.ndarray, "N L"], rooms: int) -> Archetypes:
        """Count archetypes; invalid type tokens are ignored."""
        counts = (tokens[:, :rooms, None] == np.arange(NODE_MASK)).sum(1)
        distinct, times = np.unique(counts, axis=0, return_counts=True)
        return cls(distinct, times)

    def metrics(self, reference: Archetypes) -> dict[str, float]:
        """Return the number of archetypes, their coverage of the reference, and their diversity.

        `archetype_coverage` counts each archetype of the reference once, `archetype_coverage_weighted` by frequency.
        `diversity` is the probability that two diagrams of the set have different archetypes.
        """
        ours = {row.tobytes() for row in self.counts}
        covered = np.array([row.tobytes() in ours for row in reference.counts], bool)
        total = int(self.times.sum())
        equal = float((self.times * (self.times - 1)).sum()) / max(total * (total - 1), 1)
        return {
            "archetypes": float(len(self.times)),
            "archetype_coverage": float(covered.mean()),
            "archetype_coverage_weighted": float(reference.times[covered].sum() / reference.times.sum()),
            "diversity": 1 - equal,
        }
