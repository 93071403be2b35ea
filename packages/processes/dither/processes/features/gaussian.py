"""Gaussian noise on features, or on some of them: x_t = sqrt(alpha) x_0 + sqrt(1 - alpha) eps.

This is DDPM (Ho et al. 2020) with -sigma the log of its cumulative product. Letters: B batch, L length, M features.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal, get_args

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from dither.registry.config.errors import nearest
from dither.registry.flow.records import Clean, Noise, Noised, State, over
from dither.registry.flow.spaces import FeatureSpace, Space

from ..precision import wide
from ..timestep_sampling import TimestepSampling
from .masks import Mask, Masks

__all__ = ["FeaturePredictionType", "GaussianPrediction", "GaussianProcess"]

FeaturePredictionType = Literal["x0", "eps", "velocity"]


class GaussianPrediction:
    """The raw output of a model under its meaning; a `FeaturePrediction`.

    velocity is sqrt(alpha) eps - sqrt(1 - alpha) x_0 (Salimans and Ho 2022).
    """

    def __init__(
        self, raw: Float[Tensor, "B L M"], x: Float[Tensor, "B L M"], noise: Noise, meaning: FeaturePredictionType
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
    """Variance-preserving Gaussian noise, on everything or on what a mask picks.

    With a mask the rest of a sample stays visible and clean, and `State.noisy` tells which is which. A step keeps to
    what is noisy in the state it is given; sampling starts with noise wherever the mask may pick.

    Args:
        space: What a sample is.
        clock: Schedule, level and training times.
        predict: What the raw output of the model means.
        mask: What gets noise as one, as `masks.Masks` has it; None for noise on everything.
        group: Name of the only columns that get noise; None for all.
        ratio: Share of the units that get noise; None to draw it for each sample, evenly from 0 to 1.
        exact: Give noise to the rounded number of units instead of each unit by itself.
        block: Regions of a block.
    """

    def __init__(
        self,
        space: FeatureSpace,
        clock: TimestepSampling,
        predict: FeaturePredictionType = "x0",
        mask: Mask | None = None,
        group: str | None = None,
        ratio: float | None = None,
        exact: bool = False,
        block: int = 8,
    ) -> None:
        if predict not in get_args(FeaturePredictionType):
            close = nearest(predict, get_args(FeaturePredictionType))
            hint = f'; did you mean "{close}"?' if close else ""
            raise ValueError(
                f"predict must be one of {', '.join(get_args(FeaturePredictionType))}, not {predict!r}{hint}"
            )
        if ratio is not None and not 0 < ratio <= 1:
            raise ValueError(f"ratio must be above 0 and at most 1, not {ratio}")
        self.space: Space = space
        self.predict: FeaturePredictionType = predict
        self.masks = None if mask is None else Masks(space, mask, group, exact, block)
        self.ratio = ratio
        self.schedule, self.times, self.level = clock.schedule, clock.times, clock.level

    def corrupt(self, clean: Clean, t: Float[Tensor, "B *L"]) -> Noised:
        """Draw x_t given x_0; fixed and unpicked values stay as they are, and their eps is 0."""
        x0, noise, chosen = clean.x0, self.schedule(t), self._choose(clean)
        state, eps = self.noised(clean.x0, noise, chosen)
        return Noised(x0, state, noise, chosen, clean.valid, clean.fixed, eps=eps)

    def noised(
        self, x: Float[Tensor, "B L M"], noise: Noise, where: Bool[Tensor, "B L M"]
    ) -> tuple[State, Float[Tensor, "B L M"]]:
        """Return the state with noise added in some places, and the noise, which is 0 elsewhere."""
        eps = torch.randn_like(x).masked_fill(~where, 0.0)
        a, b = scales(noise, x)
        return self._state(torch.where(where, a * x + b * eps, x), where), eps

    def read(self, raw: Float[Tensor, "B L M"], state: State, noise: Noise) -> GaussianPrediction:
        """Give the raw output its meaning, in float32 at least."""
        raw = raw.to(torch.promote_types(raw.dtype, torch.float32))
        return GaussianPrediction(raw, state.x, noise, self.predict)

    def prior(self, like: Clean) -> State:
        """The state at t = 1: Gaussian noise wherever there may be any, with all other values in place."""
        free = ~like.fixed if self.masks is None else self.masks.maskable(like)
        return self._state(torch.where(free, torch.randn_like(like.x0), like.x0), free)

    def step(
        self, state: State, pred: Any, now: Noise, then: Noise, like: Clean, *, eta: float = 1.0, eps: Any = None
    ) -> State:
        """Draw x_s given x_t: sqrt(alpha_s) x_0 + keep eps + spread noise (DDIM, eq. 12).

        With eta = 1 mean and variance are those of q(x_s | x_t, x_0) (DDPM, eq. 7); with eta = 0 no noise is added.
        `eps` is the noise to add, if it is not to be drawn here.
        """
        x = state.x
        sigma, earlier, gap = (wide(over(noise.sigma, x)) for noise in (now, then, now.since(then)))
        lost, lost_then, lost_between = (-(-value).expm1() for value in (sigma, earlier, gap))
        share = eta**2 * lost_between / torch.where(lost > 0, lost, 1.0)
        spread, keep = (lost_then * share).sqrt().to(x.dtype), (lost_then * (1 - share)).sqrt().to(x.dtype)
        new = (-earlier / 2).exp().to(x.dtype) * pred.x0 + keep * pred.eps
        if eta > 0:
            new = new + spread * (torch.randn_like(x) if eps is None else eps)
        return self.moved(state, new, like)

    def moved(self, state: State, x: Float[Tensor, "B L M"], like: Clean) -> State:
        """Return the state with other values where it is noisy."""
        where = ~like.fixed if state.noisy is None else state.noisy
        return self._state(torch.where(where, x, state.x), where)

    def finish(self, state: State, pred: Any, like: Clean) -> Float[Tensor, "B L M"]:
        """Take the clean sample."""
        return self.moved(state, pred.x0, like).x

    def _state(self, x: Float[Tensor, "B L M"], noisy: Bool[Tensor, "B L M"]) -> State:
        return State.of(x) if self.masks is None else replace(State.of(x), noisy=noisy)

    def _choose(self, clean: Clean) -> Bool[Tensor, "B L M"]:
        """Choose what gets noise."""
        if self.masks is None:
            return ~clean.fixed
        share = torch.full((len(clean.valid),), self.ratio or 0.0, device=clean.valid.device)
        share = torch.rand_like(share) if self.ratio is None else share
        return self.masks.pick(self.masks.maskable(clean), over(wide(share), clean.x0))


def scales(noise: Noise, like: Float[Tensor, "B L M"]) -> tuple[Float[Tensor, "..."], Float[Tensor, "..."]]:
    """Return sqrt(alpha) and sqrt(1 - alpha), exact at both ends, to broadcast over `like`."""
    sigma = wide(over(noise.sigma, like))
    return (-sigma / 2).exp().to(like.dtype), (-(-sigma).expm1()).sqrt().to(like.dtype)
