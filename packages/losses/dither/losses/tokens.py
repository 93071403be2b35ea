"""Losses on tokens. Letters: B batch, L length, V vocabulary, rows one per position or one for all.

All but `cross_entropy` are the integrand of one bound, -log p(x_0) <= integral over t of the loss,
up to the terms at the two ends.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from dither.registry.contracts.records import Measured, Noised, TokenPrediction, over
from dither.registry.contracts.tensors import at_ids, lookup

__all__ = [
    "FAR",
    "cross_entropy",
    "flow_kl",
    "masked_ce",
    "reveal_rate",
    "score_entropy",
]

FAR = 40.0
"""log s - log r beyond which a term is s alone; the relative error is 41 exp(-40)."""


def cross_entropy(pred: TokenPrediction, noised: Noised) -> Measured:
    """-log p(x_0 | x_t) on target tokens, unweighted: a loss of training, no bound. Weights are 1 on these tokens."""
    log_p = at_ids(pred.log_clean(), noised.x0)
    values = -torch.where(noised.target_mask, log_p, 0.0)
    return Measured(values, noised.target_mask.to(values.dtype))


def masked_ce(pred: TokenPrediction, noised: Noised) -> Measured:
    """Masked cross-entropy, whose mean is the NELBO of an absorbing process (MDLM, Sahoo et al. 2024, eq. 10).

        values   r (-log p(x_0 | x_t)) on masked positions, 0 on the others
        weights  1 on real positions that are not known, masked or not, else 0

    r is the rate at which a masked token is revealed,

        r = -alpha' / (1 - alpha) = sigma' / (exp(sigma) - 1),

    which are equal because alpha = exp(-sigma). Under a log-linear schedule it is 1 / t. This is the
    definition; `chunked.ChunkedMaskedCE` computes the same from logits without p of all tokens.
    """
    return _weighted(cross_entropy(pred, noised).values, noised)


def flow_kl(pred: TokenPrediction, noised: Noised) -> Measured:
    """Generalised KL divergence between the jump rates of x_0 and of the model (Shaul et al. 2024, eq. 26).

        sigma' / (exp(sigma) - 1) (-log p(x_0 | x_t) - p(x_t | x_t)) if x_t != x_0, else (1 - p(x_t | x_t))

    Values are never negative, and 0 where the prior cannot produce x_t. Weights are 1 on real
    positions that are not known, else 0.
    """
    x = noised.state.x
    x0 = noised.x0

    # log p(x_0 | x_t) and log p(x_t | x_t) of every position: B L V -> B L
    log_clean = pred.log_clean()
    log_p = at_ids(log_clean, x0)
    log_stay = at_ids(log_clean, x)

    # A token that is x_0 should not jump, every other one should jump to x_0.
    should_stay = -log_stay.expm1()
    should_jump = -log_p - log_stay.exp()
    divergence = torch.where(x == x0, should_stay, should_jump)
    return _weighted(torch.where(noised.target_mask, divergence, 0.0), noised)


def _weighted(values: Float[Tensor, "B L"], noised: Noised) -> Measured:
    """Return values times the rate at which tokens are revealed, with weight 1 where nothing is fixed."""
    values = values * reveal_rate(noised).to(values.dtype)
    # Fixed positions are padding and known values.
    free = ~noised.fixed
    return Measured(values, free.to(values.dtype))


def reveal_rate(noised: Noised) -> Float[Tensor, "B #L"]:
    """Return -alpha' / (1 - alpha) = sigma' / (exp(sigma) - 1), per sample or per position."""
    sigma = over(noised.noise.sigma, noised.x0)
    rate = over(noised.noise.rate, noised.x0)
    # At sigma = 0 no token is masked, and the rate would be infinite.
    return torch.where(sigma > 0, rate / sigma.expm1(), 0.0)


def score_entropy(pred: TokenPrediction, noised: Noised) -> Measured:
    """Score entropy (SEDD, Lou et al. 2023, eq. 5) for any prior; of a model of clean tokens, its exact NELBO.

        sigma' prior(x_t) sum over y != x_t of  s(y) - r(y) log s(y) + r(y) (log r(y) - 1)

    with s(y) the model's p_t(y) / p_t(x_t) and r(y) = q(y | x_0) / q(x_t | x_0). Values are 0 where
    the prior cannot produce x_t. Weights are 1 on real positions that are not known, else 0.

    In float32, values are within 1e-5 of the truth for any vocabulary and noise, near the true
    score and far from it. A score above exp(88) is infinite, and so are its loss and gradient. They
    are not clipped, so that the run stops and names the sample.

    Raises:
        TypeError: The record is not from a token process.
    """
    if noised.prior is None:
        raise TypeError("score entropy requires a token process")
    x = noised.state.x
    x0 = noised.x0
    prior = noised.prior
    prior_prob = lookup(prior, x)
    active = ~noised.fixed & (prior_prob > 0)

    # log s(y) of the model: B L V. Inactive positions get finite numbers, as 0 times NaN would be
    # NaN in the backward.
    log_score = torch.where(active[..., None], pred.log_score(), 0.0)

    # log r(y) of the data: a number per position, one per id, and one for x_0.
    log_prior = prior.log() - prior.amax(-1, keepdim=True).log()
    log_ratio, log_ratio_x0 = _log_ratios(noised, log_prior, active)
    divergence: Tensor = _Divergence.apply(  # type: ignore[no-untyped-call]
        log_score, log_ratio, log_ratio_x0, log_prior, x, x0
    )

    # sigma' prior(x_t), the forward rate to x_t
    rate = over(noised.noise.rate, x).to(prior_prob.dtype)
    weight = (rate * prior_prob).to(log_score.dtype)
    values = torch.where(active, weight * divergence, 0.0)
    # Fixed positions are padding and known values.
    free = ~noised.fixed
    return Measured(values, free.to(values.dtype))


def _log_ratios(
    noised: Noised, log_prior: Float[Tensor, "*B rows V"], active: Bool[Tensor, "B L"]
) -> tuple[Float[Tensor, "B L"], Float[Tensor, "B L"]]:
    """Return log r(y) - log_prior(y), the same for every y but x_0, and log r(x_0); 0 where not active.

    Written with logarithms of 1 - alpha, never as 1 - V / (exp(sigma) - 1 + V), which cancels to 0
    for small sigma.

    Args:
        noised: The record.
        log_prior: Logarithm of the prior, up to a number of each row.
        active: Where a ratio is required.
    """
    assert noised.prior is not None
    x = noised.state.x
    x0 = noised.x0
    sigma = over(noised.noise.sigma, x)
    log_alpha = -sigma.to(noised.prior.dtype)
    log_one_minus_alpha = (-log_alpha.expm1()).log()
    # log((1 - alpha) prior(y)) at y = x_t and y = x_0
    log_drawn = log_one_minus_alpha + lookup(noised.prior, x).log()
    log_drawn_x0 = log_one_minus_alpha + lookup(noised.prior, x0).log()

    # q(x_t | x_0) over (1 - alpha) prior(x_t): an unmoved token stayed or was drawn again.
    stayed = torch.logaddexp(log_alpha - log_drawn, torch.zeros_like(log_drawn))
    unmoved = torch.where(x == x0, stayed, 0.0)

    # r(y) = (1 - alpha) prior(y) / q(x_t | x_0), and at y = x_0 with alpha added above
    log_ratio = -unmoved - lookup(log_prior, x)
    log_ratio_x0 = torch.logaddexp(log_alpha, log_drawn_x0) - log_drawn - unmoved
    return torch.where(active, log_ratio, 0.0), torch.where(active, log_ratio_x0, 0.0)


class _Divergence(torch.autograd.Function):
    """Sum over y != x of s - r log s + r (log r - 1); its gradient in log s is s - r.

    Each term is r (exp(d) - 1 - d) with d = log s - log r, which cannot be negative, and s where
    that is all of it: r = 0, or d > 40. Written by hand to save memory, because only log s is kept
    for backward, and for precision: near the truth s - r is r (exp(d) - 1), not a difference of two
    exponentials.
    """

    @staticmethod
    def forward(
        ctx: Any, log_score: Float[Tensor, "B L V"], *ratios: Tensor
    ) -> Float[Tensor, "B L"]:
        """Return the sums; arguments as of `_compare`."""
        ctx.save_for_backward(log_score, *ratios)
        gap, ratio = _compare(log_score, *ratios)
        # r (exp(d) - 1 - d)
        terms = _beyond_linear(gap).mul_(ratio)
        # The largest tensors of a step: this one is freed before the next is made.
        del ratio
        terms = torch.where(gap < FAR, terms, log_score.exp())
        return terms.sum(-1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Float[Tensor, "B L"]) -> tuple[Tensor | None, ...]:
        # Recomputed, for keeping d and r would double the memory.
        log_score, *ratios = ctx.saved_tensors
        gap, ratio = _compare(log_score, *ratios)
        # s - r = r (exp(d) - 1)
        near = gap.expm1().mul_(ratio)
        grad = torch.where(gap < FAR, near, log_score.exp())
        grad.mul_(grads[0][..., None])
        return grad, None, None, None, None, None


def _beyond_linear(d: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """Return exp(d) - 1 - d; where that cancels, d expm1(d) (1/2 - d/12), with a relative error of d^3 / 360.

    The difference has a relative error of eps / d; where the two are equally good, it is 2e-6 in
    float32.
    """
    rise = d.expm1()
    series = (d * (-1 / 12)).add_(0.5).mul_(d).mul_(rise)
    # Where eps / d = d^3 / 360
    close = (360 * torch.finfo(d.dtype).eps) ** 0.25
    return torch.where(d.abs() < close, series, rise.sub_(d))


def _compare(
    log_score: Float[Tensor, "B L V"],
    log_ratio: Float[Tensor, "B L"],
    log_ratio_x0: Float[Tensor, "B L"],
    log_prior: Float[Tensor, "*B rows V"],
    x: Int[Tensor, "B L"],
    x0: Int[Tensor, "B L"],
) -> tuple[Float[Tensor, "B L V"], Float[Tensor, "B L V"]]:
    """Return d = log s - log r, and r; both 0 at y = x, so that this term is 0.

    In float32 a log r of about -20 has an error of 1e-6, which is 1 % of d = 1e-4. So its part per
    position is subtracted in two pieces, its float32 value and the remainder; the other part is 0
    if the prior is uniform. Where r = 0, d is infinite or NaN.
    """
    dtype = log_score.dtype
    table = log_prior.to(dtype)
    log_ratio = log_ratio[..., None]
    rounded = log_ratio.to(dtype)
    gap = (log_score - table).sub_(rounded)
    if dtype != log_ratio.dtype:
        gap.sub_((log_ratio - rounded).to(dtype))
    ratio = (table + rounded).exp_()

    # Two ids have terms of their own: x_0, and then x_t, which may be the same and has none.
    log_ratio_x0 = log_ratio_x0[..., None]
    x = x[..., None]
    x0 = x0[..., None]
    gap_x0 = (log_score.gather(-1, x0) - log_ratio_x0).to(dtype)
    gap.scatter_(-1, x0, gap_x0).scatter_(-1, x, 0.0)
    ratio_x0 = log_ratio_x0.exp().to(dtype)
    ratio.scatter_(-1, x0, ratio_x0).scatter_(-1, x, 0.0)
    return gap, ratio
