"""Checks for losses. Letters: B batch, L length, V vocabulary."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from dither.registry.contracts.records import Clean, Measured, Noise, Noised, State

from ..check_utils import (
    NotApplicable,
    assert_close,
    assert_equal,
    assert_unchanged,
    gaussian_scales,
    ideal_output,
    random_output,
    seed_cpu,
    snapshot,
)
from ..situations import Situation, checks_of
from ..toy_distributions import (
    FEATURES,
    OUTCOMES,
    TWO_FIELDS,
    blank_batch,
    divergences,
    exact_normal,
    exact_outputs,
    forward_table,
    normal_divergence,
)

__all__ = ["CHECKS"]


def _inputs(s: Situation) -> tuple[Any, Any, Float[Tensor, "B L V"], Noised]:
    """Return a loss, its process, raw output and the noised batch."""
    seed_cpu(s.seed)
    process: Any = s.process.build(s.space)
    # Off both ends, where a loss of weight 0 or of a huge weight is checked by itself.
    noised = process.corrupt(s.clean, 0.05 + 0.9 * torch.rand(len(s.clean.valid)))
    return (
        s.build(),
        process,
        random_output(process.space, s.clean.valid, s.seed),
        noised,
    )


def _measure(
    loss: Any,
    process: Any,
    raw: Tensor,
    noised: Noised,
) -> Measured:
    measured: Measured = loss(process.read(raw, noised.state, noised.noise), noised)
    return measured


def per_position(s: Situation) -> None:
    """Values and weights are finite and per position; weights are not negative."""
    loss, process, raw, noised = _inputs(s)
    measured = _measure(loss, process, raw, noised)
    expected = tuple(noised.valid.shape)
    for name, part in (("values", measured.values), ("weights", measured.weights)):
        shape = tuple(part.shape)
        assert shape == expected, f"{name} have shape {shape}, not {expected}"
        assert part.isfinite().all(), f"{name} are not finite"
    assert (measured.weights >= 0).all(), "a weight is negative"


def extremes_are_finite(s: Situation) -> None:
    """Loss and gradients are finite for a confident wrong prediction."""
    loss, process, raw, noised = _inputs(s)
    # As a log score, about the largest whose exponential is finite.
    raw = (raw * 20).requires_grad_()
    _check_finite(
        _measure(loss, process, raw, noised), raw, "for a confident prediction"
    )


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
    where = torch.zeros(noised.valid.shape, dtype=torch.bool)
    where.view(-1)[s.seed % where.numel()] = True
    # Adding 0 elsewhere keeps the -inf that mark ids outside the vocabulary.
    noise = torch.randn(raw.shape).masked_fill(~where[..., None], 0.0)
    other = _measure(loss, process, raw + noise, noised)
    values = other.values[~where]
    assert_close(
        values, measured.values[~where], "values of other positions", atol=1e-5
    )
    assert_equal(other.weights, measured.weights, "weights")


def weights_only_targets(s: Situation) -> None:
    """The mean has gradients in the target mask, and none at padding and known values."""
    loss, process, _, noised = _inputs(s)
    grad_sum = torch.zeros(())
    # A loss may clamp some outputs, but hardly those of eight draws.
    for seed in range(s.seed, s.seed + 8):
        raw = random_output(process.space, noised.valid, seed).requires_grad_()
        total = _measure(loss, process, raw, noised).total()
        (grad,) = torch.autograd.grad(total, raw)
        grad_sum = grad_sum + grad.abs()
    fixed = noised.fixed
    target = noised.target_mask
    if fixed.ndim > 2:
        fixed = fixed.all(-1)
        target = target.all(-1)
    assert not grad_sum[fixed].any(), "a fixed position has a gradient"
    if target.any():
        assert grad_sum[target].any(), "no position in the target mask has a gradient"


def rows_independent(s: Situation) -> None:
    """The loss of a sample does not depend on the rest of the batch."""
    loss, process, raw, noised = _inputs(s)
    whole = _measure(loss, process, raw, noised)
    for row in range(len(noised.valid)):
        alone = _measure(loss, process, raw[row : row + 1], noised[row : row + 1])
        assert_close(
            alone.values[0], whole.values[row], "values of a sample alone", atol=1e-5
        )
        assert_close(
            alone.weights[0], whole.weights[row], "weights of a sample alone", atol=1e-6
        )


def truth_is_best(s: Situation) -> None:
    """An ideal prediction has a lower loss than a random one, and no higher one than one nearby."""
    loss, process, raw, noised = _inputs(s)
    if not noised.target_mask.any():
        raise NotApplicable("the target mask is empty")

    def mean(output: Tensor) -> float:
        return _measure(loss, process, output, noised).mean().item()

    ideal = ideal_output(s.args[0].predict, noised, raw.shape[-1])
    best = mean(ideal)
    random = mean(raw)
    assert best < random, f"an ideal prediction has loss {best}, a random one {random}"
    # In both directions: at a minimum neither side is lower.
    for scale in (0.3, -0.3):
        near = mean(ideal + scale * torch.randn(raw.shape).clamp(-2, 2))
        text = (
            f"an ideal prediction has loss {best}, one perturbed by {scale} has {near}"
        )
        assert best <= near + 1e-5, text


def bound_is_exact(s: Situation) -> None:
    """With an exact model the mean over x_t is the exact bound in nats, for every x_0 and noise; weights are fixed."""
    if "own-jumps" in s.spec.traits() and s.args[0].prior != "mask":
        return bound_of_own_jumps(s)
    for nats, expected, what in _bounds(s):
        assert_close(nats, expected, what, 2e-4)


def bound_of_own_jumps(s: Situation) -> None:
    """With an exact model the mean over x_t is at least the exact bound."""
    for nats, expected, what in _bounds(s):
        # The resolution of a mean in float32.
        least = expected * (1 - 1e-3) - 2e-4
        assert (nats > least).all(), (
            f"{what}: {nats.tolist()}, at least {expected.tolist()}"
        )


def _bounds(s: Situation) -> Iterator[tuple[Tensor, Tensor, str]]:
    """Yield the mean loss of an exact model and the exact bound per outcome, for several noises."""
    tokens = s.space.data == "tokens"
    space = TWO_FIELDS if tokens else FEATURES
    unsupported = NotApplicable("the process does not support the toy distribution")
    if list(s.process.check(space)):
        raise unsupported
    facts: Any = s.process.facts(space)
    if facts.masked or list(s.spec.check(facts)):
        raise unsupported
    if not tokens and facts.prior != "gaussian":
        raise unsupported

    process = s.process.build(space)
    loss = s.spec.build(facts)
    compute = _token_bound if tokens else _feature_bound
    # Little, medium and much noise, each with a rate of its own, which must be a factor.
    for sigma, rate in ((0.1, 1.7), (0.7, 0.6), (2.5, 1.2)):
        # The bound in a unit of time is the decrease of the divergence.
        level = torch.tensor(sigma, dtype=torch.float64, requires_grad=True)
        nats, divergence = compute(process, loss, facts.predict, level, rate)
        expected = []
        for outcome in divergence:
            (grad,) = torch.autograd.grad(outcome, level, retain_graph=True)
            expected.append(-rate * float(grad))
        what = f"nats per sample and unit of t at sigma = {sigma}"
        yield nats, torch.tensor(expected).double(), what


def _token_bound(
    process: Any,
    loss: Any,
    predict: str,
    sigma: Tensor,
    rate: float,
) -> tuple[Tensor, Tensor]:
    """Return the mean loss of each outcome, and the divergences whose gradient it is."""
    prior = process.corrupt(blank_batch(1), torch.ones(1)).prior.double()
    ids = torch.arange(prior.shape[-1])
    q = forward_table(sigma.detach(), prior)
    # All pairs of a clean outcome and a state that it may become.
    outcome, index = (q > 0).nonzero().T
    x = torch.cartesian_prod(ids, ids)[index]
    uncertain = prior.expand(2, -1).gather(1, x.T).T > 0
    noise = Noise(sigma.detach().expand(len(x)).float(), torch.full((len(x),), rate))
    none = torch.zeros_like(uncertain)
    noised = Noised(
        OUTCOMES[outcome], State.of(x), noise, uncertain, ~none, none, prior.float()
    )
    raw = exact_outputs(noised.state, noise, prior)[predict].float()
    # A model cannot return -inf for ids of the vocabulary.
    if predict == "score":
        raw = raw.clamp_min(-60.0)
    measured = _measure(loss, process, raw, noised)
    weights = measured.weights
    assert_close(weights, weights[:1].expand_as(weights), "weights at another x_t")
    nats = q[outcome, index] * (measured.values * weights).double().sum(1)
    means = torch.zeros(len(q)).double().index_add(0, outcome, nats)
    return means, divergences(sigma, prior)


def _feature_bound(
    process: Any,
    loss: Any,
    predict: str,
    sigma: Tensor,
    rate: float,
) -> tuple[Tensor, Tensor]:
    """The same for all features together; three nodes integrate squares over the noise exactly."""
    # Gauss-Hermite quadrature, exact for polynomials of degree 5.
    node = torch.tensor([0.0, 3**0.5, -(3**0.5)])
    share = torch.tensor([2 / 3, 1 / 6, 1 / 6])
    x0 = torch.tensor([[[0.5, 1.0], [2.0, 3.5]]]).expand(3, -1, -1)
    noise = Noise(sigma.detach().float().expand(3), torch.full((3,), rate))
    eps = node[:, None, None].expand_as(x0)
    a, b = gaussian_scales(process, noise, x0)
    state = State.of(a * x0 + b * eps)
    clean = Clean.of(x0)
    free = torch.ones(x0.shape, dtype=torch.bool)
    noised = Noised(x0, state, noise, free, clean.valid, ~free, eps=eps)
    raw = exact_normal(process, state, noise, predict, mean=2.0, std=0.5)
    measured = _measure(loss, process, raw, noised)
    nats = (share[:, None] * measured.values * measured.weights).sum()
    divergence = normal_divergence(sigma, x0[0].double(), mean=2.0, std=0.5).sum()
    return nats.double()[None], divergence[None]


def gradcheck(s: Situation) -> None:
    """In float64 the gradient equals finite differences."""
    loss, process, raw, noised = _inputs(s)
    wide = noised.apply(
        lambda tensor: tensor.double() if tensor.is_floating_point() else tensor
    )
    finite = raw.isfinite()

    def total(values: Tensor) -> Tensor:
        output = raw.double().masked_scatter(finite, values)
        return _measure(loss, process, output, wide).total()

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
        "loss",
        per_position,
        extremes_are_finite,
        finite_at_both_ends,
        positions_independent,
        weights_only_targets,
        rows_independent,
        truth_is_best,
        gradcheck,
        inputs_not_written,
    ),
    *checks_of("loss", bound_is_exact, needs="bound"),
    *checks_of("loss", bound_of_own_jumps, needs="bound own-jumps"),
)
