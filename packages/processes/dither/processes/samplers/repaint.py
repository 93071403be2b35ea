"""RePaint: filling in with a model that was trained on noise everywhere. Letters: B batch, L length, M features."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from dither.registry.flow.protocols import Process, Session
from dither.registry.flow.records import Clean, Noise, State

from ..features.gaussian import GaussianProcess
from ..timesteps import Grid, Spacing
from .ddim import gaussian, rows_of

__all__ = ["RePaint", "visits"]


@dataclass(frozen=True)
class RePaint:
    """Known values are noised anew at every step, and steps are taken again (Lugmayr et al. 2022, algorithm 1).

    The model sees a whole sample at one level of noise, as in training without known values. A jump goes back up and
    down again, so that what is filled in comes to agree with what is known. States are shown with what is known in
    place.

    Attributes:
        steps: Times of the grid; the model is called more often by the steps that are taken again.
        jump: Steps of a jump.
        visits: How often each stretch of `jump` steps is walked; 1 for no jumps.
        eta: Noise of a step: 1 is DDPM, 0 adds none.
        spacing: Where in time the calls are.
        t_min: Time of the last call, but under trailing.
    """

    steps: int = 50
    jump: int = 10
    visits: int = 10
    eta: float = 1.0
    spacing: Spacing = "trailing"
    t_min: float = 1e-3

    def __post_init__(self) -> None:
        Grid(self.steps, self.spacing, self.t_min)
        if self.jump < 1 or self.visits < 1:
            raise ValueError(f"a jump has at least 1 step and 1 visit, not {self.jump} and {self.visits}")
        if not 0 <= self.eta <= 1:
            raise ValueError(f"eta must lie between 0 (DDIM) and 1 (DDPM), not {self.eta}")

    def __call__(self, process: Process, session: Session, like: Clean) -> Iterator[Float[Tensor, "B L M"]]:
        """Yield every state, the clean sample last.

        Raises:
            TypeError: The process adds no Gaussian noise.
        """
        process = gaussian(process, "repaint")
        times = rows_of(Grid(self.steps, self.spacing, self.t_min), process, like)
        rising = [process.schedule(t) for t in reversed(times)]
        clean = Noise(torch.zeros_like(rising[0].sigma), rising[0].rate)  # below the first time of all
        free = replace(like, known=torch.zeros_like(like.known))
        state, last = process.prior(free), self.steps
        for place in visits(self.steps, self.jump, self.visits):
            below = rising[place - 1] if place else clean
            if place < last:
                pred = session(state, times[self.steps - 1 - place])
                state = self._down(process, state, pred, (rising[place], below), like, free)
            else:
                state = _up(process, state, rising[last].since(rising[last - 1] if last else clean), free)
            last = place
            yield torch.where(like.known, like.x0, state.x)

    def _down(
        self,
        process: GaussianProcess,
        state: State,
        pred: object,
        noises: tuple[Noise, Noise],
        like: Clean,
        free: Clean,
    ) -> State:
        """Take a step, and put what is known in place, noised as much."""
        eps = torch.randn_like(state.x)  # one draw serves both: no value is known and unknown
        new = process.step(state, pred, *noises, free, eta=self.eta, eps=eps)
        a, b = (share.sqrt().to(eps.dtype) for share in (noises[1].alpha(eps), noises[1].one_minus_alpha(eps)))
        return process.moved(new, torch.where(like.known, a * like.x0 + b * eps, new.x), free)


def _up(process: GaussianProcess, state: State, gap: Noise, free: Clean) -> State:
    """Add the noise between two times."""
    where = ~free.fixed if state.noisy is None else state.noisy
    return process.noised(state.x, gap, where)[0]


def visits(steps: int, jump: int, times: int) -> list[int]:
    """Return the places of the grid in the order in which they are come by, 0 the earliest in time.

    Coming down to a place from above is a step from there; coming up to it from below adds noise.
    """
    left = dict.fromkeys(range(0, steps - jump, jump), times - 1)
    place, order = steps, list[int]()
    while place >= 1:
        place -= 1
        order.append(place)
        if left.get(place, 0) > 0:
            left[place] -= 1
            order += range(place + 1, place + jump + 1)
            place += jump
    return order
