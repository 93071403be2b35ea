"""A token process: absorbing diffusion (MDLM, Sahoo et al. 2024).

    q(x_t | x_0) = alpha [x_t = x_0] + (1 - alpha) [x_t = MASK]

Letters: B batch, L length, V vocabulary, rows one per position or one for all.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pydantic import Field

from dither.registry import Misfit, Slot, Space, Spec, TokenSpace, hookimpl, named
from dither.registry.kinds import TOKENS, ProcessFacts, ProcessSpec, ScheduleSpec

if TYPE_CHECKING:
    from torch import Tensor

    from dither.registry.contracts.protocols import Process, Schedule
    from dither.registry.contracts.records import Clean, Noise, Noised, State


class ExampleProcess(ProcessSpec):
    """Absorbing diffusion: each token becomes MASK with probability 1 - alpha(t)."""

    name = "example-process"
    serves = TOKENS
    schedule: Slot[ScheduleSpec] = named("log-linear")
    """alpha as a function of time."""
    t_min: float = Field(1e-3, ge=0, lt=0.1)
    """Smallest training time."""

    def check(self, space: Space) -> Iterator[Misfit]:
        """Require tokens, and a schedule that masks nearly all."""
        yield from super().check(space)
        end = self.schedule.sigma_end()
        if end is None:
            return
        left = math.exp(-end)
        if left > 0.01:
            message = f'schedule "{self.schedule.name}" leaves {left:.2g} of the tokens unmasked'
            yield Misfit(
                message, ("schedule",), help="at most 0.01 is allowed at t = 1"
            )

    def facts(self, space: Space) -> ProcessFacts:
        """Return the facts that loss, model and sampler require.

        Every field of the model's space has a MASK.
        """
        assert isinstance(space, TokenSpace)
        return ProcessFacts(self.name, space.with_mask(), "posterior", "mask")

    def build(self, space: Space) -> Process:
        assert isinstance(space, TokenSpace)
        return masking(space.with_mask(), self.schedule.build(), self.t_min)


def masking(space: TokenSpace, schedule: Schedule, t_min: float) -> Process:
    """Return the process."""
    # torch is imported here, so that `dither list` and `dither validate` stay fast.
    import torch
    from torch.nn.functional import log_softmax, one_hot

    from dither.registry.contracts.protocols import Process
    from dither.registry.contracts.records import Noised, State, TokenPrediction, over

    mask = space.table(lambda field: torch.tensor(field.mask))  # rows

    class Posterior(TokenPrediction):
        """p(x_0 | x_t)."""

        def __init__(
            self, log: Tensor, x: Tensor, masked: Tensor, noise: Noise
        ) -> None:
            self.log = log
            self.x = x
            self.masked = masked
            self.noise = noise

        def log_clean(self) -> Tensor:  # B L V
            return self.log

        def log_score(self) -> Tensor:
            """Return log p_t(y) / p_t(x_t) = log alpha / (1 - alpha) + log p(x_0 = y | x_t), B L V."""
            log_odds = -over(self.noise.sigma, self.x).expm1().log()
            score = self.log + log_odds[..., None].to(self.log.dtype)
            # A token that is not masked stays as it is.
            score = score.masked_fill(~self.masked[..., None], -math.inf)
            return score.scatter(-1, self.x[..., None], 0.0)

    class Masking(Process):
        def __init__(self) -> None:
            self.space: Space = space
            self.schedule = schedule

        def times(self, n: int, device: Any = None) -> Tensor:
            """Draw one training time in each of n equal strata: a loss of lower variance."""
            strata = torch.arange(n, device=device)
            u = (strata + torch.rand(n, device=device)) / n
            return t_min + (1 - t_min) * u

        def level(self, t: Tensor) -> Tensor:
            """Return the noise level given to the model: the time."""
            return t

        def corrupt(self, clean: Clean, t: float | Tensor) -> Noised:
            """Draw x_t given x_0; fixed values do not change."""
            x0 = clean.x0
            t = torch.as_tensor(t, device=x0.device)
            # A single time is that of all samples.
            if t.ndim == 0:
                t = t.expand(len(x0))
            noise = schedule(t)
            u = torch.rand(x0.shape, device=x0.device)
            where = (u < noise.one_minus_alpha(x0)) & ~clean.fixed
            x = torch.where(where, mask.to(x0.device), x0)
            prior = one_hot(mask, space.vocab).float().to(x0.device)  # rows V
            return Noised(
                x0, State.of(x), noise, where, clean.valid, clean.fixed, prior
            )

        def read(self, raw: Tensor, state: State, noise: Noise) -> Posterior:
            """Normalise logits over clean ids; a token that is not masked keeps its id."""
            # Probabilities in half precision would not add up to 1.
            raw = raw.to(torch.promote_types(raw.dtype, torch.float32))
            log = log_softmax(
                raw.masked_fill(~space.clean().to(raw.device), -torch.inf), -1
            )
            unchanged = torch.full_like(log, -torch.inf).scatter(
                -1, state.x[..., None], 0.0
            )
            masked = state.x == mask.to(raw.device)
            return Posterior(
                torch.where(masked[..., None], log, unchanged), state.x, masked, noise
            )

        def prior(self, like: Clean) -> State:
            """Return the state at t = 1."""
            return State.of(torch.where(like.fixed, like.x0, mask.to(like.x0.device)))

        def step(
            self, state: State, pred: Any, now: Noise, then: Noise, like: Clean
        ) -> State:
            """Draw x_s given x_t.

            A MASK stays one with probability (1 - alpha_s) / (1 - alpha_t).
            """
            lost = now.one_minus_alpha(state.x)
            # At t = 0 nothing is masked; the divisor 1 avoids 0 / 0.
            stays = then.one_minus_alpha(state.x) / torch.where(lost > 0, lost, 1.0)
            where = torch.rand(state.x.shape, device=lost.device) >= stays
            return State.of(unmask(state.x, mask, pred, where, like))

        def finish(self, state: State, pred: Any, like: Clean) -> Tensor:
            """Replace every MASK that is left."""
            return unmask(state.x, mask, pred, like.valid, like)

    return Masking()


def unmask(x: Tensor, mask: Tensor, pred: Any, where: Tensor, like: Clean) -> Tensor:
    """Return x with ids drawn from p(x_0 | x_t) at the masked positions of `where`."""
    where = where & (x == mask.to(x.device)) & ~like.fixed
    new = x.clone()
    if where.any():
        new[where] = pred.log_clean()[where].exp().multinomial(1)[:, 0]
    return new


@hookimpl
def register_components() -> list[type[Spec]]:
    return [ExampleProcess]
