"""DPM-Solver++ 2M (Lu et al. 2022b, algorithm 2): the probability flow in log-SNR time, to second order.

Between two times x_0 is linear in lambda = log sqrt(alpha / (1 - alpha)), through the two latest
predictions; the rest is solved exactly. The first step has one prediction only; the last, to clean
data where lambda is infinite, takes the predicted x_0. Letters: B batch, L length, M features.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from .options import GaussianSampler

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

    from dither.registry.contracts.protocols import GaussianProcess, Session
    from dither.registry.contracts.records import Clean, Noise

__all__ = ["DPMSolver", "extrapolate", "log_snr", "solve"]


class DPMSolver(GaussianSampler):
    """DPM-Solver++ 2M: a solver of second order in log-SNR time, for few calls. It adds no noise."""

    name = "dpm-solver"
    steps: int = Field(20, ge=1, le=1_000_000)
    """K, the calls of the model; the last one predicts the clean sample."""
    order: Literal[1, 2] = 2
    """1 ignores the previous prediction, as DDIM does."""

    def sample(
        self, process: GaussianProcess, model: Session, like: Clean
    ) -> Iterator[Float[Tensor, "B L M"]]:
        from ..features.signal import diffusion_norm

        state = process.prior(like)
        schedule = process.schedule
        times = self.times(process, like)
        earlier: tuple[Tensor, Tensor] | None = None
        for t, s in pairwise(times):
            noise_t = schedule(t)
            noise_s = schedule(s)
            x0 = model(state, t).x0
            lambda_t = log_snr(noise_t)
            h = log_snr(noise_s) - lambda_t

            line = x0
            if earlier is not None and self.order == 2:
                line = extrapolate(x0, lambda_t, h, earlier)

            # On the straight line of flow matching x is that of diffusion, scaled.
            y = state.x * diffusion_norm(process, noise_t, line)
            y = solve(y, line, noise_t, noise_s, h)
            x = y / diffusion_norm(process, noise_s, line)
            state = process.replace(state, x, like)
            earlier = lambda_t, x0
            yield state.x
        # At clean data lambda is infinite: the predicted x_0 is taken.
        yield process.finish(state, model(state, times[-1]), like)


def log_snr(noise: Noise) -> Float[Tensor, " B"]:
    """Return lambda = log sqrt(alpha / (1 - alpha)), in float64."""
    from ..precision import one_minus_exp, wide

    sigma = wide(noise.sigma)
    return (-sigma - one_minus_exp(sigma).log()) / 2


def extrapolate(
    x0: Float[Tensor, "B L M"],
    lambda_t: Float[Tensor, " B"],
    h: Float[Tensor, " B"],
    earlier: tuple[Float[Tensor, " B"], Float[Tensor, "B L M"]],
) -> Float[Tensor, "B L M"]:
    """Return D = (1 + 1 / 2r) x_0 - 1 / 2r x_0 of the step before, r = h before / h."""
    import torch

    lambda_before, x0_before = earlier
    h_before = lambda_t - lambda_before
    # First order if no time has passed
    inverse_r = h / torch.where(h_before > 0, h_before, torch.inf)
    half = (inverse_r / 2).to(x0.dtype)[:, None, None]
    return x0 + half * (x0 - x0_before)


def solve(
    x: Float[Tensor, "B L M"],
    x0: Float[Tensor, "B L M"],
    noise_t: Noise,
    noise_s: Noise,
    h: Float[Tensor, " B"],
) -> Float[Tensor, "B L M"]:
    """Return x at the later lambda, larger by h, for a given x_0."""
    from ..precision import one_minus_exp, wide

    sigma_t = wide(noise_t.sigma)
    sigma_s = wide(noise_s.sigma)

    # x_s = sqrt((1 - alpha_s) / (1 - alpha_t)) x_t + sqrt(alpha_s) (1 - e^{-h}) x_0
    keep = (one_minus_exp(sigma_s) / one_minus_exp(sigma_t)).sqrt()
    add = (-sigma_s / 2).exp() * one_minus_exp(h)
    keep = keep.to(x.dtype)[:, None, None]
    add = add.to(x.dtype)[:, None, None]
    return keep * x + add * x0
