"""Samples of high reward: best of n, and sequential Monte Carlo of any process.

Both are for any reward r(x), a number per sample that needs no gradient. Particles of the second
have the target p(x) exp(scale r(x)): the weight after the call at time t is exp(alpha_t scale r) of
a clean sample drawn from the prediction there, and that of the clean sample at the end; which
weights come in between changes the variance, not the limit of many particles (Feynman-Kac
steering, Singhal et al. 2025; twisted particle filters, Wu et al. 2023). Letters: K particles per
sample, B batch, L length, M features.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import cache, partial
from typing import TYPE_CHECKING

from pydantic import Field

from dither.registry import Misfit, Slot, below, named
from dither.registry.kinds import ModelFacts, ProcessFacts, RewardSpec, SamplerSpec

from .constraint_smc import ParticleCalls, particle_weights, resample, select
from .options import ProcessSampler, TokenSteps
from .semi_autoregressive import SemiAutoregressive

if TYPE_CHECKING:
    from jaxtyping import Float, Int, Shaped
    from torch import Tensor

    from dither.registry.contracts.protocols import Process, Reward, Sampler, Session
    from dither.registry.contracts.records import Clean, State
    from dither.registry.contracts.spaces import Space

    BuildReward = Callable[[Space], Reward]

__all__ = ["BestOfN", "RewardSMC"]

MIN_GUESS = -1e4
"""Least logarithm of a weight before the end: a guess of reward -inf does not end a particle."""


class BestOfN(ProcessSampler):
    """The sample of highest reward out of several that another sampler draws.

    If the reward is below r with probability F(r) under the model, it is below r with probability
    F(r)^n after this; samples are at most log n - (n - 1) / n nats from the model (Beirami et al.
    2024).
    """

    name = "best-of-n"
    reward: Slot[RewardSpec]
    """The reward."""
    inner: Slot[SamplerSpec] = named("ancestral")
    """Sampler of the candidates."""
    candidates: int = Field(4, ge=1, le=10_000)
    """Candidates per sample, each at the cost of a sample."""

    def steers(self, process: ProcessFacts) -> bool:
        return True

    def check(self, process: ProcessFacts, model: ModelFacts) -> Iterable[Misfit]:
        """Require a reward of this data, and an inner sampler that can start again."""
        yield from super().check(process, model)
        yield from below("reward", self.reward.check(process.space))
        # A second start would attend to the cached positions of the first.
        caches = isinstance(self.inner, SemiAutoregressive) and self.inner.approximate
        if self.inner.blockwise or caches:
            message = f'sampler "{self.inner.name}" fills a cache, and cannot start again for each candidate'
            yield Misfit(message, ("inner",))
        yield from below("inner", self.inner.check(process, model))

    def warn(self, process: ProcessFacts, model: ModelFacts) -> Iterable[Misfit]:
        yield from below("inner", self.inner.warn(process, model))

    def build(self) -> Sampler:
        build_reward = cache(self.reward.build)
        return partial(self.run, inner=self.inner.build(), build_reward=build_reward)

    def sample(
        self,
        process: Process,
        model: Session,
        like: Clean,
        *,
        inner: Sampler,
        build_reward: BuildReward,
    ) -> Iterator[Shaped[Tensor, "B L *M"]]:
        """Yield every state of every candidate, and the best candidates last."""
        import torch

        from dither.registry.contracts.records import over

        reward = build_reward(process.space)
        best = like.x0
        best_reward = torch.full((len(best),), -torch.inf, device=best.device)
        for number in range(self.candidates):
            model.previous = None
            for x in inner(process, model, like):
                yield x
            # Of equal candidates the first stays, which is any of them with the same probability.
            value = _measure(reward, x, like)
            better = (value > best_reward) | (number == 0)
            best = torch.where(over(better, x), x, best)
            best_reward = torch.where(better, value, best_reward)
        yield best


class RewardSMC(TokenSteps):
    """Ancestral sampling of several particles that are weighted by a reward and resampled.

    Samples have the distribution p(x) exp(scale reward(x)) in the limit of many particles, under
    every process; with few of them samples are nearer to p, and particles of one sample alike.
    """

    name = "reward-smc"
    steps: int = Field(64, ge=1, le=1_000_000)
    """Steps; the model is called once more, at the end."""
    reward: Slot[RewardSpec]
    """The reward."""
    scale: float = Field(1.0, ge=-1e6, le=1e6)
    """Factor of the reward, in nats of the weight."""
    particles: int = Field(4, ge=1, le=1024)
    """Particles per sample, each at the cost of a sample."""

    def steers(self, process: ProcessFacts) -> bool:
        return True

    def check(self, process: ProcessFacts, model: ModelFacts) -> Iterable[Misfit]:
        """Require a reward of this data."""
        yield from super().check(process, model)
        yield from below("reward", self.reward.check(process.space))

    def build(self) -> Sampler:
        return partial(self.run, build_reward=cache(self.reward.build))

    def sample(
        self,
        process: Process,
        model: Session,
        like: Clean,
        *,
        build_reward: BuildReward,
    ) -> Iterator[Shaped[Tensor, "B L *M"]]:
        """Yield the state of one particle after every step, and a clean one drawn by weight last."""
        import torch

        from ..precision import wide
        from ..timestep_sampling import time_rows
        from ..tokens.categorical import draw
        from ..tokens.temperature import warp_prediction

        reward = build_reward(process.space)
        schedule = process.schedule
        # 1 = t_N > ... > t_0 = t_min, the same for every sample: N B
        times = time_rows(self.steps, self.t_min, like)
        if process.fixed_time is not None:
            times = torch.full_like(times[:1], process.fixed_time)

        states = [process.prior(like) for _ in range(self.particles)]
        particles = ParticleCalls(model)
        log_weight = wide(torch.zeros_like(times[0])).repeat(self.particles, 1)
        # The logarithm of the weight that a particle has by now: K B
        value = torch.zeros_like(log_weight)
        for number, t in enumerate(times):
            preds = [warp_prediction(pred, self) for pred in particles(states, t)]
            # Clean samples drawn from the prediction, which are the samples after the last call
            clean = [
                process.finish(state, pred, like)
                for state, pred in zip(states, preds, strict=True)
            ]
            before = value
            rewards = wide(torch.stack([_measure(reward, x, like) for x in clean]))
            value = _log_weights(rewards, self.scale)
            if number == len(times) - 1:
                break

            # Early guesses say little about the sample, and count for little.
            alpha = schedule(t).sigma.neg().exp()
            value = (alpha * value).clamp_min(MIN_GUESS)
            s = times[number + 1]
            states = [
                process.step(state, pred, schedule(t), schedule(s), like)
                for state, pred in zip(states, preds, strict=True)
            ]
            log_weight, indices = resample(log_weight + value - before)
            states = _select_states(states, indices)
            particles.select(indices)
            value = select(value, indices)
            yield states[0].x

        weights = particle_weights(log_weight + value - before)
        yield select(torch.stack(clean), draw(weights.T)[None])[0]


def _measure(
    reward: Reward, x: Shaped[Tensor, "B L *M"], like: Clean
) -> Float[Tensor, " B"]:
    """Return the rewards of samples; ValueError if one is NaN, which no comparison would notice."""
    value = reward(x, like)
    if bool(value.isnan().any()):
        raise ValueError("the reward of a sample is NaN")
    return value


def _log_weights(rewards: Float[Tensor, "K B"], scale: float) -> Float[Tensor, "K B"]:
    """Return scale times the rewards; ValueError if one is inf, an infinite weight."""
    import torch

    # 0 times a reward of -inf would be NaN.
    if scale == 0:
        return torch.zeros_like(rewards)
    value = scale * rewards
    if bool((value == torch.inf).any()):
        raise ValueError("the reward of a sample times scale is inf")
    return value


def _select_states(states: list[State], indices: Int[Tensor, "K B"]) -> list[State]:
    """Return the states of the resampled particles."""
    import torch

    x = select(torch.stack([state.x for state in states]), indices)
    masked = select(torch.stack([state.masked for state in states]), indices)
    return [replace(state, x=x[k], masked=masked[k]) for k, state in enumerate(states)]
