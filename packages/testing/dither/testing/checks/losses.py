"""Checks for losses. Letters: B batch, L length, V vocabulary."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from dither.registry.flow.records import Measured, Noised

from ..check_utils import NotApplicable, assert_close, assert_equal, ideal_output, random_output, seed_cpu, snapshot
from ..situations import Situation
from .check import checks_of

__all__ = ["CHECKS"]


def _inputs(s: Situation) -> tuple[Any, Any, Float[Tensor, "B L V"], Noised]:
    """Return a loss, its process, raw output and the record that it is about."""
    seed_cpu(s.seed)
    process: Any = s.process.build(s.space)
    noised = process.corrupt(s.clean, 0.05 + 0.9 * torch.rand(len(s.clean.valid)))
    return s.build(), process, random_output(process.space, s.clean.valid, s.seed), noised


def _measure(loss: Any, process: Any, raw: Tensor, noised: Noised) -> Measured:
    measured: Measured = loss(process.read(raw, noised.state, noised.noise), noised)
    return measured


def per_position(s: Situation) -> None:
    """There is a finite value and a finite weight of at least 0 per position."""
    loss, process, raw, noised = _inputs(s)
    measured = _measure(loss, process, raw, noised)
    for name in ("values", "weights"):
        part = getattr(measured, name)
        shape = tuple(noised.valid.shape)
        assert tuple(part.shape) == shape, f"{name} have the shape {tuple(part.shape)} for {shape} positions"
        assert part.isfinite().all(), f"{name} are not finite"
    assert (measured.weights >= 0).all(), "a weight is negative"


def extremes_are_finite(s: Situation) -> None:
    """A confident model that is wrong has a finite loss and finite gradients."""
    loss, process, raw, noised = _inputs(s)
    raw = (raw * 20).requires_grad_()  # as the logarithm of a score, about the most whose exponential is finite
    measured = _measure(loss, process, raw, noised)
    assert measured.values.isfinite().all(), "a value is not finite"
    (slope,) = torch.autograd.grad(measured.mean(), raw)
    assert slope.isfinite().all(), "a gradient is not finite"


def positions_apart(s: Situation) -> None:
    """A change in the output at one position changes the value there and nowhere else, and no weight."""
    loss, process, raw, noised = _inputs(s)
    measured = _measure(loss, process, raw, noised)
    index = s.seed % noised.valid.numel()
    where: Bool[Tensor, "B L"] = (torch.arange(noised.valid.numel()) == index).view(noised.valid.shape)
    changed = raw + torch.randn(raw.shape) * where[..., None]
    other = _measure(loss, process, changed, noised)
    assert_close(other.values[~where], measured.values[~where], "values elsewhere", atol=1e-5)
    assert_equal(other.weights, measured.weights, "weights")


def counts_what_is_wanted(s: Situation) -> None:
    """The mean has a gradient at wanted positions, and none at padding and known values."""
    loss, process, raw, noised = _inputs(s)
    raw = raw.requires_grad_()
    (grad,) = torch.autograd.grad(_measure(loss, process, raw, noised).total(), raw)
    fixed, target_mask = (
        part.flatten(2).all(-1) if part.ndim > 2 else part for part in (noised.fixed, noised.target_mask)
    )
    assert not grad[fixed].any(), "padding or a known position has a gradient"
    assert not target_mask.any() or grad[target_mask].any(), "no wanted position has a gradient"


def rows_apart(s: Situation) -> None:
    """A sample has the loss that it has alone."""
    loss, process, raw, noised = _inputs(s)
    whole = _measure(loss, process, raw, noised)
    for row in range(len(noised.valid)):
        alone = _measure(loss, process, raw[row : row + 1], noised[row : row + 1])
        assert_close(alone.values[0], whole.values[row], "the values of a sample alone", atol=1e-5)
        assert_close(alone.weights[0], whole.weights[row], "the weights of a sample alone", atol=1e-6)


def _truth(s: Situation, raw: Tensor, noised: Noised) -> Tensor:
    if not noised.target_mask.any():
        raise NotApplicable("nothing is wanted")
    return ideal_output(s.given[0].predict, noised, raw.shape[-1])


def truth_is_best(s: Situation) -> None:
    """A model that says the truth has less loss than one that guesses, and no more than one that is nearly right."""
    loss, process, raw, noised = _inputs(s)
    truth = _truth(s, raw, noised)
    told, guessed = (_measure(loss, process, said, noised).mean().item() for said in (truth, raw))
    assert told < guessed, f"the truth has a loss of {told}, a guess one of {guessed}"
    for part in (0.3, -0.3):
        near = _measure(loss, process, truth + part * torch.randn(raw.shape).clamp(-2, 2), noised).mean().item()
        assert told <= near + 1e-5, f"the truth has a loss of {told}, and one that is off by some {part} has {near}"


def bound_is_zero_at_truth(s: Situation) -> None:
    """The diffusion part of a bound is never negative, and 0 for a model that knows x_0."""
    loss, process, raw, noised = _inputs(s)
    for name, said in (("a guess", raw), ("the truth", _truth(s, raw, noised))):
        values = _measure(loss, process, said, noised).values
        assert (values >= -1e-5).all(), f"{name} has a value of {values.min()}"
        if name == "the truth":
            assert (values <= 1e-3).all(), f"the truth has a value of {values.max()}"


def gradcheck(s: Situation) -> None:
    """In float64 the gradient is the slope of the loss."""
    loss, process, raw, noised = _inputs(s)
    wide = noised.apply(lambda tensor: tensor.double() if tensor.is_floating_point() else tensor)
    finite = raw.isfinite()

    def total(values: Tensor) -> Tensor:
        return _measure(loss, process, raw.double().masked_scatter(finite, values), wide).total()

    values = raw[finite].double().requires_grad_()
    try:
        torch.autograd.gradcheck(total, values, fast_mode=True, rtol=1e-3, atol=1e-5)
    except RuntimeError as error:
        raise AssertionError(f"the gradient of the loss: {error}") from None


def finite_at_both_ends(s: Situation) -> None:
    """Next to t = 0 and at t = 1 values and gradients are finite."""
    loss, process, raw, _ = _inputs(s)
    for t in (0.0, 1e-4, 1.0):
        noised = process.corrupt(s.clean, torch.full((len(s.clean.valid),), t))
        said = raw.clone().requires_grad_()
        measured = _measure(loss, process, said, noised)
        assert measured.values.isfinite().all(), f"a value is not finite at t = {t}"
        (slope,) = torch.autograd.grad(measured.mean(), said)
        assert slope.isfinite().all(), f"a gradient is not finite at t = {t}"


def inputs_not_written(s: Situation) -> None:
    """A loss writes to nothing that it is given."""
    loss, process, raw, noised = _inputs(s)
    before = snapshot(noised, raw)
    _measure(loss, process, raw, noised)
    for old, new in zip(before, snapshot(noised, raw), strict=True):
        assert_equal(new, old, "the inputs afterwards")


CHECKS = (
    *checks_of(
        "loss",
        per_position,
        extremes_are_finite,
        finite_at_both_ends,
        positions_apart,
        counts_what_is_wanted,
        rows_apart,
        truth_is_best,
        gradcheck,
        inputs_not_written,
    ),
    *checks_of("loss", bound_is_zero_at_truth, needs="bound"),
)
"""The checks for losses."""
