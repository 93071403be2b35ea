"""How often each type and each relation occurs; the predictors that know nothing else; how far two sets are apart.

Letters: N diagrams, R room slots, L tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log

import numpy as np
from jaxtyping import Float, Int
from scipy.special import rel_entr

from .plans import real_edges
from .vocabulary import EDGE_PAD, NO_EDGE, NODE_MASK, NODE_PAD

__all__ = ["Frequencies", "divergence"]

TYPES, LABELS = NODE_MASK, NO_EDGE + 1
"""Numbers of ids of clean data: types of room, and relations with "no edge"."""


@dataclass(frozen=True)
class Frequencies:
    """Counts over a set of diagrams.

    Attributes:
        rooms: Diagrams by number of rooms, from 0 on.
        types: Rooms by type.
        edges: Pairs of rooms by relation, "no edge" last.
    """

    rooms: Int[np.ndarray, " R_1"]
    types: Int[np.ndarray, " 13"]
    edges: Int[np.ndarray, " 11"]

    @classmethod
    def of(cls, tokens: Int[np.ndarray, "N L"], rooms: int) -> Frequencies:
        """Count; tokens that are no ids of clean data are left out."""
        types, edges = tokens[:, :rooms], tokens[:, rooms:]
        real = types != NODE_PAD
        pairs = edges[real_edges(real)]
        return cls(
            np.bincount(real.sum(1), minlength=rooms + 1),
            np.bincount(types[(types >= 0) & (types < TYPES)], minlength=TYPES),
            np.bincount(pairs[(pairs >= 0) & (pairs < LABELS)], minlength=LABELS),
        )

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


def divergence(first: Int[np.ndarray, " K"], second: Int[np.ndarray, " K"]) -> float:
    """Return the Jensen-Shannon divergence of two counts, in nats (0 to ln 2); nan where one of them is empty."""
    if not (first.sum() and second.sum()):
        return float("nan")
    p, q = first / first.sum(), second / second.sum()
    middle = (p + q) / 2
    return float((rel_entr(p, middle) + rel_entr(q, middle)).sum() / 2)
