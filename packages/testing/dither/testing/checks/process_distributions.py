"""Checks of the law of a process: its two ends, its way in, its way back, and what raw output means.

Letters: B batch, L length, M features, N draws, V vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import one_hot

from dither.registry import TokenSpace
from dither.registry.flow.records import Clean, Noise, Noised, State

from ..check_utils import NotApplicable, assert_close, ideal_output, random_output
from ..situations import Situation
from ..toy_distributions import SPACE, assert_follows, assert_normal, exact_outputs
from .check import checks_of

__all__ = ["CHECKS"]

DRAWS = 2000
"""How often each sample is drawn."""
SMALL = 0.05
"""What the defaults may leave: noise at t = 0, signal at t = 1."""
POSITIONS = 4
"""Positions of a sample that are looked at."""


def _many(s: Situation) -> Clean:
    """Return the first sample of the batch, many times."""
    many: Clean = s.clean[:1].apply(lambda tensor: tensor.expand(DRAWS, *tensor.shape[1:]).clone())
    return many


def _at(t: float) -> Float[Tensor, " N"]:
    return torch.full((DRAWS,), t)


def _forward(noised: Noised, noise: Noise) -> Float[Tensor, "L V"]:
    """Return q(x_t | x_0) of the first sample at a noise, one row per position."""
    assert noised.prior is not None
    stays = one_hot(noised.x0[:1], noised.prior.shape[-1]).double()
    alpha, lost = (part[:1].double()[..., None] for part in (noise.alpha(noised.x0), noise.one_minus_alpha(noised.x0)))
    return (alpha * stays + lost * noised.prior.double())[0]


def _free(noised: Noised) -> list[int]:
    """Return some positions on which the process acts."""
    free = ~noised.fixed[0].flatten(1).any(-1) if noised.fixed.ndim > 2 else ~noised.fixed[0]
    found = free.nonzero()[:, 0].tolist()[:POSITIONS]
    if not found:
        raise NotApplicable("the process acts on none of the positions")
    return list(found)


def q_normalised(s: Situation) -> None:
    """The rows of q(x_t | x_0) are at least 0 and sum to 1, on usable ids only."""
    process: Any = s.build()
    for t in (0.0, 0.4, 1.0):
        noised = process.corrupt(s.clean, torch.full((len(s.clean.valid),), t))
        assert noised.prior is not None, "a token process says where moved tokens land"
        q = _forward(noised, noised.noise)
        assert (q >= 0).all(), f"q is negative at t = {t}"
        assert_close(q.sum(-1), torch.ones_like(q[:, 0]), f"rows of q at t = {t}", atol=1e-5)
        usable = process.space.usable().expand(len(q), -1)
        assert not (q[~usable] > 0).any(), f"q puts ids outside the vocabulary at t = {t}"


def clean_at_zero(s: Situation) -> None:
    """At t = 0, with the defaults, nearly all of x_0 is there."""
    process, many = s.build(), _many(s)
    noised = process.corrupt(many, _at(0.0))
    lost = float(noised.noise.one_minus_alpha(many.x0).max())
    assert lost <= SMALL, f"1 - alpha is {lost:.3f} at t = 0"
    if noised.eps is not None:
        assert_close(noised.state.x, many.x0 * (1 - lost) ** 0.5, "x at t = 0", atol=6 * lost**0.5 + 1e-5)
        return
    touched = noised.state.masked | (noised.state.x != many.x0)
    share = touched.double().mean().item()
    if isinstance(process.space, TokenSpace):
        assert share <= lost + 5 * (lost / DRAWS) ** 0.5, f"{share:.3f} of the ids have changed at t = 0"
    else:
        assert share <= max(2 * lost, SMALL), f"{share:.3f} of the values are hidden at t = 0"


def prior_at_one(s: Situation) -> None:
    """At t = 1, with the defaults, nearly nothing of x_0 is left: the state is as `prior` draws it."""
    process, many = s.build(), _many(s)
    noised, start = process.corrupt(many, _at(1.0)), process.prior(many)
    left = float(noised.noise.alpha(many.x0).max())
    assert left <= SMALL, f"alpha is {left:.3f} at t = 1, where sampling starts as if it were 0"
    for name, state in (("corrupt at t = 1", noised.state), ("prior", start)):
        slack = left if state is noised.state else 0.0
        if noised.prior is not None:
            for place in _free(noised):
                law = noised.prior.expand(many.x0.shape[1], -1)[place].double()
                seen = torch.bincount(state.x[:, place], minlength=len(law)).double() / DRAWS
                off = (seen - law).abs().max().item()
                allowed = slack + 5 * ((slack + float((law * (1 - law)).max())) / DRAWS) ** 0.5
                assert off <= allowed, f"{name}: ids {seen.tolist()}, the prior says {law.tolist()}"
        elif noised.eps is not None:
            noisy = ~noised.fixed if state.noisy is None else state.noisy
            assert_normal(state.x[noisy], name, slack=4 * left**0.5)
        else:
            shown = (~state.masked & ~many.fixed).double().mean().item()
            assert shown <= slack + 5 * (slack / DRAWS) ** 0.5, f"{name}: {shown:.3f} of the values are not hidden"


def chapman_kolmogorov(s: Situation) -> None:
    """From t back to s, told the truth, values follow q(x_s | x_0) again."""
    process, many = s.build(), _many(s)
    late, early = process.schedule(_at(0.8)), process.schedule(_at(0.4))
    noised = process.corrupt(many, _at(0.8))
    predict = s.spec.facts(s.space).predict
    told = process.read(ideal_output(predict, noised, getattr(process.space, "vocab", 0)), noised.state, noised.noise)
    back: State = process.step(noised.state, told, late, early, many)
    if noised.prior is not None:
        q = _forward(noised, early)
        for place in _free(noised):
            assert_follows(back.x[:, place], q[place], f"x_s at position {place}, from x_t and the truth")
    elif noised.eps is not None:
        a, b = early.alpha(many.x0).sqrt(), early.one_minus_alpha(many.x0).sqrt()
        free = noised.target_mask & (b > 1e-3)
        if free.any():
            assert_normal(((back.x - a * many.x0) / b)[free], "the noise of x_s, from x_t and the truth", slack=0.01)
    else:
        there = process.corrupt(many, _at(0.4)).state.masked
        off = (back.masked.double().mean(0) - there.double().mean(0)).abs().max().item()
        assert off <= 5 * (0.5 / DRAWS) ** 0.5, f"the share hidden at s, stepping back from t, is {off:.3f} off"
        assert_close(back.x[~back.masked], many.x0[~back.masked], "what is filled in from the truth", atol=1e-5)


def reverse_step(s: Situation) -> None:
    """A step draws from the sum over x_0 of p(x_0 | x_t) q(x_s | x_t, x_0), worked out by brute force."""
    process = s.build()
    noised = process.corrupt(s.clean[:1], torch.tensor([0.7]))
    same = noised.apply(lambda tensor: tensor.expand(DRAWS, *tensor.shape[1:]) if len(tensor) == 1 else tensor)
    many = s.clean[:1].apply(lambda tensor: tensor.expand(DRAWS, *tensor.shape[1:]))
    late, early = process.schedule(_at(0.7)), process.schedule(_at(0.3))
    raw = random_output(process.space, s.clean.valid[:1], s.seed).expand(DRAWS, -1, -1)
    belief = process.read(raw, same.state, late)
    back = process.step(same.state, belief, late, early, many)
    p0 = belief.log_clean()[0].double().exp()
    assert noised.prior is not None
    for place in _free(noised):
        prior = noised.prior.expand(many.x0.shape[1], -1)[place].double()
        law = _reverse(p0[place], prior, noised.state.x[0, place], late.sigma[0].double(), early.sigma[0].double())
        assert_follows(back.x[:, place], law, f"x_s at position {place}")


def _reverse(
    p0: Float[Tensor, " V"], prior: Float[Tensor, " V"], x: Tensor, sigma_t: Tensor, sigma_s: Tensor
) -> Float[Tensor, " V"]:
    """Return p(x_s | x_t) from transition matrices, by Bayes' rule."""
    eye = torch.eye(len(prior), dtype=torch.float64)
    to_s = (-sigma_s).exp() * eye - (-sigma_s).expm1() * prior
    from_s = ((sigma_s - sigma_t).exp() * eye - (sigma_s - sigma_t).expm1() * prior)[:, x]
    joint = to_s * from_s
    posterior = joint / joint.sum(-1, keepdim=True).clamp_min(1e-300)
    return p0 @ posterior


