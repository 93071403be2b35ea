"""How often each type and each relation occurs; the predictors that know nothing else; how far two sets are apart.

Divergences are Jensen and Shannon's, in nats (0 to ln 2); variations are total variation distances (0 to 1).

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
from ..vocabulary import EDGE_PAD, NO_EDGE, NODE_MASK, NODE_PAD, pairs

__all__ = ["Frequencies", "divergence", "shuffled", "variation"]

TYPES, LABELS = NODE_MASK, NO_EDGE + 1
"""Numbers of ids of clean data: types of room, and relations with "no edge"."""


@dataclass(frozen=True)
class Frequencies:
    """Counts over a set of diagrams.

    Attributes:
        rooms: Diagrams by number of rooms, from 0 on.
        types: Rooms by type.
        edges: Pairs of rooms by relation, "no edge" last.
        given: Pairs of rooms by type of the first, type of the second, and relation.
        counts: Diagrams by type and number of rooms of that type, from 0 on.
    """

    rooms: Int[np.ndarray, " R_1"]
    types: Int[np.ndarray, " 13"]
    edges: Int[np.ndarray, " 11"]
    given: Int[np.ndarray, "13 13 11"]
    counts: Int[np.ndarray, "13 R_1"]

    @classmethod
    def of(cls, tokens: Int[np.ndarray, "N L"], rooms: int) -> Frequencies:
        """Count; tokens that are no ids of clean data are left out."""
        types, edges = tokens[:, :rooms].astype(np.int64), tokens[:, rooms:].astype(np.int64)
        real = types != NODE_PAD
        known = (types >= 0) & (types < TYPES)
        found = real_edges(real) & (edges >= 0) & (edges < LABELS)
        i, j = np.array(pairs(rooms), int).reshape(-1, 2).T
        both = found & known[:, i] & known[:, j]
        given = ((types[:, i] * TYPES + types[:, j]) * LABELS + edges)[both]
        return cls(
            np.bincount(real.sum(1), minlength=rooms + 1),
            np.bincount(types[known], minlength=TYPES),
            np.bincount(edges[found], minlength=LABELS),
            np.bincount(given, minlength=TYPES * TYPES * LABELS).reshape(TYPES, TYPES, LABELS),
            np.stack([np.bincount((types == kind).sum(1), minlength=rooms + 1) for kind in range(TYPES)]),
        )

    def distances(self, reference: Frequencies) -> dict[str, float]:
        """Return how far these frequencies are from others.

        `type`: types of room. `type_count`: how many rooms of a type a diagram has, mean of the types. `relation`:
        relations of pairs of rooms, "no edge" among them. `edge`: relations of the pairs that have one.
        `conditional_edge`: the same for each two types of room, in the order in which they are told, averaged by how
        often the reference has them; what never occurs here counts as wholly different.
        """
        found = {
            "type": (self.types, reference.types),
            "type_count": (self.counts, reference.counts),
            "relation": (self.edges, reference.edges),
            "edge": (self.edges[:NO_EDGE], reference.edges[:NO_EDGE]),
            "conditional_edge": (self.given[..., :NO_EDGE], reference.given[..., :NO_EDGE]),
        }
        measures = {"js": divergence, "tv": variation}
        return {f"{name}_{short}": how(*both) for name, both in found.items() for short, how in measures.items()}

    def unigram(self) -> tuple[Float[np.ndarray, " 13"], Float[np.ndarray, " 11"]]:
        """Return the share of each type and of each relation, one being added to every count."""
        types, edges = self.types + 1.0, self.edges + 1.0
        return types / types.sum(), edges / edges.sum()

    def unigram_nats(self, held: Frequencies) -> dict[str, float]:
        """Nats per graph of other diagrams if each token is predicted by its share here: nodes and edges."""
        types, edges = self.unigram()
        graphs = max(int(held.rooms.sum()), 1)
        return {
            "nodes": float(-(held.types * np.log(types)).sum()) / graphs,
            "edges": float(-(held.edges * np.log(edges)).sum()) / graphs,
        }

    def uniform_nats(self) -> dict[str, float]:
        """Nats per graph of these diagrams if every id is as likely as the others: nodes and edges."""
        graphs = max(int(self.rooms.sum()), 1)
        return {
            "nodes": float(self.types.sum()) * log(TYPES) / graphs,
            "edges": float(self.edges.sum()) * log(LABELS) / graphs,
        }

    def tokens_per_graph(self) -> dict[str, float]:
        """Mean number of nodes and edges."""
        graphs = max(int(self.rooms.sum()), 1)
        return {"nodes": float(self.types.sum()) / graphs, "edges": float(self.edges.sum()) / graphs}

    def draw(self, count: int, seed: int) -> Int[np.ndarray, "N L"]:
        """Draw diagrams whose tokens are independent of each other, with the numbers of rooms of these."""
        random = np.random.default_rng(seed)
        slots = len(self.rooms) - 1
        types, edges = self.unigram()
        real = np.arange(slots) < random.choice(slots + 1, count, p=self.rooms / self.rooms.sum())[:, None]
        nodes = np.where(real, random.choice(TYPES, real.shape, p=types), NODE_PAD)
        pairs = real_edges(real)
        return np.concatenate([nodes, np.where(pairs, random.choice(LABELS, pairs.shape, p=edges), EDGE_PAD)], 1)


def shuffled(tokens: Int[np.ndarray, "N L"], rooms: int, seed: int) -> Int[np.ndarray, "N L"]:
    """Deal the relations of each pair of slots anew among the diagrams that have both; types stay where they are."""
    random = np.random.default_rng(seed)
    dealt = tokens.copy()
    for place, real in enumerate(real_edges(tokens[:, :rooms] != NODE_PAD).T, start=rooms):
        dealt[real, place] = random.permutation(tokens[real, place])
    return dealt


def divergence(first: Int[np.ndarray, "*n K"], second: Int[np.ndarray, "*n K"]) -> float:
    """Return the Jensen-Shannon divergence of two counts, in nats (0 to ln 2); nan where one of them is empty.

    Of several counts the mean, weighted by how much there is in the second.
    """
    return _mean(first, second, _jensen_shannon, log(2))


def variation(first: Int[np.ndarray, "*n K"], second: Int[np.ndarray, "*n K"]) -> float:
    """Return the total variation distance of two counts, 0 to 1; of several the mean, as for `divergence`."""
    return _mean(first, second, lambda p, q: np.abs(p - q).sum(-1) / 2, 1.0)


_Shares = Float[np.ndarray, "n K"]


def _mean(
    first: Int[np.ndarray, "*n K"],
    second: Int[np.ndarray, "*n K"],
    measure: Callable[[_Shares, _Shares], Float[np.ndarray, " n"]],
    most: float,
) -> float:
    """Mean of a distance over the rows of the second that hold something; `most` where the first holds nothing."""
    one, other = first.reshape(-1, first.shape[-1]), second.reshape(-1, second.shape[-1])
    have, weight = one.sum(-1), other.sum(-1)
    if not (have.any() and weight.any()):
        return float("nan")
    rows = weight > 0
    p, q = one[rows] / np.maximum(have[rows], 1)[:, None], other[rows] / weight[rows][:, None]
    return float(np.average(np.where(have[rows] > 0, measure(p, q), most), weights=weight[rows]))


def _jensen_shannon(p: _Shares, q: _Shares) -> Float[np.ndarray, " n"]:
    middle = (p + q) / 2
    found: Float[np.ndarray, " n"] = (rel_entr(p, middle) + rel_entr(q, middle)).sum(-1) / 2
    return found
