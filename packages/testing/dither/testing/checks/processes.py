"""Checks for schedules and processes: facts, records, predictions, methods and the protocols of samplers.

Letters: B batch, L length, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import one_hot

from dither.registry import TokenSpace
from dither.registry.contracts.protocols import (
    GaussianProcess,
    MaskedFeatureProcess,
    Process,
    TokenProcess,
)
from dither.registry.contracts.records import (
    Clean,
    FeaturePrediction,
    Noise,
    Noised,
    State,
    TokenPrediction,
)

from ..check_utils import (
    NotApplicable,
    assert_clean,
    assert_close,
    assert_equal,
    assert_unchanged,
    check_implements,
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

COPIES = 256
"""Rows of one sample, in which methods that draw differ."""


def _grid(n: int = 41) -> Float[Tensor, " n"]:
    """Return times off the usual grids, so that none is at a corner of a piecewise schedule."""
    return torch.linspace(0.0013, 0.9987, n, dtype=torch.float64)


def grows(s: Situation) -> None:
    """Sigma and rate are finite and not negative, and sigma never decreases, with both ends."""
    start = torch.zeros(1, dtype=torch.float64)
    end = torch.ones(1, dtype=torch.float64)
    # So many times, because a wrong piece of a schedule may be short.
    t = torch.cat([start, _grid(4001), end])
    noise: Noise = s.build()(t)
    for name, values in (("sigma", noise.sigma), ("rate", noise.rate)):
        infinite = t[~values.isfinite()].tolist()
        assert not infinite, f"{name} is not finite at t = {infinite}"
        negative = t[values < 0].tolist()
        assert not negative, f"{name} is negative at t = {negative}"

    rise = noise.sigma.diff()
    before = t[:-1]
    decreases = before[rise < 0].tolist()
    assert not decreases, f"sigma decreases after t = {decreases}"
    # Between close times the rate hardly changes; a jump of sigma has no rate.
    rate = torch.maximum(noise.rate[:-1], noise.rate[1:])
    largest = 3 * rate * t.diff() + 1e-3
    jumps = before[rise > largest].tolist()
    assert not jumps, f"sigma jumps after t = {jumps}"
    assert noise.sigma[-1] > noise.sigma[0], "no noise is added between t = 0 and t = 1"


def precision(s: Situation) -> None:
    """The output has the dtype and the precision of the times, and float32 agrees with float64."""
    schedule = s.build()
    t = _grid().float()
    single: Noise = schedule(t)
    double: Noise = schedule(t.double())
    for name in ("sigma", "rate"):
        narrow = getattr(single, name)
        wide = getattr(double, name)
        assert narrow.dtype == torch.float32, f"{name} is {narrow.dtype} for float32"
        assert wide.dtype == torch.float64, f"{name} is {wide.dtype} for float64"
        # Close to t = 0 sigma itself is about 1e-3.
        assert_close(narrow.double(), wide, name, atol=1e-6)
    # float32 inside of a schedule would round this step away.
    step = 1e-7
    moved: Noise = schedule(t.double() + step)
    rise = (moved.sigma - double.sigma) / step
    assert_close(rise, double.rate, "sigma in float64: its rise over 1e-7", atol=1e-5)
    # All digits of a float32 number are in a float32.
    coarse = torch.equal(double.rate.float().double(), double.rate)
    is_constant = bool((double.rate == double.rate[0]).all())
    assert not coarse or is_constant, "the rate in float64 has the digits of float32"


def any_shape(s: Situation) -> None:
    """Times may have any shape and are not modified, and other times do not matter."""
    schedule = s.build()
    t = _grid(12).float()
    before = snapshot(t)
    flat: Noise = schedule(t)
    first = snapshot(flat)
    per_position: Noise = schedule(t.view(3, 4))
    parts = (
        ("sigma", per_position.sigma, flat.sigma),
        ("rate", per_position.rate, flat.rate),
    )
    for name, values, expected in parts:
        shape = tuple(values.shape)
        assert shape == (3, 4), f"{name} has shape {shape} for times of shape (3, 4)"
        assert_close(values.flatten(), expected, f"{name} per position", atol=0)
    assert_unchanged(before, t, what="the times")
    later = schedule(t)
    assert_unchanged(first, later, what="the noise at the same times in a later call")
    alone: Noise = schedule(t[-1:])
    assert_close(alone.sigma, flat.sigma[-1:], "sigma of a time alone", atol=0)
    assert_close(alone.rate, flat.rate[-1:], "the rate of a time alone", atol=0)


def sigma_end(s: Situation) -> None:
    """`sigma_end` of the Spec, if it is known, is sigma(1)."""
    end = s.spec.sigma_end()
    if end is not None:
        schedule = s.build()
        t = torch.ones(1, dtype=torch.float64)
        sigma = schedule(t).sigma.item()
        same = math.isclose(sigma, end, rel_tol=1e-5, abs_tol=1e-6)
        assert same, f"sigma(1) is {sigma}, sigma_end() is {end}"


def _corrupted(s: Situation) -> tuple[Any, Clean, Noised]:
    """Return the process, the batch, and the batch noised at a random time per sample."""
    process: Any = s.build()
    return process, s.clean, process.corrupt(s.clean, _times(s))


def _times(s: Situation) -> Float[Tensor, " B"]:
    """Return a time between 0.05 and 1 per sample."""
    draws = torch.rand(len(s.clean.valid), generator=s.generator())
    # Near t = 0 nothing is noised, and there would be nothing to check.
    return 0.05 + 0.95 * draws


def facts_are_true(s: Situation) -> None:
    """The facts of the Spec match the built process."""
    facts = s.spec.facts(s.space)
    process, _, noised = _corrupted(s)
    assert facts.name == s.spec.name, f"facts: name is {facts.name}"
    spaces = f"facts: space is {facts.space}, the process has {process.space}"
    assert facts.space == process.space, spaces
    if facts.prior in ("mask", "uniform", "mixture"):
        assert noised.prior is not None, (
            f"the prior is {facts.prior}, but the record has none"
        )
        prior = noised.prior.double()
        varies = prior.ndim > 2
        assert varies == facts.prior_varies, f"facts: prior_varies is {not varies}"
        _check_prior(facts, prior)
    if facts.prior != "hidden":
        masks = noised.state.masked.any()
        assert not masks, f"values are masked, but facts.prior is {facts.prior}"
    is_gaussian = facts.prior == "gaussian"
    assert (noised.eps is not None) == is_gaussian, "eps is for Gaussian noise only"


def _check_prior(facts: Any, prior: Tensor) -> None:
    clean = facts.space.clean()
    if facts.prior == "mixture":
        share = torch.where(clean, prior, 0.0).sum(-1)
        inside = (share > 0) & (share < 1 - 1e-6)
        assert inside.all(), "a mixture has MASK and clean ids in every field"
        return
    expected = clean.double() / clean.sum(-1, keepdim=True)
    if facts.prior == "mask":
        # A process with this prior gives each field a MASK.
        masks = facts.space.table(lambda field: torch.tensor(field.mask or 0))
        expected = one_hot(masks, facts.space.vocab).double()
    assert_close(prior, expected, f"prior {facts.prior}", atol=1e-6)


def times_cover_the_range(s: Situation) -> None:
    """Training times are between 0 and 1, cover the range, and are others in each call."""
    process = s.build()
    t = process.times(1000)
    shape = tuple(t.shape)
    assert shape == (1000,), f"1000 times have shape {shape}"
    inside = (t >= 0) & (t <= 1)
    assert inside.all(), f"times from {t.min()} to {t.max()}"
    # 100 are expected in each tenth; a process may prefer some times.
    counts = torch.histc(t, 10, float(t.min()), 1.0)
    assert (counts > 50).all(), (
        f"times per tenth of the range: {counts.int().tolist()} of 1000"
    )
    assert not torch.equal(process.times(1000), t), "times are the same in each call"


def draws_are_new(s: Situation) -> None:
    """Every call of a method that draws uses other random numbers."""
    process = s.build()
    many = s.clean[:1].apply(lambda value: value.repeat_interleave(COPIES, 0))
    t = torch.full((COPIES,), 0.6)
    now = process.schedule(t)
    then = process.schedule(t / 2)
    seed_cpu(s.seed)
    # The same state of each row, so that only the draws of a call can differ between rows.
    one = process.corrupt(s.clean[:1], t[:1]).state
    state = one.apply(lambda value: value.repeat_interleave(COPIES, 0))
    raw = random_output(process.space, s.clean.valid[:1], s.seed)
    raw = raw.repeat_interleave(COPIES, 0)
    pred = process.read(raw, state, now)

    methods: dict[str, Callable[[], State]] = {
        "corrupt": lambda: process.corrupt(many, t).state,
        "prior": lambda: process.prior(many),
        "step": lambda: process.step(state, pred, now, then, many),
        "finish": lambda: State.of(process.finish(state, pred, many)),
    }
    if isinstance(process, TokenProcess):
        methods["renoise"] = lambda: process.renoise(state, now, then, many)
    for name, method in methods.items():
        first = _row_values(method())
        second = _row_values(method())
        # A method that draws gives rows different results; a few may coincide in two calls.
        differ = int((first != first[:1]).any(1).sum())
        same = differ > COPIES // 16 and torch.equal(first, second)
        assert not same, f"{name} draws the same random numbers in each call"


def _row_values(state: State) -> Tensor:
    """Return values and masks of a state, one row per sample."""
    return torch.cat([state.x.flatten(1), state.masked.flatten(1)], 1)


def rate_is_derivative(s: Situation) -> None:
    """The rate of the noise is the derivative of sigma, also near both ends."""
    # Schedules are often clamped near their ends, where the rate must follow.
    ends = torch.tensor([3e-5, 4e-4], dtype=torch.float64)
    t = torch.cat([ends, _grid(), 1 - ends]).requires_grad_()
    schedule = s.build()
    if s.spec.kind == "process":
        schedule = schedule.schedule
    noise: Noise = schedule(t)
    (grad,) = torch.autograd.grad(noise.sigma.sum(), t)
    torch.testing.assert_close(
        noise.rate.detach(),
        grad,
        atol=1e-6,
        rtol=1e-5,
        msg=lambda text: f"rate: {text}",
    )


def record_is_complete(s: Situation) -> None:
    """The record for the loss contains the batch, and its tensors have the right shapes."""
    process, clean, noised = _corrupted(s)
    sigma = process.schedule(_times(s)).sigma
    assert_equal(noised.x0, clean.x0, "x0")
    assert_close(noised.noise.sigma, sigma, "sigma of each sample", atol=1e-6)
    assert_equal(noised.valid, clean.valid, "valid")
    assert_equal(noised.fixed, clean.fixed.expand(clean.x0.shape), "fixed")
    parts = {
        "x": noised.state.x,
        "masked": noised.state.masked,
        "target_mask": noised.target_mask,
    }
    expected = tuple(clean.x0.shape)
    for name, part in parts.items():
        shape = tuple(part.shape)
        assert shape == expected, f"{name} has shape {shape}, not {expected}"
    if noised.prior is not None:
        assert (noised.prior >= 0).all(), "the prior has negative probabilities"
        sums = noised.prior.sum(-1)
        assert_close(sums, torch.ones_like(sums), "sums of the prior", atol=1e-5)
        outside = (noised.prior > 0) & ~process.space.usable()
        assert not outside.any(), "the prior has ids outside the vocabulary"


def forward_distribution(s: Situation) -> None:
    """Noised values follow q(x_t | x_0) for the noise in the record."""
    process = s.build()
    # 4,000 values show a probability that is off by .05.
    copies = -(-4000 // s.clean.valid.numel())
    many = s.clean.apply(lambda tensor: tensor.repeat_interleave(copies, 0))
    for t in (0.0, 0.3, 1.0):
        noised = process.corrupt(many, torch.full((len(many.valid),), t))
        if noised.prior is not None:
            _check_token_distribution(noised, t)
        elif noised.eps is not None:
            _check_gaussian_noise(process, noised, t)
        else:
            visible = ~noised.state.masked
            assert_equal(
                noised.state.x[visible],
                noised.x0[visible],
                f"visible values at t = {t}",
            )


def _check_gaussian_noise(process: Any, noised: Noised, t: float) -> None:
    assert noised.eps is not None
    noisy = noised.target_mask
    a, b = gaussian_scales(process, noised.noise, noised.state.x)
    expected = a * noised.x0 + b * noised.eps
    assert_close(noised.state.x[noisy], expected[noisy], f"x at t = {t}", atol=1e-5)
    eps = noised.eps[noisy]
    # Fewer values have no distribution to speak of.
    if len(eps) >= 100:
        mean = eps.mean()
        variance = eps.var()
        # Five standard deviations of the mean and of the variance of normal numbers.
        assert abs(mean) < 5 / len(eps) ** 0.5, f"eps has mean {mean:.3f}"
        assert abs(variance - 1) < 5 * (2 / len(eps)) ** 0.5, (
            f"eps has variance {variance:.3f}"
        )
    # Of every feature, as some may get no noise.
    squares = (noised.eps.square() * noisy).sum((0, 1))
    count = noisy.sum((0, 1))
    silent = (count >= 30) & (squares < 0.3 * count)
    assert not silent.any(), f"features {silent.nonzero()[:, 0].tolist()} get no noise"


def _check_token_distribution(noised: Noised, t: float) -> None:
    assert noised.prior is not None
    alpha = noised.noise.alpha(noised.x0)[..., None]
    noise = noised.noise.one_minus_alpha(noised.x0)[..., None]
    free = ~noised.fixed
    same = one_hot(noised.x0, noised.prior.shape[-1])
    # q(x_t | x_0) = alpha x_0 + (1 - alpha) prior
    q = (alpha * same + noise * noised.prior)[free]
    same = same[free]
    drawn = one_hot(noised.state.x, q.shape[-1])[free]
    impossible = drawn.bool() & (q == 0)
    assert not impossible.any(), f"an id of probability 0 is drawn at t = {t}"
    # Unchanged ids too: the counts of all ids would not see noise that avoids the current one.
    for name, counts, p in (
        ("ids", drawn, q),
        ("unchanged ids", drawn * same, q * same),
    ):
        actual = counts.sum(0)
        expected = p.sum(0)
        # Five standard deviations of a sum of independent draws, and a few rare events.
        variance = (p * (1 - p)).sum(0).clamp_min(0)
        allowed = 5 * variance.sqrt() + 3
        text = f"counts {actual.tolist()}, expected {expected.tolist()}"
        deviation = (actual - expected).abs()
        assert (deviation <= allowed).all(), f"{name} at t = {t}: {text}"


def target_mask_covers_uncertain(s: Situation) -> None:
    """Fixed values are outside the target mask, and values outside the target mask are clean."""
    _, clean, noised = _corrupted(s)
    predicted = noised.target_mask & noised.fixed
    assert not predicted.any(), "a fixed value is in the target mask"
    outside = ~noised.target_mask
    x = noised.state.x[outside]
    assert_equal(x, clean.x0[outside], "values outside the target mask")


def returns_prediction(s: Situation) -> None:
    """Raw output becomes normalised log-probabilities and scores, 0 for unchanged ids; or consistent features."""
    process, clean, noised = _corrupted(s)
    check_implements(process, Process)
    raw = random_output(process.space, clean.valid, s.seed)
    pred = process.read(raw, noised.state, noised.noise)
    tokens = isinstance(process.space, TokenSpace)
    check_implements(pred, TokenPrediction if tokens else FeaturePrediction)
    x = noised.state.x
    free = ~noised.fixed
    if isinstance(process.space, TokenSpace):
        log_clean = pred.log_clean()[free]
        log_sums = log_clean.logsumexp(-1)
        assert_close(log_sums, torch.zeros_like(log_sums), "log p(x_0 | x_t)")
        allowed = process.space.clean().expand(*x.shape, -1)[free]
        excluded = log_clean[~allowed] == -torch.inf
        assert excluded.all(), "MASK or PAD has a positive probability"
        score = pred.log_score()[free]
        assert not score.isnan().any(), "the log score is NaN"
        unchanged = score.gather(-1, x[free][:, None])
        assert_close(
            unchanged,
            torch.zeros_like(unchanged),
            "the log score of the current id",
            atol=1e-5,
        )
    else:
        assert pred.x0.shape == x.shape, (
            f"x0 has shape {tuple(pred.x0.shape)}, not {tuple(x.shape)}"
        )
        assert (pred.x0 + pred.eps).isfinite().all(), "the prediction is not finite"
        if noised.eps is not None:
            a, b = gaussian_scales(process, noised.noise, x)
            # Dividing by a small factor multiplies the rounding errors of float32.
            sums = (a * pred.x0 + b * pred.eps)[free]
            assert_close(sums, x[free], "a x0 + b eps", atol=1e-3)


def time_per_position(s: Situation) -> None:
    """One time per sample equals the same per position, in every call; levels differ by time."""
    process = s.build()
    clean = s.clean
    t = _times(s)
    per_position = t[:, None].expand(clean.valid.shape)
    states = []
    # The first times again: a process must not remember the last ones.
    for times in (t, per_position, t):
        seed_cpu(s.seed)
        states.append(process.corrupt(clean, times).state.x)
    assert_equal(states[1], states[0], "a constant time per position")
    assert_equal(states[2], states[0], "the same times and seed in a later call")
    shape = process.level(per_position).shape
    assert shape == clean.valid.shape, "the level has no value per position"
    # A model could not know the time from equal levels.
    levels = process.level(torch.tensor([0.1, 0.5, 0.9]))
    different = len(levels.unique()) == 3
    assert different, f"the levels at t = 0.1, 0.5, 0.9 are {levels.tolist()}"


def _states(s: Situation, process: Any = None) -> list[tuple[str, Any]]:
    """Return the states of every method, with its name."""
    process = process or s.build()
    clean = s.clean
    t = _times(s)
    seed_cpu(s.seed)
    noised = process.corrupt(clean, t)
    now = process.schedule(t)
    then = process.schedule(t / 2)
    raw = random_output(process.space, clean.valid, s.seed)
    pred = process.read(raw, noised.state, noised.noise)
    stepped = process.step(noised.state, pred, now, then, clean)
    return [
        ("corrupt", noised.state),
        ("prior", process.prior(clean)),
        ("step", stepped),
    ]


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
            usable = usable_ids(space, state.x).all()
            assert usable, f"{method} returns ids outside the vocabulary"
        else:
            finite = state.x.isfinite().all()
            assert finite, f"{method} returns values that are not finite"


def _finished(s: Situation, like: Clean) -> tuple[Tensor, Tensor, Tensor]:
    """Return the draws of `prior`, `step` and `finish` with the seed of the situation."""
    process: Any = s.build()
    seed_cpu(s.seed)
    start = process.prior(like)
    end = torch.ones(len(like.valid))
    now = process.schedule(end)
    then = process.schedule(end / 2)
    raw = random_output(process.space, like.valid, s.seed)
    pred = process.read(raw, start, now)
    step = process.step(start, pred, now, then, like)
    return start.x, step.x, process.finish(start, pred, like)


def finish_is_clean(s: Situation) -> None:
    """The last step returns clean ids or finite features, and changes no fixed value."""
    *_, x = _finished(s, s.clean)
    fixed = s.clean.fixed
    assert_equal(x[fixed], s.clean.x0[fixed], "finish: fixed values")
    assert_clean(s.build().space, x, s.clean, "finish")


def truth_unseen(s: Situation) -> None:
    """Sampling does not depend on values that are not given."""
    process = s.build()
    clean = s.clean
    seed_cpu(s.seed)
    visible = clean.fixed
    # A process that hides features may show some at the start.
    if s.spec.facts(s.space).prior == "hidden":
        visible = ~process.prior(clean).masked
    drawn = [_finished(s, like) for like in (clean, without_truth(clean, visible))]
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
    return process, process.corrupt(s.clean, s.times(0.5)).state


def renoise_keeps_fixed(s: Situation) -> None:
    """TokenProcess: `prior_probs` sums to 1; `renoise` changes no fixed value, and none without a gap."""
    process, state = _noised(s, TokenProcess)
    sums = process.prior_probs().sum(-1)
    assert_close(sums, torch.ones_like(sums), "sums of prior_probs", atol=1e-5)
    late = process.schedule(s.times(1.0))
    fixed = s.clean.fixed
    seed_cpu(s.seed)
    middle = process.schedule(s.times(0.5))
    renoised = process.renoise(state, late, middle, s.clean)
    assert_equal(renoised.x[fixed], s.clean.x0[fixed], "renoise: fixed values")
    # Between equal times no noise is added.
    unchanged = process.renoise(state, late, late, s.clean)
    assert_equal(unchanged.x, state.x, "renoise without a gap")


def noise_is_standard_normal(s: Situation) -> None:
    """GaussianProcess: `add_noise` returns standard normal noise; `replace` changes no fixed value."""
    process, state = _noised(s, GaussianProcess)
    clean = s.clean
    free = ~clean.fixed.expand(clean.x0.shape)
    if not free.any():
        raise NotApplicable("all values are fixed")
    # Enough for a test of the variance to within 11 %.
    copies = -(-4000 // int(free.sum()))
    x0 = clean.x0.repeat_interleave(copies, 0)
    free = free.repeat_interleave(copies, 0)
    noise = process.schedule(torch.full((len(x0),), 0.5))
    seed_cpu(s.seed)
    noised, eps = process.add_noise(x0, noise, free)
    assert_normal(eps[free], "the noise")
    a, b = gaussian_scales(process, noise, x0)
    expected = a * x0 + b * eps
    assert_close(noised.x[free], expected[free], "a x0 + b eps", atol=1e-4)
    assert_equal(noised.x[~free], x0[~free], "values without noise")

    fixed = clean.fixed
    replaced = process.replace(state, clean.x0 + 1.0, clean)
    assert_equal(replaced.x[fixed], clean.x0[fixed], "replace: fixed values")


def reveal_keeps_visible(s: Situation) -> None:
    """MaskedFeatureProcess: units and elements are inverse; `reveal` changes revealed values only."""
    process, state = _noised(s, MaskedFeatureProcess)
    masked = state.masked
    free = ~s.clean.fixed
    units = process.units(masked)
    assert_equal(process.elements(units) & free, masked & free, "masked elements")
    with_masked = process.unit_sums(masked.float()) > 0
    assert (with_masked <= units).all(), "a unit with masked elements is not masked"

    # Reveal some of the masked values, and leave others masked.
    even = torch.arange(masked.shape[1]) % 2 == 0
    still_masked = masked & even[:, None]
    new = masked & ~still_masked
    x = state.x + 1.0
    revealed = process.reveal(state, x, still_masked)
    assert_equal(revealed.masked, still_masked, "the mask after reveal")
    assert_equal(revealed.x[~masked], state.x[~masked], "values that were visible")
    assert_equal(revealed.x[new], x[new], "revealed values")


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
    *checks_of(
        "process", renoise_keeps_fixed, noise_is_standard_normal, reveal_keeps_visible
    ),
    *checks_of("process", draws_are_new, examples=3),
)
