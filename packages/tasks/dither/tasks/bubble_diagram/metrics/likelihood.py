"""Likelihood metrics: nats per graph and per token, and accuracy.

Letters: N diagrams, L tokens.
"""

from __future__ import annotations

from typing import Any

import torch

from dither.registry.flow.protocols import RatioSums
from dither.registry.flow.records import Clean, Measured, Noised
from dither.registry.flow.spaces import TokenSpace

from ...token_accuracy import Accuracy

__all__ = ["GraphMetrics", "nats_metrics"]


class GraphMetrics:
    """Nats per graph (nodes, edges and total) and per token, and accuracy by noise level; independent of batch sizes.

    Uses the weights of the loss. If the loss is a NELBO, the values are upper bounds of the negative log-likelihood.
    """

    def __init__(self, space: TokenSpace) -> None:
        self._space = space
        self._nats = dict.fromkeys((field.name for field in space.fields), 0.0)
        self._weight, self._tokens = dict(self._nats), dict(self._nats)
        self._graphs = 0
        self._accuracy = Accuracy(space)

    def update(self, clean: Clean, noised: Noised, pred: Any, measured: Measured) -> None:
        """Add one batch."""
        values, weights = measured.values.double(), measured.weights.double()
        for sums, positions in (
            (self._nats, values * weights),
            (self._weight, weights),
            (self._tokens, (~clean.fixed).double()),
        ):
            for name, part in self._space.split(positions).items():
                sums[name] += float(part.sum())
        self._graphs += len(clean.valid)
        if pred is not None:
            self._accuracy.update(noised, pred)

    def per_sample(self, clean: Clean, measured: Measured) -> dict[str, RatioSums]:
        """Return numerators and denominators per graph; empty if the loss weights its positions."""
        if not torch.equal(measured.weights, (~clean.fixed).to(measured.weights.dtype)):
            return {}
        nats = (measured.values.double() * measured.weights.double()).sum(1)
        tokens = measured.weights.double().sum(1)
        return {"nats_per_graph": (nats, torch.ones_like(nats)), "nats_per_token": (nats, tokens)}

    def compute(self) -> dict[str, float]:
        """Return the metrics; NaN without data."""
        if not self._graphs:
            return nats_metrics(dict.fromkeys(self._nats, float("nan")), self._tokens)
        tokens = {name: count / self._graphs for name, count in self._tokens.items()}
        nats = {
            name: total / self._weight[name] * tokens[name] if self._weight[name] else 0.0
            for name, total in self._nats.items()
        }
        return nats_metrics(nats, tokens) | self._accuracy.compute()


def nats_metrics(nats: dict[str, float], tokens: dict[str, float]) -> dict[str, float]:
    """Return nats per graph by field, their sum, and nats per token."""
    total, count = sum(nats.values()), sum(tokens.values())
    return {
        "nats_per_graph": total,
        **{f"{name}_nats_per_graph": value for name, value in nats.items()},
        "nats_per_token": total / count if count else float("nan"),
    }
