"""Gaussian noise on features, or on some of them: x_t = sqrt(alpha) x_0 + sqrt(1 - alpha) eps.

This is DDPM (Ho et al. 2020) with -sigma the log of its cumulative product. Letters: B batch, L
length, M features.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Bool, Float, Float64
from torch import Tensor

from dither.registry.contracts import protocols
from dither.registry.contracts.records import (
    Clean,
    FeaturePrediction,
    Noise,
    Noised,
    State,
    over,
)
from dither.registry.contracts.spaces import FeatureSpace, Space
from dither.registry.contracts.tensors import at_least_float32
from dither.registry.contracts.times import as_times

from ..precision import one_minus_exp, wide
from ..timestep_sampling import TimestepSampling
from .likelihood import START, Bins, Denoise, draw_value_bounds, flow_log_density
from .masks import Masks
from .signal import scales

if TYPE_CHECKING:
    from ..options import FeaturePredictionType, Mask

__all__ = ["GaussianPrediction", "GaussianProcess"]


class GaussianPrediction(FeaturePrediction):
    """Raw model output with its meaning.

    velocity is sqrt(alpha) eps - sqrt(1 - alpha) x_0 (Salimans and Ho 2022).
    """

    def __init__(
        self,
        raw: Float[Tensor, "B L M"],
        x: Float[Tensor, "B L M"],
        noise: Noise,
        predict: FeaturePredictionType,
    ) -> None:
        self.raw = raw
        self.x = x
        self.predict = predict
        self.a, self.b = scales(noise, x)

    @property
    def x0(self) -> Float[Tensor, "B L M"]:
        if self.predict == "x0":
            return self.raw
        # x_t = a x_0 + b eps, solved for x_0
        if self.predict == "eps":
            return (self.x - self.b * self.raw) / self.a
        # velocity = a eps - b x_0, and a^2 + b^2 = 1
        return self.a * self.x - self.b * self.raw

    @property
    def eps(self) -> Float[Tensor, "B L M"]:
        """The noise that explains x_t, given `x0`; 0 for clean values."""
        if self.predict == "eps":
            return self.raw
        if self.predict == "x0":
            # Clean values have b = 0, and no noise to explain.
            divisor = torch.where(self.b > 0, self.b, torch.inf)
            return (self.x - self.a * self.raw) / divisor
        return self.b * self.x + self.a * self.raw


class GaussianProcess(protocols.GaussianProcess):
    """Variance-preserving Gaussian noise, everywhere or where a mask picks.

    With a mask the rest of a sample stays visible and clean, and `State.noisy` marks the noisy
    values. A step changes only noisy values; sampling starts with noise at every position that the
    mask may pick.

    Args:
        space: Of the samples.
        timesteps: Schedule, level and training times.
        predict: Meaning of the raw model output.
        mask: Unit of the mask, as in `masks.Masks`; None for noise everywhere.
        group: Name of the only columns that get noise; None for all.
        ratio: Share of the units that get noise; None to draw it for each sample, evenly from 0 to
            1.
        exact: Give noise to the rounded number of units instead of each unit by itself.
        block: Regions of a block.
    """

    def __init__(
        self,
        space: FeatureSpace,
        timesteps: TimestepSampling,
        predict: FeaturePredictionType = "x0",
        mask: Mask | None = None,
        group: str | None = None,
        ratio: float | None = None,
        exact: bool = False,
        block: int = 8,
    ) -> None:
        self.space: Space = space
        self.predict: FeaturePredictionType = predict
        self.masks = None if mask is None else Masks(space, mask, group, exact, block)
        self.ratio = ratio
        self.schedule = timesteps.schedule
        self.timesteps = timesteps

    def times(self, n: int, device: Any = None) -> Float[Tensor, " n"]:
        return self.timesteps.times(n, device)

    def level(self, t: Float[Tensor, "B *L"]) -> Float[Tensor, "B *L"]:
        return self.timesteps.level(t)

    def corrupt(self, clean: Clean, t: float | Float[Tensor, "B *L"]) -> Noised:
        """Draw x_t given x_0; fixed and unpicked values do not change, and their eps is 0."""
        x0 = clean.x0
        noise = self.schedule(as_times(t, clean))
        chosen = self._choose(clean)
        state, eps = self.add_noise(clean.x0, noise, chosen)
        return Noised(x0, state, noise, chosen, clean.valid, clean.fixed, eps=eps)

    def add_noise(
        self, x: Float[Tensor, "B L M"], noise: Noise, where: Bool[Tensor, "B L M"]
    ) -> tuple[State, Float[Tensor, "B L M"]]:
        """Add noise where `where`; return the state and the noise, which is 0 elsewhere."""
        # q(x_t | x_0) = N(a x_0, b^2)
        eps = torch.randn_like(x).masked_fill(~where, 0.0)
        a, b = self.scales(noise, x)
        x = torch.where(where, a * x + b * eps, x)
        return self._state(x, where), eps

    def scales(
        self, noise: Noise, like: Float[Tensor, "B L M"]
    ) -> tuple[Float[Tensor, "..."], Float[Tensor, "..."]]:
        """Return the factors of x_0 and eps in x_t, to broadcast over `like`."""
        return scales(noise, like)

    def read(self, raw: Float[Tensor, "B L M"], state: State, noise: Noise) -> Any:
        raw = at_least_float32(raw)
        return GaussianPrediction(raw, state.x, noise, self.predict)

    def prior(self, like: Clean) -> State:
        """Return the state at t = 1: Gaussian noise where the mask may pick, all other values unchanged."""
        free = self._free(like)
        eps = torch.randn_like(like.x0)
        return self._state(torch.where(free, eps, like.x0), free)

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
        """Draw x_s given x_t: sqrt(alpha_s) x_0 + keep eps + spread noise (DDIM, eq. 12).

        With eta = 1 mean and variance are those of q(x_s | x_t, x_0) (DDPM, eq. 7); with eta = 0 no
        noise is added. `eps` is the noise to add; by default it is drawn.
        """
        x = state.x
        # 1 - alpha_t, 1 - alpha_s, and 1 - alpha_t / alpha_s, the variance added from s to t
        sigma_s = wide(over(then.sigma, x))
        variance_t = one_minus_exp(wide(over(now.sigma, x)))
        variance_s = one_minus_exp(sigma_s)
        variance_ts = one_minus_exp(wide(over(now.since(then).sigma, x)))

        # spread^2 = eta^2 (1 - alpha_s) / (1 - alpha_t) (1 - alpha_t / alpha_s) (eq. 16)
        share = eta**2 * variance_ts / torch.where(variance_t > 0, variance_t, 1.0)
        spread = (variance_s * share).sqrt().to(x.dtype)
        keep = (variance_s * (1 - share)).sqrt().to(x.dtype)

        signal = (-sigma_s / 2).exp().to(x.dtype)
        new = signal * pred.x0 + keep * pred.eps
        if eta > 0:
            if eps is None:
                eps = torch.randn_like(x)
            new = new + spread * eps
        return self.replace(state, new, like)

    def replace(self, state: State, x: Float[Tensor, "B L M"], like: Clean) -> State:
        """Return the state with the values of `x` where it is noisy."""
        where = state.noisy
        if where is None:
            where = ~like.fixed
        return self._state(torch.where(where, x, state.x), where)

    def finish(self, state: State, pred: Any, like: Clean) -> Float[Tensor, "B L M"]:
        return self.replace(state, pred.x0, like).x

    def draw_value_bounds(
        self,
        clean: Clean,
        t: Float[Tensor, " B"],
        denoise: Denoise,
        bins: Bins = None,
    ) -> Float64[Tensor, "B L M"]:
        """Draw the variational bound of values that sampling starts from noise; see `likelihood`."""
        t_min = self.timesteps.t_min
        return draw_value_bounds(
            self,
            clean,
            self._free(clean),
            (t - t_min) / (1 - t_min),
            denoise,
            t_min=t_min or START,
            bins=bins,
        )

    def flow_log_density(
        self,
        clean: Clean,
        denoise: Denoise,
        *,
        steps: int,
        probes: int,
        bins: Bins = None,
    ) -> Float64[Tensor, "B K"]:
        """Return log p of values that sampling starts from noise; see `likelihood`."""
        return flow_log_density(
            self,
            clean,
            self._free(clean),
            denoise,
            t_min=self.timesteps.t_min or START,
            steps=steps,
            probes=probes,
            bins=bins,
        )

    def _free(self, clean: Clean) -> Bool[Tensor, "B L M"]:
        """True at values that sampling starts from noise."""
        return ~clean.fixed if self.masks is None else self.masks.maskable(clean)

    def _state(self, x: Float[Tensor, "B L M"], noisy: Bool[Tensor, "B L M"]) -> State:
        return State.of(x) if self.masks is None else replace(State.of(x), noisy=noisy)

    def _choose(self, clean: Clean) -> Bool[Tensor, "B L M"]:
        """Draw the mask of values that get noise."""
        if self.masks is None:
            return ~clean.fixed
        # The share of the units of each sample that get noise: B
        share = torch.full(
            (len(clean.valid),), self.ratio or 0.0, device=clean.valid.device
        )
        if self.ratio is None:
            share = torch.rand_like(share)
        return self.masks.pick(self.masks.maskable(clean), over(wide(share), clean.x0))
