"""Gaussian noise in discrete steps whose reverse has a predicted variance (Nichol and Dhariwal, 2021).

A step from t to s has the variance exp(v log beta + (1 - v) log beta~), where beta = 1 - alpha_t /
alpha_s is the variance of q(x_t | x_s), beta~ that of q(x_s | x_t, x_0), and the model predicts
2 v - 1. Letters: B batch, L length, M features.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from dither.registry.contracts.records import Clean, Noise, NoisedStep, State, over
from dither.registry.contracts.tensors import at_least_float32
from dither.registry.contracts.times import as_times

from ..options import FeaturePredictionType
from ..precision import one_minus_exp, wide
from .gaussian import GaussianPrediction, GaussianProcess
from .likelihood import Bins, Denoise

__all__ = ["LearnedVariancePrediction", "LearnedVarianceProcess"]


class LearnedVariancePrediction(GaussianPrediction):
    """The prediction of a `GaussianProcess`, and the share of the largest log-variance."""

    def __init__(
        self,
        raw: Float[Tensor, "B L 2M"],
        x: Float[Tensor, "B L M"],
        noise: Noise,
        predict: FeaturePredictionType,
    ) -> None:
        mean, share = raw.chunk(2, -1)
        super().__init__(mean, x, noise, predict)
        self.variance_share = (share + 1) / 2


class LearnedVarianceProcess(GaussianProcess):
    """Gaussian noise whose ancestral steps have the predicted variance.

    Args:
        *args: Those of `GaussianProcess`.
        steps: T; training times are multiples of 1 / T, as alpha of T betas.
        **options: Options of `GaussianProcess`.
    """

    def __init__(self, *args: Any, steps: int, **options: Any) -> None:
        super().__init__(*args, **options)
        self.steps = steps

    def times(self, n: int, device: Any = None) -> Float[Tensor, " n"]:
        """Draw training times, each the end of a step."""
        t = self.timesteps.times(n, device)
        return (t * self.steps).ceil().clamp(1, self.steps) / self.steps

    def level(self, t: Float[Tensor, "B *L"]) -> Float[Tensor, "B *L"]:
        """Return the number of the step, between steps a fraction, or another level."""
        if self.timesteps.kind != "index":
            return super().level(t)
        return (self.steps * t - 1).clamp(0, self.steps - 1)

    def corrupt(self, clean: Clean, t: float | Float[Tensor, "B *L"]) -> NoisedStep:
        """Draw x_t given x_0, with the bounds on the variance of the step before t."""
        t = as_times(t, clean)
        noised = super().corrupt(clean, t)
        # Up to rounding, the first step starts at clean data; no time is before its end.
        steps = (wide(t) * self.steps).clamp_min(1)
        start = torch.where(steps > 1 + 1e-3, steps - 1, 0.0)
        before = self.schedule(start / self.steps)
        _, largest = log_variances(self.schedule(steps / self.steps), before)
        # There beta~ is 0: as in the paper it has that of the second.
        steps = steps.clamp_min(2)
        smallest, _ = log_variances(
            self.schedule(steps / self.steps), self.schedule((steps - 1) / self.steps)
        )
        return NoisedStep(
            **vars(noised),
            before=before,
            log_variances=torch.stack([smallest, largest], -1),
            steps=self.steps,
        )

    def draw_value_bounds(
        self,
        clean: Clean,
        t: Float[Tensor, " B"],
        denoise: Denoise,
        bins: Bins = None,
    ) -> Float64[Tensor, "B L M"]:
        """Draw the bound of the predicted mean in continuous time; predicted variances do not count."""
        # Any time of the step that ends at t
        t = t - torch.rand_like(t) / self.steps
        return super().draw_value_bounds(clean, t, denoise, bins)

    def read(self, raw: Float[Tensor, "B L 2M"], state: State, noise: Noise) -> Any:
        raw = at_least_float32(raw)
        return LearnedVariancePrediction(raw, state.x, noise, self.predict)

    def step(
        self,
        state: State,
        pred: Any,
        now: Noise,
        then: Noise,
        like: Clean,
        *,
        eta: float = 1.0,
        eps: Any = None,
    ) -> State:
        """Draw x_s given x_t with the predicted variance if eta = 1; else the step of DDIM."""
        if eta != 1:
            return super().step(state, pred, now, then, like, eta=eta, eps=eps)
        x = state.x
        smallest, largest = (
            over(bound, x).to(x.dtype) for bound in log_variances(now, then)
        )
        # Without noise, the step of DDPM ends at the mean of q(x_s | x_t, x_0).
        still = torch.zeros_like(x)
        mean = super().step(state, pred, now, then, like, eta=1.0, eps=still).x
        if eps is None:
            eps = torch.randn_like(x)
        # log beta~ is -inf at clean data, and where no time has passed.
        deviation = (torch.lerp(smallest, largest, pred.variance_share) / 2).exp()
        deviation = torch.where(smallest.isfinite(), deviation, 0.0)
        return self.replace(state, mean + deviation * eps, like)


def log_variances(
    now: Noise, then: Noise
) -> tuple[Float[Tensor, "B *L"], Float[Tensor, "B *L"]]:
    """Return log beta~ and log beta of the step from `now` to `then`, in float64."""
    variance_t = one_minus_exp(wide(now.sigma))
    variance_s = one_minus_exp(wide(then.sigma))
    beta = one_minus_exp(wide(now.since(then).sigma))
    return (variance_s / variance_t).log() + beta.log(), beta.log()
