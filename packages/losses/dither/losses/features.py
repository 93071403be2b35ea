"""Squared error on features. Letters: B batch, L length (regions), M features."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from dither.registry.flow import FeaturePrediction, Measured, Noised, over

__all__ = ["Reduction", "SquaredError", "Target"]

Target = Literal["x0", "eps", "velocity"]
Reduction = Literal["element-mean", "region-sum", "zero-padded"]


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
        for option, allowed in (("target", get_args(Target)), ("reduction", get_args(Reduction))):
            if getattr(self, option) not in allowed:
                raise ValueError(f"{option} must be one of {', '.join(allowed)}, not {getattr(self, option)!r}")
        if self.min_snr is not None and not self.min_snr > 0:
            raise ValueError(f"min_snr must be positive, not {self.min_snr}")

    def __call__(self, pred: FeaturePrediction, noised: Noised) -> Measured:
        """Measure a prediction.

        Raises:
            TypeError: The target is eps or velocity, but the process added no Gaussian noise.
        """
        wanted = noised.wanted
        squares = torch.where(wanted, self._error(pred, noised), 0.0).square()
        if self.min_snr is not None:
            squares = squares * self._snr_weight(noised).to(squares.dtype)
        total, count = squares.sum(-1), wanted.sum(-1).to(squares.dtype)
        if self.reduction == "element-mean":
            return Measured(total / count.clamp_min(1), count)
        if self.reduction == "region-sum":
            return Measured(total, count.clamp_max(1))
        return Measured(total / wanted.shape[-1], noised.valid.to(squares.dtype))

    def _error(self, pred: FeaturePrediction, noised: Noised) -> Float[Tensor, "B L M"]:
        if self.target == "x0":
            return pred.x0 - noised.x0
        if noised.eps is None:
            raise TypeError(f'target "{self.target}" needs a Gaussian process; this one added no noise')
        if self.target == "eps":
            return pred.eps - noised.eps
        a, b = noised.noise.alpha(noised.x0).sqrt(), noised.noise.lost(noised.x0).sqrt()
        return a * (pred.eps - noised.eps) - b * (pred.x0 - noised.x0)

    def _snr_weight(self, noised: Noised) -> Float[Tensor, "..."]:
        assert self.min_snr is not None
        noise_to_signal = over(noised.noise.sigma, noised.x0).expm1()
        if self.target == "x0":
            return noise_to_signal.reciprocal().clamp_max(self.min_snr)
        bounded = (self.min_snr * noise_to_signal).clamp_max(1)
        return bounded if self.target == "eps" else bounded / (1 + noise_to_signal)
