"""DPM-Solver++: the probability flow in log-SNR time, to second order.

Letters: B batch, L length, M features, K times.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from dither.registry.flow.protocols import Process, Session
from dither.registry.flow.records import Clean, Noise

from ..precision import wide
from ..timesteps import Grid, Spacing
from .ddim import gaussian, rows_of

__all__ = ["DPMSolver", "log_snr"]


@dataclass(frozen=True)
class DPMSolver:
    """DPM-Solver++ 2M (Lu et al. 2022b, algorithm 2), which adds no noise.

    Between two times x_0 is taken for a straight line in lambda = log sqrt(alpha / (1 - alpha)), through what the model
    said at the two latest; all else is solved exactly. The first step has one time only, and so has the last, to clean
    data, where lambda is infinite: it takes the model's word as it is.

    Attributes:
        steps: Calls of the model.
        order: 2, or 1, which is DDIM without noise.
        spacing: Where in time the calls are.
        t_min: Time of the last call, but under trailing.
    """

    steps: int = 20
    order: int = 2
    spacing: Spacing = "trailing"
    t_min: float = 1e-3

    def __post_init__(self) -> None:
        Grid(self.steps, self.spacing, self.t_min)
        if self.order not in (1, 2):
            raise ValueError(f"order must be 1 or 2, not {self.order}")

    def __call__(self, process: Process, session: Session, like: Clean) -> Iterator[Float[Tensor, "B L M"]]:
        """Yield every state, the clean sample last.

        Raises:
            TypeError: The process adds no Gaussian noise.
        """
        process = gaussian(process, "dpm-solver")
        state = process.prior(like)
        times = rows_of(Grid(self.steps, self.spacing, self.t_min), process, like)
        earlier: tuple[Any, Any] | None = None
        for t, s in pairwise(times):
            now, then = process.schedule(t), process.schedule(s)
            x0, place = session(state, t).x0, log_snr(now)
            h = log_snr(then) - place
            line = x0
            if earlier is not None and self.order == 2:
                gap = place - earlier[0]
                ratio = h / torch.where(gap > 0, gap, torch.inf)  # first order where no time has passed
                line = x0 + (ratio / 2).to(x0.dtype)[:, None, None] * (x0 - earlier[1])
            state = process.moved(state, _solved(state.x, line, now, then, h), like)
            earlier = place, x0
            yield state.x
        yield process.finish(state, session(state, times[-1]), like)


def log_snr(noise: Noise) -> Float[Tensor, " B"]:
    """Return lambda = log sqrt(alpha / (1 - alpha)), in float64."""
    lost = -(-wide(noise.sigma)).expm1()
    return (-wide(noise.sigma) - lost.log()) / 2


def _solved(
    x: Float[Tensor, "B L M"], x0: Float[Tensor, "B L M"], now: Noise, then: Noise, h: Float[Tensor, " B"]
) -> Float[Tensor, "B L M"]:
    """Return x at the later place in lambda, by `h`, where x_0 is what it is."""
    lost, lost_then = (-(-wide(noise.sigma)).expm1() for noise in (now, then))
    keep, add = (lost_then / lost).sqrt(), -(-wide(then.sigma) / 2).exp() * (-h).expm1()
    keep, add = (torch.as_tensor(value, dtype=x.dtype)[:, None, None] for value in (keep, add))
    return keep * x + add * x0
