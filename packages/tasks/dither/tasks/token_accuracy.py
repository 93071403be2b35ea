"""Accuracy of the most likely token, by noise level.

Letters: B batch, L tokens.
"""

from __future__ import annotations

from typing import Final

import torch
from jaxtyping import Int
from torch import Tensor

from dither.registry.flow.records import Clean, Measured, Noised, TokenPrediction
from dither.registry.flow.spaces import TokenSpace

__all__ = ["Accuracy"]

_BINS: Final = 4
"""Number of bins of the noise 1 - alpha, the share of tokens that an absorbing process masks."""


class Accuracy:
    """Counts target tokens and correct predictions by noise level, for each field of the token space."""

    def __init__(self, space: TokenSpace) -> None:
        self._space = space
        self._counts: dict[str, Int[Tensor, "2 bins"]] = {}
        self._unweighted: bool | None = None

    def update(self, noised: Noised, pred: TokenPrediction) -> None:
        """Add one batch."""
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
            self._unweighted = torch.equal(measured.weights, (~clean.fixed).to(measured.weights.dtype))
        return self._unweighted

    def compute(self) -> dict[str, float]:
        """Return `FIELD_accuracy_FROM_TO` for bins with targets, noise in per cent."""
        return {
            f"{name}_accuracy_{100 * place // _BINS}_{100 * (place + 1) // _BINS}": hits / count
            for name, counts in self._counts.items()
            for place, (count, hits) in enumerate(zip(*counts.tolist(), strict=True))
            if count
        }