def meaning_is_exact(s: Situation) -> None:
    """What a perfect model of a tiny law says is read as the true p(x_0 | x_t) and the true score."""
    if list(s.spec.check(SPACE)):
        raise NotApplicable("the process does not take three ids at two positions")
    process, facts = s.spec.build(SPACE), s.spec.facts(SPACE)
    draws = torch.randint(3, (64, 2), generator=torch.Generator().manual_seed(s.seed))
    noised = process.corrupt(Clean.of(draws), torch.full((64,), 0.5))
    truth = exact_outputs(noised.state, noised.noise, noised.prior)
    if facts.predict not in truth:
        raise NotApplicable(f'what would be true is not known for predict = "{facts.predict}"')
    pred = process.read(truth[facts.predict].float(), noised.state, noised.noise)
    assert_close(
        pred.log_clean().double().exp(), truth["posterior"].exp(), "p(x_0 | x_t) of a perfect model", atol=2e-3
    )
    told = noised.target_mask[..., None] & (
        truth["score"] < 12
    )  # a score of exp(12) is beyond what float32 tells apart
    score, expected = (part[told.expand(part.shape)].exp() for part in (pred.log_score().double(), truth["score"]))
    torch.testing.assert_close(
        score, expected, rtol=5e-3, atol=2e-3, msg=lambda text: f"the score of a perfect model: {text}"
    )


CHECKS = (
    *checks_of("process", q_normalised, reverse_step, meaning_is_exact, needs="tokens", examples=5),
    *checks_of("process", chapman_kolmogorov, examples=5),
    *checks_of("process", clean_at_zero, prior_at_one, place="default", examples=4),
)
"""The checks for the law of processes."""
