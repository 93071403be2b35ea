"""DDIM: few steps through Gaussian noise, with as much new noise as is asked for.

Letters: B batch, L length, M features, K times.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from jaxtyping import Float
from torch import Tensor

from dither.registry.flow.protocols import Process, Session
from dither.registry.flow.records import Clean

from ..features.gaussian import GaussianProcess
from ..timesteps import Grid, Spacing

__all__ = ["DDIM", "gaussian", "rows_of"]


@dataclass(frozen=True)
class DDIM:
    """Denoising diffusion implicit models (Song et al. 2020).

    Attributes:
        steps: Calls of the model; the last of them goes straight to clean data.
        eta: Noise of a step: 0 adds none, 1 is DDPM.
        spacing: Where in time the calls are.
        t_min: Time of the last call, but under trailing.
    """

    steps: int = 50
    eta: float = 0.0
    spacing: Spacing = "trailing"
    t_min: float = 1e-3

    def __post_init__(self) -> None:
        Grid(self.steps, self.spacing, self.t_min)
        if not 0 <= self.eta <= 1:
            raise ValueError(f"eta must lie between 0 (DDIM) and 1 (DDPM), not {self.eta}")

    def __call__(self, process: Process, session: Session, like: Clean) -> Iterator[Float[Tensor, "B L M"]]:
        """Yield every state, the clean sample last.

        Raises:
            TypeError: The process adds no Gaussian noise.
        """
        process = gaussian(process, "ddim")
        state = process.prior(like)
        times = rows_of(Grid(self.steps, self.spacing, self.t_min), process, like)
        for t, s in pairwise(times):
            pred, now, then = session(state, t), process.schedule(t), process.schedule(s)
            state = process.step(state, pred, now, then, like, eta=self.eta)
            yield state.x
        yield process.finish(state, session(state, times[-1]), like)


def gaussian(process: Process, sampler: str) -> GaussianProcess:
    """Return a process that adds Gaussian noise.

    Raises:
        TypeError: It does not.
    """
    if not isinstance(process, GaussianProcess):
        raise TypeError(f"{sampler} walks a GaussianProcess, not {type(process).__name__}")
    return process


def rows_of(grid: Grid, process: GaussianProcess, like: Clean) -> Float[Tensor, "K B"]:
    """Return the times of a grid for each sample, in the precision of the sample."""
    times = grid.times(process.schedule, like.valid.device).to(like.x0.dtype)
    return times[:, None].expand(-1, len(like.valid))
