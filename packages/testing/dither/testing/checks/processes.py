"""Checks for schedules and processes: facts, records, predictions, methods and the protocols of samplers.

Letters: B batch, L length, V vocabulary.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import one_hot

from dither.registry import TokenSpace
from dither.registry.contracts.protocols import GaussianProcess, MaskedFeatureProcess, TokenProcess
from dither.registry.contracts.records import Clean, Noise, Noised, State

from ..check_utils import (
    NotApplicable,
    assert_clean,
    assert_close,
    assert_equal,
    assert_unchanged,
    gaussian_scales,
    random_output,
    seed_cpu,
    snapshot,
    usable_ids,
    without_truth,
)
from ..situations import Situation, checks_of
from ..toy_distributions import assert_normal

__all__ = ["CHECKS"]


def _grid(n: int = 41) -> Float[Tensor, " n"]:
    """Return times off the usual grids, so that none is at a corner of a piecewise schedule."""
    return torch.linspace(0.0013, 0.9987, n, dtype=torch.float64)


def grows(s: Situation) -> None:
    """Sigma and rate are finite and not negative, and sigma never decreases, including both ends."""
    t = torch.cat([torch.zeros(1).double(), _grid(4001), torch.ones(1).double()])
    noise: Noise = s.build()(t)
    for name, values in (("sigma", noise.sigma), ("rate", noise.rate)):
        assert values.isfinite().all(), (
            f"{name} is not finite at t = {t[~values.isfinite()].tolist()}"
        )
        assert (values >= 0).all(), f"{name} is negative at t = {t[values < 0].tolist()}"
    decreases = noise.sigma.diff() < 0
    assert not decreases.any(), f"sigma decreases after t = {t[:-1][decreases].tolist()}"
    assert noise.sigma[-1] > noise.sigma[0], "no noise is added between t = 0 and t = 1"


def precision(s: Situation) -> None:
    """The output has the dtype of the times, and float32 agrees with float64."""
    schedule = s.build()
    t = _grid()
    single = schedule(t.float())
    double = schedule(t.float().double())
    for name in ("sigma", "rate"):
        a = getattr(single, name)
        b = getattr(double, name)
        assert a.dtype == torch.float32, f"{name} is {a.dtype} for float32"
        assert b.dtype == torch.float64, f"{name} is {b.dtype} for float64"
        assert_close(a.double(), b, name, atol=1e-6)


def any_shape(s: Situation) -> None:
    """Times may have any shape and are not modified, and earlier calls do not matter."""
    schedule = s.build()
    t = _grid(12).float()
    before = snapshot(t)
    first = snapshot(schedule(t))
    for name in ("sigma", "rate"):
        per_position = getattr(schedule(t.view(3, 4)), name)
        flat = getattr(schedule(t), name)
        assert per_position.shape == (3, 4), (
            f"{name} has shape {tuple(per_position.shape)} for times of shape (3, 4)"
        )
        assert_close(per_position.flatten(), flat, f"{name} per position", atol=0)
    assert_unchanged(before, t, what="the times")
    assert_unchanged(first, schedule(t), what="the noise at the same times in a later call")


def sigma_end(s: Situation) -> None:
    """`sigma_end` of the Spec, if it is known, is sigma(1)."""
    end = s.spec.sigma_end()
    if end is not None:
        sigma = s.build()(torch.ones(1, dtype=torch.float64)).sigma.item()
        assert math.isclose(sigma, end, rel_tol=1e-5, abs_tol=1e-6), (
            f"sigma(1) is {sigma}, sigma_end() is {end}"
        )


def _corrupted(s: Situation) -> tuple[Any, Clean, Noised]:
    """Return the process, the batch, and the batch noised at a random time per sample."""
    process: Any = s.build()
    return process, s.clean, process.corrupt(s.clean, _times(s))


def _times(s: Situation) -> Float[Tensor, " B"]:
    """Return a time between 0.05 and 1 per sample."""
    return 0.05 + 0.95 * torch.rand(
        len(s.clean.valid), generator=torch.Generator().manual_seed(s.seed)
    )


def facts_are_true(s: Situation) -> None:
    """The facts of the Spec match the built process."""
    facts = s.spec.facts(s.space)
    process = s.build()
    assert facts.name == s.spec.name, f"facts: name is {facts.name}"
    assert facts.space == process.space, (
        f"facts: space is {facts.space}, the process has {process.space}"
    )
    _, _, noised = _corrupted(s)
    if facts.prior in ("mask", "uniform"):
        assert noised.prior is not None, f"the prior is {facts.prior}, but the record has none"
        clean = facts.space.clean().double()
        masks = facts.space.table(
            lambda f: one_hot(torch.tensor(f.mask or 0), facts.space.vocab)
        ).double()
        expected = masks if facts.prior == "mask" else clean / clean.sum(-1, keepdim=True)
        assert_close(noised.prior.double(), expected, f"prior {facts.prior}", atol=1e-6)
    if facts.prior == "mixture":
        assert noised.prior is not None, "the prior is a mixture, but the record has none"
        on_clean = torch.where(facts.space.clean(), noised.prior.double(), 0.0).sum(-1)
        assert ((on_clean > 0) & (on_clean < 1 - 1e-6)).all(), (
            "a mixture has MASK and clean ids in every field"
        )
    masks_values = facts.prior == "hidden"
    assert masks_values or not noised.state.masked.any(), (
        f"values are masked, but facts.prior is {facts.prior}"
    )
    assert (noised.eps is not None) == (facts.prior == "gaussian"), "eps is for Gaussian noise only"


def times_cover_the_range(s: Situation) -> None:
    """Training times are between 0 and 1 and cover the range."""
    t = s.build().times(1000)
    assert tuple(t.shape) == (1000,), f"1000 times have shape {tuple(t.shape)}"
    assert ((t >= 0) & (t <= 1)).all(), f"times from {t.min()} to {t.max()}"
    counts = torch.histc(t, 10, float(t.min()), 1.0)
    assert (counts > 50).all(), f"times per tenth of the range: {counts.int().tolist()} of 1000"


def rate_is_derivative(s: Situation) -> None:
    """The rate of the noise is the derivative of sigma, also near both ends."""
    ends = torch.tensor([3e-5, 4e-4], dtype=torch.float64)
    t = torch.cat([ends, _grid(), 1 - ends]).requires_grad_()
    built = s.build()
    noise = (built if s.spec.kind == "schedule" else built.schedule)(t)
    (grad,) = torch.autograd.grad(noise.sigma.sum(), t)
    torch.testing.assert_close(
        noise.rate.detach(), grad, atol=1e-6, rtol=1e-5, msg=lambda text: f"rate: {text}"
    )


def record_is_complete(s: Situation) -> None:
    """The record for the loss contains the batch, and its tensors have the right shapes."""
    process, clean, noised = _corrupted(s)
    assert_equal(noised.x0, clean.x0, "x0")
    assert_close(
        noised.noise.sigma, process.schedule(_times(s)).sigma, "sigma of each sample", atol=1e-6
    )
    assert_equal(noised.valid, clean.valid, "valid")
    assert_equal(noised.fixed, clean.fixed.expand(clean.x0.shape), "fixed")
    for name, part in (
        ("x", noised.state.x),
        ("masked", noised.state.masked),
        ("target_mask", noised.target_mask),
    ):
        assert part.shape == clean.x0.shape, (
            f"{name} has shape {tuple(part.shape)}, not {tuple(clean.x0.shape)}"
        )
    if noised.prior is not None:
        assert (noised.prior >= 0).all(), "the prior has negative probabilities"
        assert_close(
            noised.prior.sum(-1),
            torch.ones_like(noised.prior[:, 0]),
            "sums of the prior",
            atol=1e-5,
        )
        assert not ((noised.prior > 0) & ~process.space.usable()).any(), (
            "the prior has ids outside the vocabulary"
        )


def forward_distribution(s: Situation) -> None:
    """Noised values follow q(x_t | x_0) for the noise in the record."""
    process = s.build()
    clean = s.clean
    many = clean.apply(lambda tensor: tensor.repeat_interleave(-(-4000 // clean.valid.numel()), 0))
    for t in (0.0, 0.3, 1.0):
        noised = process.corrupt(many, torch.full((len(many.valid),), t))
        if noised.prior is not None:
            _check_token_distribution(noised, t)
        elif noised.eps is not None:
            x = noised.state.x
            noisy = noised.target_mask
            a, b = gaussian_scales(process, noised.noise, x)
            expected = a * noised.x0 + b * noised.eps
            assert_close(x[noisy], expected[noisy], f"x at t = {t}", atol=1e-5)
            eps = noised.eps[noisy]
            n = int(noisy.sum())
            assert n < 100 or abs(eps.mean()) < 5 / n**0.5, f"eps has mean {eps.mean():.3f}"
            assert n < 100 or abs(eps.var() - 1) < 5 * (2 / n) ** 0.5, (
                f"eps has variance {eps.var():.3f}"
            )
        else:
            visible = ~noised.state.masked
            assert_equal(noised.state.x[visible], noised.x0[visible], f"visible values at t = {t}")


def _check_token_distribution(noised: Noised, t: float) -> None:
    assert noised.prior is not None
    alpha = noised.noise.alpha(noised.x0)[..., None]
    noise = noised.noise.one_minus_alpha(noised.x0)[..., None]
    same = one_hot(noised.x0, noised.prior.shape[-1])
    free = ~noised.fixed
    q = (alpha * same + noise * noised.prior)[free]
    drawn = one_hot(noised.state.x, q.shape[-1])[free]
    same = same[free]
    assert not (drawn.bool() & (q == 0)).any(), f"an id of probability 0 is drawn at t = {t}"
    for name, counts, p in (("ids", drawn, q), ("unchanged ids", drawn * same, q * same)):
        excess = (counts.sum(0) - p.sum(0)).abs()
        allowed = 5 * (p * (1 - p)).sum(0).clamp_min(0).sqrt() + 1e-3
        text = f"counts {counts.sum(0).tolist()}, expected {p.sum(0).tolist()}"
        assert (excess <= allowed).all(), f"{name} at t = {t}: {text}"


def target_mask_covers_uncertain(s: Situation) -> None:
    """Fixed values are outside the target mask, and values outside the target mask are clean."""
    _, clean, noised = _corrupted(s)
    assert not (noised.target_mask & noised.fixed).any(), "a fixed value is in the target mask"
    outside = ~noised.target_mask
    assert_equal(noised.state.x[outside], clean.x0[outside], "values outside the target mask")


def returns_prediction(s: Situation) -> None:
    """Raw output becomes normalised log-probabilities and scores, 0 for unchanged ids; or consistent features."""
    process, clean, noised = _corrupted(s)
    raw = random_output(process.space, clean.valid, s.seed)
    pred = process.read(raw, noised.state, noised.noise)
    x = noised.state.x
    free = ~noised.fixed
    if isinstance(process.space, TokenSpace):
        log_clean = pred.log_clean()[free]
        assert_close(log_clean.logsumexp(-1), torch.zeros(len(log_clean)), "log p(x_0 | x_t)")
        allowed = process.space.clean().expand(*x.shape, -1)[free]
        assert (log_clean[~allowed] == -torch.inf).all(), "MASK or PAD has a positive probability"
        score = pred.log_score()[free]
        assert not score.isnan().any(), "the log score is NaN"
        unchanged = score.gather(-1, x[free][:, None])
        assert_close(
            unchanged, torch.zeros_like(unchanged), "the log score of the current id", atol=1e-5
        )
    else:
        assert pred.x0.shape == x.shape, (
            f"x0 has shape {tuple(pred.x0.shape)}, not {tuple(x.shape)}"
        )
        assert (pred.x0 + pred.eps).isfinite().all(), "the prediction is not finite"
        if noised.eps is not None:
            a, b = gaussian_scales(process, noised.noise, x)
            assert_close((a * pred.x0 + b * pred.eps)[free], x[free], "a x0 + b eps", atol=1e-3)


def time_per_position(s: Situation) -> None:
    """One time per sample equals the same time at each of its positions, in every call, and times differ in level."""
    process = s.build()
    clean = s.clean
    t = _times(s)
    states = []
    per_position = t[:, None].expand(clean.valid.shape)
    for times in (t, per_position, t):
        seed_cpu(s.seed)
        states.append(process.corrupt(clean, times).state.x)
    assert_equal(states[1], states[0], "a constant time per position")
    assert_equal(states[2], states[0], "the same times and seed in a later call")
    assert process.level(per_position).shape == clean.valid.shape, (
        "the level has no value per position"
    )
    levels = process.level(torch.tensor([0.1, 0.5, 0.9]))
    assert len(levels.unique()) == 3, f"the levels at t = 0.1, 0.5, 0.9 are {levels.tolist()}"


def _states(s: Situation, process: Any = None) -> list[tuple[str, Any]]:
    """Return the states of every method, with its name."""
    process = process or s.build()
    clean = s.clean
    t = _times(s)
    seed_cpu(s.seed)
    noised = process.corrupt(clean, t)
    pred = process.read(
        random_output(process.space, clean.valid, s.seed), noised.state, noised.noise
    )
    stepped = process.step(noised.state, pred, process.schedule(t), process.schedule(t / 2), clean)
    return [("corrupt", noised.state), ("prior", process.prior(clean)), ("step", stepped)]


def fixed_untouched(s: Situation) -> None:
    """No method changes or masks known values or padding."""
    fixed = s.clean.fixed
    for method, state in _states(s):
        assert_equal(state.x[fixed], s.clean.x0[fixed], f"{method}: fixed values")
        assert not (state.masked & fixed).any(), f"{method} masks fixed values"


def stays_in_space(s: Situation) -> None:
    """States contain ids of the vocabulary of their field, or finite features."""
    space = s.build().space
    for method, state in _states(s):
        if isinstance(space, TokenSpace):
            assert usable_ids(space, state.x).all(), f"{method} returns ids outside the vocabulary"
        else:
            assert state.x.isfinite().all(), f"{method} returns values that are not finite"


def _finished(s: Situation, like: Clean) -> tuple[Any, Tensor, Tensor, Tensor]:
    """Return the process and what `prior`, `step` and `finish` draw with the seed of the situation."""
    process: Any = s.build()
    seed_cpu(s.seed)
    start = process.prior(like)
    ones = torch.ones(len(like.valid))
    now = process.schedule(ones)
    pred = process.read(random_output(process.space, like.valid, s.seed), start, now)
    step = process.step(start, pred, now, process.schedule(ones / 2), like)
    return process, start.x, step.x, process.finish(start, pred, like)


def finish_is_clean(s: Situation) -> None:
    """The last step returns clean ids or finite features, and changes no fixed value."""
    process, _, _, x = _finished(s, s.clean)
    assert_equal(x[s.clean.fixed], s.clean.x0[s.clean.fixed], "finish: fixed values")
    assert_clean(process.space, x, s.clean, "finish")


def truth_unseen(s: Situation) -> None:
    """Sampling does not depend on values that are not given."""
    process = s.build()
    clean = s.clean
    seed_cpu(s.seed)
    visible = (
        ~process.prior(clean).masked if s.spec.facts(s.space).prior == "hidden" else clean.fixed
    )
    drawn = [_finished(s, like)[1:] for like in (clean, without_truth(clean, visible))]
    for method, a, b in zip(("prior", "step", "finish"), *drawn, strict=True):
        assert_equal(a, b, f"{method} depends on the truth")


def seeded(s: Situation) -> None:
    """Torch's seed determines all draws, of another build and of later calls."""
    process = s.build()
    first = _states(s, process)
    for states in (_states(s), _states(s, process)):
        for (method, a), (_, b) in zip(first, states, strict=True):
            assert_equal(b.x, a.x, f"{method} with the same seed")


