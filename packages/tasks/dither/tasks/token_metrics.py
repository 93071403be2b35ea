"""Nats of a loss, and accuracy of the most likely token by noise level.

Letters: B batch, L tokens.
"""

from __future__ import annotations

from math import exp
from typing import Any, Final

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from dither.registry.contracts.records import Clean, Measured, Noised, TokenPrediction
from dither.registry.contracts.spaces import TokenSpace

__all__ = ["Accuracy", "NatSums"]

_BINS: Final = 4
"""Number of bins of the noise 1 - alpha, the share of tokens that an absorbing process masks."""


class NatSums:
    """Sums of nats, and of the parts of a bound, weighted as the loss; and of the weights of counted tokens."""

    def __init__(self) -> None:
        self._sums: dict[str, Any] = {"": 0.0}  # these become tensors on the device
        self._weight: Any = 0.0

    def update(self, measured: Measured, counted: Bool[Tensor, "B L"] | float = 1.0) -> None:
        weights = measured.weights.double()
        self._weight = self._weight + (weights * counted).sum()
        for name, values in {"": measured.values, **measured.parts}.items():
            self._sums[name] = self._sums.get(name, 0.0) + (values.double() * weights).sum()

    def compute(self, name: str) -> dict[str, float]:
        """Return `NAME` per counted token, its parts as `NAME_PART`, and perplexity; NaN without tokens."""
        weight = float(self._weight)
        nats = {
            part: float(total) / weight if weight else float("nan")
            for part, total in self._sums.items()
        }
        values = {f"{name}_{part}" if part else name: value for part, value in nats.items()}
        return values | {"perplexity": exp(nats[""]) if nats[""] < 700 else float("inf")}


class Accuracy:
    """Counts target tokens and correct predictions by noise level, for each field of the token space."""

    def __init__(self, space: TokenSpace) -> None:
        self._space = space
        self._counts: dict[str, Int[Tensor, "2 bins"]] = {}
        self._unweighted: bool | None = None

    def update(self, noised: Noised, pred: TokenPrediction) -> None:
        level = noised.noise.one_minus_alpha(noised.x0).expand(noised.x0.shape)
        noise = self._space.split((level * _BINS).long().clamp(0, _BINS - 1))
        targets = self._space.split(noised.target_mask & noised.valid & ~noised.fixed)
        hits = self._space.split(pred.log_clean().argmax(-1) == noised.x0)
        for name, mask in targets.items():
            counted = torch.stack((mask, mask & hits[name])).flatten(1).long()
            bins = noise[name].flatten().expand_as(counted)
            counts = counted.new_zeros(2, _BINS).scatter_add_(1, bins, counted)
            self._counts[name] = self._counts.get(name, 0) + counts

    def unweighted(self, clean: Clean, measured: Measured) -> bool:
        """Whether each token has the weight 1; off the CPU, where reading this synchronises, from the first batch."""
        if self._unweighted is None or clean.valid.device.type == "cpu":
            self._unweighted = torch.equal(
                measured.weights, (~clean.fixed).to(measured.weights.dtype)
            )
        return self._unweighted

    def compute(self) -> dict[str, float]:
        """Return `FIELD_accuracy_FROM_TO` for bins with targets, noise in per cent."""
        return {
            f"{name}_accuracy_{100 * place // _BINS}_{100 * (place + 1) // _BINS}": hits / count
            for name, counts in self._counts.items()
            for place, (count, hits) in enumerate(zip(*counts.tolist(), strict=True))
            if count
        }
