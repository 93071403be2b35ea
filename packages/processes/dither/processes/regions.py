"""Masked regions: features are hidden, whole regions, single elements or a group of columns at a time, to be filled in.

Letters: B batch, L length, M features, U units that are hidden as one (L regions, or L M elements).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from einops import rearrange, repeat
from jaxtyping import Bool, Float
from torch import Tensor

from dither.registry.flow import Clean, Noise, Noised, State, over
from dither.registry.problems import nearest
from dither.registry.spaces import FeatureSpace, Space

from .clock import Clock
from .precision import Constant, wide

__all__ = ["Mask", "MaskedRegionProcess", "RegionReading", "pick"]

Mask = Literal["region", "element", "group"]


@dataclass(frozen=True)
class RegionReading:
    """What is seen, and the model's word on what is hidden; a `FeaturePrediction`. No noise was added: eps is 0."""

    x0: Float[Tensor, "B L M"]
    eps: Float[Tensor, "B L M"]


def pick(units: Bool[Tensor, "B U"], share: Float[Tensor, "B U"], exact: bool) -> Bool[Tensor, "B U"]:
    """Pick a share of the True units: each by itself, or exactly the rounded expected number of a sample."""
    u = torch.rand(units.shape, dtype=share.dtype, device=units.device)
    if not exact:
        return units & (u < share)
    count = (share * units).sum(1, keepdim=True).round()
    rank = u.masked_fill(~units, 2.0).argsort(1).argsort(1)
    return units & (rank < count)


class MaskedRegionProcess:
    """Each unit is hidden with probability 1 - alpha, or with one ratio at every time.

    With a fixed ratio the time says nothing of the state, and a step back changes nothing: `finish` fills in at once.

    Args:
        space: What a sample is.
        clock: Schedule, level and training times.
        mask: What is hidden as one: a region (position), an element, or a group's columns of a position.
        group: Name of the group.
        ratio: Share that is hidden at every time; None for 1 - alpha.
        exact: Hide the rounded number of units instead of each unit by itself.
    """

    def __init__(
        self,
        space: FeatureSpace,
        clock: Clock,
        mask: Mask = "region",
        group: str | None = None,
        ratio: float | None = None,
        exact: bool = False,
    ) -> None:
        if mask not in get_args(Mask):
            raise ValueError(f"mask must be one of {', '.join(get_args(Mask))}, not {mask!r}")
        if (mask == "group") != (group is not None):
            raise ValueError('a group is to be named with mask = "group", and only then')
        if ratio is not None and not 0 < ratio <= 1:
            raise ValueError(f"ratio must be above 0 and at most 1, not {ratio}")
        self.space: Space = space
        self.by_element, self.ratio, self.exact = mask == "element", ratio, exact
        self.schedule, self.times, self.level = clock.schedule, clock.times, clock.level
        self._columns = Constant(columns(space, group))

    def corrupt(self, clean: Clean, t: Float[Tensor, "B *L"]) -> Noised:
        """Hide units; fixed values stay as they are."""
        noise = self.schedule(t)
        hidden = self._hide(clean, lost(noise, clean.x0))
        state = State(clean.x0.masked_fill(hidden, 0.0), hidden)
        return Noised(clean.x0, state, noise, hidden, clean.valid, clean.fixed)

    def read(self, raw: Float[Tensor, "B L M"], state: State, noise: Noise) -> RegionReading:
        """Keep what is seen; believe the model on the rest."""
        raw = raw.to(torch.promote_types(raw.dtype, torch.float32))
        return RegionReading(torch.where(state.hidden, raw, state.x), torch.zeros_like(raw))

    def prior(self, like: Clean) -> State:
        """The state that sampling starts from: all that may be hidden is, whatever the ratio; `like.known` is given."""
        hidden = self._maskable(like)
        return State(like.x0.masked_fill(hidden, 0.0), hidden)

    def step(self, state: State, pred: Any, now: Noise, then: Noise, like: Clean) -> State:
        """Fill in a hidden unit with probability (alpha_s - alpha_t) / (1 - alpha_t); none if the ratio is fixed."""
        if self.ratio is not None:
            return state
        before, after = lost(now, state.x), lost(then, state.x)
        units = self._units(state.hidden)
        share = self._shares(after / torch.where(before > 0, before, 1.0), state.x)
        if self.exact:  # as many as `corrupt` would hide then, not a rounded part of what is hidden now
            every = self._units(self._maskable(like))
            count = (self._shares(after, state.x) * every).sum(1, keepdim=True).round()
            share = (count / units.sum(1, keepdim=True).clamp_min(1)).clamp_max(1).expand(units.shape)
        hidden = state.hidden & self._spread(pick(units, share, self.exact))
        return State(torch.where(state.hidden & ~hidden, pred.x0, state.x), hidden)

    def finish(self, state: State, pred: Any, like: Clean) -> Float[Tensor, "B L M"]:
        """Fill in all that is hidden."""
        return torch.where(state.hidden, pred.x0, state.x)

    def _hide(self, clean: Clean, share: Float[Tensor, "..."]) -> Bool[Tensor, "B L M"]:
        """Choose what to hide."""
        if self.ratio is not None:
            share = torch.full_like(share, self.ratio)
        maskable = self._maskable(clean)
        return maskable & self._spread(pick(self._units(maskable), self._shares(share, clean.x0), self.exact))

    def _maskable(self, clean: Clean) -> Bool[Tensor, "B L M"]:
        return ~clean.fixed & self._columns.on(clean.x0.device)

    def _units(self, elements: Bool[Tensor, "B L M"]) -> Bool[Tensor, "B U"]:
        return rearrange(elements, "b l m -> b (l m)") if self.by_element else elements.any(-1)

    def _shares(self, share: Float[Tensor, "..."], x: Float[Tensor, "B L M"]) -> Float[Tensor, "B U"]:
        if self.by_element:
            return rearrange(share.expand(x.shape), "b l m -> b (l m)")
        return share.expand(*x.shape[:2], 1)[..., 0]

    def _spread(self, units: Bool[Tensor, "B U"]) -> Bool[Tensor, "B L M"]:
        """From units back to elements."""
        assert isinstance(self.space, FeatureSpace)
        if self.by_element:
            return rearrange(units, "b (l m) -> b l m", m=self.space.width)
        return repeat(units, "b l -> b l m", m=self.space.width)


def lost(noise: Noise, like: Float[Tensor, "B L M"]) -> Float[Tensor, "..."]:
    """1 - alpha in float64, to broadcast over `like`."""
    return -(-wide(over(noise.sigma, like))).expm1()


def columns(space: FeatureSpace, group: str | None) -> Bool[Tensor, " M"]:
    """True for the columns of a group, or for all.

    Raises:
        ValueError: There is no such group.
    """
    if group is None:
        return torch.ones(space.width, dtype=torch.bool)
    for known in space.groups:
        if known.name == group:
            place = torch.arange(space.width)
            return (place >= known.start) & (place < known.stop)
    names = [known.name for known in space.groups]
    close = nearest(group, names)
    hint = f', did you mean "{close}"?' if close else ""
    raise ValueError(f'no group is named "{group}"{hint}; groups: {", ".join(names) or "none"}')
