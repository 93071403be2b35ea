"""DDIM (Song et al. 2020, eq. 12): few steps through Gaussian noise, with any amount of new noise.

Letters: B batch, L length, M features.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING

from pydantic import Field

from .options import GaussianSampler

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

    from dither.registry.contracts.protocols import GaussianProcess, Session
    from dither.registry.contracts.records import Clean

__all__ = ["DDIM"]


class DDIM(GaussianSampler):
    """Few large steps through Gaussian noise, with a chosen amount of new noise (DDIM)."""

    name = "ddim"
    eta: float = Field(0.0, ge=0, le=1)
    """Noise of a step: 0 adds none, 1 is DDPM."""

    def sample(
        self, process: GaussianProcess, model: Session, like: Clean
    ) -> Iterator[Float[Tensor, "B L M"]]:
        state = process.prior(like)
        schedule = process.schedule
        times = self.times(process, like)
        for t, s in pairwise(times):
            state = process.step(
                state, model(state, t), schedule(t), schedule(s), like, eta=self.eta
            )
            yield state.x
        yield process.finish(state, model(state, times[-1]), like)
