"""First-hitting sampling guided to constraints: sequential Monte Carlo with twisted proposals.

The target of step k is p(decided tokens) psi(decided tokens), psi being the probability that the
goal is met under the current prediction with independent tokens. An id v is drawn at position l
with odds p(v) psi(x with v at l), the best proposal that one step allows, whose sum is z; after the
next call the prediction is another, and a particle gets the weight z / psi under the prediction
before (twisted particle filter: Whiteley and Lee 2014; for diffusion Wu et al. 2023). At the end
psi is 0 or 1, so that particles of positive weight meet the goal, with distribution p(x | goal) in
the limit of many. Letters: K particles per sample, B batch, L length, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from .first_hitting import FirstHitting, next_time

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int, Shaped
    from torch import Tensor

    from dither.registry.contracts.protocols import Process, Session, TokenProcess
    from dither.registry.contracts.records import Clean, Goal, State

__all__ = ["Guided", "ParticleCalls", "particle_weights", "resample", "select"]

MIN_EFFECTIVE = 0.5
"""Share of effective particles below which those of a sample are resampled."""


class Guided(FirstHitting):
    """First-hitting guided to what samples must satisfy: the constraints of the task. Without any it is first-hitting.

    Each id is drawn in proportion to its probability times the probability that the constraints
    will then be met. The particles of a sample correct for what one step cannot see (sequential
    Monte Carlo); with many of them samples have the conditional distribution.
    """

    name = "guided"
    particles: int = Field(4, ge=1, le=1024)
    """Candidates drawn for each sample, one of which is kept; each at the cost of a sample."""
    order: Literal["random", "fields"] = "random"
    """Which position is next. random: any. fields: all of the first field, as the rooms, before the
    next, as relations; constraints on both are then met more often. Under a perfect model the
    distribution is the same."""

    def sample(
        self, process: TokenProcess, model: Session, like: Clean
    ) -> Iterator[Int[Tensor, "B L"]]:
        """Yield the heaviest particle after every step, and one drawn by weight last."""
        import torch

        from dither.registry.contracts.records import State

        from ..precision import wide_dtype
        from ..tokens.unmasking import fully_masked, top_positions

        if like.goal is None:
            yield from super().sample(process, model, like)
            return

        x, masked = fully_masked(process, like, self.name)
        # 1 - alpha at the current time, which is 1 at the start: B
        level = torch.ones(len(x), dtype=wide_dtype(x.device), device=x.device)
        particles = _Particles.of(x, self.particles)
        calls = ParticleCalls(model)
        stage = _stages(process, self).to(x.device)
        for _ in range(int(masked.sum(1).max())):
            # Time and position are those of first-hitting, the same for all particles of a sample.
            t, level = next_time(process.schedule, level, masked)
            score = -stage.expand_as(masked)
            chosen = top_positions(score, masked, masked.sum(1).clamp_max(1))

            # One call for each of the K particles: K times B L V
            predictions = calls(map(State.of, particles.x), t)
            log_clean = [prediction.log_clean() for prediction in predictions]
            particles, indices = _step(particles, log_clean, chosen, like.goal, self)
            calls.select(indices)
            masked = masked & ~chosen
            yield particles.heaviest()
        yield particles.draw()


def _stages(process: Process, options: Guided) -> Float[Tensor, " L"]:
    """Return a number per position; positions with smaller numbers come first."""
    import torch

    from dither.registry.contracts.spaces import TokenSpace

    space = process.space
    assert isinstance(space, TokenSpace), "only tokens are masked"
    stages = []
    for number, field in enumerate(space.fields):
        stage = 0.0
        if options.order == "fields":
            stage = float(number)
        stages.append(torch.full((field.length,), stage))
    return torch.cat(stages)


def _step(
    particles: _Particles,
    log_clean: list[Float[Tensor, "B L V"]],
    chosen: Bool[Tensor, "B L"],
    goal: Goal,
    options: Guided,
) -> tuple[_Particles, Int[Tensor, "K B"]]:
    """Decide one token of every particle; in finished rows position 0, where the token is certain.

    Return the particles and the indices of those that they come from.
    """
    import torch

    from dither.registry.contracts.tensors import at_ids

    from ..precision import wide
    from ..tokens.categorical import draw
    from ..tokens.temperature import warp_options

    # log p(v) and log psi(x with v at l) of every id v at the chosen position: K B V
    at = chosen.long().argmax(1)
    rows = torch.arange(len(chosen), device=chosen.device)
    log_p = wide(torch.stack([log[rows, at] for log in log_clean]))
    log_psi = torch.stack([goal.log_prob(log, at) for log in log_clean])

    # z = sum over v of p(v) psi(v), and the weight z / psi of the step before: K B
    log_z = (log_p + log_psi).logsumexp(-1)
    log_psi_before = log_z
    if particles.log_psi is not None:
        log_psi_before = particles.log_psi
    # A goal once out of reach stays out of reach; without this inf - inf would be NaN.
    hopeless = (log_z == -torch.inf) | (log_psi_before == -torch.inf)
    log_weight = particles.log_weight + log_z - log_psi_before
    log_weight = log_weight.masked_fill(hopeless, -torch.inf)
    log_odds = torch.where(hopeless[..., None], log_p, log_p + log_psi)

    # Resampled before the draw, so that copies of a particle get different tokens.
    log_weight, indices = resample(log_weight)
    x = select(particles.x, indices)
    log_odds = select(log_odds, indices)
    log_psi = select(log_psi, indices)

    token = draw(warp_options(log_odds.log_softmax(-1), options).exp())
    log_psi = at_ids(log_psi, token)
    x = torch.where(chosen, token[..., None], x)
    return _Particles(x, log_weight, log_psi), indices


@dataclass(frozen=True)
class _Particles:
    """The particles of all samples: ids decided so far, and the weight of each up to a factor per sample.

    `log_psi` is the probability to meet the goal when the last token was decided; None at the
    beginning.
    """

    x: Int[Tensor, "K B L"]
    log_weight: Float[Tensor, "K B"]
    log_psi: Float[Tensor, "K B"] | None = None

    @classmethod
    def of(cls, x: Int[Tensor, "B L"], particles: int) -> _Particles:
        from ..precision import wide_dtype

        weight = x.new_zeros(particles, len(x), dtype=wide_dtype(x.device))
        return cls(x.expand(particles, *x.shape), weight)

    def heaviest(self) -> Int[Tensor, "B L"]:
        return select(self.x, self.log_weight.argmax(0)[None])[0]

    def draw(self) -> Int[Tensor, "B L"]:
        from ..tokens.categorical import draw

        return select(self.x, draw(particle_weights(self.log_weight).T)[None])[0]


class ParticleCalls:
    """The model called for each particle, with that particle's own previous prediction."""

    def __init__(self, model: Session) -> None:
        self.model = model
        self.previous: list[Float[Tensor, "B L V"] | None] = []

    def __call__(self, states: Iterable[State], t: Float[Tensor, " B"]) -> list[Any]:
        """Return the predictions of the states of all particles."""
        predictions = []
        kept = []
        for state, previous in zip_longest(states, self.previous):
            self.model.previous = previous
            predictions.append(self.model(state, t))
            kept.append(self.model.previous)
        self.previous = kept
        return predictions

    def select(self, indices: Int[Tensor, "K B"]) -> None:
        """Let resampled particles carry the predictions of those that they come from."""
        import torch

        rows = [previous for previous in self.previous if previous is not None]
        if rows:
            self.previous = list(select(torch.stack(rows), indices))


