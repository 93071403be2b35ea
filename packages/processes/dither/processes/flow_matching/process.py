"""Flow matching over features: x_t = (1 - u) x_0 + u eps on a straight line, with u given by the schedule.

The noise sigma of a schedule fixes the ratio u / (1 - u) = sqrt(1 - alpha) / sqrt(alpha), so that
every schedule of Gaussian diffusion serves here; x_t is that of diffusion divided by sqrt(alpha) +
sqrt(1 - alpha). Lipman et al. 2022, Liu et al. 2022 (rectified flow), whose time runs from noise to
data. Letters: B batch, L length, M features.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from dither.registry.contracts.records import (
    Clean,
    FeaturePrediction,
    Noise,
    State,
    over,
)
from dither.registry.contracts.tensors import at_least_float32

from ..features.gaussian import GaussianProcess
from ..features.signal import path_norm
from ..precision import one_minus_exp, wide

__all__ = ["FlowMatchingProcess", "FlowPrediction"]


class FlowPrediction(FeaturePrediction):
    """Raw model output with its meaning. The velocity is dx/du = eps - x_0."""

    def __init__(
        self,
        raw: Float[Tensor, "B L M"],
        x: Float[Tensor, "B L M"],
        u: Float[Tensor, "..."],
        x0: bool,
    ) -> None:
        self.raw = raw
        self.x = x
        self.u = u
        self._is_x0 = x0

    @property
    def x0(self) -> Float[Tensor, "B L M"]:
        if self._is_x0:
            return self.raw
        # x_t = x_0 + u (eps - x_0)
        return self.x - self.u * self.raw

    @property
    def eps(self) -> Float[Tensor, "B L M"]:
        """The noise that explains x_t, given `x0`; 0 for clean values whose x_0 is predicted."""
        if self._is_x0:
            # Clean values have u = 0, and no noise to explain.
            divisor = torch.where(self.u > 0, self.u, torch.inf)
            return (self.x - (1 - self.u) * self.raw) / divisor
        return self.x + (1 - self.u) * self.raw


class FlowMatchingProcess(GaussianProcess):
    """A straight line from each sample to noise, everywhere or where a mask picks; arguments of `GaussianProcess`.

    `predict` is "velocity" (eps - x_0) or "x0".

    Attributes:
        linear_path: The factors of x_0 and eps add up to 1; their squares do not.
    """

    linear_path = True

    def scales(
        self, noise: Noise, like: Float[Tensor, "B L M"]
    ) -> tuple[Float[Tensor, "..."], Float[Tensor, "..."]]:
        """Return 1 - u and u."""
        sigma = wide(over(noise.sigma, like))
        # Factors of x_0 and eps under diffusion, scaled so that they add up to 1
        a = (-sigma / 2).exp()
        b = one_minus_exp(sigma).sqrt()
        one_minus_u = a / (a + b)
        u = b / (a + b)
        return one_minus_u.to(like.dtype), u.to(like.dtype)

    def read(
        self, raw: Float[Tensor, "B L M"], state: State, noise: Noise
    ) -> FlowPrediction:
        raw = at_least_float32(raw)
        return FlowPrediction(
            raw, state.x, self.scales(noise, raw)[1], self.predict == "x0"
        )

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
        """Draw x_s given x_t, as `GaussianProcess.step` on the same noise; with eta = 0 it is an Euler step in u."""
        # The parent steps in the coordinates of diffusion, from x_0 and eps alone.
        new = super().step(state, pred, now, then, like, eta=eta, eps=eps).x
        return self.replace(state, new / path_norm(then, new).to(new.dtype), like)
