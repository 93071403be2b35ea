"""Accuracy of the most likely token, by noise level.

Letters: B batch, L tokens.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import torch

from dither.registry.flow.records import Noised, TokenPrediction
from dither.registry.flow.spaces import TokenSpace

__all__ = ["Accuracy"]

_BINS: Final = 4
"""Number of bins of the noise 1 - alpha, the share of tokens that an absorbing process masks."""


class Accuracy:
    """Counts target tokens and correct predictions by noise level, for each field of the token space."""

    def __init__(self, space: TokenSpace) -> None:
        self._space = space
        self._targets = {field.name: np.zeros(_BINS, np.int64) for field in space.fields}
        self._hits = {field.name: np.zeros(_BINS, np.int64) for field in space.fields}

    def update(self, noised: Noised, pred: TokenPrediction) -> None:
        """Add one batch."""
        level = noised.noise.one_minus_alpha(noised.x0).expand(noised.x0.shape)
        noise = self._space.split((level * _BINS).long().clamp(0, _BINS - 1))
        targets = self._space.split(noised.target_mask & noised.valid & ~noised.fixed)
        hits = self._space.split(pred.log_clean().argmax(-1) == noised.x0)
        for name, mask in targets.items():
            self._targets[name] += torch.bincount(noise[name][mask], minlength=_BINS).cpu().numpy()
            self._hits[name] += torch.bincount(noise[name][mask & hits[name]], minlength=_BINS).cpu().numpy()

    def compute(self) -> dict[str, float]:
        """Return `FIELD_accuracy_FROM_TO` for bins with targets, noise in per cent."""
        return {
            f"{name}_accuracy_{100 * place // _BINS}_{100 * (place + 1) // _BINS}": self._hits[name][place] / count
            for name, counts in self._targets.items()
            for place, count in enumerate(counts.tolist())
            if count
        }
