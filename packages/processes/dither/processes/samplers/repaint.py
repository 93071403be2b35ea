"""RePaint (Lugmayr et al. 2022, algorithm 1): inpainting with a model that was trained on noise everywhere.

Known values are noised again at every step, so that the model sees a whole sample at one noise
level, as in training; jumps back up and down again make the filled-in values agree with the known
ones. States are yielded with known values in place. Letters: B batch, L length, M features.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from pydantic import Field

from dither.registry import Misfit
from dither.registry.kinds import ModelFacts, ProcessFacts

from .options import GaussianSampler

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

    from dither.registry.contracts.protocols import GaussianProcess, Session
    from dither.registry.contracts.records import Clean, Noise, State

__all__ = ["RePaint", "visits"]


class RePaint(GaussianSampler):
    """Inpainting with a model trained on noise everywhere: known values are noised again at every step (RePaint).

    A process with a mask does not need it, because its model has seen clean values next to noisy
    ones: use "ddim".
    """

    name = "repaint"
    steps: int = Field(50, ge=1, le=1_000_000)
    """K, the times of the grid; with jumps the model is called about K visits times."""
    jump: int = Field(10, ge=1, le=1_000_000)
    """Steps of a jump back up."""
    visits: int = Field(10, ge=1, le=10_000)
    """How often each stretch of `jump` steps is taken; 1 for no jumps."""
    eta: float = Field(1.0, ge=0, le=1)
    """Noise of a step: 1 is DDPM, 0 adds none."""

    def check(self, process: ProcessFacts, model: ModelFacts) -> Iterable[Misfit]:
        """Yield unless the process adds Gaussian noise that preserves the variance."""
        yield from super().check(process, model)
        if process.linear_path:
            message = f'sampler "repaint" requires noise that preserves the variance, not process "{process.name}"'
            yield Misfit(
                message,
                (),
                ("process",),
                'use process "gaussian"',
                code="process-mismatch",
            )

    def warn(self, process: ProcessFacts, model: ModelFacts) -> Iterable[Misfit]:
        """Yield that the model has never seen noise on known values."""
        yield from super().warn(process, model)
        if process.masked:
            message = 'sampler "repaint" noises known values, which a model trained with process.mask has seen clean'
            yield Misfit(
                message,
                related=("process", "mask"),
                help='use sampler "ddim", or remove process.mask',
            )

    def sample(
        self, process: GaussianProcess, model: Session, like: Clean
    ) -> Iterator[Float[Tensor, "B L M"]]:
        """Yield every state with known values in place, the clean sample last."""
        from dataclasses import replace

        import torch

        from dither.registry.contracts.records import Noise

        times = self.times(process, like)
        rising = [process.schedule(t) for t in reversed(times)]
        clean = Noise(
            torch.zeros_like(rising[0].sigma), rising[0].rate
        )  # below the first time
        free = replace(like, known=torch.zeros_like(like.known))
        state = process.prior(free)
        last = self.steps
        for place in visits(self.steps, self.jump, self.visits):
            if place < last:
                pred = model(state, times[self.steps - 1 - place])
                now = rising[place]
                then = rising[place - 1] if place else clean
                state = _down(process, state, pred, now, then, like, free, self.eta)
            else:
                gap = rising[last].since(rising[last - 1] if last else clean)
                where = ~free.fixed if state.noisy is None else state.noisy
                state = process.add_noise(state.x, gap, where)[0]
            last = place
            yield torch.where(like.known, like.x0, state.x)


def _down(
    process: GaussianProcess,
    state: State,
    pred: object,
    now: Noise,
    then: Noise,
    like: Clean,
    free: Clean,
    eta: float,
) -> State:
    """Take a step, and put the known values in place, noised to the same level."""
    import torch

    eps = torch.randn_like(
        state.x
    )  # one draw serves both: no value is known and unknown
    new = process.step(state, pred, now, then, free, eta=eta, eps=eps)
    a, b = (
        share.sqrt().to(eps.dtype)
        for share in (then.alpha(eps), then.one_minus_alpha(eps))
    )
    return process.replace(
        new, torch.where(like.known, a * like.x0 + b * eps, new.x), free
    )


def visits(steps: int, jump: int, times: int) -> list[int]:
    """Return the places of the grid in the order in which they are visited, 0 the earliest in time.

    Reaching a place from above is a step from there; reaching it from below adds noise.
    """
    left = dict.fromkeys(range(0, steps - jump, jump), times - 1)
    place = steps
    order = list[int]()
    while place >= 1:
        place -= 1
        order.append(place)
        if left.get(place, 0) > 0:
            left[place] -= 1
            order += range(place + 1, place + jump + 1)
            place += jump
    return order
