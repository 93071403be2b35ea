"""A token process: q(x_t | x_0) = alpha [x_t = x_0] + (1 - alpha) [x_t = MASK] (MDLM, Sahoo et al. 2024).

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
        """Yield why the process cannot act on the space, or would leave tokens unmasked at t = 1."""
        yield from super().check(space)
        end = self.schedule.sigma_end()
        if end is not None and math.exp(-end) > 0.01:
            message = f'schedule "{self.schedule.name}" leaves {math.exp(-end):.2g} of the tokens unmasked at t = 1'
            yield Misfit(message, ("schedule",), help="at most 0.01 is allowed")

    def facts(self, space: Space) -> ProcessFacts:
        """Return what loss, model and sampler must know; every field of the model's space has a MASK."""
        assert isinstance(space, TokenSpace)
        return ProcessFacts(self.name, space.with_mask(), "posterior", "mask")

    def build(self, space: Space) -> Process:
        assert isinstance(space, TokenSpace)
        return masking(space.with_mask(), self.schedule.build(), self.t_min)


class Posterior:
    """p(x_0 | x_t), a `TokenPrediction`."""

    def __init__(self, log: Tensor, x: Tensor, masked: Tensor, noise: Noise) -> None:
        self.log, self.x, self.masked, self.noise = log, x, masked, noise

    def log_clean(self) -> Tensor:  # B L V
        return self.log

    def log_score(self) -> Tensor:
        """Return log p_t(y) / p_t(x_t) = log alpha / (1 - alpha) + log p(x_0 = y | x_t), B L V."""
        from dither.registry.contracts.records import over

        odds = -over(self.noise.sigma, self.x).expm1().log()
        score = (self.log + odds[..., None].to(self.log.dtype)).masked_fill(
            ~self.masked[..., None], -math.inf
        )
        return score.scatter(-1, self.x[..., None], 0.0)


def masking(space: TokenSpace, schedule: Schedule, t_min: float) -> Process:
    """Return the process. torch is imported here, so that `dither list` stays fast."""
    import torch
    from torch.nn.functional import log_softmax, one_hot

    from dither.registry.contracts.protocols import Process
    from dither.registry.contracts.records import Noised, State

    mask = space.table(lambda field: torch.tensor(field.mask))  # rows

    class Masking(Process):
        def __init__(self) -> None:
            self.space: Space = space
            self.schedule = schedule

        def times(self, n: int, device: Any = None) -> Tensor:
            """Draw one training time in each of n equal strata, which lowers the variance of the loss."""
            return (
                t_min
                + (1 - t_min) * (torch.arange(n, device=device) + torch.rand(n, device=device)) / n
            )

        def level(self, t: Tensor) -> Tensor:
            """Return the noise level given to the model: the time."""
            return t

        def corrupt(self, clean: Clean, t: float | Tensor) -> Noised:
            """Draw x_t given x_0; fixed values do not change. A single time is that of all samples."""
            x0, fixed, t = clean.x0, clean.fixed, torch.as_tensor(t, device=clean.x0.device)
            noise = schedule(t if t.ndim else t.expand(len(x0)))
            where = (torch.rand(x0.shape, device=x0.device) < noise.one_minus_alpha(x0)) & ~fixed
            x = torch.where(where, mask.to(x0.device), x0)
            prior = one_hot(mask, space.vocab).float().to(x0.device)  # rows V
            return Noised(x0, State.of(x), noise, where, clean.valid, fixed, prior)

        def read(self, raw: Tensor, state: State, noise: Noise) -> Posterior:
            """Normalise logits over clean ids; a token that is not masked keeps its id."""
            raw = raw.to(torch.promote_types(raw.dtype, torch.float32))
            log = log_softmax(raw.masked_fill(~space.clean().to(raw.device), -torch.inf), -1)
            unchanged = torch.full_like(log, -torch.inf).scatter(-1, state.x[..., None], 0.0)
            masked = state.x == mask.to(raw.device)
            return Posterior(torch.where(masked[..., None], log, unchanged), state.x, masked, noise)

        def prior(self, like: Clean) -> State:
            """Return the state at t = 1."""
            return State.of(torch.where(like.fixed, like.x0, mask.to(like.x0.device)))

        def step(self, state: State, pred: Any, now: Noise, then: Noise, like: Clean) -> State:
            """Draw x_s given x_t: a MASK is replaced with probability (alpha_s - alpha_t) / (1 - alpha_t)."""
            lost = now.one_minus_alpha(state.x)
            stays = then.one_minus_alpha(state.x) / torch.where(lost > 0, lost, 1.0)
            return State.of(
                unmask(
                    state.x,
                    mask,
                    pred,
                    torch.rand(state.x.shape, device=lost.device) >= stays,
                    like,
                )
            )

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