def particle_weights(log_weight: Float[Tensor, "K B"]) -> Float[Tensor, "K B"]:
    """Return the normalised weights of each sample; even weights if no particle can meet the goal."""
    hopeless = (log_weight == float("-inf")).all(0)
    return log_weight.masked_fill(hopeless, 0.0).softmax(0)


def resample(
    log_weight: Float[Tensor, "K B"],
) -> tuple[Float[Tensor, "K B"], Int[Tensor, "K B"]]:
    """Resample systematically where too few particles are effective; return new weights and the indices to keep."""
    import torch

    weight = particle_weights(log_weight)
    particles = len(log_weight)
    # 1 / sum of squares is the effective number of particles.
    uneven = weight.square().sum(0) * particles * MIN_EFFECTIVE > 1

    # One uniform per sample, even steps from there (systematic resampling).
    number = torch.arange(particles, device=weight.device)[:, None]
    position = (number + torch.rand_like(weight[:1])) / particles
    # Inverse of the cumulative weights, K x K comparisons per sample
    ahead = (weight.cumsum(0)[None] <= position[:, None]).sum(1)
    indices = torch.where(uneven, ahead.clamp_max(particles - 1), number)

    # Resampled particles have equal weights; a sample out of reach stays so.
    out_of_reach = (log_weight == -torch.inf).all(0)
    reset = torch.where(out_of_reach, -torch.inf, 0.0).to(log_weight)
    return torch.where(uneven, reset, log_weight), indices


def select(
    values: Shaped[Tensor, "K B *V"], indices: Int[Tensor, "k B"]
) -> Shaped[Tensor, "k B *V"]:
    """Return the particles of each sample at these indices."""
    import torch

    return values[indices, torch.arange(values.shape[1], device=values.device)]
