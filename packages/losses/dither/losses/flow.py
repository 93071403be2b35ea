"""Loss of discrete flow matching. Letters: B batch, L length, V vocabulary."""

from __future__ import annotations

import torch

from dither.registry.flow.records import Measured, Noised, TokenPrediction, over

__all__ = ["flow_kl"]


def flow_kl(pred: TokenPrediction, noised: Noised) -> Measured:
    """Generalised KL divergence between the jump rates of x_0 and of the model (Shaul et al. 2024, eq. 26).

        sigma' / (exp(sigma) - 1) (-log p(x_0 | x_t) - p(x_t | x_t)) if x_t != x_0, else (1 - p(x_t | x_t))

    Values are never negative, and 0 where the prior cannot produce x_t. Weights are 1 on real positions that are not
    known, else 0.
    """
    x, x0 = noised.state.x, noised.x0
    log = pred.log_clean()
    log_p, log_stay = (log.gather(-1, ids[..., None])[..., 0] for ids in (x0, x))
    sigma, rate = (over(value, x0) for value in (noised.noise.sigma, noised.noise.rate))
    weight = torch.where(sigma > 0, rate / sigma.expm1(), 0.0).to(log_p.dtype)
    divergence = torch.where(x == x0, -log_stay.expm1(), -log_p - log_stay.exp())
    values = torch.where(noised.target_mask, divergence, 0.0) * weight
    return Measured(values, (~noised.fixed).to(values.dtype))
