"""Checks for losses. Letters: B batch, L length, V vocabulary."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import one_hot

from dither.registry.flow import Measured, Noised

from ..probing import NotApplicable, close, raw_for, same, seed_cpu, snapshot
from ..situations import Situation
from .check import Check

__all__ = ["CHECKS"]


def _inputs(s: Situation) -> tuple[Any, Any, Float[Tensor, "B L V"], Noised]:
    """Return a loss, its process, raw output and the record that it is about."""
    seed_cpu(s.seed)
    process: Any = s.process.build(s.space)
    noised = process.corrupt(s.clean, 0.05 + 0.9 * torch.rand(len(s.clean.valid)))
    return s.build(), process, raw_for(process.space, s.clean.valid, s.seed), noised


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
    close(other.values[~where], measured.values[~where], "values elsewhere", atol=1e-5)
    same(other.weights, measured.weights, "weights")


def counts_what_is_wanted(s: Situation) -> None:
    """The mean has a gradient at wanted positions, and none at padding and known values."""
    loss, process, raw, noised = _inputs(s)
    raw = raw.requires_grad_()
    (grad,) = torch.autograd.grad(_measure(loss, process, raw, noised).total(), raw)
    fixed, wanted = (part.flatten(2).all(-1) if part.ndim > 2 else part for part in (noised.fixed, noised.wanted))
    assert not grad[fixed].any(), "padding or a known position has a gradient"
    assert not wanted.any() or grad[wanted].any(), "no wanted position has a gradient"


def rows_apart(s: Situation) -> None:
    """A sample has the loss that it has alone."""
    loss, process, raw, noised = _inputs(s)
    whole = _measure(loss, process, raw, noised)
    for row in range(len(noised.valid)):
        alone = _measure(loss, process, raw[row : row + 1], noised[row : row + 1])
        close(alone.values[0], whole.values[row], "the values of a sample alone", atol=1e-5)
        close(alone.weights[0], whole.weights[row], "the weights of a sample alone", atol=1e-6)


def truth_is_best(s: Situation) -> None:
    """A model that says the truth has less loss than one that guesses."""
    loss, process, raw, noised = _inputs(s)
    predict, alpha, lost = s.given[0].predict, noised.noise.alpha(noised.x0), noised.noise.lost(noised.x0)
    if predict in ("posterior", "plug-in", "score") and noised.prior is not None:
        truth = one_hot(noised.x0, raw.shape[-1]).to(noised.prior)
        q = alpha[..., None] * truth + lost[..., None] * noised.prior
        scores = q.log() - q.gather(-1, noised.state.x[..., None]).log()
        truth = scores.clamp_min(-30.0) if predict == "score" else 30.0 * truth
    elif predict in ("x0", "eps", "velocity"):
        eps = torch.zeros_like(noised.x0) if noised.eps is None else noised.eps
        velocity = alpha.sqrt() * eps - lost.sqrt() * noised.x0
        truth = {"x0": noised.x0, "eps": eps, "velocity": velocity}[predict]
    else:
        raise NotApplicable(f'what would be true is not known for predict = "{predict}"')
    if not noised.wanted.any():
        raise NotApplicable("nothing is wanted")
    told, guessed = (_measure(loss, process, said, noised).mean().item() for said in (truth.float(), raw))
    assert told < guessed, f"the truth has a loss of {told}, a guess one of {guessed}"


def inputs_not_written(s: Situation) -> None:
    """A loss writes to nothing that it is given."""
    loss, process, raw, noised = _inputs(s)
    before = snapshot(noised, raw)
    _measure(loss, process, raw, noised)
    for old, new in zip(before, snapshot(noised, raw), strict=True):
        same(new, old, "the inputs afterwards")


CHECKS = tuple(
    Check(check.__name__, "loss", check)
    for check in (
        per_position,
        extremes_are_finite,
        positions_apart,
        counts_what_is_wanted,
        rows_apart,
        truth_is_best,
        inputs_not_written,
    )
)
"""The checks for losses."""
