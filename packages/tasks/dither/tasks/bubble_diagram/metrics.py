"""Metrics of samples (graphs, doors and areas), with a noise floor: the score of an equal number of real plans.

Divergences are Jensen-Shannon divergences in nats (0 to ln 2); variations are total variation
distances (0 to 1).
Letters: N diagrams, R room slots, L tokens, K bins.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cached_property
from math import log, prod
from typing import Final

import numpy as np
import scipy  # imports its parts on first use
from jaxtyping import Bool, Float, Int, UInt

from .isomorphism import PlanIndex, is_first_occurrence, plan_keys, room_hashes
from .plans import RESIDENT, LazyPlans, Plans, PlanSplits, real_edges, split_fields
from .relations import pair_ends
from .validity import is_reachable, validity_levels
from .vocabulary import AREA_MASK, DOOR, EDGE_PAD, IDS, NO_EDGE, NODE_MASK, NODE_PAD, door_ends

__all__ = [
    "Archetypes",
    "Frequencies",
    "Reference",
    "Topology",
    "divergence",
    "field_metrics",
    "field_nats",
    "mmd",
    "shuffled",
    "variation",
]

TYPES = NODE_MASK
LABELS = NO_EDGE + 1
"""Number of data ids: room types, and relations with "no edge"."""

_PIECE: Final = 1 << 16
"""Diagrams counted at once."""
MOST_TRAIN = 10_000_000
MOST_HELD = 1 << 16
"""Training plans with which samples are compared for novelty, and held-out plans for distances: the
first ones."""


@dataclass(frozen=True)
class Frequencies:
    """Counts over a set of diagrams.

    Attributes:
        rooms: Diagrams by number of rooms, from 0; `types`, `edges`: rooms by type, pairs by
            relation.
        given: Pairs of rooms by type of the first, type of the second, and relation.
        counts: Diagrams by type and number of rooms of that type, from 0.
    """

    rooms: Int[np.ndarray, " R_1"]
    types: Int[np.ndarray, " 13"]
    edges: Int[np.ndarray, " 11"]
    given: Int[np.ndarray, "13 13 11"]
    counts: Int[np.ndarray, "13 R_1"]

    @classmethod
    def of(cls, tokens: Int[np.ndarray, "N L"], rooms: int) -> Frequencies:
        """Count tokens; MASK and invalid ids are ignored."""
        if len(tokens) > _PIECE:  # which bounds the memory
            parts = [
                cls.of(tokens[start : start + _PIECE], rooms)
                for start in range(0, len(tokens), _PIECE)
            ]
            return cls(*(sum(getattr(part, field.name) for part in parts) for field in fields(cls)))
        types = tokens[:, :rooms].astype(np.int64)
        edges = tokens[:, rooms:].astype(np.int64)
        real, (i, j) = types != NODE_PAD, pair_ends(rooms)
        edges = np.where(real_edges(real), edges, EDGE_PAD)
        return cls(
            np.bincount(real.sum(1), minlength=rooms + 1),
            _counts((TYPES,), types),
            _counts((LABELS,), edges),
            _counts((TYPES, TYPES, LABELS), types[:, i], types[:, j], edges),
            np.stack(
                [np.bincount((types == kind).sum(1), minlength=rooms + 1) for kind in range(TYPES)]
            ),
        )

    def distances(self, reference: Frequencies) -> dict[str, float]:
        """Return distances to the frequencies of a reference.

        `type`: room types. `type_count`: number of rooms of a type per diagram, mean over types.
        `relation`: relations of pairs of rooms including "no edge". `edge`: relations of related
        pairs. `conditional_edge`: the same for each ordered pair of room types, weighted by its
        frequency in the reference; pairs of types that do not occur here have the largest distance.
        """
        counts = {
            "type": (self.types, reference.types),
            "type_count": (self.counts, reference.counts),
            "relation": (self.edges, reference.edges),
            "edge": (self.edges[:NO_EDGE], reference.edges[:NO_EDGE]),
            "conditional_edge": (self.given[..., :NO_EDGE], reference.given[..., :NO_EDGE]),
        }
        measures = {"js": divergence, "tv": variation}
        return {
            f"{name}_{short}": measure(*both)
            for name, both in counts.items()
            for short, measure in measures.items()
        }

    def unigram(self) -> tuple[Float[np.ndarray, " 13"], Float[np.ndarray, " 11"]]:
        """Return the probability of each type and each relation with add-one smoothing."""
        types = self.types + 1.0
        edges = self.edges + 1.0
        return types / types.sum(), edges / edges.sum()

    def draw(self, count: int, seed: int) -> Int[np.ndarray, "N L"]:
        """Draw diagrams with independent unigram tokens and the empirical distribution of the number of rooms."""
        random = np.random.default_rng(seed)
        slots = len(self.rooms) - 1
        types, edges = self.unigram()
        real = (
            np.arange(slots)
            < random.choice(slots + 1, count, p=self.rooms / self.rooms.sum())[:, None]
        )
        nodes = np.where(real, random.choice(TYPES, real.shape, p=types), NODE_PAD)
        pairs = real_edges(real)
        return np.concatenate(
            [nodes, np.where(pairs, random.choice(LABELS, pairs.shape, p=edges), EDGE_PAD)], 1
        )


def shuffled(tokens: Int[np.ndarray, "N L"], rooms: int, seed: int) -> Int[np.ndarray, "N L"]:
    """Permute the relations of each pair of slots among the diagrams that have both rooms; types are unchanged."""
    random = np.random.default_rng(seed)
    permuted = tokens.copy()
    for position, real in enumerate(real_edges(tokens[:, :rooms] != NODE_PAD).T, start=rooms):
        permuted[real, position] = random.permutation(tokens[real, position])
    return permuted


def divergence(first: Int[np.ndarray, "*n K"], second: Int[np.ndarray, "*n K"]) -> float:
    """Return the Jensen-Shannon divergence of two counts, in nats (0 to ln 2); NaN if one of them is empty.

    For several rows of counts, the mean weighted by the row sums of the second.
    """
    return _mean(
        first,
        second,
        lambda p, q: np.square(scipy.spatial.distance.jensenshannon(p, q, axis=1)),
        log(2),
    )


def variation(first: Int[np.ndarray, "*n K"], second: Int[np.ndarray, "*n K"]) -> float:
    """Return the total variation distance of two counts, 0 to 1; for several rows the mean as in `divergence`."""
    return _mean(first, second, lambda p, q: np.abs(p - q).sum(1) / 2, 1.0)


_Shares = Float[np.ndarray, "n K"]


def _mean(
    first: Int[np.ndarray, "*n K"],
    second: Int[np.ndarray, "*n K"],
    distance: Callable[[_Shares, _Shares], Float[np.ndarray, " n"]],
    largest: float,
) -> float:
    """Weighted mean over the non-empty rows of the second; `largest` where the row of the first is empty."""
    one = first.reshape(-1, first.shape[-1])
    other = second.reshape(-1, second.shape[-1])
    total = one.sum(-1, keepdims=True)
    weight = other.sum(-1, keepdims=True)
    if not (total.any() and weight.any()):
        return float("nan")
    distances = np.full(len(one), largest)
    rows = np.flatnonzero(total * weight)
    distances[rows] = distance(one[rows] / total[rows], other[rows] / weight[rows])
    return float(np.average(distances, weights=weight[:, 0]))


class Reference:
    """Training, validation and test plans that samples are compared with.

    Distances are measured to the validation plans; a sample is novel if it is isomorphic to no
    training plan. Test plans, evaluated in the same way, give the noise floor. Both are limited to
    plans that meet the constraints on
    samples: those that `met_by` selects.
    """

    def __init__(
        self,
        plans: PlanSplits,
        rooms: int,
        met_by: Callable[[Plans], Bool[np.ndarray, " N"]] | None = None,
    ) -> None:
        self.rooms = rooms
        self._plans = plans
        self._met_by = met_by
        self._floors: dict[int, dict[str, float]] = {}

    @cached_property
    def held(self) -> tuple[Plans, Plans]:
        """The validation and the test plans that samples are compared with."""
        met_by = self._met_by or (lambda part: np.ones(len(part), bool))
        parts = self._plans.valid[:RESIDENT], self._plans.test[:RESIDENT]
        valid, test = (part[np.flatnonzero(met_by(part))[:MOST_HELD]] for part in parts)
        return valid, test

    @cached_property
    def _statistics(self) -> tuple[Frequencies, Topology, Archetypes]:
        tokens = self.held[0].tokens(self.rooms)
        return tuple(kind.of(tokens, self.rooms) for kind in (Frequencies, Topology, Archetypes))  # type: ignore[return-value]

    @cached_property
    def _train_keys(self) -> UInt[np.ndarray, " N"]:
        """Hashes of the training plans, which depend neither on the order of rooms nor on the orientation."""
        train = (
            self._plans.train.stored
            if isinstance(self._plans.train, LazyPlans)
            else self._plans.train
        )
        keys = np.empty(min(len(train), MOST_TRAIN), np.uint64)
        for start in range(0, len(keys), _PIECE):
            tokens = train[start : min(start + _PIECE, len(keys))].tokens(self.rooms)
            keys[start : start + _PIECE] = plan_keys(room_hashes(tokens, self.rooms))
        return keys

    def _in_training(self, samples: Int[np.ndarray, "N L"]) -> Bool[np.ndarray, " N"]:
        """True for samples that are isomorphic to a training plan."""
        keys = PlanIndex(samples, self.rooms).keys
        found = np.zeros(len(samples), bool)
        for start in range(0, len(self._train_keys), _PIECE):
            near = start + np.flatnonzero(np.isin(self._train_keys[start : start + _PIECE], keys))
            rows = np.flatnonzero(~found & np.isin(keys, self._train_keys[near]))
            plans = self._plans.train[near]
            boxes = np.pad(plans.boxes, ((0, 0), (0, self.rooms - plans.boxes.shape[1]), (0, 0)))
            found[rows] = PlanIndex(plans.tokens(self.rooms), self.rooms, boxes).holds(
                samples[rows]
            )
        return found

    def metrics(
        self, samples: Int[np.ndarray, "N L"], boxes: Int[np.ndarray, "N R 4"] | None = None
    ) -> dict[str, float]:
        """Return validity levels, distances of the legal samples to real plans, and uniqueness and novelty.

        See `Frequencies.distances`, `Topology.distances` and `Archetypes.metrics`. `unique` and
        `novel` are the shares of all samples that are legal and isomorphic to no earlier sample, or
        to no training plan; `valid_unique_novel` is the share that is both and reaches level 5.
        `boxes` are those of the rooms, if known.
        """
        levels = validity_levels(samples, self.rooms, boxes=boxes)
        legal = np.flatnonzero(levels.structure.tokens)
        tokens = samples[legal]
        rooms = self.rooms
        first = is_first_occurrence(tokens, rooms)
        novel = ~self._in_training(tokens)
        metrics = levels.rates() | {
            "connected": float(levels.structure.connected.mean()),
            "one_living_room": float(levels.structure.one_living_room.mean()),
            "unique": float(first.sum()) / len(samples),
            "novel": float(novel.sum()) / len(samples),
            "valid_unique_novel": float((first & novel & levels.buildable[legal]).sum())
            / len(samples),
        }
        if len(legal) and len(self.held[0]):
            frequencies, topology, archetypes = self._statistics
            metrics |= Frequencies.of(tokens, rooms).distances(frequencies)
            metrics |= Topology.of(tokens, rooms).distances(topology)
            metrics |= Archetypes.of(tokens, rooms).metrics(archetypes)
        return metrics

    def floor(self, count: int) -> dict[str, float]:
        """Return the metrics of `count` test plans, or of all if there are fewer; empty without test plans."""
        plans = self.held[1][:count]
        if len(plans) and len(plans) not in self._floors:
            self._floors[len(plans)] = self.metrics(plans.tokens(self.rooms), plans.boxes)
        return self._floors.get(len(plans), {})

    def sample_metrics(self, samples: Int[np.ndarray, "N L"]) -> dict[str, float]:
        """Return the metrics of samples and, for each `name`, the noise floor `name_floor`.

        The floor is the score of an equal number of real plans; a model cannot be distinguished
        from the data below it. With few samples it is far from zero. Levels 0 to 4 have no floor,
        because real plans reach them. `floor_plans` is the number of plans behind the floor; with
        fewer plans than samples, the floor is too high. Under constraints `compared_plans` is the
        number of validation plans; without any there are no distances.
        """
        if not len(samples):
            return {}
        metrics = self.metrics(samples)
        floor = self.floor(len(samples))
        no_floor = {f"level_{level}" for level in range(5)} | {
            "unknown",
            "connected",
            "one_living_room",
        }
        floors = {
            f"{name}_floor": value
            for name, value in floor.items()
            if name in metrics.keys() - no_floor
        }
        compared = {} if self._met_by is None else {"compared_plans": float(len(self.held[0]))}
        return (
            metrics
            | floors
            | compared
            | {"floor_plans": float(min(len(samples), len(self.held[1])))}
        )


_CLUSTERING_BINS: Final = 100
_SPECTRAL_BINS: Final = 200
_WIDTHS: Final = {"degree": 1.0, "clustering": 0.1, "spectral": 1.0}
"""Widths sigma of the Gaussian kernel, as in GRAN."""


@dataclass(frozen=True)
class Topology:
    """Histograms of graph statistics of each diagram; each sums to 1.

    These are rooms by number of neighbours, rooms by local clustering coefficient, and eigenvalues
    of the normalised Laplacian, between 0 and 2.
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
        return {
            f"mmd_{name}": mmd(getattr(self, name), getattr(other, name), width)
            for name, width in _WIDTHS.items()
        }


