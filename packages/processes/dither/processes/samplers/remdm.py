"""Remasking (ReMDM, Wang et al. 2025, arXiv 2503.00307): unmasked tokens may be masked and drawn again.

An unmasked token is masked again with the probability that the paper calls sigma_t; a masked token
is unmasked with the probability of eq. 6, which keeps the expected share of unmasked tokens on the
schedule alpha. Known tokens are never masked.
Letters: B batch, L length, K times, N unmasked positions (of all samples, in one row), V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, Literal, Self, TypeAlias

from pydantic import Field, model_validator

from dither.registry import Misfit
from dither.registry.kinds import ModelFacts, ProcessFacts

from ..options import no_effect
from .options import TokenSteps

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int
    from torch import Tensor

    from dither.registry.contracts.protocols import Schedule, Session, TokenProcess
    from dither.registry.contracts.records import Clean

Probability: TypeAlias = "float | Tensor"
"""One for all tokens, or one per token."""

__all__ = ["ETA", "ReMDM", "max_remask_prob", "unmasking_prob"]

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
    """How the probability to be masked again is set. cap: at most eta. rescale: eta times the
    largest possible.
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
    t_on: float = Field(0.55, gt=0, lt=1)
    """Time at which the loop begins; at t = 1 no token is shown yet."""
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
        """Require a process that masks tokens, and options that have an effect."""
        yield from super().check(process, model)
        if self.strategy != "loop":
            yield from no_effect(
                self,
                ("t_on", "t_off", "alpha_on"),
                f'with strategy = "{self.strategy}"',
            )
        elif self.t_min >= self.t_off:
            message = (
                f"t_min = {self.t_min:g} leaves no step after the loop, "
                f"which ends at t_off = {self.t_off:g}"
            )
            yield Misfit(message, ("t_min",))

    def warn(self, process: ProcessFacts, model: ModelFacts) -> Iterable[Misfit]:
        """Warn about strategies whose samples do not converge to the model's distribution."""
        if not self._by_confidence:
            return
        message = (
            f'strategy "{self.strategy}" remasks unlikely tokens more often, '
            "which biases samples"
        )
        if self.strategy == "conf":
            message += (
                "; as published, it also shows fewer tokens than the time given to "
                "the model implies"
            )
        yield Misfit(
            message,
            ("strategy",),
            help='use "rescale" or "cap", which converge with eta_steps',
        )

    @property
    def _by_confidence(self) -> bool:
        return self.strategy in ("conf", "conf-compensated")

    def sample(
        self, process: TokenProcess, model: Session, like: Clean
    ) -> Iterator[Int[Tensor, "B L"]]:
        import torch

        from dither.registry.contracts.records import State

        from ..precision import wide_dtype
        from ..timestep_sampling import even_times
        from ..tokens.temperature import warp_prediction
        from ..tokens.unmasking import fill, fully_masked, log_prob

        # Sampling starts with MASK at every token that is not known.
        x, free = fully_masked(process, like, self.name)
        start = x
        masked = free
        # Probability that each unmasked token had when it was drawn
        confidence = torch.zeros(x.shape, dtype=wide_dtype(x.device), device=x.device)

        times = even_times(self.steps, self.t_min, x.device)
        alphas, model_times = self._plan(process.schedule, times)
        step_times = times.tolist()
        # From time t to the less noisy s
        for i, (alpha_t, alpha_s) in enumerate(pairwise(alphas.tolist())):
            if self._by_confidence:
                remask_prob, unmask_prob = self._confidence_probs(
                    alpha_t, alpha_s, masked, free, confidence
                )
            else:
                # A step that is only partly in the loop does not remask.
                in_loop = self.t_off <= step_times[i + 1] and step_times[i] <= self.t_on
                remask_prob, unmask_prob = self._equal_probs(alpha_t, alpha_s, in_loop)

            # A position is masked or not, so that one uniform draw serves both decisions.
            u = torch.rand_like(confidence)
            remask = free & ~masked & (u < remask_prob)
            unmask = masked & (u < unmask_prob)

            # p(x_0 | x_t) at the N positions that are unmasked: 1 N V. The model sees x_t, before
            # tokens of it are masked again.
            rows = model(State.of(x), model_times[i].expand(len(x)), at=unmask)
            x = torch.where(remask, start, x)
            x = fill(x, unmask, warp_prediction(rows, self))
            masked = (masked | remask) & ~unmask
            if self._by_confidence:
                drawn_prob = log_prob(rows, x[unmask]).exp()
                confidence = confidence.masked_scatter(unmask, drawn_prob)
            yield x

        # What is masked at t_min is drawn at once.
        rows = model(State.of(x), model_times[-1].expand(len(x)), at=masked)
        yield fill(x, masked, warp_prediction(rows, self))

    def _plan(
        self, schedule: Schedule, times: Float[Tensor, " K"]
    ) -> tuple[Float[Tensor, " K"], Float[Tensor, " K"]]:
        """Return alpha, the share of unmasked tokens, at each time, and the time given to the model."""
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
        alpha = torch.where(u > self.t_off, self.alpha_on, ending)
        alpha = torch.where(u > self.t_on, rising, alpha)
        # The model gets the time at which training masks as many tokens.
        return alpha, time_of(schedule, 1 - alpha).to(times.dtype)

    def _step_eta(self) -> float:
        """Return the amount of remasking of a step."""
        eta = self.eta
        if eta is None:
            eta = ETA[self.strategy]
        if self.eta_steps is not None:
            eta = min(1.0, eta * self.eta_steps / self.steps)
        return eta

    def _equal_probs(
        self, alpha_t: float, alpha_s: float, in_loop: bool
    ) -> tuple[Probability, Probability]:
        """Return the probabilities to remask and to unmask a token, the same for every token."""
        largest = max_remask_prob(alpha_t, alpha_s)
        remask_prob = min(self._step_eta(), largest)
        if self.strategy == "rescale":
            remask_prob = self._step_eta() * largest
        if self.strategy == "loop" and not in_loop:
            remask_prob = 0.0
        return remask_prob, unmasking_prob(alpha_t, alpha_s, remask_prob)

    def _confidence_probs(
        self,
        alpha_t: float,
        alpha_s: float,
        masked: Bool[Tensor, "B L"],
        free: Bool[Tensor, "B L"],
        confidence: Float[Tensor, "B L"],
    ) -> tuple[Probability, Probability]:
        """Return the probabilities to remask, the higher the less likely a token, and to unmask."""
        import torch

        # The remasking of a step is distributed over the unmasked tokens; a row without any has no
        # softmax.
        unmasked = free & ~masked
        share = (-confidence).masked_fill(~unmasked, -torch.inf).softmax(1)
        share = share.nan_to_num(0.0)
        remask_prob = self._step_eta() * max_remask_prob(alpha_t, alpha_s) * share
        if self.strategy == "conf":
            return remask_prob, unmasking_prob(alpha_t, alpha_s, 0.0)

        # As many are unmasked as the schedule lacks after the expected remasking.
        left = torch.where(unmasked, 1 - remask_prob, 0.0).sum(1)
        missing = free.sum(1) * alpha_s - left
        unmask_prob = (missing / masked.sum(1).clamp_min(1)).clamp(0, 1)
        return remask_prob, unmask_prob[:, None]


def max_remask_prob(alpha_t: float, alpha_s: float) -> float:
    """Return the largest probability to remask a token with which the share alpha_s is reachable.

    That is min(1, (1 - alpha_s) / alpha_t), the paper's sigma_max: beyond it too few tokens would
    be unmasked at s, even if every masked one were.
    """
    if alpha_t <= 0:
        return 1.0
    return min(1.0, (1 - alpha_s) / alpha_t)


def unmasking_prob(alpha_t: float, alpha_s: float, remask_prob: float) -> float:
    """Return the probability to unmask a token, (alpha_s - (1 - remask) alpha_t) / (1 - alpha_t) (eq. 6)."""
    if alpha_t >= 1:
        return 1.0
    unmasked_later = (alpha_s - (1 - remask_prob) * alpha_t) / (1 - alpha_t)
    return min(1.0, max(0.0, unmasked_later))
