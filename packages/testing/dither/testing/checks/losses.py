"""Checks for losses. Letters: B batch, L length, V vocabulary."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from dither.registry.contracts.protocols import TokenProcess
from dither.registry.contracts.records import Clean, Measured, Noise, Noised, State

from ..check_utils import (
    NotApplicable,
    as_double,
    assert_close,
    assert_equal,
    assert_unchanged,
    gaussian_scales,
    ideal_output,
    random_output,
    seed_cpu,
    snapshot,
    with_variances,
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
    replaced_probs,
)

__all__ = ["CHECKS"]


@dataclass(frozen=True)
class _Trial:
    """A loss, its process, raw output and a noised batch."""

    loss: Any
    process: Any
    raw: Float[Tensor, "B L V"]
    noised: Noised

    @classmethod
    def of(cls, s: Situation) -> _Trial:
        seed_cpu(s.seed)
        process: Any = s.process.build(s.space)
        # Off both ends, where a loss of weight 0 or of a huge weight is checked by itself.
        t = 0.05 + 0.9 * torch.rand(len(s.clean.valid))
        noised = process.corrupt(s.clean, t)
        raw = random_output(process.space, s.clean.valid, s.seed)
        return cls(s.build(), process, raw, noised)

    def measure(self, raw: Tensor | None = None) -> Measured:
        """Return the loss, of another output if it is given."""
        if raw is None:
            raw = self.raw
        noised = self.noised
        pred = self.process.read(raw, noised.state, noised.noise)
        measured: Measured = self.loss(pred, noised)
        return measured


def per_position(s: Situation) -> None:
    """Values and weights are finite and per position; weights are not negative."""
    trial = _Trial.of(s)
    measured = trial.measure()
    expected = tuple(trial.noised.valid.shape)
    for name, part in (("values", measured.values), ("weights", measured.weights)):
        shape = tuple(part.shape)
        assert shape == expected, f"{name} have shape {shape}, not {expected}"
        assert part.isfinite().all(), f"{name} are not finite"
    assert (measured.weights >= 0).all(), "a weight is negative"


def extremes_are_finite(s: Situation) -> None:
    """Loss and gradients are finite for a confident wrong prediction."""
    trial = _Trial.of(s)
    # As a log score, about the largest whose exponential is finite.
    _check_finite(trial, 20 * trial.raw, "for a confident prediction")


def finite_at_both_ends(s: Situation) -> None:
    """Loss and gradients are finite near t = 0 and at t = 1."""
    trial = _Trial.of(s)
    for t in (0.0, 1e-4, 1.0):
        noised = trial.process.corrupt(s.clean, s.times(t))
        _check_finite(replace(trial, noised=noised), trial.raw, f"at t = {t}")


def _check_finite(trial: _Trial, raw: Tensor, when: str) -> None:
    output = raw.clone().requires_grad_()
    measured = trial.measure(output)
    assert measured.values.isfinite().all(), f"a value is not finite {when}"
    (grad,) = torch.autograd.grad(measured.mean(), output)
    assert grad.isfinite().all(), f"a gradient is not finite {when}"


def positions_independent(s: Situation) -> None:
    """The output at one position affects only its own value, and no weight."""
    trial = _Trial.of(s)
    measured = trial.measure()
    where = torch.zeros(trial.noised.valid.shape, dtype=torch.bool)
    where.view(-1)[s.seed % where.numel()] = True
    # Adding 0 elsewhere keeps the -inf that mark ids outside the vocabulary.
    noise = torch.randn(trial.raw.shape)
    noise = noise.masked_fill(~where[..., None], 0.0)
    other = trial.measure(trial.raw + noise)
    values = measured.values[~where]
    what = "values of other positions"
    assert_close(other.values[~where], values, what, atol=1e-5)
    assert_equal(other.weights, measured.weights, "weights")


def weights_only_targets(s: Situation) -> None:
    """The mean has gradients for targets of any row, position, feature and id, and for no others."""
    trial = _Trial.of(s)
    noised = trial.noised
    grad_sum = torch.zeros(())
    # A loss may clamp some outputs, but hardly those of eight draws.
    for seed in range(s.seed, s.seed + 8):
        raw = random_output(trial.process.space, noised.valid, seed).requires_grad_()
        (grad,) = torch.autograd.grad(trial.measure(raw).total(), raw)
        grad_sum = grad_sum + grad.abs()
    fixed = noised.fixed
    target = noised.target_mask
    if fixed.ndim > 2:
        fixed = fixed.all(-1)
    assert not grad_sum[fixed].any(), "a fixed position has a gradient"
    # Any output of an element: a logit per id, or a mean and a variance per feature.
    reached = grad_sum > 0
    if noised.x0.is_floating_point():
        *batch, width = target.shape
        reached = reached.view(*batch, -1, width).any(-2)
    else:
        reached = reached.any(-1)
        _assert_reached("id", noised.x0[target], noised.x0[target & reached])
    where = target.nonzero().T
    seen = (target & reached).nonzero().T
    names = ("row", "position", "feature")
    for name, expected, actual in zip(names, where, seen, strict=False):
        _assert_reached(name, expected, actual)


def _assert_reached(name: str, expected: Tensor, actual: Tensor) -> None:
    missing = sorted({*expected.tolist()} - {*actual.tolist()})
    assert not missing, f"targets of {name} {missing} have no gradient"


def rows_independent(s: Situation) -> None:
    """The loss of a sample does not depend on the rest of the batch."""
    trial = _Trial.of(s)
    whole = trial.measure()
    for row in range(len(whole.values)):
        rows = slice(row, row + 1)
        single = replace(trial, raw=trial.raw[rows], noised=trial.noised[rows])
        alone = single.measure()
        expected = whole[rows]
        what = "of a sample alone"
        assert_close(alone.values, expected.values, f"values {what}", atol=1e-5)
        assert_close(alone.weights, expected.weights, f"weights {what}", atol=1e-6)


def truth_is_best(s: Situation) -> None:
    """An ideal prediction has a lower loss than a random one, and no higher one than one nearby."""
    trial = _Trial.of(s)
    noised = trial.noised
    if not noised.target_mask.any():
        raise NotApplicable("the target mask is empty")

    def mean(output: Tensor) -> float:
        return trial.measure(output).mean().item()

    vocab = trial.raw.shape[-1]
    ideal = ideal_output(s.args[0].predict, noised, vocab)
    ideal = with_variances(trial.process.space, ideal)
    best = mean(ideal)
    random = mean(trial.raw)
    assert best < random, f"an ideal prediction has loss {best}, a random one {random}"
    # In both directions: at a minimum neither side is lower.
    for scale in (0.3, -0.3):
        noise = torch.randn(ideal.shape).clamp(-2, 2)
        near = mean(ideal + scale * noise)
        text = (
            f"an ideal prediction has loss {best}, one perturbed by {scale} has {near}"
        )
        assert best <= near + 1e-5, text


def bound_is_exact(s: Situation) -> None:
    """With an exact model the mean over x_t is the exact bound in nats, for every x_0 and noise; weights are fixed."""
    jumps = "own-jumps" in s.spec.traits()
    if jumps and s.args[0].prior != "mask":
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
    noised = process.corrupt(blank_batch(1), torch.ones(1))
    level = _noise(sigma, rate, 1)
    # The gradient is taken through the level, and through the prior if that depends on it.
    prior = replaced_probs(process, noised, Noise(sigma[None], level.rate))
    ids = torch.arange(prior.shape[-1])
    q = forward_table(sigma, prior).detach()
    # All pairs of a clean outcome and a state that it may become.
    outcome, index = (q > 0).nonzero().T
    x = torch.cartesian_prod(ids, ids)[index]
    # Ids that the prior does not have are known to be unchanged.
    uncertain = prior.expand(2, -1).gather(1, x.T).T > 0
    none = torch.zeros_like(uncertain)
    noise = _noise(sigma, rate, len(x))
    clean = Clean(OUTCOMES[outcome], ~none, none)
    if isinstance(process, TokenProcess):
        noised = process.noised(clean, x, noise)
    else:
        noised = Noised(
            x0=clean.x0,
            state=State.of(x),
            noise=noise,
            target_mask=uncertain,
            valid=~none,
            fixed=none,
            prior=prior.float(),
        )
    raw = exact_outputs(noised.state, noise, prior.detach())[predict].float()
    # A model cannot return -inf for ids of the vocabulary.
    if predict == "score":
        raw = raw.clamp_min(-60.0)
    measured = _Trial(
        loss=loss,
        process=process,
        raw=raw,
        noised=noised,
    ).measure()
    weights = measured.weights
    assert_close(weights, weights[:1].expand_as(weights), "weights at another x_t")
    nats = (measured.values * weights).double().sum(1)
    means = torch.zeros(len(q)).double()
    means = means.index_add(0, outcome, q[outcome, index] * nats)
    return means, divergences(sigma, prior)


def _noise(sigma: Tensor, rate: float, count: int) -> Noise:
    """Return the same noise for each sample."""
    level = sigma.detach().float()
    return Noise(level.expand(count), torch.full((count,), rate))


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
    x0 = torch.tensor([[0.5, 1.0], [2.0, 3.5]])
    x0 = x0.expand(3, -1, -1)
    noise = _noise(sigma, rate, len(x0))
    eps = node[:, None, None].expand_as(x0)
    a, b = gaussian_scales(process, noise, x0)
    state = State.of(a * x0 + b * eps)
    clean = Clean.of(x0)
    free = torch.ones(x0.shape, dtype=torch.bool)
    noised = Noised(
        x0=x0,
        state=state,
        noise=noise,
        target_mask=free,
        valid=clean.valid,
        fixed=~free,
        eps=eps,
    )
    raw = exact_normal(
        process=process,
        state=state,
        noise=noise,
        predict=predict,
        mean=2.0,
        std=0.5,
    )
    raw = with_variances(process.space, raw)
    measured = _Trial(
        loss=loss,
        process=process,
        raw=raw,
        noised=noised,
    ).measure()
    nats = (share[:, None] * measured.values * measured.weights).sum()
    divergence = normal_divergence(
        sigma=sigma,
        x0=x0[0].double(),
        mean=2.0,
        std=0.5,
    )
    return nats.double()[None], divergence.sum()[None]


def gradcheck(s: Situation) -> None:
    """In float64 the gradient equals finite differences."""
    trial = _Trial.of(s)
    wide = replace(trial, noised=as_double(trial.noised))
    raw = trial.raw.double()
    # Neither -inf nor its gradient has a finite difference.
    finite = raw.isfinite()

    def total(values: Tensor) -> Tensor:
        return wide.measure(raw.masked_scatter(finite, values)).total()

    values = raw[finite].requires_grad_()
    try:
        torch.autograd.gradcheck(total, values, fast_mode=True, rtol=1e-3, atol=1e-5)
    except RuntimeError as error:
        raise AssertionError(f"gradient of the loss: {error}") from None


def inputs_not_written(s: Situation) -> None:
    """The loss does not modify its inputs."""
    trial = _Trial.of(s)
    before = snapshot(trial.noised, trial.raw)
    trial.measure()
    assert_unchanged(before, trial.noised, trial.raw, what="the inputs")


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
