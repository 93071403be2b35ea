"""Frequencies of room types and relations, unigram baselines, and distances between two sets of diagrams.

Divergences are Jensen-Shannon divergences in nats (0 to ln 2); variations are total variation distances (0 to 1).

Letters: N diagrams, R room slots, L tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import log

import numpy as np
from jaxtyping import Float, Int
from scipy.special import rel_entr

from ..plans import real_edges
from ..relations import pair_ends
from ..vocabulary import EDGE_PAD, NO_EDGE, NODE_MASK, NODE_PAD

__all__ = ["Frequencies", "divergence", "shuffled", "variation"]

TYPES, LABELS = NODE_MASK, NO_EDGE + 1
"""Number of data ids: room types, and relations with "no edge"."""


@dataclass(frozen=True)
class Frequencies:
    """Counts over a set of diagrams.

    Attributes:
        rooms: Diagrams by number of rooms, from 0; `types`, `edges`: rooms by type, pairs by relation.
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
        types, edges = tokens[:, :rooms].astype(np.int64), tokens[:, rooms:].astype(np.int64)
        real = types != NODE_PAD
        known = (types >= 0) & (types < TYPES)
        paired = real_edges(real) & (edges >= 0) & (edges < LABELS)
        i, j = pair_ends(rooms)
        both = paired & known[:, i] & known[:, j]
        given = ((types[:, i] * TYPES + types[:, j]) * LABELS + edges)[both]
        return cls(
            np.bincount(real.sum(1), minlength=rooms + 1),
            np.bincount(types[known], minlength=TYPES),
            np.bincount(edges[paired], minlength=LABELS),
            np.bincount(given, minlength=TYPES * TYPES * LABELS).reshape(TYPES, TYPES, LABELS),
            np.stack([np.bincount((types == kind).sum(1), minlength=rooms + 1) for kind in range(TYPES)]),
        )

    def distances(self, reference: Frequencies) -> dict[str, float]:
        """Return distances to the frequencies of a reference.

        `type`: room types. `type_count`: number of rooms of a type per diagram, mean over types. `relation`: relations
        of pairs of rooms including "no edge". `edge`: relations of related pairs. `conditional_edge`: the same for each
        ordered pair of room types, weighted by its frequency in the reference; pairs of types that do not occur here
        have the largest distance.
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
            f"{name}_{short}": measure(*both) for name, both in counts.items() for short, measure in measures.items()
        }

    def unigram(self) -> tuple[Float[np.ndarray, " 13"], Float[np.ndarray, " 11"]]:
        """Return the probability of each type and each relation with add-one smoothing."""
        types, edges = self.types + 1.0, self.edges + 1.0
        return types / types.sum(), edges / edges.sum()

    def unigram_nats(self, held: Frequencies) -> dict[str, float]:
        """Nats per graph of held-out diagrams under the unigram distribution: nodes and edges."""
        types, edges = self.unigram()
        return held._per_graph(-(held.types * np.log(types)).sum(), -(held.edges * np.log(edges)).sum())

    def uniform_nats(self) -> dict[str, float]:
        """Nats per graph of these diagrams under a uniform distribution: nodes and edges."""
        return self._per_graph(float(self.types.sum()) * log(TYPES), float(self.edges.sum()) * log(LABELS))

    def tokens_per_graph(self) -> dict[str, float]:
        """Return the mean number of nodes and edges."""
        return self._per_graph(self.types.sum(), self.edges.sum())

    def _per_graph(self, nodes: float, edges: float) -> dict[str, float]:
        graphs = max(int(self.rooms.sum()), 1)
        return {"nodes": float(nodes) / graphs, "edges": float(edges) / graphs}

    def draw(self, count: int, seed: int) -> Int[np.ndarray, "N L"]:
        """Draw diagrams with independent unigram tokens and the empirical distribution of the number of rooms."""
        random = np.random.default_rng(seed)
        slots = len(self.rooms) - 1
        types, edges = self.unigram()
        real = np.arange(slots) < random.choice(slots + 1, count, p=self.rooms / self.rooms.sum())[:, None]
        nodes = np.where(real, random.choice(TYPES, real.shape, p=types), NODE_PAD)
        pairs = real_edges(real)
        return np.concatenate([nodes, np.where(pairs, random.choice(LABELS, pairs.shape, p=edges), EDGE_PAD)], 1)


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

    def jensen_shannon(p: _Shares, q: _Shares) -> _Shares:
        terms: _Shares = (rel_entr(p, (p + q) / 2) + rel_entr(q, (p + q) / 2)) / 2
        return terms

    return _mean(first, second, jensen_shannon, log(2))


def variation(first: Int[np.ndarray, "*n K"], second: Int[np.ndarray, "*n K"]) -> float:
    """Return the total variation distance of two counts, 0 to 1; for several rows the mean as in `divergence`."""
    return _mean(first, second, lambda p, q: np.abs(p - q) / 2, 1.0)


_Shares = Float[np.ndarray, "n K"]


def _mean(
    first: Int[np.ndarray, "*n K"],
    second: Int[np.ndarray, "*n K"],
    terms: Callable[[_Shares, _Shares], _Shares],
    largest: float,
) -> float:
    """Weighted mean over the non-empty rows of the second; `largest` where the row of the first is empty."""
    one, other = first.reshape(-1, first.shape[-1]), second.reshape(-1, second.shape[-1])
    total, weight = one.sum(-1), other.sum(-1)
    if not (total.any() and weight.any()):
        return float("nan")
    rows = weight > 0
    p, q = one[rows] / np.maximum(total[rows], 1)[:, None], other[rows] / weight[rows][:, None]
    return float(np.average(np.where(total[rows] > 0, terms(p, q).sum(-1), largest), weights=weight[rows]))
