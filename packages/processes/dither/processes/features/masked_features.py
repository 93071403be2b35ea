"""Masked features: whole regions, single elements or columns are masked and filled in.

Letters: B batch, L length, M features.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from dither.registry.contracts.protocols import (
    MaskedFeatureProcess,
    ValueDistribution,
)
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
from ..timestep_sampling import TimestepSampling, time_of
from .masks import Masks

if TYPE_CHECKING:
    from ..options import Mask

__all__ = [
    "MaskedDistributionPrediction",
    "MaskedFeaturePrediction",
    "MaskedRegionProcess",
]


@dataclass(frozen=True)
class MaskedFeaturePrediction(FeaturePrediction):
    """Visible values of a state, and the raw output in place of masked ones."""

    raw: Float[Tensor, "B L M"]
    state: State

    @property
    def x0(self) -> Float[Tensor, "B L M"]:
        return torch.where(self.state.masked, self.raw, self.state.x)

    @property
    def eps(self) -> Float[Tensor, "B L M"]:
        """0: no noise is added."""
        return torch.zeros_like(self.raw)


@dataclass(frozen=True)
class MaskedDistributionPrediction(FeaturePrediction):
    """Visible values of a state, and the distribution of masked ones."""

    distribution: ValueDistribution
    state: State

    @property
    def x0(self) -> Float[Tensor, "B L M"]:
        """The mean of masked values, next to the visible ones."""
        return torch.where(
            self.state.masked,
            self.distribution.mean(self.state.x, self.state.masked),
            self.state.x,
        )

    @property
    def eps(self) -> Float[Tensor, "B L M"]:
        """0: no noise is added."""
        return torch.zeros_like(self.state.x)

    def draw(self) -> Float[Tensor, "B L M"]:
        """Draw the masked values, each position independently."""
        return torch.where(
            self.state.masked,
            self.distribution.sample(self.state.x, self.state.masked),
            self.state.x,
        )

    def squared_errors(
        self, x0: Float[Tensor, "B L M"], target_mask: Bool[Tensor, "B L M"]
    ) -> Float[Tensor, "B L M"]:
        return self.distribution.squared_errors(x0, target_mask)


class MaskedRegionProcess(MaskedFeatureProcess):
    """Each unit is masked with probability 1 - alpha, or with one ratio at every time.

    With a fixed ratio states do not depend on time and steps change nothing: `finish` fills in
    everything. Training still draws times, as in the reference model; evaluation and sampling use
    `fixed_time`, when 1 - alpha is the ratio. The arguments are those of `GaussianProcess`, with
    `ratio` the share that is masked at every time.
    """

    def __init__(
        self,
        space: FeatureSpace,
        timesteps: TimestepSampling,
        mask: Mask = "region",
        group: str | None = None,
        ratio: float | None = None,
        exact: bool = False,
        block: int = 8,
    ) -> None:
        self.space: Space = space
        self.masks = Masks(space, mask, group, exact, block)
        self.ratio = ratio
        self.schedule = timesteps.schedule
        self.timesteps = timesteps
        if ratio is not None:
            time = time_of(timesteps.schedule, wide(torch.tensor(ratio)))
            self.fixed_time = max(float(time), timesteps.t_min)

    def times(self, n: int, device: Any = None) -> Float[Tensor, " n"]:
        return self.timesteps.times(n, device)

    def level(self, t: Float[Tensor, "B *L"]) -> Float[Tensor, "B *L"]:
        return self.timesteps.level(t)

    def corrupt(self, clean: Clean, t: float | Float[Tensor, "B *L"]) -> Noised:
        """Mask units; fixed values do not change."""
        noise = self.schedule(as_times(t, clean))
        share = masked_share(noise, clean.x0)
        if self.ratio is not None:
            share = torch.full_like(share, self.ratio)
        masked = self.masks.pick(self.masks.maskable(clean), share)
        # Every masked value is a target: nothing about it is left in the state.
        return Noised(
            x0=clean.x0,
            state=masked_state(clean.x0, masked),
            noise=noise,
            target_mask=masked,
            valid=clean.valid,
            fixed=clean.fixed,
        )

    def read(
        self,
        raw: Float[Tensor, "B L M"] | ValueDistribution,
        state: State,
        noise: Noise,
    ) -> MaskedFeaturePrediction | MaskedDistributionPrediction:
        """Keep visible values, and take the output, a value or a distribution, for the masked ones."""
        if not isinstance(raw, Tensor):
            return MaskedDistributionPrediction(raw, state)
        raw = at_least_float32(raw)
        return MaskedFeaturePrediction(raw, state)

    def prior(self, like: Clean) -> State:
        """Return the start of sampling: everything maskable is masked, for any ratio."""
        return masked_state(like.x0, self.masks.maskable(like))

    def step(
        self,
        state: State,
        pred: Any,
        now: Noise,
        then: Noise,
        like: Clean,
    ) -> State:
        """Fill in a masked unit with probability (alpha_s - alpha_t) / (1 - alpha_t); none if the ratio is fixed."""
        if self.ratio is not None:
            return state
        # A unit masked at t is still masked at s with probability (1 - alpha_s) / (1 - alpha_t).
        share_t = masked_share(now, state.x)
        share_s = masked_share(then, state.x)
        stays = share_s / torch.where(share_t > 0, share_t, 1.0)

        # The number that `corrupt` would mask at s, not a rounded part of those masked now
        if self.masks.exact:
            units = self.masks.units(state.masked)
            maskable = self.masks.units(self.masks.maskable(like))
            shares = self.masks.shares(share_s, state.masked)
            count = (shares * maskable).sum(1).round()
            stays = over((count / units.sum(1).clamp_min(1)).clamp_max(1), state.x)
        masked = self.masks.pick(state.masked, stays)
        return self.reveal(state, pred.draw(), masked)

    def finish(self, state: State, pred: Any, like: Clean) -> Float[Tensor, "B L M"]:
        nothing = torch.zeros_like(state.masked)
        return self.reveal(state, pred.draw(), nothing).x

    def units(self, masked: Bool[Tensor, "B L M"]) -> Bool[Tensor, "B U"]:
        return self.masks.units(masked)

    def unit_sums(self, values: Float[Tensor, "B L M"]) -> Float[Tensor, "B U"]:
        return self.masks.sums(values)

    def elements(self, units: Bool[Tensor, "B U"]) -> Bool[Tensor, "B L M"]:
        return self.masks.spread(units)

    def reveal(
        self, state: State, x: Float[Tensor, "B L M"], masked: Bool[Tensor, "B L M"]
    ) -> State:
        return State(torch.where(state.masked & ~masked, x, state.x), masked)


def masked_state(x0: Float[Tensor, "B L M"], masked: Bool[Tensor, "B L M"]) -> State:
    """Return a state with masked values set to 0."""
    return State(x0.masked_fill(masked, 0.0), masked)


def masked_share(noise: Noise, like: Float[Tensor, "B L M"]) -> Float[Tensor, "..."]:
    """1 - alpha in float64, to broadcast over `like`."""
    return one_minus_exp(wide(over(noise.sigma, like)))
