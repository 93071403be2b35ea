"""Classifier-free guidance (Ho and Salimans, 2022): combine conditional and unconditional output.

    raw = without + weight (with - without)

For features, x_0, eps and velocity are each linear in the score at a given x_t, so this is guidance of the score,
for each meaning of the raw output. For tokens, raw numbers are log-probabilities up to a constant per position, or log
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


def guided(cond: Float[Tensor, "..."], uncond: Float[Tensor, "..."], weight: float) -> Float[Tensor, "..."]:
    """Return `uncond + weight * (cond - uncond)`; an id that either excludes (-inf) stays excluded."""
    excluded = cond.isneginf() | uncond.isneginf()
    return torch.lerp(uncond, cond, weight).masked_fill(excluded, -torch.inf)


def unconditional(clean: Clean, guidance: Guidance | None) -> Clean | None:
    """Return the batch without the condition of guidance; None if it has no such condition or the weight is 1."""
    if guidance is None or guidance.weight == 1 or guidance.condition not in clean.cond:
        return None
    return replace(clean, cond={name: value for name, value in clean.cond.items() if name != guidance.condition})
