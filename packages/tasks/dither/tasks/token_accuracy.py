"""How often the likeliest id is the true one, by how much of the sample is lost.

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
"""Equal parts of the noise 1 - alpha, which is the share of tokens that an absorbing process has masked."""


class Accuracy:
    """Counts tokens in doubt, and those of them that the likeliest id gets right, by noise and for each field apart."""

    def __init__(self, space: TokenSpace) -> None:
        self._space = space
        self._asked = {field.name: np.zeros(_BINS, np.int64) for field in space.fields}
        self._right = {field.name: np.zeros(_BINS, np.int64) for field in space.fields}

    def update(self, noised: Noised, pred: TokenPrediction) -> None:
        """Take in one batch."""
        lost = noised.noise.one_minus_alpha(noised.x0).expand(noised.x0.shape)
        noise = self._space.split((lost * _BINS).long().clamp(0, _BINS - 1))
        wanted = self._space.split(noised.target_mask & noised.valid & ~noised.fixed)
        hits = self._space.split(pred.log_clean().argmax(-1) == noised.x0)
        for name, asked in wanted.items():
            self._asked[name] += torch.bincount(noise[name][asked], minlength=_BINS).cpu().numpy()
            self._right[name] += torch.bincount(noise[name][asked & hits[name]], minlength=_BINS).cpu().numpy()

    def compute(self) -> dict[str, float]:
        """Return `FIELD_accuracy_FROM_TO`, noise in per cent, where something was asked."""
        return {
            f"{name}_accuracy_{100 * place // _BINS}_{100 * (place + 1) // _BINS}": self._right[name][place] / count
            for name, asked in self._asked.items()
            for place, count in enumerate(asked.tolist())
            if count
        }
