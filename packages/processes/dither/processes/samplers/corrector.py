"""Predictor and corrector: steps that are taken again (Campbell et al. 2022). Letters: B batch, L length, K times."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from jaxtyping import Int
from torch import Tensor

from dither.registry.flow import Clean
from dither.registry.parts import Process, Session

from ..tokens import TokenProcess
from .ancestral import check_grid, even_times
from .choice import AS_SAID, Choice

__all__ = ["PredictorCorrector"]


@dataclass(frozen=True)
class PredictorCorrector:
    """Each step of ancestral sampling from t to s, and then again: noise from s up to t, and the step back to s.

    Noise and an exact step leave p_s as it is, so that a correction brings what a coarse step got wrong nearer to it.
    It is for tokens: under an absorbing prior it masks again, under others it moves tokens anew.
    """

    steps: int = 64
    corrections: int = 1
    t_min: float = 1e-3
    choice: Choice = AS_SAID

    def __post_init__(self) -> None:
        check_grid(self.steps, self.t_min)
        if self.corrections < 0:
            raise ValueError(f"a step can be taken again 0 times or more, not {self.corrections}")

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
            now, then = process.schedule(t), process.schedule(s)
            for turn in range(self.corrections + 1):
                if turn:
                    state = process.renoise(state, now.since(then), like)
                state = process.step(state, self.choice(session(state, t)), now, then, like)
            yield state.x
        yield process.finish(state, self.choice(session(state, times[-1])), like)
