"""Checks for the distributions of processes: both ends, forward and reverse steps, and prediction targets.

Letters: B batch, L length, M features, N draws, V vocabulary.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import one_hot

from dither.registry import TokenSpace
from dither.registry.contracts.protocols import GaussianProcess, TokenProcess
from dither.registry.contracts.records import (
    Clean,
    Measured,
    Noise,
    Noised,
    State,
    over,
)

from ..check_utils import (
    NotApplicable,
    assert_close,
    gaussian_scales,
    ideal_output,
    random_output,
    with_variances,
)
from ..situations import Situation, checks_of
from ..toy_distributions import (
    FEATURES,
    OUTCOMES,
    PROBABILITIES,
    SPACE,
    OracleSession,
    assert_follows,
    assert_normal,
    exact_outputs,
    replaced_probs,
)

__all__ = ["CHECKS"]

_Probs = Float[Tensor, " V"]

DRAWS = 2000
"""Draws per sample: a share is known to within .01."""
MANY = 2**16
"""Draws of joint distributions, enough to see probabilities that are off by 2 %."""
UNLIKELY = 2
"""Index of an outcome of low probability."""
MAX_REST = 0.05
"""Noise at t = 0 and signal at t = 1 that the defaults may leave: schedules stop short of both."""
POSITIONS = 4
"""Positions per sample that are tested: each is a test with its own false positives."""


def _many(s: Situation) -> Clean:
    """Return many copies of the first sample of the batch."""
    many: Clean = s.clean[:1].apply(
        lambda tensor: tensor.expand(DRAWS, *tensor.shape[1:]).clone()
    )
    return many


def _at(t: float) -> Float[Tensor, " N"]:
    return torch.full((DRAWS,), t)


def _forward(process: Any, noised: Noised, noise: Noise) -> Float[Tensor, "L V"]:
    """Return q(x_t | x_0) of the first sample for some noise, one row per position."""
    prior = replaced_probs(process, noised, noise)
    same = one_hot(noised.x0[:1], prior.shape[-1])
    alpha = noise.alpha(noised.x0)[:1, ..., None].double()
    rest = noise.one_minus_alpha(noised.x0)[:1, ..., None].double()
    return (alpha * same + rest * prior)[0]


def _free(noised: Noised) -> list[int]:
    """Return some positions that the process changes."""
    free = ~noised.fixed[0]
    if free.ndim > 1:
        free = free.any(-1)
    positions: list[int] = free.nonzero().flatten().tolist()
    if not positions:
        raise NotApplicable("all positions are fixed")
    return positions[:POSITIONS]


def clean_at_zero(s: Situation) -> None:
    """With the defaults, x_t at t = 0 is nearly x_0."""
    process = s.build()
    many = _many(s)
    noised = process.corrupt(many, _at(0.0))
    rest = float(noised.noise.one_minus_alpha(many.x0).max())
    assert rest <= MAX_REST, f"1 - alpha is {rest:.3f} at t = 0"
    if noised.eps is not None:
        # Six standard deviations of the noise that is left.
        scaled = many.x0 * (1 - rest) ** 0.5
        assert_close(noised.state.x, scaled, "x at t = 0", atol=6 * rest**0.5 + 1e-5)
        return
    changed = noised.state.masked | (noised.state.x != many.x0)
    share = changed.double().mean().item()
    if isinstance(process.space, TokenSpace):
        assert share <= rest + 5 * (rest / DRAWS) ** 0.5, (
            f"{share:.3f} of the ids differ at t = 0"
        )
    else:
        assert share <= max(2 * rest, MAX_REST), (
            f"{share:.3f} of the values are masked at t = 0"
        )


def prior_at_one(s: Situation) -> None:
    """With the defaults, x_t at t = 1 hardly depends on x_0 and follows the distribution of `prior`."""
    process = s.build()
    many = _many(s)
    noised = process.corrupt(many, _at(1.0))
    signal = float(noised.noise.alpha(many.x0).max())
    assert signal <= MAX_REST, (
        f"alpha is {signal:.3f} at t = 1, but sampling starts with alpha = 0"
    )
    # Only `corrupt` has signal left.
    _check_start(
        process=process,
        noised=noised,
        state=noised.state,
        signal=signal,
        slack=signal,
        what="corrupt at t = 1",
    )
    _check_start(
        process=process,
        noised=noised,
        state=process.prior(many),
        signal=signal,
        slack=0.0,
        what="prior",
    )


def _check_start(
    *,
    process: Any,
    noised: Noised,
    state: State,
    signal: float,
    slack: float,
    what: str,
) -> None:
    """Assert that a state follows the prior of a record, but for `slack`."""
    if noised.prior is not None:
        prior = replaced_probs(process, noised, noised.noise)
        prior = prior.expand(state.x.shape[1], -1)
        for position in _free(noised):
            p = prior[position]
            counts = torch.bincount(state.x[:, position], minlength=len(p))
            shares = counts.double() / DRAWS
            error = (shares - p).abs().max().item()
            variance = slack + float((p * (1 - p)).max())
            allowed = slack + 5 * (variance / DRAWS) ** 0.5
            assert error <= allowed, (
                f"{what}: ids {shares.tolist()}, the prior is {p.tolist()}"
            )
    elif noised.eps is not None:
        noisy = state.noisy
        if noisy is None:
            noisy = ~noised.fixed

        if noisy.any():
            assert_normal(state.x[noisy], what, slack=4 * signal**0.5)
    else:
        visible = (~state.masked & ~noised.fixed).double().mean().item()
        allowed = slack + 5 * (slack / DRAWS) ** 0.5
        assert visible <= allowed, f"{what}: {visible:.3f} of the values are not masked"


def chapman_kolmogorov(s: Situation) -> None:
    """With an ideal prediction a step from t to s follows q(x_s | x_0), and the last one gives x_0."""
    process = s.build()
    many = _many(s)
    # Far apart, so that a step that forgets the gap is seen.
    late = process.schedule(_at(0.8))
    early = process.schedule(_at(0.4))
    noised = process.corrupt(many, _at(0.8))

    vocab = 0
    if isinstance(process.space, TokenSpace):
        vocab = process.space.vocab

    ideal = ideal_output(s.spec.facts(s.space).predict, noised, vocab)
    ideal = with_variances(process.space, ideal)
    pred = process.read(ideal, noised.state, noised.noise)
    back: State = process.step(noised.state, pred, late, early, many)
    finished = process.finish(noised.state, pred, many)
    if isinstance(process.space, TokenSpace):
        share = (finished != many.x0).double().mean(0).max().item()
        assert share < 0.01, (
            f"a position of {share:.1%} of finished samples is not that of an ideal prediction"
        )
    else:
        # Dividing by a small factor multiplies rounding errors.
        assert_close(finished, many.x0, "the finished sample", atol=1e-2)

    if noised.prior is not None:
        q = _forward(process, noised, early)
        for position in _free(noised):
            what = f"x_s at position {position} with an ideal prediction"
            assert_follows(back.x[:, position], q[position], what)
    elif noised.eps is not None:
        a, b = gaussian_scales(process, early, many.x0)
        # Where almost no noise is left, its values are rounding errors.
        free = noised.target_mask & (b > 1e-3)
        if free.any():
            eps = ((back.x - a * many.x0) / b)[free]
            assert_normal(eps, "the noise of x_s with an ideal prediction", slack=0.01)
    else:
        forward = process.corrupt(many, _at(0.4)).state.masked
        difference = back.masked.double().mean(0) - forward.double().mean(0)
        error = difference.abs().max().item()
        allowed = 5 * (0.5 / DRAWS) ** 0.5
        assert error <= allowed, f"the masked share after a step is off by {error:.3f}"
        visible = ~back.masked
        assert_close(back.x[visible], many.x0[visible], "revealed values", atol=1e-5)


def joint_distributions(s: Situation) -> None:
    """Over two tokens all methods follow their joint distributions, not only the marginal ones."""
    process, _ = _over(s, SPACE)
    # An outcome of two different ids.
    x0 = Clean.of(OUTCOMES[5:6].expand(MANY, -1))
    noised = process.corrupt(x0, torch.full((MANY,), 0.6))
    longer = Clean.of(x0.x0.repeat(4, 1))
    start = process.prior(longer)
    now = _noise(1.5)
    then = _noise(0.6)
    end = process.schedule(torch.ones(1))
    x_t = _forward(process, noised, noised.noise)
    _assert_joint(noised.state.x, x_t, "x_t")
    last = replaced_probs(process, noised, end).expand(2, -1)
    _assert_joint(start.x, last, "the state at t = 1")
    if isinstance(process, TokenProcess):
        renoised = process.renoise(State.of(x0.x0), now, _noise(0.0), x0)
        x_now = _forward(process, noised, now)
        _assert_joint(renoised.x, x_now, "x_0 after `renoise`")
        renoised = process.renoise(
            process.renoise(State.of(x0.x0), then, _noise(0.0), x0), now, then, x0
        )
        _assert_joint(renoised.x, x_now, "x_0 after `renoise` twice")

    prior_t = replaced_probs(process, noised, now).expand(2, -1)
    prior_s = replaced_probs(process, noised, then).expand(2, -1)
    prior_ts = replaced_probs(process, noised, now, then).expand(2, -1)

    # Random output: a step must be exact for any prediction.
    raw = random_output(process.space, torch.ones(1, 2, dtype=torch.bool), s.seed)
    # From a state in the middle, and from the start, where all may be MASK. Large scores are those
    # of no distribution: clamped, they make a position certain, so the second output is small.
    starts = (
        (noised.state[:1], 1.0),
        (start[:1], 0.1),
    )
    for one, scale in starts:
        ids = one.x[0]
        state = one.apply(lambda tensor: tensor.repeat_interleave(MANY, 0))
        output = (scale * raw).expand(MANY, -1, -1)
        pred = process.read(output, state, now)
        p0 = pred.log_clean()[0].double().exp()

        sigmas = (now.sigma[0], then.sigma[0])
        rows = zip(p0, prior_s, prior_ts, ids, strict=True)
        probs = [_reverse(*row, *sigmas) for row in rows]
        reverse = torch.stack(probs)
        stepped = process.step(state, pred, now, then, x0)
        _assert_joint(stepped.x, reverse, f"x_s after {ids.tolist()}")

        # Ids that the prior does not have were never changed.
        uncertain = prior_t.gather(1, ids[:, None]) > 0
        unchanged = one_hot(ids, prior_t.shape[-1]).double()
        expected = torch.where(uncertain, p0, unchanged)
        finished = process.finish(state, pred, x0)
        _assert_joint(finished, expected, f"the sample finished from {ids.tolist()}")


def _assert_joint(x: Tensor, p: Float[Tensor, "2 V"], what: str) -> None:
    """Test both positions against the product of their distributions."""
    size = p.shape[-1]
    usable = (x >= 0) & (x < size)
    assert usable.all(), f"{what}: ids outside the vocabulary"
    product = (p[0, :, None] * p[1]).flatten()
    # A pair of ids as one number, in the order of the product.
    pairs = x[:, 0] * size + x[:, 1]
    assert_follows(pairs, product, f"pairs of ids of {what}")


def normal_step(s: Situation) -> None:
    """GaussianProcess: predictions of an exact model; mean, variance and independence of a step."""
    process, facts = _over(s, FEATURES)
    if not isinstance(process, GaussianProcess) or facts.masked:
        raise NotApplicable("not a GaussianProcess without a mask")
    x0 = torch.tensor([[[0.5, -1.0], [2.0, 0.0]]])
    like = Clean.of(x0.expand(MANY, -1, -1))
    noised = process.corrupt(like, torch.full((MANY,), 0.6))
    state = process.prior(like)
    assert noised.eps is not None, "a Gaussian process records its noise"
    _assert_independent(state.x, "the state at t = 1")
    _assert_independent(noised.eps, "the noise of x_t")
    output = ideal_output(facts.predict, noised, 0)
    output = with_variances(process.space, output)
    ideal = process.read(output, noised.state, noised.noise)
    assert_close(ideal.x0, noised.x0, "x0 of an exact model", atol=1e-3)

    # Random output: mean and variance must be right for any prediction.
    now = _noise(1.5)
    then = _noise(0.6)
    raw = random_output(FEATURES, like.valid[:1], s.seed)
    output = with_variances(process.space, raw.expand(MANY, -1, -1))
    pred = process.read(output, state, now)
    before = now.one_minus_alpha(state.x).double()
    after = then.one_minus_alpha(state.x).double()
    gap = now.since(then)
    signal = gap.alpha(state.x).double()
    added = gap.one_minus_alpha(state.x).double()

    # Scaled so that the squares of both factors add up to 1, as in DDPM (eq. 7).
    _, scale_before = gaussian_scales(process, now, state.x)
    _, scale_after = gaussian_scales(process, then, state.x)
    x = state.x * (before.sqrt() / scale_before)
    stepped = process.step(state, pred, now, then, like)
    new = stepped.x * (after.sqrt() / scale_after)
    of_x0 = then.alpha(x).double().sqrt() * added / before
    of_x = signal.sqrt() * after / before
    variance = after / before * added
    centred = new - of_x0 * pred.x0 - of_x * x
    eps = centred / variance.sqrt()
    _assert_independent(eps, "the noise of a step from t to s (DDPM, eq. 7)")
    assert_close(process.finish(state, pred, like), pred.x0, "the finished sample")


def _assert_independent(x: Tensor, what: str) -> None:
    """Test values for independent standard normal ones."""
    assert_normal(x.flatten(), what, slack=2e-3)
    values = x.flatten(1).double()
    # A few values at a time are tested, so six standard deviations rather than five.
    limit = 6 / len(x) ** 0.5
    means = values.mean(0)
    assert means.abs().max() < limit, f"{what} has the means {means.tolist()}"
    correlations = torch.corrcoef(values.T).fill_diagonal_(0.0)
    assert correlations.abs().max() < limit, f"{what} is correlated between values"


def _noise(sigma: float) -> Noise:
    return Noise(torch.full((MANY,), sigma), torch.ones(MANY))


def _over(s: Situation, space: Any) -> tuple[Any, Any]:
    """Build the process over a toy space; return its facts, too."""
    if list(s.spec.check(space)):
        raise NotApplicable("the process does not support the toy distribution")
    return s.spec.build(space), s.spec.facts(space)


def _reverse(
    p0: _Probs,
    prior_s: _Probs,
    prior_ts: _Probs,
    x: Tensor,
    sigma_t: Tensor,
    sigma_s: Tensor,
) -> _Probs:
    """Return p(x_s | x_t) from transition matrices by Bayes' rule."""
    # In float64: the product of two small probabilities is divided by their sum.
    eye = torch.eye(len(prior_s), dtype=torch.float64)
    sigma_s = sigma_s.double()
    gap = sigma_t.double() - sigma_s
    # Rows are the ids of x_0, or of x_s; a column is that of x_s, or of x_t.
    unchanged_s = (-sigma_s).exp() * eye
    unchanged_t = (-gap).exp() * eye
    to_s = unchanged_s - (-sigma_s).expm1() * prior_s
    to_t = unchanged_t - (-gap).expm1() * prior_ts
    joint = to_s * to_t[:, x]
    evidence = joint.sum(-1, keepdim=True).clamp_min(1e-300)
    return p0 @ (joint / evidence)


