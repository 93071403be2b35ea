"""Losses on features. Letters: B batch, L length (regions), M features."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import huber_loss, softplus

from dither.registry.flow.distributions import DistributionPrediction
from dither.registry.flow.records import FeaturePrediction, Measured, Noised, over

__all__ = ["Huber", "Link", "PoissonNLL", "Reduction", "SquaredError", "Target"]

Target = Literal["x0", "eps", "velocity"]
Reduction = Literal["element-mean", "region-sum", "zero-padded"]
Link = Literal["none", "softplus", "log"]

TINY_RATE = 1e-8
"""Added to a rate before its logarithm is taken, as torch.nn.PoissonNLLLoss does."""


@dataclass(frozen=True)
class SquaredError:
    """Squared error over wanted elements.

    Attributes:
        target: What is compared. velocity is sqrt(alpha) eps - sqrt(1 - alpha) x_0 (Salimans and Ho 2022). An error of
            eps is that of x_0 times alpha / (1 - alpha), the signal-to-noise ratio snr; one of velocity, times snr + 1.
        reduction: What the mean of the result is, over a batch or over many. element-mean: over wanted elements.
            region-sum: the sum over the wanted features of a region, averaged over regions with any. zero-padded: over
            all elements of real regions, where the error of those not wanted is 0.
        min_snr: Weigh an error of x_0 by min(snr, min_snr) (Min-SNR, Hang et al. 2023), and the others alike.
    """

    target: Target | str = "x0"
    reduction: Reduction | str = "element-mean"
    min_snr: float | None = None

    def __post_init__(self) -> None:
        check_options(self.target, self.reduction)
        if self.min_snr is not None and not self.min_snr > 0:
            raise ValueError(f"min_snr must be positive, not {self.min_snr}")

    def __call__(self, pred: FeaturePrediction, noised: Noised) -> Measured:
        """Measure a prediction.

        Raises:
            TypeError: The target is eps or velocity, but the process added no Gaussian noise.
        """
        squares = torch.where(noised.target_mask, self._squares(pred, noised), 0.0)
        if self.min_snr is not None:
            squares = squares * self._snr_weight(noised).to(squares.dtype)
        return reduce_features(squares, noised, self.reduction)

    def _squares(self, pred: FeaturePrediction, noised: Noised) -> Float[Tensor, "B L M"]:
        """Square the errors; where the head tells a law, they are those of its own noise."""
        if self.target == "x0" and isinstance(pred, DistributionPrediction):
            return pred.squared_errors(noised.x0, noised.target_mask)
        return torch.where(noised.target_mask, feature_error(pred, noised, self.target), 0.0).square()

    def _snr_weight(self, noised: Noised) -> Float[Tensor, "..."]:
        assert self.min_snr is not None
        noise_to_signal = over(noised.noise.sigma, noised.x0).expm1()
        if self.target == "x0":
            return noise_to_signal.reciprocal().clamp_max(self.min_snr)
        bounded = (self.min_snr * noise_to_signal).clamp_max(1)
        return bounded if self.target == "eps" else bounded / (1 + noise_to_signal)


@dataclass(frozen=True)
class Huber:
    """Squared error that grows in a straight line beyond `delta`, so that a few large errors do not rule.

    e^2 / 2 where |e| <= delta, else delta (|e| - delta / 2) (Huber 1964). `target` and `reduction` are those of
    `SquaredError`.
    """

    delta: float = 1.0
    target: Target | str = "x0"
    reduction: Reduction | str = "element-mean"

    def __post_init__(self) -> None:
        check_options(self.target, self.reduction)
        if not self.delta > 0:
            raise ValueError(f"delta must be positive, not {self.delta}")

    def __call__(self, pred: FeaturePrediction, noised: Noised) -> Measured:
        """Measure a prediction.

        Raises:
            TypeError: The target is eps or velocity, but the process added no Gaussian noise.
        """
        error = torch.where(noised.target_mask, feature_error(pred, noised, self.target), 0.0)
        return reduce_features(huber_loss(error, torch.zeros_like(error), "none", self.delta), noised, self.reduction)


@dataclass(frozen=True)
class PoissonNLL:
    """Minus the logarithm of the chance of x_0 under Poisson laws, but for log x_0!: rate - x_0 log rate.

    x_0 is at least 0: counts, or what is treated like counts. What the rate is follows from what the model says, x.

    Attributes:
        link: "none": the rate is x, of a head that gives no negative numbers; below 0 counts as 0. "softplus": it is
            log(1 + exp x). "log": it is exp x.
        reduction: As of `SquaredError`.
    """

    link: Link | str = "none"
    reduction: Reduction | str = "element-mean"

    def __post_init__(self) -> None:
        check_options("x0", self.reduction)
        if self.link not in get_args(Link):
            raise ValueError(f"link must be one of {', '.join(get_args(Link))}, not {self.link!r}")

    def __call__(self, pred: FeaturePrediction, noised: Noised) -> Measured:
        """Measure a prediction."""
        x, count = (torch.where(noised.target_mask, part, 1.0) for part in (pred.x0, noised.x0))
        if self.link == "log":
            value = x.exp() - count * x
        else:
            rate = x.clamp_min(0) if self.link == "none" else softplus(x)
            value = rate - count * (rate + TINY_RATE).log()
        return reduce_features(torch.where(noised.target_mask, value, 0.0), noised, self.reduction)


def check_options(target: str, reduction: str) -> None:
    """Refuse a target or a reduction that is none.

    Raises:
        ValueError: It is none.
    """
    for option, said, allowed in (("target", target, Target), ("reduction", reduction, Reduction)):
        if said not in get_args(allowed):
            raise ValueError(f"{option} must be one of {', '.join(get_args(allowed))}, not {said!r}")


def feature_error(pred: FeaturePrediction, noised: Noised, target: str) -> Float[Tensor, "B L M"]:
    """Return how far a prediction of x0, eps or velocity is off.

    Raises:
        TypeError: The target is eps or velocity, but the process added no Gaussian noise.
    """
    if target == "x0":
        return pred.x0 - noised.x0
    if noised.eps is None:
        raise TypeError(f'target "{target}" needs a Gaussian process; this one added no noise')
    if target == "eps":
        return pred.eps - noised.eps
    a, b = noised.noise.alpha(noised.x0).sqrt(), noised.noise.one_minus_alpha(noised.x0).sqrt()
    return a * (pred.eps - noised.eps) - b * (pred.x0 - noised.x0)


def reduce_features(values: Float[Tensor, "B L M"], noised: Noised, reduction: str) -> Measured:
    """Return a loss per position out of one per element, which is 0 where nothing is wanted."""
    total, count = values.sum(-1), noised.target_mask.sum(-1).to(values.dtype)
    if reduction == "element-mean":
        return Measured(total / count.clamp_min(1), count)
    if reduction == "region-sum":
        return Measured(total, count.clamp_max(1))
    return Measured(total / values.shape[-1], noised.valid.to(values.dtype))