def batch_not_written(s: Situation) -> None:
    """No method modifies the batch."""
    before = snapshot(s.clean)
    _states(s)
    _finished(s, s.clean)
    assert_unchanged(before, s.clean, what="the batch")


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
    assert_equal(
        process.renoise(state, late.since(late), s.clean).x, state.x, "renoise without a gap"
    )


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
    a, b = gaussian_scales(process, noise, x0)
    assert_close(noised.x[where], (a * x0 + b * eps)[where], "a x0 + b eps", atol=1e-4)
    assert_equal(noised.x[~where], x0[~where], "values without noise")
    replaced = process.replace(state, clean.x0 + 1.0, clean)
    assert_equal(replaced.x[clean.fixed], clean.x0[clean.fixed], "replace: fixed values")


def reveal_keeps_visible(s: Situation) -> None:
    """MaskedFeatureProcess: units and elements are inverse, and `reveal` changes only newly revealed values."""
    process, state = _noised(s, MaskedFeatureProcess)
    masked = state.masked
    assert_equal(
        process.elements(process.units(masked)) & ~s.clean.fixed,
        masked & ~s.clean.fixed,
        "masked elements",
    )
    counts = process.unit_sums(masked.float())
    assert ((counts > 0) <= process.units(masked)).all(), (
        "a unit with masked elements is not masked"
    )
    kept = masked & (torch.arange(masked.shape[1]) % 2 == 0)[:, None]
    revealed = process.reveal(state, state.x + 1.0, kept)
    assert_equal(revealed.masked, kept, "the mask after reveal")
    assert_equal(revealed.x[~masked], state.x[~masked], "values that were visible")
    new = masked & ~kept
    assert_equal(revealed.x[new], (state.x + 1.0)[new], "revealed values")


CHECKS = (
    *checks_of("schedule", grows, rate_is_derivative, precision, any_shape, sigma_end),
    *checks_of(
        "process",
        facts_are_true,
        rate_is_derivative,
        record_is_complete,
        forward_distribution,
        target_mask_covers_uncertain,
        returns_prediction,
        time_per_position,
        fixed_untouched,
        stays_in_space,
        finish_is_clean,
        truth_unseen,
        seeded,
        batch_not_written,
        times_cover_the_range,
    ),
    *checks_of("process", renoise_keeps_fixed, noise_is_standard_normal, reveal_keeps_visible),
)
