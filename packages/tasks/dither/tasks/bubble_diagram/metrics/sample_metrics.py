"""Metrics of samples against real plans, with a noise floor: the score of an equal number of real plans.

Letters: N samples, L tokens, R room slots, K bins, A archetypes.
"""

from __future__ import annotations

from collections import Counter
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

__all__ = ["Archetypes", "Reference", "Topology", "mmd"]


class Reference:
    """Training, validation and test plans that samples are compared with.

    Distances are measured to the validation plans; a sample is novel if it is isomorphic to no training plan. Test
    plans, evaluated in the same way, give the noise floor.
    """

    def __init__(self, plans: PlanSplits, rooms: int) -> None:
        self.rooms = rooms
        self._plans = plans
        self._floors: dict[int, dict[str, float]] = {}

    @cached_property
    def _valid(self) -> tuple[Frequencies, Topology, Archetypes]:
        tokens = self._plans.valid.tokens(self.rooms)
        return tuple(kind.of(tokens, self.rooms) for kind in (Frequencies, Topology, Archetypes))  # type: ignore[return-value]

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
        plans = self._plans.test[:count]
        if len(plans) and len(plans) not in self._floors:
            tokens, boxes = plans.tokens(self.rooms), self._padded_boxes(plans)
            self._floors[len(plans)] = self._metrics(tokens, validity_levels(tokens, self.rooms, boxes=boxes))
        return self._floors.get(len(plans), {})

    def sample_metrics(self, samples: Int[np.ndarray, "N L"]) -> dict[str, float]:
        """Return the metrics of samples and, for each `name`, the noise floor `name_floor`.

        The floor is the score of an equal number of real plans; a model cannot be distinguished from the data below
        it. With few samples it is far from zero. Rates of levels have no floor, because real plans reach all of them.
        `floor_plans` is the number of plans behind the floor; with fewer plans than samples, the floor is too high.
        """
        if not len(samples):
            return {}
        metrics, floor = self.metrics(samples), self.floor(len(samples))
        no_floor = {name for name in metrics if name.startswith("level_")} | {"unknown", "connected", "one_living_room"}
        floors = {f"{name}_floor": value for name, value in floor.items() if name in metrics.keys() - no_floor}
        return metrics | floors | {"floor_plans": float(min(len(samples), len(self._plans.test)))}

    def _metrics(self, samples: Int[np.ndarray, "N L"], levels: Levels) -> dict[str, float]:
        legal = np.flatnonzero(levels.structure.tokens)
        tokens, rooms = samples[legal], self.rooms
        first, novel = is_first_occurrence(tokens, rooms), ~self._train_index.holds(tokens)
        metrics = levels.rates() | {
            "connected": float(levels.structure.connected.mean()),
            "one_living_room": float(levels.structure.one_living_room.mean()),
            "unique": float(first.sum()) / len(samples),
            "novel": float(novel.sum()) / len(samples),
            "valid_unique_novel": float((first & novel & levels.realisable[legal]).sum()) / len(samples),
        }
        if len(legal):
            frequencies, topology, archetypes = self._valid
            metrics |= Frequencies.of(tokens, rooms).distances(frequencies)
            metrics |= Topology.of(tokens, rooms).distances(topology)
            metrics |= Archetypes.of(tokens, rooms).metrics(archetypes)
        return metrics


_CLUSTERING_BINS: Final = 100
_SPECTRAL_BINS: Final = 200
_WIDTHS: Final = {"degree": 1.0, "clustering": 0.1, "spectral": 1.0}
"""Widths sigma of the Gaussian kernel, as in GRAN."""


@dataclass(frozen=True)
class Topology:
    """Histograms of graph statistics of each diagram; each sums to 1.

    These are rooms by number of neighbours, rooms by local clustering coefficient, and eigenvalues of the normalised
    Laplacian, between 0 and 2.
    """

    degree: Float[np.ndarray, "N K"]
    clustering: Float[np.ndarray, "N K"]
    spectral: Float[np.ndarray, "N K"]

    @classmethod
    def of(cls, tokens: Int[np.ndarray, "N L"], rooms: int) -> Topology:
        """Compute the histograms of non-empty diagrams with `rooms` room slots."""
        real, (i, j) = tokens[:, :rooms] != NODE_PAD, pair_ends(rooms)
        near = np.zeros((len(tokens), rooms, rooms))
        near[:, i, j] = near[:, j, i] = (tokens[:, rooms:] >= 0) & (tokens[:, rooms:] < NO_EDGE)
        near *= real[:, :, None] & real[:, None]
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
    """Number of diagrams by archetype, that is by the number of rooms of each type."""

    times: Counter[bytes]

    @classmethod
    def of(cls, tokens: Int[np.ndarray, "N L"], rooms: int) -> Archetypes:
        """Count archetypes; invalid type tokens are ignored."""
        counts = (tokens[:, :rooms, None] == np.arange(NODE_MASK)).sum(1, dtype=np.int16)
        return cls(Counter(row.tobytes() for row in counts))

    def metrics(self, reference: Archetypes) -> dict[str, float]:
        """Return the number of archetypes, their coverage of the reference, and their diversity.

        `archetype_coverage` counts each archetype of the reference once, `archetype_coverage_weighted` by frequency.
        `diversity` is the probability that two diagrams of the set have different archetypes.
        """
        total, covered = self.times.total(), self.times.keys() & reference.times.keys()
        equal = sum(times * (times - 1) for times in self.times.values()) / max(total * (total - 1), 1)
        return {
            "archetypes": float(len(self.times)),
            "archetype_coverage": len(covered) / len(reference.times),
            "archetype_coverage_weighted": sum(reference.times[one] for one in covered) / reference.times.total(),
            "diversity": 1 - equal,
        }
