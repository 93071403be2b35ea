"""Classifier-free guidance (Ho and Salimans, 2022): what a model says with a condition and without it, made into one.

    raw = without + weight (with - without)

For features, x_0, eps and velocity are each linear in the score at a given x_t, so this is guidance of the score,
whatever the raw output means. For tokens, raw numbers are log-probabilities up to a constant per position, or log
ratios, and this is guidance of these: p is proportional to with^weight / without^(weight - 1) (Nisonoff et al., 2024;
Schiff et al., 2024).

Letters: B batch, L length, V vocabulary, n some chosen positions.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from dither.registry.flow.records import Clean

from ..config.options import Guidance

__all__ = ["guided", "unconditional"]


def guided(told: Float[Tensor, "..."], plain: Float[Tensor, "..."], weight: float) -> Float[Tensor, "..."]:
    """Lead raw output by the difference that a condition makes; an id that either rules out (-inf) stays ruled out."""
    ruled_out = told.isneginf() | plain.isneginf()
    return torch.lerp(plain, told, weight).masked_fill(ruled_out, -torch.inf)


def unconditional(clean: Clean, guidance: Guidance | None) -> Clean | None:
    """Leave out the condition of guidance; None where that changes nothing: it is not told, or counts once."""
    if guidance is None or guidance.weight == 1 or guidance.condition not in clean.cond:
        return None
    return replace(clean, cond={name: value for name, value in clean.cond.items() if name != guidance.condition})
