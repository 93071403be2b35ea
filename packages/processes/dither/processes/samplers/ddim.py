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
        schedule = process.schedule
        times = self.times(process, like)
        # x_1 = eps
        state = process.prior(like)
        for t, s in pairwise(times):
            # eq. 12: x_s = sqrt(alpha_s) x_0 + sqrt(1 - alpha_s - spread^2) eps + spread noise
            pred = model(state, t)
            state = process.step(
                state, pred, schedule(t), schedule(s), like, eta=self.eta
            )
            yield state.x
        # From the last time the predicted x_0 is taken.
        yield process.finish(state, model(state, times[-1]), like)