def mmd(first: Float[np.ndarray, "N K"], second: Float[np.ndarray, "M K"], width: float) -> float:
    """Return the squared maximum mean discrepancy of two sets of histograms; NaN if one of them is empty."""
    if not (len(first) and len(second)):
        return float("nan")
    # Equal histograms are merged into one with a weight, which shortens the sums over pairs without
    # changing them.
    distinct, index = np.unique(np.concatenate([first, second]), axis=0, return_inverse=True)
    index = index.reshape(-1)
    weight = np.bincount(index[: len(first)], minlength=len(distinct)) / len(first)
    weight -= np.bincount(index[len(first) :], minlength=len(distinct)) / len(second)
    points = distinct[weight != 0]
    weight = weight[weight != 0]
    variation = scipy.spatial.distance.cdist(points, points, "cityblock")
    variation /= 2  # in place: there are as many numbers as pairs of distinct histograms
    variation **= 2
    variation /= -2 * width**2
    return float(weight @ np.exp(variation, out=variation) @ weight)


def _spectra(
    near: Float[np.ndarray, "N R R"], real: Bool[np.ndarray, "N R"]
) -> Float[np.ndarray, "N R"]:
    """Eigenvalues of each graph in the positions of its rooms."""
    degrees = near.sum(2)
    scale = np.where(degrees > 0, 1 / np.sqrt(np.maximum(degrees, 1)), 0.0)
    diagonal = np.where(
        real, (degrees > 0) * 1.0, 10.0
    )  # eigenvalues of empty slots are the largest
    laplacian = -near * scale[:, :, None] * scale[:, None, :]
    slots = np.arange(near.shape[1])
    laplacian[:, slots, slots] = diagonal
    values: Float[np.ndarray, "N R"] = np.linalg.eigvalsh(laplacian)
    spectra = np.zeros_like(values)
    spectra[real] = values[slots < real.sum(1, keepdims=True)]
    return np.clip(np.round(spectra, 9), 0.0, 2.0)


