"""Classifier-free guidance (Ho and Salimans, 2022): what a model says with a condition and without it, made into one.

    raw = without + weight (with - without)

For features, x_0, eps and velocity are each linear in the score at a given x_t, so this is guidance of the score,
whatever the raw output means. For tokens, raw numbers are log-probabilities up to a constant per position, or log
ratios, and this is guidance of these: p is proportional to with^weight / without^(weight - 1) (Nisonoff et al., 2024;
Schiff et al., 2024).

Letters: B batch, L length, V vocabulary, n some chosen positions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from dither.registry.flow import Clean

from .asking import Guidance
from .later import Later

__all__ = ["GuidedLater", "guided", "untold"]


def guided(told: Float[Tensor, "..."], plain: Float[Tensor, "..."], weight: float) -> Float[Tensor, "..."]:
    """Lead raw output by the difference that a condition makes; an id that either rules out (-inf) stays ruled out."""
    ruled_out = told.isneginf() | plain.isneginf()
    return torch.lerp(plain, told, weight).masked_fill(ruled_out, -torch.inf)


def untold(clean: Clean, guidance: Guidance | None) -> Clean | None:
    """Leave out the condition of guidance; None where that changes nothing: it is not told, or counts once."""
    if guidance is None or guidance.weight == 1 or guidance.condition not in clean.cond:
        return None
    return replace(clean, cond={name: value for name, value in clean.cond.items() if name != guidance.condition})


class GuidedLater:
    """The guided output of a model that was not called yet; a `RawLater`.

    Args:
        told: What the model says with the condition.
        plain: What it says without.
        weight: Of the difference.
    """

    def __init__(self, told: Later, plain: Later, weight: float) -> None:
        self.told, self.plain, self.weight = told, plain, weight
        self.state, self.by_rows = told.state, told.by_rows

    def call(self) -> None:
        """Call the model now, both times, if that was not done."""
        self.told.call()
        self.plain.call()

    def whole(self) -> Float[Tensor, "B L V"]:
        """Return the output at every position."""
        return guided(self.told.whole(), self.plain.whole(), self.weight)

    def rows(self, where: Bool[Tensor, "B L"]) -> Iterator[Float[Tensor, "1 n V"]]:
        """Yield the output at the chosen positions in order, some at a time."""
        for told, plain in zip(self.told.rows(where), self.plain.rows(where), strict=True):
            yield guided(told, plain, self.weight)
