"""GIDD (generalized interpolating discrete diffusion, von Ruette et al. 2025): wrong tokens at first, MASK at the end.

With r^2 = (1 - a) / a of a schedule a (t / (1 - t) of log-linear noise), and B = 2 p / (1 - p), a
clean token is to a wrong one and to MASK as

    1 : B r : r^2,    so that   1 / alpha = 1 + B r + r^2

which is the paper's process for gamma = 1: wrong tokens are a share p of all at r = 1, and of the
replaced ones B / (B + r), 1 at t = 0 and falling to 0. Tokens replaced between r_s and r_t are
wrong ones and MASK as B : r_s + r_t, for every earlier value. Letters: B batch, L length, V vocabulary.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dither.registry.contracts.records import Clean, Noise, Noised, over
from dither.registry.contracts.tensors import lookup

from ..precision import Constant, wide, wide_schedule
from .process import TokenProcess

if TYPE_CHECKING:
    from dither.registry.contracts.protocols import Schedule
    from dither.registry.contracts.spaces import TokenSpace

    from ..options import PredictionType
    from ..timestep_sampling import TimestepSampling

__all__ = ["GIDDProcess", "gidd_schedule", "odds_at_peak"]

MIN_ROOT = 1e-9
"""Least r under a derivative: dr/dt is infinite at t = 0."""


def odds_at_peak(share: float) -> float:
    """Return B for the largest share of wrong tokens."""
    return 2 * share / (1 - share)


def gidd_schedule(schedule: Schedule, share: float) -> Schedule:
    """Return the noise of all replaced tokens, given that of MASK alone."""
    odds = odds_at_peak(share)

    def sigma_and_rate(t: Tensor) -> tuple[Tensor, Tensor]:
        masks = schedule(t)
        root = masks.sigma.expm1().sqrt()
        # r^2 = exp(sigma) - 1, so that dr/dt = exp(sigma) sigma' / 2 r
        root_rate = masks.sigma.exp() * masks.rate / (2 * root.clamp_min(MIN_ROOT))
        replaced = odds * root + root.square()
        return replaced.log1p(), (odds + 2 * root) * root_rate / (1 + replaced)

    return wide_schedule(sigma_and_rate)


class GIDDProcess(TokenProcess):
    """Tokens become wrong ones, and these and clean ones MASK.

    Args:
        space: Space of the model, MASK included.
        mask: Distribution of masked tokens.
        wrong: Distribution of wrong tokens, on other ids than MASK.
        share: Largest share of wrong tokens.
        timesteps: Schedule of `gidd_schedule`, level and training times.
        predict: Meaning of the raw model output.
    """

    def __init__(
        self,
        space: TokenSpace,
        mask: Float[Tensor, "rows V"],
        wrong: Float[Tensor, "rows V"],
        share: float,
        timesteps: TimestepSampling,
        predict: PredictionType = "posterior",
    ) -> None:
        self.odds = odds_at_peak(share)
        self.mask = Constant(wide(mask))
        self.wrong = Constant(wide(wrong))
        end = timesteps.schedule(torch.ones(1, dtype=torch.float64))
        super().__init__(space, self.prior_at(end)[0], timesteps, predict)

    def prior_at(
        self, now: Noise, then: Noise | None = None
    ) -> Float[Tensor, "B #L V"]:
        root = self._root(now)
        if then is not None:
            root = root + self._root(then)
        # One per sample or per position, over rows and ids
        share = self.odds / (self.odds + root)
        share = share[..., None] if share.ndim > 1 else share[:, None, None]
        device = share.device
        return share * self.wrong.on(device) + (1 - share) * self.mask.on(device)

    def noised(self, clean: Clean, x: Int[Tensor, "B L"], noise: Noise) -> Noised:
        """Return the record of ids x, with a rate for each: the forward rate to x is rate times prior."""
        root = over(self._root(noise), x)
        # The prior changes with time: d/dsigma of (1 - alpha) prior, plus (1 - alpha) prior itself,
        # is the prior times this.
        factor = (self.odds + root) / (self.odds + 2 * root)
        masked = lookup(self.mask.on(x.device), x) > 0
        factor = torch.where(masked, 2 * factor, factor)
        rate = over(noise.rate, x) * factor.to(noise.rate.dtype)
        record = super().noised(clean, x, noise)
        return replace(record, noise=Noise(noise.sigma, rate))

    def _root(self, noise: Noise) -> Float[Tensor, "B *L"]:
        """Return r, from 1 / alpha = 1 + B r + r^2."""
        excess = wide(noise.sigma).expm1()
        root = (self.odds * self.odds + 4 * excess).sqrt()
        # The positive solution, in the form that does not cancel for little noise
        return 2 * excess / (self.odds + root)
