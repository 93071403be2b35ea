"""Masked regions: features are hidden, whole regions, single elements or columns at a time, to be filled in.

Letters: B batch, L length, M features.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from dither.registry.flow.distributions import DistributionPrediction, ValueDistribution
from dither.registry.flow.records import Clean, Noise, Noised, State, over
from dither.registry.flow.spaces import FeatureSpace, Space

from ..precision import wide
from ..timestep_sampling import TimestepSampling, time_of
from .masks import Mask, Masks

__all__ = [
    "MaskedDistributionPrediction",
    "MaskedFeaturePrediction",
    "MaskedRegionProcess",
    "fill",
    "sample_prediction",
]


@dataclass(frozen=True)
class MaskedFeaturePrediction:
    """What is seen, and the model's word on what is hidden; a `FeaturePrediction`. No noise was added: eps is 0."""

    x0: Float[Tensor, "B L M"]
    eps: Float[Tensor, "B L M"]


@dataclass(frozen=True)
class MaskedDistributionPrediction:
    """What is seen, and the law of what is hidden; a `DistributionPrediction`."""

    law: ValueDistribution
    state: State

    @property
    def x0(self) -> Float[Tensor, "B L M"]:
        """The mean."""
        return torch.where(self.state.masked, self.law.mean(self.state.x, self.state.masked), self.state.x)

    @property
    def eps(self) -> Float[Tensor, "B L M"]:
        """No noise was added."""
        return torch.zeros_like(self.state.x)

    def draw(self) -> Float[Tensor, "B L M"]:
        """Draw what is hidden, each position by itself."""
        return torch.where(self.state.masked, self.law.sample(self.state.x, self.state.masked), self.state.x)

    def squared_errors(self, x0: Float[Tensor, "B L M"], target_mask: Bool[Tensor, "B L M"]) -> Float[Tensor, "B L M"]:
        """Return the errors that train the law."""
        return self.law.squared_errors(x0, target_mask)


class MaskedRegionProcess:
    """Each unit is hidden with probability 1 - alpha, or with one ratio at every time.

    With a fixed ratio the time says nothing of the state, and a step back changes nothing: `finish` fills in at once.
    Training still draws times, as the seed does; an evaluation measures, and samplers fill in, at one `moment`: when as
    much would be hidden.

    Args:
        space: What a sample is.
        clock: Schedule, level and training times.
        mask: What is hidden as one; `masks.Masks` has the list.
        group: Name of the only columns that may be hidden; None for all.
        ratio: Share that is hidden at every time; None for 1 - alpha.
        exact: Hide the rounded number of units instead of each unit by itself.
        block: Regions of a block.
    """

    def __init__(
        self,
        space: FeatureSpace,
        clock: TimestepSampling,
        mask: Mask = "region",
        group: str | None = None,
        ratio: float | None = None,
        exact: bool = False,
        block: int = 8,
    ) -> None:
        if ratio is not None and not 0 < ratio <= 1:
            raise ValueError(f"ratio must be above 0 and at most 1, not {ratio}")
        self.space: Space = space
        self.masks, self.ratio = Masks(space, mask, group, exact, block), ratio
        self.schedule, self.times, self.level = clock.schedule, clock.times, clock.level
        self.fixed_time: float | None = None
        if ratio is not None:
            self.fixed_time = max(float(time_of(clock.schedule, wide(torch.tensor(ratio)))), clock.t_min)

    def corrupt(self, clean: Clean, t: Float[Tensor, "B *L"]) -> Noised:
        """Hide units; fixed values stay as they are."""
        noise = self.schedule(t)
        share = masked_share(noise, clean.x0)
        share = share if self.ratio is None else torch.full_like(share, self.ratio)
        hidden = self.masks.pick(self.masks.maskable(clean), share)
        return Noised(clean.x0, masked_state(clean.x0, hidden), noise, hidden, clean.valid, clean.fixed)

    def read(
        self, raw: Float[Tensor, "B L M"] | ValueDistribution, state: State, noise: Noise
    ) -> MaskedFeaturePrediction | MaskedDistributionPrediction:
        """Keep what is seen; believe the model on the rest, of which it may tell a law."""
        if isinstance(raw, ValueDistribution):
            return MaskedDistributionPrediction(raw, state)
        raw = raw.to(torch.promote_types(raw.dtype, torch.float32))
        return MaskedFeaturePrediction(torch.where(state.masked, raw, state.x), torch.zeros_like(raw))

    def prior(self, like: Clean) -> State:
        """The state that sampling starts from: all that may be hidden is, whatever the ratio; `like.known` is given."""
        return masked_state(like.x0, self.masks.maskable(like))

    def step(self, state: State, pred: Any, now: Noise, then: Noise, like: Clean) -> State:
        """Fill in a hidden unit with probability (alpha_s - alpha_t) / (1 - alpha_t); none if the ratio is fixed."""
        if self.ratio is not None:
            return state
        before, after = masked_share(now, state.x), masked_share(then, state.x)
        share = after / torch.where(before > 0, before, 1.0)
        if self.masks.exact:  # as many as `corrupt` would hide then, not a rounded part of what is hidden now
            units, every = self.masks.units(state.masked), self.masks.units(self.masks.maskable(like))
            count = (self.masks.shares(after, state.masked) * every).sum(1).round()
            share = over((count / units.sum(1).clamp_min(1)).clamp_max(1), state.x)
        return fill(state, pred, self.masks.pick(state.masked, share))

    def finish(self, state: State, pred: Any, like: Clean) -> Float[Tensor, "B L M"]:
        """Fill in all that is hidden."""
        return fill(state, pred, torch.zeros_like(state.masked)).x


def masked_state(x0: Float[Tensor, "B L M"], hidden: Bool[Tensor, "B L M"]) -> State:
    """Return a state in which some values are hidden: 0 stands there."""
    return State(x0.masked_fill(hidden, 0.0), hidden)


def fill(state: State, pred: Any, hidden: Bool[Tensor, "B L M"]) -> State:
    """Fill in all that is hidden but what still is to be."""
    return State(torch.where(state.masked & ~hidden, sample_prediction(pred), state.x), hidden)


def sample_prediction(pred: Any) -> Float[Tensor, "B L M"]:
    """Return what to fill in: a draw where the model tells a law, else what it says."""
    x: Float[Tensor, "B L M"] = pred.draw() if isinstance(pred, DistributionPrediction) else pred.x0
    return x


def masked_share(noise: Noise, like: Float[Tensor, "B L M"]) -> Float[Tensor, "..."]:
    """1 - alpha in float64, to broadcast over `like`."""
    return -(-wide(over(noise.sigma, like))).expm1()