def _histograms(
    values: Float[np.ndarray, "N R"],
    real: Bool[np.ndarray, "N R"],
    bins: int,
    largest: float,
) -> Float[np.ndarray, "N K"]:
    """Histogram of the values of each row with `bins` bins from 0 to `largest`."""
    index = np.minimum((values / largest * bins).round(9).astype(int), bins - 1)
    rows = np.broadcast_to(np.arange(len(values))[:, None], values.shape)
    counts = np.bincount((rows * bins + index)[real], minlength=len(values) * bins).reshape(
        -1, bins
    )
    return np.asarray(counts / np.maximum(counts.sum(1, keepdims=True), 1))


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

        `archetype_coverage` counts each archetype of the reference once,
        `archetype_coverage_weighted` by frequency. `diversity` is the probability that two diagrams
        of the set have different archetypes.
        """
        total = self.times.total()
        covered = self.times.keys() & reference.times.keys()
        equal = sum(times * (times - 1) for times in self.times.values()) / max(
            total * (total - 1), 1
        )
        return {
            "archetypes": float(len(self.times)),
            "archetype_coverage": len(covered) / len(reference.times),
            "archetype_coverage_weighted": sum(reference.times[one] for one in covered)
            / reference.times.total(),
            "diversity": 1 - equal,
        }


def field_metrics(
    tokens: Int[np.ndarray, "N L"], reference: Int[np.ndarray, "M L"], rooms: int
) -> dict[str, float]:
    """Return the share of samples with all rooms reachable by doors, and distances to a reference.

    `door_js` and `area_js` are Jensen-Shannon divergences in nats of doors given the types of both
    sides, and of areas given the type of the room, weighted by their frequency in the reference.
    """
    if not (len(tokens) and len(reference)):
        return {}
    fields = split_fields(tokens, rooms)
    metrics = dict[str, float]()
    if fields.doors is not None:
        metrics["reachable"] = float(is_reachable(tokens, rooms).mean())
        metrics["door_js"] = divergence(_door_counts(tokens, rooms), _door_counts(reference, rooms))
    if fields.areas is not None:
        both = fields, split_fields(reference, rooms)
        metrics["area_js"] = divergence(
            *(_counts((NODE_MASK, AREA_MASK), one.types, one.areas) for one in both)
        )
    return metrics


def _door_counts(tokens: Int[np.ndarray, "N L"], rooms: int) -> Int[np.ndarray, "T T 2"]:
    """Count pairs of rooms, and rooms and the outside, by both types in ascending order, without and with a door."""
    types, _, doors, _ = split_fields(tokens, rooms)
    i, j = np.array(door_ends(rooms)).T
    sides = np.pad(types.astype(np.int64), ((0, 0), (0, 1)), constant_values=NODE_MASK)
    ends = np.minimum(sides[:, i], sides[:, j]), np.maximum(sides[:, i], sides[:, j])
    return _counts((NODE_MASK, NODE_MASK + 1, DOOR + 1), *ends, doors)


def _counts(shape: tuple[int, ...], *ids: Int[np.ndarray, "*n"]) -> Int[np.ndarray, "*T"]:
    """Count combinations of ids within a shape; others are ignored."""
    real = np.all(
        [(part >= 0) & (part < size) for part, size in zip(ids, shape, strict=True)], axis=0
    )
    index = np.ravel_multi_index(tuple(part[real] for part in ids), shape)
    return np.bincount(index, minlength=prod(shape)).reshape(shape)


def field_nats(
    train: Int[np.ndarray, "N L"], held: Int[np.ndarray, "M L"], rooms: int
) -> tuple[dict[str, float], dict[str, float], dict[str, float]]:
    """Return nats of each field per held-out diagram, uniform and unigram (add-one), and its number of tokens."""
    uniform = dict[str, float]()
    unigram = dict[str, float]()
    count = dict[str, float]()
    for (name, size), *parts in zip(
        IDS.items(), split_fields(train, rooms), split_fields(held, rooms), strict=True
    ):
        if parts[0] is not None:
            fitted, counts = (
                np.array([np.count_nonzero(part == i) for i in range(size)]) for part in parts
            )
            shares = (fitted + 1) / (fitted + 1).sum()
            graphs = max(len(held), 1)
            count[name] = float(counts.sum()) / graphs
            uniform[name] = count[name] * log(size)
            unigram[name] = float(-(counts * np.log(shares)).sum()) / graphs
    return uniform, unigram, count
