"""Remasking (ReMDM, Wang et al. 2025, arXiv 2503.00307): what was unmasked may be masked again, and drawn anew.

Letters: B batch, L length, K times.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, get_args

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from dither.registry.flow.protocols import Process, Schedule, Session
from dither.registry.flow.records import Clean, State

from ..precision import wide, wide_dtype
from ..timestep_sampling import time_of
from ..timesteps import check_grid, even_times
from ..tokens.temperature import UNCHANGED, LogitsWarper
from ..tokens.unmasking import fill, fully_masked, log_prob

__all__ = ["ETA", "ReMDM", "Strategy", "largest_sigma", "unmasking_chance"]

Strategy = Literal["cap", "rescale", "conf", "conf-compensated", "loop"]

ETA = {"cap": 0.008, "rescale": 0.015, "conf": 1.0, "conf-compensated": 1.0, "loop": 0.02}
"""How much each strategy remasks by default: the settings of the authors."""


def largest_sigma(shown: float, later: float) -> float:
    """Return the largest chance to remask with which `later`, the share to be shown next, can still be reached."""
    return min(1.0, (1 - later) / shown) if shown > 0 else 1.0


def unmasking_chance(shown: float, later: float, sigma: float) -> float:
    """Return the chance of a masked token to be unmasked (eq. 6): the share shown goes from `shown` to `later`."""
    return min(1.0, max(0.0, (later - (1 - sigma) * shown) / (1 - shown))) if shown < 1 else 1.0


@dataclass(frozen=True)
class ReMDM:
    """Ancestral sampling of an absorbing process with remasking; the expected share of tokens shown is kept exactly.

    A token that is shown is masked again with chance sigma, one that is masked is drawn with the chance that makes up
    for it. What is known is never masked.

    Attributes:
        strategy: cap: sigma = min(eta, the largest possible). rescale: eta times the largest possible. conf: that,
            dealt out over the tokens shown by the softmax of minus the chance each had when it was drawn; as published,
            masked tokens do not make up for it, so that fewer are shown than the schedule says. conf-compensated: they
            do. loop: sigma = eta between t_on and t_off, where the share shown rests at alpha_on, and 0 elsewhere.
        steps: Steps; the model is called once more, at the end.
        t_min: Time of the last state; from there the sample is drawn clean.
        eta: How much is remasked; by default that of the strategy.
        t_on: Time at which the loop begins.
        t_off: Time at which it ends.
        alpha_on: Share of tokens shown in the loop.
        choice: How ids are drawn.
    """

    strategy: Strategy | str = "cap"
    steps: int = 128
    t_min: float = 1e-3
    eta: float | None = None
    t_on: float = 0.55
    t_off: float = 0.05
    alpha_on: float = 0.9
    choice: LogitsWarper = UNCHANGED

    def __post_init__(self) -> None:
        check_grid(self.steps, self.t_min)
        if self.strategy not in get_args(Strategy):
            raise ValueError(f"strategy must be one of {', '.join(get_args(Strategy))}, not {self.strategy!r}")
        if not 0 < self.t_off < self.t_on <= 1 or not 0 < self.alpha_on < 1:
            given = f"{self.t_off}, {self.t_on} and {self.alpha_on}"
            raise ValueError(f"a loop needs 0 < t_off < t_on <= 1 and alpha_on between 0 and 1, not {given}")

    def __call__(self, process: Process, session: Session, like: Clean) -> Iterator[Int[Tensor, "B L"]]:
        """Yield every state, the clean sample last.

        Raises:
            TypeError: The process does not mask tokens.
        """
        x, free = fully_masked(process, like, "remdm")
        blank, masked = x, free
        sureness = torch.zeros(x.shape, dtype=wide_dtype(x.device), device=x.device)
        grid = even_times(self.steps, self.t_min, x.device)
        shown, told = self._plan(process.schedule, grid)
        for i, (now, then) in enumerate(pairwise(shown.tolist())):
            pred = session(State.of(x), told[i].expand(len(x)))
            remask, unmask = self._chances(i, now, then, grid, masked, free, sureness)
            lot = torch.rand_like(sureness)
            back, out = free & ~masked & (lot < remask), masked & (lot < unmask)
            x = fill(torch.where(back, blank, x), self.choice(pred), out)
            if self.strategy in ("conf", "conf-compensated"):
                sureness = torch.where(out, log_prob(pred, x, out).exp(), sureness)
            masked = (masked | back) & ~out
            yield x
        state = State.of(x)
        yield process.finish(state, self.choice(session(state, told[-1].expand(len(x)))), like)

    def _plan(self, schedule: Schedule, grid: Float[Tensor, " K"]) -> tuple[Float[Tensor, " K"], Float[Tensor, " K"]]:
        """Return the share of tokens to be shown at each time of the walk, and the time that the model is told."""
        if self.strategy != "loop":
            alpha = (-schedule(wide(grid)).sigma).exp()
            # A walk starts from masks alone, as if alpha(1) were 0.
            return (alpha - alpha[0]) / (1 - alpha[0]), grid
        u = wide(grid)
        rising, ending = self.alpha_on * (1 - u) / (1 - self.t_on), 1 - (1 - self.alpha_on) * u / self.t_off
        shown = torch.where(u > self.t_on, rising, torch.where(u > self.t_off, self.alpha_on, ending))
        return shown, time_of(schedule, 1 - shown).to(grid.dtype)

    def _chances(
        self,
        i: int,
        now: float,
        then: float,
        grid: Float[Tensor, " K"],
        masked: Bool[Tensor, "B L"],
        free: Bool[Tensor, "B L"],
        sureness: Float[Tensor, "B L"],
    ) -> tuple[Shaped[Tensor, "..."] | float, Shaped[Tensor, "..."] | float]:
        """Return the chance of tokens shown to be masked, and of masked ones to be shown."""
        eta = ETA[self.strategy] if self.eta is None else self.eta
        most = largest_sigma(now, then)
        if self.strategy in ("conf", "conf-compensated"):
            seen = free & ~masked
            each = eta * most * (-sureness).masked_fill(~seen, -torch.inf).softmax(1).nan_to_num(0.0)
            if self.strategy == "conf":
                return each, unmasking_chance(now, then, 0.0)
            missing = free.sum(1) * then - torch.where(seen, 1 - each, 0.0).sum(1)
            return each, (missing / masked.sum(1).clamp_min(1)).clamp(0, 1)[:, None]
        resting = self.t_off <= float(grid[i + 1]) and float(grid[i]) <= self.t_on
        sigma = {"cap": min(eta, most), "rescale": eta * most, "loop": min(eta, most) * resting}[self.strategy]
        return sigma, unmasking_chance(now, then, sigma)
