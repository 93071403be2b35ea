"""Nats of a loss, and accuracy of the most likely token by noise level.

Letters: B batch, L tokens.
"""

from __future__ import annotations

from math import exp
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from dither.registry.contracts.records import Clean, Measured, Noised, TokenPrediction
from dither.registry.contracts.spaces import TokenSpace

__all__ = ["Accuracy", "NatSums"]

_BINS = 4
"""Number of bins of the noise 1 - alpha, the share of tokens that an absorbing process masks."""


class NatSums:
    """Weighted sums of nats and of the parts of a bound, and of the weights of counted tokens."""

    def __init__(self) -> None:
        # Both become tensors on the device, so that a batch does not wait for it.
        self._sums: dict[str, Any] = {}
        self._weight: Any = 0.0

    def update(
        self, measured: Measured, counted: Bool[Tensor, "B L"] | float = 1.0
    ) -> None:
        # In float64, as a split has millions of terms.
        weights = measured.weights.double()
        self._weight = self._weight + (weights * counted).sum()
        for name, values in {"": measured.values, **measured.parts}.items():
            nats_sum = (values.double() * weights).sum()
            self._sums[name] = self._sums.get(name, 0.0) + nats_sum

    def compute(self, name: str) -> dict[str, float]:
        """Return `NAME`, its parts `NAME_PART` per counted token, and perplexity; NaN if empty."""
        weight = float(self._weight) or float("nan")
        values = {}
        for part, nats_sum in self._sums.items():
            values[f"{name}_{part}" if part else name] = float(nats_sum) / weight
        nats = values.setdefault(name, float("nan"))
        # exp overflows a double at 709.8 nats.
        values["perplexity"] = exp(nats) if nats < 700 else float("inf")
        return values


class Accuracy:
    """Accuracy of the most likely token by noise level, for each field of the token space."""

    def __init__(self, space: TokenSpace) -> None:
        self._space = space
        self._counts: dict[str, Int[Tensor, "2 bins"]] = {}
        self._unweighted: bool | None = None

    def update(self, noised: Noised, pred: TokenPrediction) -> None:
        level = noised.noise.one_minus_alpha(noised.x0)
        # At the noise 1 everything is masked, which belongs to the last bin.
        bins = (level * _BINS).long().clamp(0, _BINS - 1)
        target = noised.target_mask & noised.valid & ~noised.fixed
        hit = pred.log_clean().argmax(-1) == noised.x0

        bins_of = self._space.split(bins.expand(target.shape))
        hits_of = self._space.split(target & hit)
        for name, targets in self._space.split(target).items():
            values = torch.stack((targets, hits_of[name])).flatten(1).long()
            index = bins_of[name].flatten().expand_as(values)
            # Unlike bincount, a scatter into a table of known size does not wait for the device.
            counts = values.new_zeros(2, _BINS)
            counts.scatter_add_(1, index, values)
            previous = self._counts.get(name, 0)
            self._counts[name] = previous + counts

    def unweighted(self, clean: Clean, measured: Measured) -> bool:
        """Whether each token has the weight 1; off the CPU, as of the first batch."""
        # Reading it again would wait for the device.
        if self._unweighted is None or clean.valid.device.type == "cpu":
            ones = (~clean.fixed).to(measured.weights.dtype)
            self._unweighted = torch.equal(measured.weights, ones)
        return self._unweighted

    def compute(self) -> dict[str, float]:
        """Return `FIELD_accuracy_FROM_TO` for bins with targets, noise in per cent."""
        width = 100 // _BINS
        result = {}
        for name, counts in self._counts.items():
            targets, hits = counts.tolist()
            for place in range(_BINS):
                # Without targets the accuracy is undefined.
                if targets[place]:
                    key = f"{name}_accuracy_{width * place}_{width * (place + 1)}"
                    result[key] = hits[place] / targets[place]
        return result