def predictions_are_exact(s: Situation) -> None:
    """The raw output of an exact model becomes the true p(x_0 | x_t) and the true score."""
    process, facts = _over(s, SPACE)
    draws = torch.randint(3, (64, 2), generator=s.generator())
    noised = process.corrupt(Clean.of(draws), torch.full((64,), 0.5))
    truth = exact_outputs(noised.state, noised.noise, noised.prior)
    if facts.predict not in truth:
        raise NotApplicable(
            f'the ideal output is unknown for predict = "{facts.predict}"'
        )
    output = truth[facts.predict].float()
    pred = process.read(output, noised.state, noised.noise)
    p0 = pred.log_clean().double().exp()
    expected = truth["posterior"].exp()
    assert_close(p0, expected, "p(x_0 | x_t) of an exact model", atol=2e-3)

    # Beyond exp(12) float32 is too coarse.
    finite = noised.target_mask[..., None] & (truth["score"] < 12)
    score = pred.log_score().double()[finite].exp()
    torch.testing.assert_close(
        score,
        truth["score"][finite].exp(),
        rtol=5e-3,
        atol=2e-3,
        msg=lambda text: f"the score of an exact model: {text}",
    )


def bounds_agree(s: Situation) -> None:
    """`bound`, `draw_diffusion` with `draw_ends`, and `draw_whole_bound` have one mean, no less than -log p(x_0)."""
    process, facts = _over(s, SPACE)
    if not isinstance(process, TokenProcess):
        raise NotApplicable("not a TokenProcess")
    # An unlikely sample, whose bound is large
    one = Clean.of(OUTCOMES[UNLIKELY : UNLIKELY + 1])
    clean = one.apply(lambda tensor: tensor.repeat_interleave(MANY, 0))
    denoise = OracleSession(process, facts.predict, process.prior_probs())

    def times() -> Float[Tensor, " N"]:
        return process.times(MANY)[torch.randperm(MANY)]

    drawn = process.draw_diffusion(clean, times(), _score_entropy, denoise)
    nats = (drawn.values * drawn.weights).sum(1)
    for end in process.draw_ends(clean, denoise).values():
        nats = nats + end.sum(1)
    t, noised = process.estimate(clean, times())
    measured = _score_entropy(denoise(noised.state, t), noised)
    trained = process.bound(clean, measured, denoise)
    bounds = {"bound": (trained.values * trained.weights).sum(1)}
    whole = process.draw_whole_bound(clean, times(), denoise)
    if whole is not None:
        bounds["draw_whole_bound"] = whole.sum(1)

    # They treat the signal that is left at t = 1 in their own ways.
    slack = 0.03
    least = -float(PROBABILITIES[UNLIKELY].log())
    error = float(nats.std()) / MANY**0.5
    mean = float(nats.mean())
    what = "`draw_diffusion` with `draw_ends`"
    assert mean > least - 6 * error - slack, (
        f"{what}: {mean:.3f} nats, of a sample with -log p = {least:.3f}"
    )
    for name, other in bounds.items():
        allowed = 6 * math.hypot(error, float(other.std()) / MANY**0.5) + slack
        difference = abs(float(other.mean()) - mean)
        assert difference < allowed, (
            f"`{name}` has the mean {float(other.mean()):.3f} nats, {what} {mean:.3f}"
        )


