"""Predictor and corrector: steps that are taken again (Campbell et al. 2022). Letters: B batch, L length, K times."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from jaxtyping import Int
from torch import Tensor

from dither.registry.flow.protocols import Process, Session
from dither.registry.flow.records import Clean

from ..timesteps import check_grid, even_times
from ..tokens.process import TokenProcess
from ..tokens.temperature import UNCHANGED, LogitsWarper

__all__ = ["PredictorCorrector"]


@dataclass(frozen=True)
class PredictorCorrector:
    """Each step of ancestral sampling from t to s, then corrections: noise from s up to r, and a step from r back to s.

    Noise and an exact step leave p_s as it is. A correction shorter than the step is more exact than the step, so that
    several bring what the step got wrong nearer to p_s. Under an absorbing prior they mask again, under others they
    move tokens anew.
    """

    steps: int = 64
    corrections: int = 1
    reach: float = 0.5
    t_min: float = 1e-3
    choice: LogitsWarper = UNCHANGED

    def __post_init__(self) -> None:
        check_grid(self.steps, self.t_min)
        if self.corrections < 0:
            raise ValueError(f"a step is corrected 0 times or more, not {self.corrections}")
        if not 0 < self.reach <= 1:
            raise ValueError(f"reach must be above 0 and at most 1, the whole step, not {self.reach}")

    def __call__(self, process: Process, session: Session, like: Clean) -> Iterator[Int[Tensor, "B L"]]:
        """Yield the state after every step, the clean sample last.

        Raises:
            TypeError: The process has no prior over ids.
        """
        if not isinstance(process, TokenProcess):
            raise TypeError(f"predictor-corrector walks a TokenProcess, not {type(process).__name__}")
        state = process.prior(like)
        times = even_times(self.steps, self.t_min, like.valid.device)[:, None].expand(-1, len(like.valid))
        for t, s in pairwise(times):
            then = process.schedule(s)
            state = process.step(state, self.choice(session(state, t)), process.schedule(t), then, like)
            r = s + self.reach * (t - s)
            up = process.schedule(r)
            for _ in range(self.corrections):
                state = process.renoise(state, up.since(then), like)
                state = process.step(state, self.choice(session(state, r)), up, then, like)
            yield state.x
        yield process.finish(state, self.choice(session(state, times[-1])), like)
