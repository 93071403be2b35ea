"""First-hitting sampling led to a goal: sequential Monte Carlo with the next id drawn as the goal would have it.

The target of step k is p(what is decided) psi(what is decided), psi being the chance that the goal is met as the model
then believes, its tokens taken as independent. An id v is drawn at position l with odds p(v) psi(x with v at l), the
best that one step can see, whose sum is z; after the next call of the model the belief is another, and a particle is
weighted by z / psi of the belief before (twisted particle filter: Whiteley and Lee 2014; for diffusion Wu et al. 2023).
At the end psi is 0 or 1, so that particles of positive weight meet the goal, with the law p(x | goal) for many of them.

Letters: K particles per sample, B batch, L length, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from dither.registry.flow.protocols import Process, Session
from dither.registry.flow.records import Clean, Goal, State
from dither.registry.flow.spaces import TokenSpace

from ..precision import wide, wide_dtype
from ..timestep_sampling import time_of
from ..tokens.categorical import draw
from ..tokens.temperature import UNCHANGED, LogitsWarper
from ..tokens.unmasking import fully_masked, top_positions
from .first_hitting import FirstHitting

__all__ = ["Guided"]

ENOUGH = 0.5
"""Share of effective particles below which those of a sample are drawn anew by weight."""


@dataclass(frozen=True)
class Guided:
    """One position per call, the same for all particles of a sample, each of which is a call for that sample.

    Attributes:
        particles: K; with 1 nothing corrects for what a step cannot see.
        order: "random" takes any position next; "fields" those of the first field before the next, so that what a goal
            asks of tokens together, as of rooms and then of their relations, is decided from the top.
        choice: How an id is chosen by its odds.
    """

    particles: int = 4
    order: Literal["random", "fields"] = "random"
    choice: LogitsWarper = UNCHANGED

    def __post_init__(self) -> None:
        if self.particles < 1:
            raise ValueError(f"a sample needs at least 1 particle, not {self.particles}")

    def __call__(self, process: Process, session: Session, like: Clean) -> Iterator[Int[Tensor, "B L"]]:
        """Yield the heaviest particle after every step, and one drawn by weight last.

        Raises:
            TypeError: The process does not mask tokens.
        """
        if like.goal is None:
            yield from FirstHitting(self.choice)(process, session, like)
            return
        x, masked = fully_masked(process, like, "guided")
        lost = torch.ones(len(x), dtype=wide_dtype(x.device), device=x.device)
        cloud, stage = _Particles.of(x, self.particles), self._stages(process).to(x.device)
        for _ in range(int(masked.sum(1).max())):
            left = masked.sum(1)
            lost = lost * torch.rand_like(lost) ** (1 / left.clamp_min(1))
            t = time_of(process.schedule, lost).to(torch.get_default_dtype())
            chosen = top_positions(-stage.expand_as(masked), masked, left.clamp_max(1))
            cloud = self._step(cloud, session, t, chosen, like.goal)
            masked = masked & ~chosen
            yield cloud.heaviest()
        yield cloud.drawn()

    def _stages(self, process: Process) -> Float[Tensor, " L"]:
        """Return a number per position; the smaller go first."""
        space = process.space
        assert isinstance(space, TokenSpace), "only tokens are masked"
        fields = [float(number) * (self.order == "fields") for number, _ in enumerate(space.fields)]
        return torch.cat([torch.full((f.length,), at) for f, at in zip(space.fields, fields, strict=True)])

    def _step(
        self, cloud: _Particles, session: Session, t: Float[Tensor, " B"], chosen: Bool[Tensor, "B L"], goal: Goal
    ) -> _Particles:
        """Decide one token of every particle; in a row that is done `at` is 0, where the token is certain."""
        at, rows = chosen.long().argmax(1), torch.arange(len(chosen), device=chosen.device)
        said = [session(State.of(x), t).log_clean() for x in cloud.x]
        log_p = wide(torch.stack([one[rows, at] for one in said]))
        log_psi = torch.stack([goal.log_prob(one, at) for one in said])
        total = (log_p + log_psi).logsumexp(-1)
        before = total if cloud.log_psi is None else cloud.log_psi
        hopeless = (total == -torch.inf) | (before == -torch.inf)  # what is out of reach stays so
        log_weight = (cloud.log_weight + total - before).masked_fill(hopeless, -torch.inf)
        log_odds = torch.where(hopeless[..., None], log_p, log_p + log_psi)
        log_weight, kept = _resampled(log_weight)
        x, log_odds, log_psi = (_kept(some, kept) for some in (cloud.x, log_odds, log_psi))
        token = draw(self.choice.sharpen(log_odds.log_softmax(-1)).exp())
        log_psi = log_psi.gather(-1, token[..., None])[..., 0]
        return _Particles(torch.where(chosen, token[..., None], x), log_weight, log_psi)


@dataclass(frozen=True)
class _Particles:
    """The particles of all samples.

    Attributes:
        x: What is decided so far.
        log_weight: Of each particle, up to a factor per sample.
        log_psi: The chance to meet the goal, as it was when the last token was decided; None at the beginning.
    """

    x: Int[Tensor, "K B L"]
    log_weight: Float[Tensor, "K B"]
    log_psi: Float[Tensor, "K B"] | None = None

    @classmethod
    def of(cls, x: Int[Tensor, "B L"], particles: int) -> _Particles:
        """Begin with equal particles."""
        weight = torch.zeros(particles, len(x), dtype=wide_dtype(x.device), device=x.device)
        return cls(x.expand(particles, *x.shape), weight)

    def heaviest(self) -> Int[Tensor, "B L"]:
        """Return the heaviest particle of each sample."""
        return _kept(self.x, self.log_weight.argmax(0)[None])[0]

    def drawn(self) -> Int[Tensor, "B L"]:
        """Return one particle of each sample, drawn by weight."""
        return _kept(self.x, draw(_weights(self.log_weight).T)[None])[0]


def _weights(log_weight: Float[Tensor, "K B"]) -> Float[Tensor, "K B"]:
    """Return the weights of the particles of a sample, which sum to 1; even where none can meet the goal."""
    lost = (log_weight == -torch.inf).all(0)
    return log_weight.masked_fill(lost, 0.0).softmax(0)


def _resampled(log_weight: Float[Tensor, "K B"]) -> tuple[Float[Tensor, "K B"], Int[Tensor, "K B"]]:
    """Return new weights, and which particles are kept: as often as they weigh, where the weights are too uneven."""
    weight, particles = _weights(log_weight), len(log_weight)
    uneven = weight.square().sum(0) * particles * ENOUGH > 1
    number = torch.arange(particles, device=weight.device)[:, None]
    # One random number per sample, even steps from there (systematic resampling).
    mark = (number + torch.rand_like(weight[:1])) / particles
    ahead = (weight.cumsum(0)[None] <= mark[:, None]).sum(1)
    kept = torch.where(uneven, ahead.clamp_max(particles - 1), number)
    fresh = torch.where((log_weight == -torch.inf).all(0), -torch.inf, 0.0).to(log_weight)
    return torch.where(uneven, fresh, log_weight), kept


def _kept(some: Shaped[Tensor, "K B *V"], kept: Int[Tensor, "k B"]) -> Shaped[Tensor, "k B *V"]:
    """Return the particle of each sample with the numbers `kept`."""
    return some[kept, torch.arange(some.shape[1], device=some.device)]
