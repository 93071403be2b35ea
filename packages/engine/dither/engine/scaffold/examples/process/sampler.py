"""A sampler with smaller and smaller steps towards the clean sample.

Letters: B batch, L length.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING

from pydantic import Field

from dither.registry import Spec, hookimpl
from dither.registry.kinds import SamplerSpec

if TYPE_CHECKING:
    from torch import Tensor

    from dither.registry.contracts.protocols import Process, Sampler, Session
    from dither.registry.contracts.records import Clean


class ExampleSampler(SamplerSpec):
    """Ancestral sampling at the times (1 - i / steps)^2."""

    name = "example-sampler"
    steps: int = Field(64, ge=1, le=10_000)
    """Number of steps; the model is called once more at the end."""

    def build(self) -> Sampler:
        """Return a function that yields every state, and the clean sample last."""
        import torch

        def sample(process: Process, session: Session, like: Clean) -> Iterator[Tensor]:
            state = process.prior(like)
            roots = torch.linspace(1, 0.03, self.steps + 1, device=like.valid.device)
            times = roots.square()[:, None].expand(-1, len(like.valid))  # steps+1 x B
            for t, s in pairwise(times):
                # Calls the model.
                prediction = session(state, t)
                now = process.schedule(t)
                then = process.schedule(s)
                state = process.step(state, prediction, now, then, like)
                yield state.x

            prediction = session(state, times[-1])
            yield process.finish(state, prediction, like)

        return sample


@hookimpl
def register_components() -> list[type[Spec]]:
    return [ExampleSampler]
