"""Losses on tokens. Letters: B batch, L length, V vocabulary, rows one per position or one for all.

Both are the integrand of one bound, -log p(x_0) <= integral over t of the loss, up to the terms at the two ends. What
has one number per position is in float64, what has one per id stays in the precision of the prediction.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor
from torch.autograd.function import once_differentiable

from dither.registry.flow import Measured, Noised, TokenPrediction, over

__all__ = ["masked_ce", "score_entropy"]


def masked_ce(pred: TokenPrediction, noised: Noised) -> Measured:
    """-log p(x_0 | x_t) on masked positions, weighted by sigma' / (exp(sigma) - 1) (MDLM, Sahoo et al. 2024, eq. 10).

    Weights are 1 on real positions that are not known, masked or not, and 0 elsewhere.
    """
    log_p = pred.log_clean().gather(-1, noised.x0[..., None])[..., 0]
    sigma, rate = (over(value, noised.x0) for value in (noised.noise.sigma, noised.noise.rate))
    weight = torch.where(sigma > 0, rate / sigma.expm1(), 0.0).to(log_p.dtype)  # at sigma = 0 nothing is masked
    values = -torch.where(noised.wanted, log_p, 0.0) * weight
    return Measured(values, (~noised.fixed).to(values.dtype))


def score_entropy(pred: TokenPrediction, noised: Noised) -> Measured:
    """Score entropy (SEDD, Lou et al. 2023, eq. 5) for any prior; of a model of clean tokens, its exact NELBO.

        sigma' prior(x_t) sum over y != x_t of  s(y) - r(y) log s(y) + r(y) (log r(y) - 1)

    with s(y) the model's p_t(y) / p_t(x_t) and r(y) = q(y | x_0) / q(x_t | x_0). Values are 0 where the prior cannot
    have put x_t. Weights are 1 on real positions that are not known, and 0 elsewhere.

    Raises:
        TypeError: The record comes from no token process.
    """
    if noised.prior is None:
        raise TypeError("score entropy needs a token process; features have no prior over ids")
    x, x0, prior = noised.state.x, noised.x0, noised.prior
    landing = _at(prior, x)
    active = ~noised.fixed & (landing > 0)
    log_score = torch.where(active[..., None], pred.log_score(), 0.0)
    base, own = _log_ratios(noised, active)
    divergence: Tensor = _Divergence.apply(log_score, base, own, prior.log(), x, x0)  # type: ignore[no-untyped-call]
    weight = over(noised.noise.rate, x).to(landing.dtype) * landing
    values = torch.where(active, weight.to(log_score.dtype) * divergence, 0.0)
    return Measured(values, (~noised.fixed).to(values.dtype))


def _at(table: Shaped[Tensor, "rows V"], x: Int[Tensor, "B L"]) -> Shaped[Tensor, "B L"]:
    return table.expand(x.shape[1], -1)[torch.arange(x.shape[1], device=x.device), x]


def _log_ratios(noised: Noised, active: Bool[Tensor, "B L"]) -> tuple[Float[Tensor, "B L"], Float[Tensor, "B L"]]:
    """Return log r(y) - log prior(y), the same for every y but x_0, and log r(x_0); 0 where not active.

    Written with logarithms of 1 - alpha, never as 1 - V / (exp(sigma) - 1 + V), which cancels to 0 for small sigma.
    """
    assert noised.prior is not None
    x, x0 = noised.state.x, noised.x0
    log_alpha = -over(noised.noise.sigma, x).to(noised.prior.dtype)
    log_lost = (-log_alpha.expm1()).log()
    log_landing, log_landing_0 = (log_lost + _at(noised.prior, ids).log() for ids in (x, x0))
    here = torch.where(x == x0, torch.logaddexp(log_alpha, log_landing), log_landing)
    base, own = log_lost - here, torch.logaddexp(log_alpha, log_landing_0) - here
    return torch.where(active, base, 0.0), torch.where(active, own, 0.0)


class _Divergence(torch.autograd.Function):
    """Sum over y != x of s - r log s + r (log r - 1); its gradient in log s is s - r.

    Each term is r (exp(d) - 1 - d) with d = log s - log r, which cannot be negative; s where r = 0. Written by hand
    because of memory: only log s is kept for the way back, and both ways need few tensors of its size.
    """

    @staticmethod
    def forward(
        ctx: Any,
        log_score: Float[Tensor, "B L V"],
        base: Float[Tensor, "B L"],
        own: Float[Tensor, "B L"],
        log_prior: Float[Tensor, "rows V"],
        x: Int[Tensor, "B L"],
        x0: Int[Tensor, "B L"],
    ) -> Float[Tensor, "B L"]:
        ctx.save_for_backward(log_score, base, own, log_prior, x, x0)
        log_ratio = _ratio_table(log_score, base, own, log_prior, x, x0)
        absent = log_ratio == -torch.inf
        gap = (log_score - log_ratio).masked_fill_(absent, 0.0)
        terms = gap.expm1().sub_(gap).clamp_min_(0.0).mul_(log_ratio.exp_())
        return terms.add_(log_score.exp().masked_fill_(~absent, 0.0)).sum(-1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Float[Tensor, "B L"]) -> tuple[Tensor | None, ...]:
        log_score, *rest = ctx.saved_tensors
        slope = log_score.exp().sub_(_ratio_table(log_score, *rest).exp_())
        return slope.mul_(grads[0][..., None]), None, None, None, None, None


def _ratio_table(
    log_score: Float[Tensor, "B L V"],
    base: Float[Tensor, "B L"],
    own: Float[Tensor, "B L"],
    log_prior: Float[Tensor, "rows V"],
    x: Int[Tensor, "B L"],
    x0: Int[Tensor, "B L"],
) -> Float[Tensor, "B L V"]:
    """Return log r(y); at y = x the score itself, so that this term is 0."""
    table = base[..., None].to(log_score.dtype) + log_prior.to(log_score.dtype)
    table.scatter_(-1, x0[..., None], own[..., None].to(table.dtype))
    return table.scatter_(-1, x[..., None], log_score.gather(-1, x[..., None]))
