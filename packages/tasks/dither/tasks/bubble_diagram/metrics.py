"""How well a model predicts diagrams, and what its samples are like.

Letters: N diagrams, L tokens.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Int

from dither.registry.flow import Clean, Measured, Noised
from dither.registry.spaces import TokenSpace

from .frequencies import Frequencies, divergence
from .structure import fingerprints, structure_of

__all__ = ["GraphMetrics", "nats_figures", "sample_figures"]


class GraphMetrics:
    """Nats per graph, for nodes and edges apart, and per token; exact however a split is cut into batches.

    The loss is weighed as it says itself; where it is a NELBO, these are upper bounds of the true figures.
    """

    def __init__(self, space: TokenSpace) -> None:
        self._space = space
        self._nats = dict.fromkeys((field.name for field in space.fields), 0.0)
        self._weight, self._tokens = dict(self._nats), dict(self._nats)
        self._graphs = 0

    def update(self, clean: Clean, noised: Noised, pred: Any, measured: Measured) -> None:
        """Take in one batch."""
        values, weights = measured.values.double(), measured.weights.double()
        for sums, positions in (
            (self._nats, values * weights),
            (self._weight, weights),
            (self._tokens, (~clean.fixed).double()),
        ):
            for name, part in self._space.split(positions).items():
                sums[name] += float(part.sum())
        self._graphs += len(clean.valid)

    def compute(self) -> dict[str, float]:
        """Return the figures; nan where nothing was measured."""
        if not self._graphs:
            return nats_figures(dict.fromkeys(self._nats, float("nan")), self._tokens)
        tokens = {name: count / self._graphs for name, count in self._tokens.items()}
        nats = {
            name: total / self._weight[name] * tokens[name] if self._weight[name] else 0.0
            for name, total in self._nats.items()
        }
        return nats_figures(nats, tokens)


def nats_figures(nats: dict[str, float], tokens: dict[str, float]) -> dict[str, float]:
    """Name nats per graph by field, and add up."""
    total, count = sum(nats.values()), sum(tokens.values())
    return {
        "nats_per_graph": total,
        **{f"{name}_nats_per_graph": value for name, value in nats.items()},
        "nats_per_token": total / count if count else float("nan"),
    }


def sample_figures(samples: Int[np.ndarray, "N L"], rooms: int, reference: Frequencies) -> dict[str, float]:
    """Return shares of the samples that reach levels 0, 1 and 2, how they differ from a reference set, how many differ.

    `level_0` .. `level_2` are those of `structure`, each on top of the one before. `type_js` and `relation_js` are
    Jensen-Shannon divergences in nats between the frequencies of types and of relations, "no edge" among them; with few
    samples they do not reach zero even for real plans. `unique` is the number of different diagrams, whatever the order
    of their rooms, as a share of all.
    """
    if not len(samples):
        return {}
    found, counted = structure_of(samples, rooms), Frequencies.of(samples, rooms)
    return {
        "level_0": float(found.tokens.mean()),
        "level_1": float(found.programme.mean()),
        "level_2": float(found.order.mean()),
        "connected": float(found.connected.mean()),
        "one_living_room": float(found.one_living_room.mean()),
        "type_js": divergence(counted.types, reference.types),
        "relation_js": divergence(counted.edges, reference.edges),
        "unique": len(np.unique(fingerprints(samples, rooms))) / len(samples),
    }
