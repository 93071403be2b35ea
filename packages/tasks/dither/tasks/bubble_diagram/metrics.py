"""Metrics of samples (graphs, doors and areas), each with a noise floor.

The noise floor is the score of an equal number of real plans. Divergences are Jensen-Shannon
divergences in nats (0 to ln 2); variations are total variation distances (0 to 1).
Letters: N diagrams, R room slots, L tokens, K bins.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import log, prod

import numpy as np
from jaxtyping import Bool, Float, Int, UInt
from numpy import ndarray

from dither.registry.contracts.spaces import Field

from .arrays import BoxBatch, Rows, Tokens
from .isomorphism import PlanIndex, is_first_occurrence, plan_keys, room_hashes
from .plans import Plans, PlanSplits, blocks, real_edges, split_fields
from .relations import pair_ends, pair_matrix
from .validity import is_reachable, validity_levels
from .vocabulary import (
    AREA_MASK,
    DOOR,
    EDGE_PAD,
    NO_EDGE,
    NODE_MASK,
    NODE_PAD,
    door_ends,
)

TYPES = NODE_MASK
"""Number of room types."""

LABELS = NO_EDGE + 1
"""Number of relations with "no edge"."""

MOST_HELD = 1 << 16
"""Held-out plans to which distances are measured: the first ones."""

_Counts = Int[ndarray, "*n K"]
_Shares = Float[ndarray, "n K"]
_Histograms = Float[ndarray, "N K"]
_PerRoom = Float[ndarray, "N R"]


class Reference:
    """Training, validation and test plans that samples are compared with.

    Distances are measured to the validation plans; a sample is novel if it is isomorphic to no
    training plan. Test plans, evaluated in the same way, give the noise floor. Both are limited to
    plans that meet the constraints on samples: those that `met_by` selects.
    """

    def __init__(
        self,
        plans: PlanSplits,
        rooms: int,
        met_by: Callable[[Plans], Rows] | None = None,
    ) -> None:
        self.rooms = rooms
        self._plans = plans
        self._met_by = met_by
        self._floors: dict[int, dict[str, float]] = {}

    @cached_property
    def held(self) -> tuple[Plans, Plans]:
        """The validation and the test plans that samples are compared with."""
        return self._compared(self._plans.valid), self._compared(self._plans.test)

    def _compared(self, plans: Plans) -> Plans:
        if self._met_by is None:
            return plans[:MOST_HELD]
        return plans[np.flatnonzero(self._met_by(plans))[:MOST_HELD]]

    @cached_property
    def _statistics(self) -> tuple[Frequencies, Topology, Archetypes]:
        tokens = self.held[0].tokens(self.rooms)
        return (
            Frequencies.of(tokens, self.rooms),
            Topology.of(tokens, self.rooms),
            Archetypes.of(tokens, self.rooms),
        )

    @cached_property
    def _train_keys(self) -> UInt[ndarray, " N"]:
        """Hashes of the training plans, which depend neither on the order of rooms nor on turns."""
        train = self._plans.train
        keys = np.empty(len(train), np.uint64)
        for rows in blocks(len(train)):
            keys[rows] = plan_keys(
                room_hashes(train[rows].tokens(self.rooms), self.rooms)
            )
        return keys

    def _in_training(self, samples: Tokens) -> Rows:
        """True for samples that are isomorphic to a training plan."""
        # Few training plans share a key with a sample: only these are compared exactly.
        keys = plan_keys(room_hashes(samples, self.rooms))
        (rows,) = np.nonzero(np.isin(self._train_keys, keys))
        plans = self._plans.train[rows]
        slots = plans.boxes.shape[1]
        # The plans may have fewer slots than the task.
        missing = self.rooms - slots
        boxes = np.pad(plans.boxes, ((0, 0), (0, missing), (0, 0)))
        index = PlanIndex(plans.tokens(self.rooms), self.rooms, boxes)
        return index.holds(samples)

    def metrics(
        self, samples: Tokens, boxes: BoxBatch | None = None, *, search: bool = True
    ) -> dict[str, float]:
        """Return validity levels, distances of the legal samples to real plans, and novelty.

        See `Frequencies.distances`, `Topology.distances` and `Archetypes.metrics`. `unique` and
        `novel` are the shares of all samples that are legal and isomorphic to no earlier sample, or
        to no training plan; `valid_unique_novel` is the share that is both and reaches level 5.
        `boxes` are those of the rooms, if known, and without `search` the only ones.
        """
        rooms = self.rooms
        levels = validity_levels(samples, rooms, boxes=boxes, search=search)
        legal = np.flatnonzero(levels.structure.tokens)
        tokens = samples[legal]
        # Only legal samples are diagrams, which can be compared.
        first = is_first_occurrence(tokens, rooms)
        novel = ~self._in_training(tokens)
        best = first & novel & levels.buildable[legal]

        metrics = levels.rates()
        metrics["connected"] = float(levels.structure.connected.mean())
        metrics["one_living_room"] = float(levels.structure.one_living_room.mean())
        for name, mask in (
            ("unique", first),
            ("novel", novel),
            ("valid_unique_novel", best),
        ):
            metrics[name] = float(mask.sum()) / len(samples)

        if len(legal) and len(self.held[0]):
            frequencies, topology, archetypes = self._statistics
            metrics |= Frequencies.of(tokens, rooms).distances(frequencies)
            metrics |= Topology.of(tokens, rooms).distances(topology)
            metrics |= Archetypes.of(tokens, rooms).metrics(archetypes)
        return metrics

    def floor(self, count: int) -> dict[str, float]:
        """Return the metrics of the first `count` test plans, or of all; {} without any."""
        plans = self.held[1][:count]
        if not len(plans):
            return {}
        # All evaluations of a run have as many samples.
        if len(plans) not in self._floors:
            self._floors[len(plans)] = self.metrics(
                plans.tokens(self.rooms), plans.boxes
            )
        return self._floors[len(plans)]

    def sample_metrics(
        self, samples: Tokens, boxes: BoxBatch | None = None
    ) -> dict[str, float]:
        """Return the metrics of samples and, for each `name`, the noise floor `name_floor`.

        The floor is the score of an equal number of real plans; a model cannot be distinguished
        from the data below it. With few samples it is far from zero. Levels 0 to 4 have no floor,
        because real plans reach them. `floor_plans` is the number of plans behind the floor; with
        fewer plans than samples, the floor is too high. Under constraints `compared_plans` is the
        number of validation plans; without any there are no distances. Levels are those of
        `boxes`, if a model drew them.
        """
        if not len(samples):
            return {}
        metrics = self.metrics(samples, boxes, search=boxes is None)
        no_floor = {f"level_{level}" for level in range(5)}
        no_floor |= {"unknown", "connected", "one_living_room"}
        compared = metrics.keys() - no_floor
        for name, value in self.floor(len(samples)).items():
            if name in compared:
                metrics[f"{name}_floor"] = value
        if self._met_by is not None:
            metrics["compared_plans"] = float(len(self.held[0]))
        metrics["floor_plans"] = float(min(len(samples), len(self.held[1])))
        return metrics


@dataclass(frozen=True)
class Frequencies:
    """Counts over a set of diagrams.

    Attributes:
        rooms: Diagrams by number of rooms, from 0; `types`, `edges`: rooms by type, pairs by
            relation.
        given: Pairs of rooms by type of the first, type of the second, and relation.
        counts: Diagrams by type and number of rooms of that type, from 0.
    """

    rooms: Int[ndarray, " R_1"]
    types: Int[ndarray, " 13"]
    edges: Int[ndarray, " 11"]
    given: Int[ndarray, "13 13 11"]
    counts: Int[ndarray, "13 R_1"]

    @classmethod
    def of(cls, tokens: Tokens, rooms: int) -> Frequencies:
        """Count tokens; MASK and invalid ids are ignored."""
        parts = [cls._of_block(tokens[rows], rooms) for rows in blocks(len(tokens))]
        return cls(*(np.sum(counts, axis=0) for counts in zip(*parts, strict=True)))

    @staticmethod
    def _of_block(tokens: Tokens, rooms: int) -> list[Int[ndarray, "*n"]]:
        types = tokens[:, :rooms].astype(np.int64)
        edges = tokens[:, rooms:].astype(np.int64)
        real = types != NODE_PAD
        edges = np.where(real_edges(real), edges, EDGE_PAD)
        i, j = pair_ends(rooms)
        type_counts = []
        for kind in range(TYPES):
            of_type = (types == kind).sum(1)
            type_counts.append(np.bincount(of_type, minlength=rooms + 1))

        # In the order of the attributes.
        return [
            np.bincount(real.sum(1), minlength=rooms + 1),
            _counts((TYPES,), types),
            _counts((LABELS,), edges),
            _counts((TYPES, TYPES, LABELS), types[:, i], types[:, j], edges),
            np.stack(type_counts),
        ]

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
            "conditional_edge": (
                self.given[..., :NO_EDGE],
                reference.given[..., :NO_EDGE],
            ),
        }
        distances = {}
        for name, both in counts.items():
            distances[f"{name}_js"] = divergence(*both)
            distances[f"{name}_tv"] = variation(*both)
        return distances

    def unigram(self) -> tuple[Float[ndarray, " 13"], Float[ndarray, " 11"]]:
        """Return the probability of each type and each relation with add-one smoothing."""
        types = self.types + 1.0
        edges = self.edges + 1.0
        return types / types.sum(), edges / edges.sum()

    def draw(self, count: int, seed: int) -> Tokens:
        """Draw diagrams with independent unigram tokens and the empirical numbers of rooms."""
        random = np.random.default_rng(seed)
        slots = len(self.rooms) - 1
        type_shares, edge_shares = self.unigram()
        shares = self.rooms / self.rooms.sum()
        rooms = random.choice(slots + 1, count, p=shares)
        real = np.arange(slots) < rooms[:, None]
        types = random.choice(TYPES, real.shape, p=type_shares)
        types = np.where(real, types, NODE_PAD)
        pairs = real_edges(real)
        edges = random.choice(LABELS, pairs.shape, p=edge_shares)
        edges = np.where(pairs, edges, EDGE_PAD)
        return np.concatenate([types, edges], 1)


def shuffled(
    tokens: Tokens,
    rooms: int,
    seed: int,
) -> Tokens:
    """Permute the relations of each pair of slots among the diagrams that have both rooms."""
    random = np.random.default_rng(seed)
    # The distribution of each pair of slots stays, the structure within diagrams goes.
    permuted = tokens.copy()
    for position, real in enumerate(
        real_edges(tokens[:, :rooms] != NODE_PAD).T, start=rooms
    ):
        values = tokens[real, position]
        permuted[real, position] = random.permutation(values)
    return permuted


def divergence(first: _Counts, second: _Counts) -> float:
    """Return the Jensen-Shannon divergence of two counts, in nats; NaN if one of them is empty.

    For several rows of counts, the mean weighted by the row sums of the second.
    """
    from scipy.spatial.distance import jensenshannon

    return _mean(
        first, second, lambda p, q: np.square(jensenshannon(p, q, axis=1)), log(2)
    )


def variation(first: _Counts, second: _Counts) -> float:
    """Return the total variation distance of two counts; for rows the mean as in `divergence`."""
    return _mean(first, second, lambda p, q: np.abs(p - q).sum(1) / 2, 1.0)


def _mean(
    first: _Counts,
    second: _Counts,
    distance: Callable[[_Shares, _Shares], Float[ndarray, " n"]],
    largest: float,
) -> float:
    """Weighted mean over the non-empty rows of the second; `largest` where the first is empty."""
    first = first.reshape(-1, first.shape[-1])
    second = second.reshape(-1, second.shape[-1])
    first_sum = first.sum(-1, keepdims=True)
    weight = second.sum(-1, keepdims=True)
    if not (first_sum.any() and weight.any()):
        return float("nan")
    # A row that the first set does not have is as far away as any.
    distances = np.full(len(first), largest)
    rows = np.flatnonzero(first_sum * weight)
    distances[rows] = distance(
        first[rows] / first_sum[rows], second[rows] / weight[rows]
    )
    return float(np.average(distances, weights=weight[:, 0]))


_CLUSTERING_BINS = 100
_SPECTRAL_BINS = 200
_WIDTHS = {"degree": 1.0, "clustering": 0.1, "spectral": 1.0}
"""Widths sigma of the Gaussian kernel, as in GRAN."""


@dataclass(frozen=True)
class Topology:
    """Histograms of graph statistics of each diagram; each sums to 1.

    These are rooms by number of neighbours, rooms by local clustering coefficient, and eigenvalues
    of the normalised Laplacian, between 0 and 2.
    """

    degree: _Histograms
    clustering: _Histograms
    spectral: _Histograms

    @classmethod
    def of(cls, tokens: Tokens, rooms: int) -> Topology:
        """Compute the histograms of non-empty diagrams with `rooms` room slots."""
        real = tokens[:, :rooms] != NODE_PAD
        edges = tokens[:, rooms:]
        related = (edges >= 0) & (edges < NO_EDGE) & real_edges(real)
        near = pair_matrix(related, related, rooms).astype(float)

        degrees = near.sum(2)
        # Closed walks of length three: each triangle of a room is counted in both directions.
        triangles = np.einsum("nij,njk,nki->ni", near, near, near, optimize=True)
        clustering = triangles / np.maximum(degrees * (degrees - 1.0), 1.0)
        spectra = _spectra(near, real)
        return cls(
            degree=_histograms(degrees / rooms, real, rooms, largest=1.0),
            clustering=_histograms(clustering, real, _CLUSTERING_BINS, largest=1.0),
            spectral=_histograms(spectra, real, _SPECTRAL_BINS, largest=2.0),
        )

    def distances(self, other: Topology) -> dict[str, float]:
        """Return the squared maximum mean discrepancy of each statistic."""
        theirs = vars(other)
        return {
            f"mmd_{name}": mmd(histograms, theirs[name], _WIDTHS[name])
            for name, histograms in vars(self).items()
        }


def mmd(
    first: _Histograms,
    second: Float[ndarray, "M K"],
    width: float,
) -> float:
    """Return the squared maximum mean discrepancy of two sets; NaN if one of them is empty."""
    from scipy.spatial.distance import cdist

    count = len(first)
    if not (count and len(second)):
        return float("nan")
    # Equal histograms are merged into one with a weight, which shortens the sums over pairs without
    # changing them.
    distinct, index = np.unique(
        np.concatenate([first, second]), axis=0, return_inverse=True
    )
    index = index.reshape(-1)
    weight = np.bincount(index[:count], minlength=len(distinct)) / count
    weight -= np.bincount(index[count:], minlength=len(distinct)) / len(second)
    points = distinct[weight != 0]
    weight = weight[weight != 0]

    # In place: there are as many numbers as pairs of distinct histograms.
    kernel = cdist(points, points, "cityblock")
    kernel /= 2
    kernel **= 2
    kernel /= -2 * width**2
    return float(weight @ np.exp(kernel, out=kernel) @ weight)


def _spectra(near: Float[ndarray, "N R R"], real: Bool[ndarray, "N R"]) -> _PerRoom:
    """Eigenvalues of each graph in the positions of its rooms."""
    degrees = near.sum(2)
    connected = degrees > 0
    scale = np.where(connected, 1 / np.sqrt(np.maximum(degrees, 1)), 0.0)
    laplacian = -near * scale[:, :, None] * scale[:, None, :]

    # The eigenvalues of empty slots are the largest, so that those of the rooms come first.
    slots = np.arange(near.shape[1])
    laplacian[:, slots, slots] = np.where(real, connected, 10.0)
    values: _PerRoom = np.linalg.eigvalsh(laplacian)
    spectra = np.zeros_like(values)
    spectra[real] = values[slots < real.sum(1, keepdims=True)]

    # Rounded, so that the bin of an eigenvalue does not depend on the order of rooms.
    return np.clip(np.round(spectra, 9), 0.0, 2.0)


def _histograms(
    values: _PerRoom,
    real: Bool[ndarray, "N R"],
    bins: int,
    *,
    largest: float,
) -> _Histograms:
    """Histogram of the values of each row with `bins` bins from 0 to `largest`."""
    index = (values / largest * bins).round(9).astype(int)
    # The largest value belongs to the last bin.
    index = np.minimum(index, bins - 1)
    rows = len(values)
    index += bins * np.arange(rows)[:, None]
    counts = np.bincount(index[real], minlength=rows * bins)
    counts = counts.reshape(rows, bins)
    return counts / np.maximum(counts.sum(1, keepdims=True), 1)


@dataclass(frozen=True)
class Archetypes:
    """Number of diagrams by archetype, that is by the number of rooms of each type."""

    times: Counter[bytes]

    @classmethod
    def of(cls, tokens: Tokens, rooms: int) -> Archetypes:
        """Count archetypes; invalid type tokens are ignored."""
        counts = (tokens[:, :rooms, None] == np.arange(NODE_MASK)).sum(
            1, dtype=np.int16
        )
        return cls(Counter(row.tobytes() for row in counts))

    def metrics(self, reference: Archetypes) -> dict[str, float]:
        """Return the number of archetypes, their coverage of the reference, and their diversity.

        `archetype_coverage` counts each archetype of the reference once,
        `archetype_coverage_weighted` by frequency. `diversity` is the probability that two diagrams
        of the set have different archetypes.
        """
        count = self.times.total()
        equal = sum(times * (times - 1) for times in self.times.values())
        covered = self.times.keys() & reference.times.keys()
        weight = sum(reference.times[archetype] for archetype in covered)
        return {
            "archetypes": float(len(self.times)),
            "archetype_coverage": len(covered) / len(reference.times),
            "archetype_coverage_weighted": weight / reference.times.total(),
            "diversity": 1 - equal / max(count * (count - 1), 1),
        }


def field_metrics(
    tokens: Tokens,
    reference: Int[ndarray, "M L"],
    rooms: int,
) -> dict[str, float]:
    """Return the share of samples with all rooms reachable by doors, and distances to a reference.

    `door_js` and `area_js` are Jensen-Shannon divergences in nats of doors given the types of both
    sides, and of areas given the type of the room, weighted by their frequency in the reference.
    """
    metrics: dict[str, float] = {}
    if not (len(tokens) and len(reference)):
        return metrics
    fields = split_fields(tokens, rooms)
    if fields.doors is not None:
        metrics["reachable"] = float(is_reachable(tokens, rooms).mean())
        metrics["door_js"] = divergence(
            _door_counts(tokens, rooms), _door_counts(reference, rooms)
        )
    if fields.areas is not None:
        theirs = split_fields(reference, rooms)
        shape = (NODE_MASK, AREA_MASK)
        metrics["area_js"] = divergence(
            _counts(shape, fields.types, fields.areas),
            _counts(shape, theirs.types, theirs.areas),
        )
    return metrics


def _door_counts(tokens: Tokens, rooms: int) -> Int[ndarray, "T T 2"]:
    """Count pairs of rooms, and rooms with the outside, by both types and by door."""
    types, _, doors, _ = split_fields(tokens, rooms)
    i, j = np.array(door_ends(rooms)).T
    # The order of two rooms is arbitrary, and the outside has the largest id.
    sides = np.pad(types.astype(np.int64), ((0, 0), (0, 1)), constant_values=NODE_MASK)
    ends = np.sort([sides[:, i], sides[:, j]], axis=0)
    return _counts((NODE_MASK, NODE_MASK + 1, DOOR + 1), *ends, doors)


def _counts(shape: tuple[int, ...], *ids: Int[ndarray, "*n"]) -> Int[ndarray, "*T"]:
    """Count combinations of ids within a shape; others are ignored."""
    real = np.ones(ids[0].shape, bool)
    for part, size in zip(ids, shape, strict=True):
        real &= (part >= 0) & (part < size)
    index = np.ravel_multi_index(tuple(part[real] for part in ids), shape)
    return np.bincount(index, minlength=prod(shape)).reshape(shape)


def field_nats(
    train: Tokens,
    held: Int[ndarray, "M L"],
    fields: Sequence[Field],
) -> tuple[dict[str, float], dict[str, float], dict[str, float]]:
    """Return uniform and unigram nats of each field per held-out diagram, and its tokens.

    The unigram is fitted to the training plans with add-one smoothing.
    """
    uniform: dict[str, float] = {}
    unigram: dict[str, float] = {}
    count: dict[str, float] = {}
    graphs = max(len(held), 1)
    start = 0
    for field in fields:
        name = field.name
        place = slice(start, start + field.length)
        start += field.length
        # MASK follows the ids of data.
        size = field.mask
        assert size is not None
        smoothed = _counts((size,), train[:, place]) + 1
        counts = _counts((size,), held[:, place])
        count[name] = float(counts.sum()) / graphs
        uniform[name] = count[name] * log(size)
        nats = -np.log(smoothed / smoothed.sum())
        unigram[name] = float((counts * nats).sum()) / graphs
    return uniform, unigram, count
