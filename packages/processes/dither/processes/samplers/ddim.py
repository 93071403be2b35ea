"""DDIM (Song et al. 2020, eq. 12): few steps through Gaussian noise, with any amount of new noise.

Letters: B batch, L length, M features.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from .options import GaussianSampler

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

    from dither.registry.flow.protocols import Process, Sampler, Session
    from dither.registry.flow.records import Clean

__all__ = ["DDIM", "sample"]


class DDIM(GaussianSampler):
    """Few large steps through Gaussian noise, with a chosen amount of new noise (DDIM)."""

    name: ClassVar[str] = "ddim"
    eta: float = Field(0.0, ge=0, le=1)
    """Noise of a step: 0 adds none, 1 is DDPM."""

    def build(self) -> Sampler:
        """Return the sampler."""
        return partial(sample, options=self)


def sample(process: Process, model: Session, like: Clean, *, options: DDIM) -> Iterator[Float[Tensor, "B L M"]]:
    """Yield every state, the clean sample last."""
    from ..timesteps import gaussian_process, grid_times

    process = gaussian_process(process, options.name)
    state, schedule = process.prior(like), process.schedule
    times = grid_times(options, process, like)
    for t, s in pairwise(times):
        state = process.step(state, model(state, t), schedule(t), schedule(s), like, eta=options.eta)
        yield state.x
    yield process.finish(state, model(state, times[-1]), like)
