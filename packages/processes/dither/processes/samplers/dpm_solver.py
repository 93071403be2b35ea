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

__all__ = ["DPMSolver", "log_snr"]


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
        import torch

        from ..flow_matching.process import path_norm

        state = process.prior(like)
        schedule = process.schedule
        times = self.times(process, like)
        earlier: tuple[Tensor, Tensor] | None = None
        for t, s in pairwise(times):
            now = schedule(t)
            then = schedule(s)
            x0 = model(state, t).x0
            now_lambda = log_snr(now)
            h = log_snr(then) - now_lambda
            line = x0
            if earlier is not None and self.order == 2:
                gap = now_lambda - earlier[0]
                ratio = h / torch.where(
                    gap > 0, gap, torch.inf
                )  # first order if no time has passed
                line = x0 + (ratio / 2).to(x0.dtype)[:, None, None] * (x0 - earlier[1])
            if process.linear_path:
                before, after = (
                    path_norm(noise, line).to(line.dtype) for noise in (now, then)
                )
                x = _solve(state.x * before, line, now, then, h) / after
            else:
                x = _solve(state.x, line, now, then, h)
            state = process.replace(state, x, like)
            earlier = now_lambda, x0
            yield state.x
        yield process.finish(state, model(state, times[-1]), like)


def log_snr(noise: Noise) -> Float[Tensor, " B"]:
    """Return lambda = log sqrt(alpha / (1 - alpha)), in float64."""
    from ..precision import wide

    one_minus_alpha = -(-wide(noise.sigma)).expm1()
    return (-wide(noise.sigma) - one_minus_alpha.log()) / 2


def _solve(
    x: Float[Tensor, "B L M"],
    x0: Float[Tensor, "B L M"],
    now: Noise,
    then: Noise,
    h: Float[Tensor, " B"],
) -> Float[Tensor, "B L M"]:
    """Return x at the later lambda, larger by h, for a given x_0."""
    import torch

    from ..precision import wide

    before, after = (-(-wide(noise.sigma)).expm1() for noise in (now, then))
    keep = (after / before).sqrt()
    add = -(-wide(then.sigma) / 2).exp() * (-h).expm1()
    keep, add = (
        torch.as_tensor(value, dtype=x.dtype)[:, None, None] for value in (keep, add)
    )
    return keep * x + add * x0
