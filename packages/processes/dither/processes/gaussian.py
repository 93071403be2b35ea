"""Gaussian noise on features: x_t = sqrt(alpha) x_0 + sqrt(1 - alpha) eps.

This is DDPM (Ho et al. 2020) with -sigma the log of its cumulative product. Letters: B batch, L length, M features.
"""

from __future__ import annotations

from typing import Any, Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from dither.registry.flow import Clean, Noise, Noised, State, over
from dither.registry.problems import nearest
from dither.registry.spaces import FeatureSpace, Space

from .clock import Clock
from .precision import wide

__all__ = ["FeatureMeaning", "GaussianProcess", "GaussianReading"]

FeatureMeaning = Literal["x0", "eps", "velocity"]


class GaussianReading:
    """The raw output of a model under its meaning; a `FeaturePrediction`.

    velocity is sqrt(alpha) eps - sqrt(1 - alpha) x_0 (Salimans and Ho 2022).
    """

    def __init__(
        self, raw: Float[Tensor, "B L M"], x: Float[Tensor, "B L M"], noise: Noise, meaning: FeatureMeaning
    ) -> None:
        self.raw, self.x, self.meaning = raw, x, meaning
        self.a, self.b = scales(noise, x)

    @property
    def x0(self) -> Float[Tensor, "B L M"]:
        """The clean sample."""
        if self.meaning == "x0":
            return self.raw
        if self.meaning == "eps":
            return (self.x - self.b * self.raw) / self.a
        return self.a * self.x - self.b * self.raw

    @property
    def eps(self) -> Float[Tensor, "B L M"]:
        """The noise that explains x_t, given `x0`; 0 where there is no noise."""
        if self.meaning == "eps":
            return self.raw
        if self.meaning == "x0":
            return (self.x - self.a * self.raw) / torch.where(self.b > 0, self.b, torch.inf)
        return self.b * self.x + self.a * self.raw


class GaussianProcess:
    """Variance-preserving Gaussian noise.

    Args:
        space: What a sample is.
        clock: Schedule, level and training times.
        predict: What the raw output of the model means.
        eta: Noise of a step back: 1 is DDPM, 0 is DDIM (Song et al. 2020), which adds none.
    """

    def __init__(self, space: FeatureSpace, clock: Clock, predict: FeatureMeaning = "x0", eta: float = 1.0) -> None:
        if predict not in get_args(FeatureMeaning):
            close = nearest(predict, get_args(FeatureMeaning))
            hint = f'; did you mean "{close}"?' if close else ""
            raise ValueError(f"predict must be one of {', '.join(get_args(FeatureMeaning))}, not {predict!r}{hint}")
        if not 0 <= eta <= 1:
            raise ValueError(f"eta must lie between 0 (DDIM) and 1 (DDPM), not {eta}")
        self.space: Space = space
        self.predict: FeatureMeaning = predict
        self.eta = eta
        self.schedule, self.times, self.level = clock.schedule, clock.times, clock.level

    def corrupt(self, clean: Clean, t: Float[Tensor, "B *L"]) -> Noised:
        """Draw x_t given x_0; fixed values stay as they are, and their eps is 0."""
        x0, fixed, noise = clean.x0, clean.fixed, self.schedule(t)
        eps = torch.randn_like(x0).masked_fill(fixed, 0.0)
        a, b = scales(noise, x0)
        x = torch.where(fixed, x0, a * x0 + b * eps)
        return Noised(x0, State.of(x), noise, ~fixed, clean.valid, fixed, eps=eps)

    def read(self, raw: Float[Tensor, "B L M"], state: State, noise: Noise) -> GaussianReading:
        """Give the raw output its meaning, in float32 at least."""
        raw = raw.to(torch.promote_types(raw.dtype, torch.float32))
        return GaussianReading(raw, state.x, noise, self.predict)

    def prior(self, like: Clean) -> State:
        """The state at t = 1: Gaussian noise, with fixed values in place."""
        return State.of(torch.where(like.fixed, like.x0, torch.randn_like(like.x0)))

    def step(self, state: State, pred: Any, now: Noise, then: Noise, like: Clean) -> State:
        """Draw x_s given x_t: sqrt(alpha_s) x_0 + keep eps + spread noise (DDIM, eq. 12).

        With eta = 1 mean and variance are those of q(x_s | x_t, x_0) (DDPM, eq. 7).
        """
        x = state.x
        sigma, earlier, gap = (wide(over(noise.sigma, x)) for noise in (now, then, now.since(then)))
        lost, lost_then, lost_between = (-(-value).expm1() for value in (sigma, earlier, gap))
        share = self.eta**2 * lost_between / torch.where(lost > 0, lost, 1.0)
        spread, keep = (lost_then * share).sqrt().to(x.dtype), (lost_then * (1 - share)).sqrt().to(x.dtype)
        new = (-earlier / 2).exp().to(x.dtype) * pred.x0 + keep * pred.eps
        if self.eta > 0:
            new = new + spread * torch.randn_like(x)
        return State.of(torch.where(like.fixed, x, new))

    def finish(self, state: State, pred: Any, like: Clean) -> Float[Tensor, "B L M"]:
        """Take the clean sample."""
        return torch.where(like.fixed, state.x, pred.x0)


def scales(noise: Noise, like: Float[Tensor, "B L M"]) -> tuple[Float[Tensor, "..."], Float[Tensor, "..."]]:
    """Return sqrt(alpha) and sqrt(1 - alpha), exact at both ends, to broadcast over `like`."""
    sigma = wide(over(noise.sigma, like))
    return (-sigma / 2).exp().to(like.dtype), (-(-sigma).expm1()).sqrt().to(like.dtype)
