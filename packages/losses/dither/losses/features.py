"""Losses on features: squared error, Huber, Poisson, cross-entropy of 0 and 1.

Letters: B batch, L length (regions), M features.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import huber_loss, softplus

from dither.registry.contracts.records import FeaturePrediction, Measured, Noised, over

if TYPE_CHECKING:
    from .options import Link, Reduction

__all__ = [
    "binary_cross_entropy",
    "feature_error",
    "huber",
    "poisson_nll",
    "reduce_features",
    "squared_error",
]

TINY_PROBABILITY = 1e-7
"""Least distance of a probability from 0 and 1 in its logarithm, about the precision of float32."""
TINY_RATE = 1e-8
"""Added to a rate before its logarithm, as in torch.nn.PoissonNLLLoss."""


def squared_error(
    pred: FeaturePrediction,
    noised: Noised,
    *,
    target: str = "x0",
    reduction: Reduction = "element-mean",
    min_snr: float | None = None,
) -> Measured:
    """Squared error over target elements.

    Args:
        pred: The prediction; of a distribution the error is that of its own noise.
        noised: The record it was made from.
        target: x0, eps, velocity or flow-velocity.
        reduction: element-mean: mean over target elements. region-sum: sum over the target features
            of a region, averaged over regions with any. zero-padded: mean over all elements of real
            regions, 0 for others.
        min_snr: Weigh an error of x_0 by min(snr, min_snr), and the others equivalently (Min-SNR,
            Hang et al. 2023).

    Raises:
        TypeError: The target is not x0, but the process adds no Gaussian noise.
    """
    if target == "x0":
        # A head that predicts a distribution has an error of its own.
        squares = pred.squared_errors(noised.x0, noised.target_mask)
    else:
        error = feature_error(pred, noised, target)
        squares = torch.where(noised.target_mask, error, 0.0).square()
    squares = torch.where(noised.target_mask, squares, 0.0)
    if min_snr is not None:
        squares = squares * _snr_weight(noised, target, min_snr).to(squares.dtype)
    return reduce_features(squares, noised, reduction)


def _snr_weight(noised: Noised, target: str, min_snr: float) -> Float[Tensor, "..."]:
    """Return the weight that turns the squared error of a target into min(snr, min_snr) that of x_0."""
    # 1 / snr = (1 - alpha) / alpha = exp(sigma) - 1
    noise_to_signal = over(noised.noise.sigma, noised.x0).expm1()
    snr = noise_to_signal.reciprocal()
    if target == "x0":
        return snr.clamp_max(min_snr)
    if target == "flow-velocity":
        # Its error is that of x_0 divided by u = 1 / (1 + sqrt(snr)).
        return snr.clamp_max(min_snr) * (1 + noise_to_signal.rsqrt()) ** -2

    # The squared error of eps is snr times that of x_0, of the velocity snr + 1 times.
    bounded = (min_snr * noise_to_signal).clamp_max(1)
    if target == "eps":
        return bounded
    return bounded / (1 + noise_to_signal)


def huber(
    pred: FeaturePrediction,
    noised: Noised,
    *,
    delta: float = 1.0,
    target: str = "x0",
    reduction: Reduction = "element-mean",
) -> Measured:
    """Return e^2 / 2 where |e| <= delta, else delta (|e| - delta / 2) (Huber 1964).

    `target` and `reduction` are those of `squared_error`.
    """
    error = feature_error(pred, noised, target)
    error = torch.where(noised.target_mask, error, 0.0)
    values = huber_loss(error, torch.zeros_like(error), "none", delta)
    return reduce_features(values, noised, reduction)


def poisson_nll(
    pred: FeaturePrediction,
    noised: Noised,
    *,
    link: Link = "none",
    reduction: Reduction = "element-mean",
) -> Measured:
    """Negative log-likelihood of x_0 under Poisson distributions, without log x_0!: rate - x_0 log rate.

    Args:
        pred: The prediction, of which x0 is used.
        noised: The record it was made from; x_0 is at least 0.
        link: "none": the rate is x, clamped at 0. "softplus": log(1 + exp x). "log": exp x.
        reduction: As of `squared_error`.
    """
    # Other elements get a finite value and gradient, as log 0 would make theirs NaN.
    x = torch.where(noised.target_mask, pred.x0, 1.0)
    count = torch.where(noised.target_mask, noised.x0, 1.0)
    if link == "log":
        # log rate is x itself, without rounding.
        values = x.exp() - count * x
    else:
        rate = softplus(x) if link == "softplus" else x.clamp_min(0)
        values = rate - count * (rate + TINY_RATE).log()
    values = torch.where(noised.target_mask, values, 0.0)
    return reduce_features(values, noised, reduction)


def binary_cross_entropy(
    pred: FeaturePrediction, noised: Noised, *, reduction: Reduction = "element-mean"
) -> Measured:
    """Negative log-likelihood of x_0 under Bernoulli distributions, in nats: -x_0 log p - (1 - x_0) log(1 - p).

    Args:
        pred: The prediction, of which x0 is the probability p, clamped to float32's reach.
        noised: The record it was made from; x_0 is 0 or 1, or a share.
        reduction: As of `squared_error`.
    """
    # Other elements get a finite value and gradient.
    p = torch.where(noised.target_mask, pred.x0, 0.5)
    p = p.clamp(TINY_PROBABILITY, 1 - TINY_PROBABILITY)
    x = noised.x0
    values = -x * p.log() - (1 - x) * (-p).log1p()
    values = torch.where(noised.target_mask, values, 0.0)
    return reduce_features(values, noised, reduction)


def feature_error(
    pred: FeaturePrediction, noised: Noised, target: str
) -> Float[Tensor, "B L M"]:
    """Return the error of a prediction of x0, eps, velocity or flow-velocity (eps - x_0).

    Raises:
        TypeError: The target is not x0, but the process adds no Gaussian noise.
    """
    if target == "x0":
        return pred.x0 - noised.x0
    if noised.eps is None:
        raise TypeError(f'target "{target}" requires a Gaussian process')
    if target == "eps":
        return pred.eps - noised.eps
    eps_error = pred.eps - noised.eps
    x0_error = pred.x0 - noised.x0
    if target == "flow-velocity":
        return eps_error - x0_error
    # velocity = sqrt(alpha) eps - sqrt(1 - alpha) x_0 (Salimans and Ho 2022)
    a = noised.noise.alpha(noised.x0).sqrt()
    b = noised.noise.one_minus_alpha(noised.x0).sqrt()
    return a * eps_error - b * x0_error


def reduce_features(
    values: Float[Tensor, "B L M"], noised: Noised, reduction: Reduction
) -> Measured:
    """Return a loss per position from one per element, which is 0 outside the target mask."""
    # B L M -> B L
    region_sum = values.sum(-1)
    count = noised.target_mask.sum(-1).to(values.dtype)
    # The loss of a batch is sum(values weights) / sum(weights).
    if reduction == "element-mean":
        return Measured(region_sum / count.clamp_min(1), count)
    if reduction == "region-sum":
        return Measured(region_sum, count.clamp_max(1))
    weights = noised.valid.to(values.dtype)
    return Measured(region_sum / values.shape[-1], weights)
