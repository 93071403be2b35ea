"""Classifier-free guidance (Ho and Salimans, 2022): `uncond + scale * (cond - uncond)`."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

__all__ = ["apply_guidance", "rescale"]


def apply_guidance(
    cond: Float[Tensor, "..."], uncond: Float[Tensor, "..."], scale: float
) -> Float[Tensor, "..."]:
    """Return `uncond + scale * (cond - uncond)`; an id that either excludes stays excluded.

    For features x_0, eps and velocity are each linear in the score at a given x_t, so this is
    guidance of the score. For tokens raw output is log-probabilities up to a constant per position,
    or log ratios: p is proportional to cond^scale / uncond^(scale - 1) (Nisonoff et al., 2024;
    Schiff et al., 2024).
    """
    excluded = cond.isneginf() | uncond.isneginf()
    return torch.lerp(uncond, cond, scale).masked_fill(excluded, -torch.inf)


def rescale(
    guided: Float[Tensor, "B L M"],
    cond: Float[Tensor, "B L M"],
    share: float,
    valid: Bool[Tensor, "B L"],
) -> Float[Tensor, "B L M"]:
    """Bring the standard deviation of each sample towards that of `cond` (Lin et al., 2023, eqs. 15 and 16).

    Padding does not count.
    """
    spread = _spread(guided, valid)
    # Constant output has nothing to rescale.
    factor = _spread(cond, valid) / torch.where(spread > 0, spread, 1.0)
    return torch.lerp(guided, guided * factor, share)


def _spread(
    x: Float[Tensor, "B L M"], valid: Bool[Tensor, "B L"]
) -> Float[Tensor, "B 1 1"]:
    """Return the standard deviation of the valid values of each sample, times the root of their number."""
    valid = valid[..., None].expand_as(x)
    count = valid.sum((1, 2), keepdim=True).clamp_min(1)
    mean = x.where(valid, 0.0).sum((1, 2), keepdim=True) / count
    deviation = (x - mean).where(valid, 0.0)
    return deviation.square().sum((1, 2), keepdim=True).sqrt()
