"""SDE-DPM-Solver++ 2M (Lu et al. 2022b, appendix B): the reverse SDE in log-SNR time, to second order.

As `dpm-solver`, with new noise in every step, which corrects errors of earlier ones. Letters: B
batch, L length, M features.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING

from pydantic import Field

from .dpm_solver import extrapolate, log_snr
from .options import GaussianSampler

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

    from dither.registry.contracts.protocols import GaussianProcess, Session
    from dither.registry.contracts.records import Clean, Noise

__all__ = ["DPMSolverSDE"]


class DPMSolverSDE(GaussianSampler):
    """SDE-DPM-Solver++ 2M: second order in log-SNR time, with new noise in every step."""

    name = "dpm-solver-sde"
    steps: int = Field(20, ge=1, le=1_000_000)
    """K, the calls of the model; the last one predicts the clean sample."""

    def sample(
        self, process: GaussianProcess, model: Session, like: Clean
    ) -> Iterator[Float[Tensor, "B L M"]]:
        import torch

        from ..features.signal import diffusion_norm

        state = process.prior(like)
        times = self.times(process, like)
        earlier: tuple[Tensor, Tensor] | None = None
        for t, s in pairwise(times):
            noise_t = process.schedule(t)
            noise_s = process.schedule(s)
            x0 = model(state, t).x0
            lambda_t = log_snr(noise_t)
            h = log_snr(noise_s) - lambda_t

            line = x0
            if earlier is not None:
                line = extrapolate(x0, lambda_t, h, earlier)

            # On the straight line of flow matching x is that of diffusion, scaled.
            eps = torch.randn_like(x0)
            y = state.x * diffusion_norm(process, noise_t, line)
            y = _step(y, line, eps, noise_t, noise_s, h)
            x = y / diffusion_norm(process, noise_s, line)
            state = process.replace(state, x, like)
            earlier = lambda_t, x0
            yield state.x
        # At clean data lambda is infinite: the predicted x_0 is taken.
        yield process.finish(state, model(state, times[-1]), like)


def _step(
    x: Float[Tensor, "B L M"],
    x0: Float[Tensor, "B L M"],
    eps: Float[Tensor, "B L M"],
    noise_t: Noise,
    noise_s: Noise,
    h: Float[Tensor, " B"],
) -> Float[Tensor, "B L M"]:
    """Return x at the later lambda, larger by h, for a given x_0 and new noise."""
    from ..precision import one_minus_exp, wide

    sigma_s = wide(noise_s.sigma)
    variance_s = one_minus_exp(sigma_s)
    variance_t = one_minus_exp(wide(noise_t.sigma))

    # sqrt((1 - alpha_s) / (1 - alpha_t)) e^{-h} x + sqrt(alpha_s) (1 - e^{-2h}) x_0
    # + sqrt((1 - alpha_s) (1 - e^{-2h})) eps
    replaced = one_minus_exp(2 * h)
    keep = (variance_s / variance_t).sqrt() * (-h).exp()
    add = (-sigma_s / 2).exp() * replaced
    spread = (variance_s * replaced).sqrt()
    return (
        _broadcast(keep, x) * x + _broadcast(add, x) * x0 + _broadcast(spread, x) * eps
    )


def _broadcast(
    value: Float[Tensor, " B"], like: Float[Tensor, "B L M"]
) -> Float[Tensor, "B 1 1"]:
    return value.to(like.dtype)[:, None, None]
