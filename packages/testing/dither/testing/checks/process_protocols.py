"""Checks for the optional protocols of processes, which samplers require. Letters: B batch, L length, M features."""

from __future__ import annotations

from typing import Any

import torch

from dither.registry.flow.protocols import GaussianProcess, MaskedFeatureProcess, TokenProcess
from dither.registry.flow.records import State

from ..check_utils import NotApplicable, assert_close, assert_equal, seed_cpu
from ..situations import Situation
from ..toy_distributions import assert_normal
from .check import checks_of

__all__ = ["CHECKS"]


def _noised(s: Situation, protocol: Any) -> tuple[Any, State]:
    """Return a process of the protocol and a state at t = 0.5."""
    process: Any = s.build()
    if not isinstance(process, protocol):
        raise NotApplicable(f"not a {protocol.__name__}")
    return process, process.corrupt(s.clean, torch.full((len(s.clean.valid),), 0.5)).state


def renoise_keeps_fixed(s: Situation) -> None:
    """TokenProcess: `prior_probs` sums to 1, and `renoise` changes no fixed value, nor any without a gap."""
    process, state = _noised(s, TokenProcess)
    probs = process.prior_probs()
    assert_close(probs.sum(-1), torch.ones_like(probs[:, 0]), "sums of prior_probs", atol=1e-5)
    ones = torch.ones(len(s.clean.valid))
    late = process.schedule(ones)
    seed_cpu(s.seed)
    again = process.renoise(state, late, s.clean)
    assert_equal(again.x[s.clean.fixed], s.clean.x0[s.clean.fixed], "renoise: fixed values")
    assert_equal(process.renoise(state, late.since(late), s.clean).x, state.x, "renoise without a gap")


def noise_is_standard_normal(s: Situation) -> None:
    """GaussianProcess: `add_noise` returns standard normal noise, and `replace` changes no fixed value."""
    process, state = _noised(s, GaussianProcess)
    clean = s.clean
    where = ~clean.fixed.expand(clean.x0.shape)
    if not where.any():
        raise NotApplicable("all values are fixed")
    copies = -(-4000 // int(where.sum()))
    x0, where = (tensor.repeat_interleave(copies, 0) for tensor in (clean.x0, where))
    noise = process.schedule(torch.full((len(x0),), 0.5))
    seed_cpu(s.seed)
    noised, eps = process.add_noise(x0, noise, where)
    assert_normal(eps[where], "the noise")
    mixed = noise.alpha(x0).sqrt() * x0 + noise.one_minus_alpha(x0).sqrt() * eps
    assert_close(noised.x[where], mixed[where], "sqrt(alpha) x0 + sqrt(1 - alpha) eps", atol=1e-4)
    assert_equal(noised.x[~where], x0[~where], "values without noise")
    replaced = process.replace(state, clean.x0 + 1.0, clean)
    assert_equal(replaced.x[clean.fixed], clean.x0[clean.fixed], "replace: fixed values")


def reveal_keeps_visible(s: Situation) -> None:
    """MaskedFeatureProcess: units and elements are inverse, and `reveal` changes only newly revealed values."""
    process, state = _noised(s, MaskedFeatureProcess)
    masked = state.masked
    assert_equal(process.elements(process.units(masked)) & ~s.clean.fixed, masked & ~s.clean.fixed, "masked elements")
    counts = process.unit_sums(masked.float())
    assert ((counts > 0) <= process.units(masked)).all(), "a unit with masked elements is not masked"
    kept = masked & (torch.arange(masked.shape[1]) % 2 == 0)[:, None]
    revealed = process.reveal(state, state.x + 1.0, kept)
    assert_equal(revealed.masked, kept, "the mask after reveal")
    assert_equal(revealed.x[~masked], state.x[~masked], "values that were visible")
    new = masked & ~kept
    assert_equal(revealed.x[new], (state.x + 1.0)[new], "revealed values")


CHECKS = checks_of("process", renoise_keeps_fixed, noise_is_standard_normal, reveal_keeps_visible)
"""Checks for the optional protocols of processes."""
