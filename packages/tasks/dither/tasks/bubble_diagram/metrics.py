"""How well a model predicts diagrams, and what its samples are like.

Letters: N diagrams, L tokens.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from jaxtyping import Int

from dither.registry.flow import Clean, Measured, Noised
from dither.registry.parts import SampleSums
from dither.registry.spaces import TokenSpace

from ..denoising import Accuracy
from .reference import Reference

__all__ = ["GraphMetrics", "nats_figures", "sample_figures"]


class GraphMetrics:
    """Nats per graph, for nodes and edges apart, and per token, and accuracy by noise; exact however a split is cut.

    The loss is weighed as it says itself; where it is a NELBO, these are upper bounds of the true figures.
    """

    def __init__(self, space: TokenSpace) -> None:
        self._space = space
        self._nats = dict.fromkeys((field.name for field in space.fields), 0.0)
        self._weight, self._tokens = dict(self._nats), dict(self._nats)
        self._graphs = 0
        self._accuracy = Accuracy(space)

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
        if pred is not None:
            self._accuracy.update(noised, pred)

    def per_sample(self, clean: Clean, measured: Measured) -> dict[str, SampleSums]:
        """Return what each graph adds to nats and to graphs or tokens; nothing where the loss weighs its positions."""
        if not torch.equal(measured.weights, (~clean.fixed).to(measured.weights.dtype)):
            return {}
        nats = (measured.values.double() * measured.weights.double()).sum(1)
        tokens = measured.weights.double().sum(1)
        return {"nats_per_graph": (nats, torch.ones_like(nats)), "nats_per_token": (nats, tokens)}

    def compute(self) -> dict[str, float]:
        """Return the figures; nan where nothing was measured."""
        if not self._graphs:
            return nats_figures(dict.fromkeys(self._nats, float("nan")), self._tokens)
        tokens = {name: count / self._graphs for name, count in self._tokens.items()}
        nats = {
            name: total / self._weight[name] * tokens[name] if self._weight[name] else 0.0
            for name, total in self._nats.items()
        }
        return nats_figures(nats, tokens) | self._accuracy.compute()


def nats_figures(nats: dict[str, float], tokens: dict[str, float]) -> dict[str, float]:
    """Name nats per graph by field, and add up."""
    total, count = sum(nats.values()), sum(tokens.values())
    return {
        "nats_per_graph": total,
        **{f"{name}_nats_per_graph": value for name, value in nats.items()},
        "nats_per_token": total / count if count else float("nan"),
    }


def sample_figures(samples: Int[np.ndarray, "N L"], reference: Reference) -> dict[str, float]:
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
