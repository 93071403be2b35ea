"""Remasking (ReMDM, Wang et al. 2025, arXiv 2503.00307): unmasked tokens may be masked and drawn again.

A shown token is masked again with probability sigma; a masked token is unmasked with the
probability of eq. 6, which keeps the expected share of shown tokens on the schedule. Known tokens
are never masked.
Letters: B batch, L length, K times.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, Literal, Self, TypeAlias

from pydantic import Field, model_validator

from dither.registry import Misfit
from dither.registry.kinds import ModelFacts, ProcessFacts

from .options import TokenSteps, no_effect

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int
    from torch import Tensor

    from dither.registry.contracts.protocols import Schedule, Session, TokenProcess
    from dither.registry.contracts.records import Clean

Probability: TypeAlias = "float | Tensor"
"""One for all tokens, or one per token."""

__all__ = ["ETA", "ReMDM", "max_remask_prob", "unmask_prob"]

ETA = {
    "cap": 0.008,
    "rescale": 0.015,
    "conf": 1.0,
    "conf-compensated": 1.0,
    "loop": 0.02,
}
"""Default `eta` of each strategy: the settings of the authors."""


class ReMDM(TokenSteps):
    """Ancestral sampling that remasks tokens and so can correct what it has drawn (ReMDM, Wang et al. 2025).

    Tokens of one step are drawn in parallel. With "cap", "rescale" and "loop" states have the
    distribution of the schedule up to an error of order eta, which vanishes as steps grow if
    `eta_steps` is set. With "conf" and "conf-compensated" it does not vanish: unlikely tokens are
    remasked more often.
    """

    name = "remdm"
    rev = 2
    requires = "mask"
    strategy: Literal["cap", "rescale", "conf", "conf-compensated", "loop"] = "cap"
    """How sigma, the probability to be masked again, is set. cap: at most eta. rescale: eta times
    the largest possible.
    conf: that, distributed over the shown tokens by the softmax of minus their probability when
    drawn; as published, fewer tokens are shown than the schedule says. conf-compensated: the same,
    compensated. loop: eta between t_on and t_off, while the share alpha_on is shown."""
    eta: float | None = Field(None, ge=0, le=1)
    """Amount of remasking; by default 0.008 (cap), 0.015 (rescale), 0.02 (loop), 1 (conf,
    conf-compensated)."""
    eta_steps: int | None = Field(None, ge=1)
    """Number of steps for which eta is meant: eta is multiplied by eta_steps / steps, so that the
    expected number of remasked tokens tends to a limit as steps grow. By default eta is that of a
    step, as published."""
    t_on: float = Field(0.55, gt=0, le=1)
    """Time at which the loop begins."""
    t_off: float = Field(0.05, gt=0, lt=1)
    """Time at which it ends."""
    alpha_on: float = Field(0.9, gt=0, lt=1)
    """Share of tokens shown in the loop."""

    @model_validator(mode="after")
    def _loop_is_ordered(self) -> Self:
        if not self.t_off < self.t_on:
            raise ValueError(
                f"t_off = {self.t_off:g} must be below t_on = {self.t_on:g}"
            )
        return self

    def check(self, process: ProcessFacts, model: ModelFacts) -> Iterable[Misfit]:
        """Yield unless the process masks tokens and the options fit together."""
        yield from super().check(process, model)
        if self.strategy != "loop":
            yield from no_effect(
                self,
                ("t_on", "t_off", "alpha_on"),
                f'with strategy = "{self.strategy}"',
            )
        elif self.t_min >= self.t_off:
            message = f"t_min = {self.t_min:g} leaves no step after the loop, which ends at t_off = {self.t_off:g}"
            yield Misfit(message, ("t_min",))

    def warn(self, process: ProcessFacts, model: ModelFacts) -> Iterable[Misfit]:
        """Yield strategies whose samples do not converge to the distribution of the model as steps grow."""
        if self.strategy in ("conf", "conf-compensated"):
            fewer = "; as published, it also shows fewer tokens than the time given to the model implies"
            message = f'strategy "{self.strategy}" remasks unlikely tokens more often, which biases samples'
            message += fewer if self.strategy == "conf" else ""
            yield Misfit(
                message,
                ("strategy",),
                help='use "rescale" or "cap", which converge with eta_steps',
            )

    def sample(
        self, process: TokenProcess, model: Session, like: Clean
    ) -> Iterator[Int[Tensor, "B L"]]:
        import torch

        from dither.registry.contracts.records import State

        from ..precision import wide_dtype
        from ..timestep_sampling import even_times
        from ..tokens.temperature import warp_prediction
        from ..tokens.unmasking import fill, fully_masked, log_prob

        x, free = fully_masked(process, like, self.name)
        blank = x
        masked = free
        confidence = torch.zeros(x.shape, dtype=wide_dtype(x.device), device=x.device)
        times = even_times(self.steps, self.t_min, x.device)
        shown, model_times = self._plan(process.schedule, times)
        grid = times.tolist()
        for i, (now, then) in enumerate(pairwise(shown.tolist())):
            if self.strategy in ("conf", "conf-compensated"):
                p_remask, p_unmask = self._by_confidence(
                    now, then, masked, free, confidence
                )
            else:
                in_loop = self.t_off <= grid[i + 1] and grid[i] <= self.t_on
                p_remask, p_unmask = self._at_one_rate(now, then, in_loop)
            u = torch.rand_like(confidence)
            remask = free & ~masked & (u < p_remask)
            unmask = masked & (u < p_unmask)

            rows = model(State.of(x), model_times[i].expand(len(x)), at=unmask)
            x = fill(torch.where(remask, blank, x), unmask, warp_prediction(rows, self))
            masked = (masked | remask) & ~unmask
            if self.strategy in ("conf", "conf-compensated"):
                confidence = confidence.masked_scatter(
                    unmask, log_prob(rows, x[unmask]).exp()
                )
            yield x

        rows = model(State.of(x), model_times[-1].expand(len(x)), at=masked)
        yield fill(x, masked, warp_prediction(rows, self))

    def _plan(
        self, schedule: Schedule, times: Float[Tensor, " K"]
    ) -> tuple[Float[Tensor, " K"], Float[Tensor, " K"]]:
        """Return the share of tokens to show at each time, and the time to give to the model."""
        import torch

        from ..precision import wide
        from ..timestep_sampling import time_of

        if self.strategy != "loop":
            alpha = (-schedule(wide(times)).sigma).exp()
            # Sampling starts from masks only, as if alpha(1) were 0.
            return (alpha - alpha[0]) / (1 - alpha[0]), times

        # Outside the loop the share grows linearly, from 0 to alpha_on and from there to 1.
        u = wide(times)
        rising = self.alpha_on * (1 - u) / (1 - self.t_on)
        ending = 1 - (1 - self.alpha_on) * u / self.t_off
        shown = torch.where(u > self.t_off, self.alpha_on, ending)
        shown = torch.where(u > self.t_on, rising, shown)
        return shown, time_of(schedule, 1 - shown).to(times.dtype)

    def _eta(self) -> float:
        """Return the amount of remasking of a step."""
        eta = ETA[self.strategy] if self.eta is None else self.eta
        if self.eta_steps is not None:
            eta = min(1.0, eta * self.eta_steps / self.steps)
        return eta

    def _at_one_rate(
        self, now: float, then: float, in_loop: bool
    ) -> tuple[Probability, Probability]:
        """Return sigma, the probability of any shown token to be masked again, and that to be unmasked."""
        largest = max_remask_prob(now, then)
        sigma = min(self._eta(), largest)
        if self.strategy == "rescale":
            sigma = self._eta() * largest
        if self.strategy == "loop" and not in_loop:
            sigma = 0.0
        return sigma, unmask_prob(now, then, sigma)

    def _by_confidence(
        self,
        now: float,
        then: float,
        masked: Bool[Tensor, "B L"],
        free: Bool[Tensor, "B L"],
        confidence: Float[Tensor, "B L"],
    ) -> tuple[Probability, Probability]:
        """Return the probabilities to be masked again, the higher the less likely a token, and to be unmasked."""
        import torch

        seen = free & ~masked
        share = (-confidence).masked_fill(~seen, -torch.inf).softmax(1).nan_to_num(0.0)
        remask = self._eta() * max_remask_prob(now, then) * share
        if self.strategy == "conf":
            return remask, unmask_prob(now, then, 0.0)

        # As many are unmasked as the schedule lacks after the expected remasking.
        missing = free.sum(1) * then - torch.where(seen, 1 - remask, 0.0).sum(1)
        unmask = (missing / masked.sum(1).clamp_min(1)).clamp(0, 1)
        return remask, unmask[:, None]


def max_remask_prob(shown: float, later: float) -> float:
    """Return the largest probability to remask with which `later`, the next share of shown tokens, can be reached."""
    return min(1.0, (1 - later) / shown) if shown > 0 else 1.0


def unmask_prob(shown: float, later: float, sigma: float) -> float:
    """Return the probability to unmask a token (eq. 6): the share of shown tokens goes from `shown` to `later`."""
    if shown >= 1:
        return 1.0
    return min(1.0, max(0.0, (later - (1 - sigma) * shown) / (1 - shown)))