def _score_entropy(pred: Any, noised: Noised) -> Measured:
    """Return the diffusion part of the bound (Lou et al. 2023, eq. 5) of the reverse rates to all ids."""
    x = noised.state.x
    assert noised.prior is not None, "a process over tokens records its prior"
    vocab = noised.prior.shape[-1]
    alpha = noised.noise.alpha(noised.x0)[..., None].double()
    prior = noised.prior.double().expand(*x.shape, vocab)
    ids = x[..., None]

    # The ratios q(y | x_0) / q(x_t | x_0), which are the scores of a model that knows x_0
    q = alpha * one_hot(noised.x0, vocab) + (1 - alpha) * prior
    ratio = q / q.gather(-1, ids)

    # score - ratio log score + ratio (log ratio - 1), 0 where the two are equal
    log_score = pred.log_score().double()
    cross = ratio * log_score
    cross = cross.where(ratio > 0, 0.0)
    excess = log_score.exp() - cross + torch.xlogy(ratio, ratio) - ratio

    # Of the ids other than x_t, times the forward rate from them to x_t
    others = torch.arange(vocab) != ids
    of_position = excess.where(others, 0.0).sum(-1)
    prior_x = prior.gather(-1, ids)[..., 0]
    rate = over(noised.noise.rate, x) * prior_x
    nats = (rate * of_position).where(noised.target_mask, 0.0)
    return Measured(nats, (~noised.fixed).double())


CHECKS = (
    *checks_of("process", bounds_agree, examples=2),
    *checks_of("process", predictions_are_exact, needs="tokens", examples=5),
    *checks_of("process", joint_distributions, needs="tokens", examples=2),
    *checks_of("process", normal_step, examples=3),
    *checks_of("process", chapman_kolmogorov, examples=3),
    *checks_of("process", clean_at_zero, prior_at_one, place="default", examples=3),
)
