"""Checks for losses. Letters: B batch, L length, V vocabulary."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from dither.registry.flow.records import Measured, Noised

from ..check_utils import (
    NotApplicable,
    assert_close,
    assert_equal,
    assert_unchanged,
    ideal_output,
    random_output,
    seed_cpu,
    snapshot,
)
from ..situations import Situation, checks_of

__all__ = ["CHECKS"]


def _inputs(s: Situation) -> tuple[Any, Any, Float[Tensor, "B L V"], Noised]:
    """Return a loss, its process, raw output and the noised batch."""
    seed_cpu(s.seed)
    process: Any = s.process.build(s.space)
    noised = process.corrupt(s.clean, 0.05 + 0.9 * torch.rand(len(s.clean.valid)))
    return s.build(), process, random_output(process.space, s.clean.valid, s.seed), noised


def _measure(loss: Any, process: Any, raw: Tensor, noised: Noised) -> Measured:
    measured: Measured = loss(process.read(raw, noised.state, noised.noise), noised)
    return measured


def per_position(s: Situation) -> None:
    """Values and weights are finite and per position; weights are not negative."""
    loss, process, raw, noised = _inputs(s)
    measured = _measure(loss, process, raw, noised)
    for name in ("values", "weights"):
        part = getattr(measured, name)
        shape = tuple(noised.valid.shape)
        assert tuple(part.shape) == shape, f"{name} have shape {tuple(part.shape)}, not {shape}"
        assert part.isfinite().all(), f"{name} are not finite"
    assert (measured.weights >= 0).all(), "a weight is negative"


def extremes_are_finite(s: Situation) -> None:
    """Loss and gradients are finite for a confident wrong prediction."""
    loss, process, raw, noised = _inputs(s)
    raw = (raw * 20).requires_grad_()  # as a log score, about the largest whose exponential is finite
    _check_finite(_measure(loss, process, raw, noised), raw, "for a confident prediction")


def finite_at_both_ends(s: Situation) -> None:
    """Loss and gradients are finite near t = 0 and at t = 1."""
    loss, process, raw, _ = _inputs(s)
    for t in (0.0, 1e-4, 1.0):
        noised = process.corrupt(s.clean, torch.full((len(s.clean.valid),), t))
        output = raw.clone().requires_grad_()
        _check_finite(_measure(loss, process, output, noised), output, f"at t = {t}")


def _check_finite(measured: Measured, raw: Tensor, when: str) -> None:
    assert measured.values.isfinite().all(), f"a value is not finite {when}"
    (grad,) = torch.autograd.grad(measured.mean(), raw)
    assert grad.isfinite().all(), f"a gradient is not finite {when}"


def positions_independent(s: Situation) -> None:
    """The output at one position affects only its own value, and no weight."""
    loss, process, raw, noised = _inputs(s)
    measured = _measure(loss, process, raw, noised)
    index = s.seed % noised.valid.numel()
    where: Bool[Tensor, "B L"] = (torch.arange(noised.valid.numel()) == index).view(noised.valid.shape)
    changed = raw + torch.randn(raw.shape) * where[..., None]
    other = _measure(loss, process, changed, noised)
    assert_close(other.values[~where], measured.values[~where], "values of other positions", atol=1e-5)
    assert_equal(other.weights, measured.weights, "weights")


def weights_only_targets(s: Situation) -> None:
    """The mean has gradients in the target mask, and none at padding and known values."""
    loss, process, _, noised = _inputs(s)
    grad = torch.zeros(())
    for seed in range(s.seed, s.seed + 8):  # a loss may clamp some outputs
        raw = random_output(process.space, noised.valid, seed).requires_grad_()
        grad = grad + torch.autograd.grad(_measure(loss, process, raw, noised).total(), raw)[0].abs()
    masks = (noised.fixed, noised.target_mask)
    fixed, target = (mask.flatten(2).all(-1) if mask.ndim > 2 else mask for mask in masks)
    assert not grad[fixed].any(), "a fixed position has a gradient"
    assert not target.any() or grad[target].any(), "no position in the target mask has a gradient"


def rows_independent(s: Situation) -> None:
    """The loss of a sample does not depend on the rest of the batch."""
    loss, process, raw, noised = _inputs(s)
    whole = _measure(loss, process, raw, noised)
    for row in range(len(noised.valid)):
        alone = _measure(loss, process, raw[row : row + 1], noised[row : row + 1])
        assert_close(alone.values[0], whole.values[row], "values of a sample alone", atol=1e-5)
        assert_close(alone.weights[0], whole.weights[row], "weights of a sample alone", atol=1e-6)


def _ideal(s: Situation, raw: Tensor, noised: Noised) -> Tensor:
    if not noised.target_mask.any():
        raise NotApplicable("the target mask is empty")
    return ideal_output(s.args[0].predict, noised, raw.shape[-1])


def truth_is_best(s: Situation) -> None:
    """An ideal prediction has a lower loss than a random one, and no higher loss than a perturbed one."""
    loss, process, raw, noised = _inputs(s)
    ideal = _ideal(s, raw, noised)
    best, random = (_measure(loss, process, output, noised).mean().item() for output in (ideal, raw))
    assert best < random, f"an ideal prediction has loss {best}, a random one {random}"
    for scale in (0.3, -0.3):
        near = _measure(loss, process, ideal + scale * torch.randn(raw.shape).clamp(-2, 2), noised).mean().item()
        assert best <= near + 1e-5, f"an ideal prediction has loss {best}, one perturbed by {scale} has {near}"


def bound_is_zero_at_truth(s: Situation) -> None:
    """The diffusion part of a bound is never negative, and 0 for an ideal prediction."""
    loss, process, raw, noised = _inputs(s)
    random = _measure(loss, process, raw, noised).values
    assert (random >= -1e-5).all(), f"a random prediction has a value of {random.min()}"
    ideal = _measure(loss, process, _ideal(s, raw, noised), noised).values
    assert (ideal >= -1e-5).all(), f"an ideal prediction has a value of {ideal.min()}"
    assert (ideal <= 1e-3).all(), f"an ideal prediction has a value of {ideal.max()}"


def gradcheck(s: Situation) -> None:
    """In float64 the gradient equals finite differences."""
    loss, process, raw, noised = _inputs(s)
    wide = noised.apply(lambda tensor: tensor.double() if tensor.is_floating_point() else tensor)
    finite = raw.isfinite()

    def total(values: Tensor) -> Tensor:
        return _measure(loss, process, raw.double().masked_scatter(finite, values), wide).total()

    values = raw[finite].double().requires_grad_()
    try:
        torch.autograd.gradcheck(total, values, fast_mode=True, rtol=1e-3, atol=1e-5)
    except RuntimeError as error:
        raise AssertionError(f"gradient of the loss: {error}") from None


def inputs_not_written(s: Situation) -> None:
    """The loss does not modify its inputs."""
    loss, process, raw, noised = _inputs(s)
    before = snapshot(noised, raw)
    _measure(loss, process, raw, noised)
    assert_unchanged(before, noised, raw, what="the inputs")


CHECKS = (
    *checks_of(
        "loss", per_position, extremes_are_finite, finite_at_both_ends, positions_independent, weights_only_targets,
        rows_independent, truth_is_best, gradcheck, inputs_not_written,
    ),
    *checks_of("loss", bound_is_zero_at_truth, needs="bound"),
)  # fmt: skip
"""Checks for losses."""
