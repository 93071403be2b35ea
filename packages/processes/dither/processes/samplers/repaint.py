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
        """Require a process that adds Gaussian noise and preserves the variance."""
        yield from super().check(process, model)
        if process.linear_path:
            message = (
                'sampler "repaint" requires noise that preserves the variance, '
                f'not process "{process.name}"'
            )
            yield Misfit(
                message,
                (),
                ("process",),
                'use process "gaussian"',
                code="process-mismatch",
            )

    def warn(self, process: ProcessFacts, model: ModelFacts) -> Iterable[Misfit]:
        """Warn about a model that has never seen noise on known values."""
        yield from super().warn(process, model)
        if process.masked:
            message = (
                'sampler "repaint" noises known values, which a model trained with '
                "process.mask has seen clean"
            )
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

        times = self.times(process, like).flip(0)
        # The earliest time first; before it comes clean data, so that a step from times[i] goes
        # from noises[i + 1] to noises[i].
        noises = [process.schedule(t) for t in times]
        noises.insert(0, Noise(torch.zeros_like(noises[0].sigma), noises[0].rate))

        # Known values are noised like all others.
        free = replace(like, known=torch.zeros_like(like.known))
        state = process.prior(free)
        last = self.steps
        for index in visits(self.steps, self.jump, self.visits):
            if index < last:
                # x_s ~ p(x_s | x_t), with known values from q(x_s | x_0)
                pred = model(state, times[index])
                state = _down(
                    process,
                    state,
                    pred,
                    noises[index + 1],
                    noises[index],
                    like,
                    free,
                    self.eta,
                )
            else:
                # x_t ~ q(x_t | x_s): back up to the time of the step before
                gap = noises[last + 1].since(noises[last])
                where = state.noisy
                if where is None:
                    where = ~free.fixed
                state = process.add_noise(state.x, gap, where)[0]
            last = index
            yield torch.where(like.known, like.x0, state.x)


def _down(
    process: GaussianProcess,
    state: State,
    pred: object,
    noise_t: Noise,
    noise_s: Noise,
    like: Clean,
    free: Clean,
    eta: float,
) -> State:
    """Take a step, and put the known values in place, noised to the same level."""
    import torch

    # One draw serves both: no value is known and unknown.
    eps = torch.randn_like(state.x)
    new = process.step(state, pred, noise_t, noise_s, free, eta=eta, eps=eps)

    # sqrt(alpha_s) x_0 + sqrt(1 - alpha_s) eps
    a = noise_s.alpha(eps).sqrt().to(eps.dtype)
    b = noise_s.one_minus_alpha(eps).sqrt().to(eps.dtype)
    noised_known = a * like.x0 + b * eps
    return process.replace(new, torch.where(like.known, noised_known, new.x), free)


def visits(steps: int, jump: int, times: int) -> list[int]:
    """Return the indices of the times in the order in which they are visited, 0 the earliest.

    Reaching an index from above is a step from there; reaching it from below adds noise.
    """
    # From every `jump`-th index sampling jumps back up this many times.
    jumps_left = dict.fromkeys(range(0, steps - jump, jump), times - 1)
    index = steps
    order = list[int]()
    while index >= 1:
        index -= 1
        order.append(index)
        if jumps_left.get(index, 0) > 0:
            jumps_left[index] -= 1
            order += range(index + 1, index + jump + 1)
            index += jump
    return order
