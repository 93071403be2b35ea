"""Checks for schedules. Letters: B batch, L length."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor

from dither.registry.flow.records import Noise

from ..check_utils import assert_close, assert_unchanged, snapshot
from ..situations import Situation
from .check import checks_of

__all__ = ["CHECKS"]


def _times(n: int = 41) -> Float[Tensor, " n"]:
    """Return times off the usual grids, so that none is at a corner of a piecewise schedule."""
    return torch.linspace(0.0013, 0.9987, n, dtype=torch.float64)


def grows(s: Situation) -> None:
    """Sigma and rate are finite and not negative, and sigma never decreases, including both ends."""
    t = torch.cat([torch.zeros(1), _times().float(), torch.ones(1)])
    noise: Noise = s.build()(t)
    for name, values in (("sigma", noise.sigma), ("rate", noise.rate)):
        assert values.isfinite().all(), f"{name} is not finite at t = {t[~values.isfinite()].tolist()}"
        assert (values >= 0).all(), f"{name} is negative at t = {t[values < 0].tolist()}"
    decreases = noise.sigma.diff() < 0
    assert not decreases.any(), f"sigma decreases after t = {t[:-1][decreases].tolist()}"
    assert noise.sigma[-1] > noise.sigma[0], "no noise is added between t = 0 and t = 1"


def rate_is_derivative(s: Situation) -> None:
    """The rate is the derivative of sigma."""
    t = _times().requires_grad_()
    noise = s.build()(t)
    (grad,) = torch.autograd.grad(noise.sigma.sum(), t)
    torch.testing.assert_close(noise.rate.detach(), grad, atol=1e-6, rtol=1e-5, msg=lambda text: f"rate: {text}")


def precision(s: Situation) -> None:
    """The output has the dtype of the times, and float32 agrees with float64."""
    schedule, t = s.build(), _times()
    single, double = schedule(t.float()), schedule(t.float().double())
    for name in ("sigma", "rate"):
        a, b = getattr(single, name), getattr(double, name)
        assert a.dtype == torch.float32, f"{name} is {a.dtype} for float32"
        assert b.dtype == torch.float64, f"{name} is {b.dtype} for float64"
        assert_close(a.double(), b, name, atol=1e-6)


def any_shape(s: Situation) -> None:
    """Times may have any shape and are not modified."""
    schedule, t = s.build(), _times(12).float()
    before = snapshot(t)
    for name in ("sigma", "rate"):
        per_position, flat = getattr(schedule(t.view(3, 4)), name), getattr(schedule(t), name)
        assert per_position.shape == (3, 4), f"{name} has shape {tuple(per_position.shape)} for times of shape (3, 4)"
        assert_close(per_position.flatten(), flat, f"{name} per position", atol=0)
    assert_unchanged(before, t, what="the times")


def sigma_end(s: Situation) -> None:
    """`sigma_end` of the Spec, if it is known, is sigma(1)."""
    end = s.spec.sigma_end()
    if end is not None:
        sigma = s.build()(torch.ones(1, dtype=torch.float64)).sigma.item()
        assert math.isclose(sigma, end, rel_tol=1e-5, abs_tol=1e-6), f"sigma(1) is {sigma}, sigma_end() is {end}"


CHECKS = checks_of("schedule", grows, rate_is_derivative, precision, any_shape, sigma_end)
"""Checks for schedules."""
