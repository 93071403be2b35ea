"""Checks of what a process says: its facts, its times, its law of noise, its records and its predictions.

Letters: B batch, L length, V vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import one_hot

from dither.registry import TokenSpace
from dither.registry.flow.records import Clean, Noised

from ..check_utils import assert_close, assert_equal, random_output, seed_cpu
from ..situations import Situation
from .check import checks_of

__all__ = ["CHECKS", "corrupted", "times"]


def corrupted(s: Situation) -> tuple[Any, Clean, Noised]:
    """Return a process, a batch, and the batch noised at a random time per sample."""
    process: Any = s.build()
    return process, s.clean, process.corrupt(s.clean, times(s))


def times(s: Situation) -> Float[Tensor, " B"]:
    """Return a time per sample in 0.05 to 1."""
    share = torch.rand(len(s.clean.valid), generator=torch.Generator().manual_seed(s.seed))
    return 0.05 + 0.95 * share


def facts_are_true(s: Situation) -> None:
    """What is told before building is so afterwards."""
    facts, process = s.spec.facts(s.space), s.build()
    assert facts.name == s.spec.name, f"facts say {facts.name}"
    assert facts.space == process.space, f"facts say {facts.space}, the process serves {process.space}"
    _, _, noised = corrupted(s)
    if facts.prior in ("mask", "uniform"):
        assert noised.prior is not None, f"a prior of {facts.prior} comes with a table"
        clean_ids = facts.space.clean().double()
        masks = facts.space.table(lambda f: one_hot(torch.tensor(f.mask or 0), facts.space.vocab)).double()
        even = clean_ids / clean_ids.sum(-1, keepdim=True)
        expected = masks if facts.prior == "mask" else even
        assert_close(noised.prior.double(), expected, f"prior of {facts.prior}", atol=1e-6)
    hides = facts.prior == "hidden"
    assert hides or not noised.state.masked.any(), f"something is hidden, the facts say {facts.prior}"
    assert (noised.eps is not None) == (facts.prior == "gaussian"), "eps belongs to Gaussian noise"


def times_cover_the_range(s: Situation) -> None:
    """Training times lie in 0 to 1, and leave no part of it out."""
    t = s.build().times(1000)
    assert tuple(t.shape) == (1000,), f"1000 times have the shape {tuple(t.shape)}"
    assert ((t >= 0) & (t <= 1)).all(), f"times from {t.min()} to {t.max()}"
    counts = torch.histc(t, 10, float(t.min()), 1.0)
    assert (counts > 50).all(), f"times per tenth of the range: {counts.int().tolist()} of 1000"


def rate_is_derivative(s: Situation) -> None:
    """The rate of the noise is the derivative of its sigma."""
    t = torch.linspace(0.0013, 0.9987, 17, dtype=torch.float64).requires_grad_()
    noise = s.build().schedule(t)
    (slope,) = torch.autograd.grad(noise.sigma.sum(), t)
    assert_close(noise.rate.detach(), slope, "rate")


def record_is_whole(s: Situation) -> None:
    """What a loss is handed has the shapes it says, and the batch in it."""
    _, clean, noised = corrupted(s)
    assert_equal(noised.x0, clean.x0, "x0")
    assert_equal(noised.valid, clean.valid, "valid")
    assert_equal(noised.fixed, clean.fixed.expand(clean.x0.shape), "fixed")
    for name, part in (("x", noised.state.x), ("masked", noised.state.masked), ("target_mask", noised.target_mask)):
        assert part.shape == clean.x0.shape, f"{name} has the shape {tuple(part.shape)} for {tuple(clean.x0.shape)}"
    assert noised.noise.sigma.shape[:1] == clean.valid.shape[:1], "there is noise for each sample"
    if noised.prior is not None:
        assert (noised.prior >= 0).all(), "the prior is negative somewhere"
        assert_close(noised.prior.sum(-1), torch.ones_like(noised.prior[:, 0]), "rows of the prior", atol=1e-5)


def forward_law(s: Situation) -> None:
    """Values are drawn from q(x_t | x_0) of the noise in the record."""
    process, clean = s.build(), s.clean
    many = clean.apply(lambda tensor: tensor.repeat_interleave(-(-4000 // clean.valid.numel()), 0))
    for t in (0.0, 0.3, 1.0):
        noised = process.corrupt(many, torch.full((len(many.valid),), t))
        free, x = ~noised.fixed, noised.state.x
        if noised.prior is not None:
            _token_law(noised, free, t)
        elif noised.eps is not None:
            alpha, lost = noised.noise.alpha(x), noised.noise.one_minus_alpha(x)
            free = noised.target_mask  # a mask leaves the rest clean
            mixed = alpha.sqrt() * noised.x0 + lost.sqrt() * noised.eps
            assert_close(x[free], mixed[free], f"x at t = {t}", atol=1e-5)
            eps, n = noised.eps[free], int(free.sum())
            assert n < 100 or abs(eps.mean()) < 5 / n**0.5, f"eps has the mean {eps.mean():.3f}"
            assert n < 100 or abs(eps.var() - 1) < 5 * (2 / n) ** 0.5, f"eps has the variance {eps.var():.3f}"
        else:
            assert_equal(x[~noised.state.masked], noised.x0[~noised.state.masked], f"what is not hidden at t = {t}")


def _token_law(noised: Noised, free: Tensor, t: float) -> None:
    assert noised.prior is not None
    alpha, lost = noised.noise.alpha(noised.x0)[..., None], noised.noise.one_minus_alpha(noised.x0)[..., None]
    stays = one_hot(noised.x0, noised.prior.shape[-1])
    q = (alpha * stays + lost * noised.prior)[free]
    drawn = one_hot(noised.state.x, q.shape[-1])[free]
    assert not (drawn.bool() & (q == 0)).any(), f"an id is drawn at t = {t} that has no chance"
    for name, seen, chance in (("ids", drawn, q), ("ids that stay", drawn * stays[free], q * stays[free])):
        excess = (seen.sum(0) - chance.sum(0)).abs()
        allowed = 5 * (chance * (1 - chance)).sum(0).sqrt() + 1e-3
        counts = f"{seen.sum(0).tolist()}, expected {chance.sum(0).tolist()}"
        assert (excess <= allowed).all(), f"{name} at t = {t}: counts {counts}"


def wanted_where_in_doubt(s: Situation) -> None:
    """Nothing fixed is wanted, and what is not wanted is what it was."""
    _, clean, noised = corrupted(s)
    assert not (noised.target_mask & noised.fixed).any(), "a fixed value is wanted"
    assert_equal(noised.state.x[~noised.target_mask], clean.x0[~noised.target_mask], "a value that is not wanted")


def reads_a_prediction(s: Situation) -> None:
    """Raw output becomes a normalised belief in clean ids and scores that are 0 where nothing changes; or features."""
    process, clean, noised = corrupted(s)
    raw = random_output(process.space, clean.valid, s.seed)
    pred, x = process.read(raw, noised.state, noised.noise), noised.state.x
    if isinstance(process.space, TokenSpace):
        log_clean = pred.log_clean()[~noised.fixed]
        assert_close(log_clean.logsumexp(-1), torch.zeros(len(log_clean)), "log p(x_0 | x_t)")
        allowed = process.space.clean().expand(*x.shape, -1)[~noised.fixed]
        assert (log_clean[~allowed] == -torch.inf).all(), "an id that is not clean has a chance"
        score = pred.log_score()[~noised.fixed]
        assert not score.isnan().any(), "the log score is not a number"
        stay = score.gather(-1, x[~noised.fixed][:, None])
        assert_close(stay, torch.zeros_like(stay), "the log score of no change", atol=1e-5)
    else:
        assert pred.x0.shape == x.shape, f"x0 has the shape {tuple(pred.x0.shape)} for {tuple(x.shape)}"
        assert (pred.x0 + pred.eps).isfinite().all(), "the prediction is not finite"
        if noised.eps is not None:
            mixed = noised.noise.alpha(x).sqrt() * pred.x0 + noised.noise.one_minus_alpha(x).sqrt() * pred.eps
            assert_close(mixed[~noised.fixed], x[~noised.fixed], "sqrt(alpha) x0 + sqrt(1 - alpha) eps", atol=1e-3)


def time_per_position(s: Situation) -> None:
    """One time for a sample is the same as that time at each of its positions."""
    process, clean = s.build(), s.clean
    t, records = times(s), []
    for given in (t, t[:, None].expand(clean.valid.shape)):
        seed_cpu(s.seed)
        records.append(process.corrupt(clean, given))
    assert_equal(records[1].state.x, records[0].state.x, "a constant time per position")
    assert process.level(t[:, None].expand(clean.valid.shape)).shape == clean.valid.shape, "the level per position"


CHECKS = checks_of(
    "process",
    facts_are_true,
    rate_is_derivative,
    record_is_whole,
    forward_law,
    wanted_where_in_doubt,
    reads_a_prediction,
    time_per_position,
) + checks_of("process", times_cover_the_range, level="recommended")
"""The checks for what processes say."""
