"""Sampling given known tokens by particle Gibbs (Andrieu et al. 2010; Corenflos et al. 2024, for diffusion models).

A model of whole samples at one noise level takes known tokens for noised ones, unless they can only
be clean (absorbing). Here they are noised like all others: a path x_t of the known tokens is drawn
from the forward process, and particles follow the reverse process at the unknown positions,
weighted by the probability of the next known tokens,

    p(x_s | x_t) = q(x_t | x_s) p_s(x_s) / p_t(x_t),   p_t(y) = alpha_t m(y) + (1 - alpha_t) prior(y),

position by position, m = p(x_0 | the other positions). The choice of a particle at the end is exact
as their number grows; a sweep noises the whole sample again and keeps its path as one of the
particles, which leaves the conditional distribution invariant with any number of them. Letters: B
batch, P particles, L length, N known tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from dither.registry import Misfit
from dither.registry.contracts.spaces import TokenSpace
from dither.registry.kinds import ModelFacts, ProcessFacts

from ..options import no_effect
from .ancestral import sample_tokens
from .constraint_smc import particle_weights
from .options import TokenSteps

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int
    from torch import Tensor

    from dither.registry.contracts.protocols import Session, TokenProcess
    from dither.registry.contracts.records import Clean, Noise, State, TokenPrediction

__all__ = ["ParticleGibbs", "log_step_prob"]


class ParticleGibbs(TokenSteps):
    """Samples given known tokens, from a model that does not distinguish known tokens from noised ones.

    Ancestral sampling of several particles that are weighted and resampled; the model is called
    particles (1 + sweeps) (steps + 1) times. Without known tokens it is ancestral sampling.
    """

    name = "particle-gibbs"
    requires = "tokens"
    corrects_known: ClassVar[bool] = True
    particles: int = Field(4, ge=2, le=10_000)
    """Particles per sample."""
    sweeps: int = Field(3, ge=0, le=10_000)
    """Repetitions that start from the last sample; each brings samples closer to the conditional
    distribution."""

    def known_cost(self) -> int:
        """Return the calls of all particles in all sweeps."""
        return self.particles * (1 + self.sweeps)

    def check(self, process: ProcessFacts, model: ModelFacts) -> Iterable[Misfit]:
        """Reject a temperature, which weights do not account for, and a model that marks known tokens."""
        yield from super().check(process, model)
        if model.reads_known:
            message = 'sampler "particle-gibbs" noises known tokens, but model.embedding.known marks them as clean'
            yield Misfit(message, (), ("model", "embedding"), 'use sampler "ancestral"')
        if model.self_conditioning:
            message = 'the weights of sampler "particle-gibbs" require steps that depend on the state alone'
            fix = 'use sampler "ancestral"'
            yield Misfit(message, (), ("model", "self_conditioning"), fix)
        yield from no_effect(
            self, ("temperature", "top_k", "top_p"), "on weighted particles"
        )

    def sample(
        self, process: TokenProcess, model: Session, like: Clean
    ) -> Iterator[Int[Tensor, "B L"]]:
        """Yield the state of one particle after every step, with the known tokens in place; the clean sample last."""
        if not bool(like.known.any()):
            yield from sample_tokens(process, model, like, self)
            return

        retained = yield from self.sweep(process, model, like, retained=None)
        for _ in range(self.sweeps):
            retained = yield from self.sweep(process, model, like, retained)
        yield retained

    def sweep(
        self,
        process: TokenProcess,
        model: Session,
        like: Clean,
        retained: Int[Tensor, "B L"] | None,
    ) -> Generator[Int[Tensor, "B L"], None, Int[Tensor, "B L"]]:
        """Yield the state of one particle after every step; return a clean sample.

        The noised path of `retained`, the sample of the sweep before, is particle 0 (conditional
        SMC). In the first sweep there is none, and only the known tokens have a path.
        """
        import torch

        from dither.registry.contracts.records import State

        from ..timestep_sampling import time_rows
        from ..tokens.unmasking import fill, log_prob, uncertain

        known = like.known
        times = time_rows(self.steps, self.t_min, like)
        # Known tokens are noised like all others.
        free = replace(like, known=torch.zeros_like(known))
        conditional = retained is not None
        clean = like.x0 if retained is None else retained
        path = _forward_path(process, clean, times, free)

        # All particles have the known tokens of the path: P B L
        x = torch.stack([process.prior(free).x for _ in range(self.particles)])
        x = torch.where(known, path[0], x)
        if conditional:
            x[0] = path[0]
        log_w = torch.zeros(x.shape[:2], dtype=torch.float64, device=x.device)

        for (t, s), path_s in zip(pairwise(times), path[1:], strict=True):
            noise_t = process.schedule(t)
            noise_s = process.schedule(s)
            for p, state in enumerate(map(State.of, x)):
                # One call serves the step of the unknown tokens and the weight of the known.
                step = process.begin_step(state, noise_t, noise_s, free)
                at = step.at | known
                rows = model(state, t, at=at)
                rows_known = rows.at(known[at][None])
                rows_step = rows.at(step.at[at][None])

                # weight *= p(known tokens of x_s | x_t)
                log_w[p] += log_step_prob(
                    process, state, rows_known, noise_t, noise_s, path_s, like
                )
                x[p] = torch.where(known, path_s, step.complete(rows_step).x)
            if conditional:
                x[0] = path_s
            x, log_w = _resampled(x, log_w, keep_first=conditional)
            yield torch.where(known, like.x0, x[-1])

        # The last step goes from t_min to clean tokens.
        for p, state in enumerate(map(State.of, x)):
            where = uncertain(process, state.x, free)
            at = where | known
            rows = model(state, times[-1], at=at)
            log_known = log_prob(rows.at(known[at][None]), like.x0[known]).double()
            log_w[p] += _sum_of_rows(log_known, known)
            filled = fill(state.x, where, rows.at(where[at][None]))
            x[p] = torch.where(known, like.x0, filled)
        if retained is not None:
            x[0] = retained

        # One particle by weight is the sample of the sweep: B L
        chosen = particle_weights(log_w).T.multinomial(1)[:, 0]
        return x[chosen, torch.arange(x.shape[1], device=x.device)]


def _forward_path(
    process: TokenProcess,
    x0: Int[Tensor, "B L"],
    times: Float[Tensor, "K B"],
    free: Clean,
) -> list[Int[Tensor, "B L"]]:
    """Draw one path of the forward process through all times, the latest (t = 1) first."""
    state = process.corrupt(replace(free, x0=x0), times[-1]).state
    path = [state.x]
    # From t_min up to 1; x_t depends on x_s alone.
    for s, t in pairwise(times.flip(0)):
        state = process.renoise(state, process.schedule(t), process.schedule(s), free)
        path.append(state.x)
    return path[::-1]


def log_step_prob(
    process: TokenProcess,
    state: State,
    rows: TokenPrediction,
    noise_t: Noise,
    noise_s: Noise,
    x_s: Int[Tensor, "B L"],
    like: Clean,
) -> Float[Tensor, " B"]:
    """Return the log-probability of the known positions of `x_s` given the later state, under the model.

    `rows` is the prediction of the known positions.
    """
    import torch

    from dither.registry.contracts.records import over
    from dither.registry.contracts.tensors import at_ids, lookup

    from ..precision import wide
    from ..tokens.posterior import Posterior
    from ..tokens.prediction import log_context

    assert isinstance(process.space, TokenSpace)
    x = state.x
    known = like.known
    # m(x_t) and m(x_s), m = p(x_0 | the other positions), of the N known tokens
    posterior = Posterior(
        x, noise_t, process.prior_at(noise_t), process.space.clean().to(x.device)
    )
    log_m = log_context(rows, posterior.at(known))[0].double()
    ids_t = x[known]
    ids_s = x_s[known]
    m_t = at_ids(log_m, ids_t).exp()
    m_s = at_ids(log_m, ids_s).exp()

    prior_t = lookup(process.prior_at(noise_t), x)[known]
    prior_s = lookup(process.prior_at(noise_s), x_s)[known]
    prior_ts = lookup(process.prior_at(noise_t, noise_s), x)[known]
    log_alpha_t = -wide(over(noise_t.sigma, x)).expand(x.shape)[known]
    log_alpha_s = -wide(over(noise_s.sigma, x)).expand(x.shape)[known]

    # q(x_t | x_s) = alpha_ts [x_t = x_s] + (1 - alpha_ts) prior_ts(x_t)
    alpha_ts = (log_alpha_t - log_alpha_s).exp()
    q = torch.where(ids_t == ids_s, alpha_ts, 0.0) + (1 - alpha_ts) * prior_ts
    # p_t(y) = alpha_t m(y) + (1 - alpha_t) prior_t(y)
    p_t = log_alpha_t.exp() * m_t - log_alpha_t.expm1() * prior_t
    p_s = log_alpha_s.exp() * m_s - log_alpha_s.expm1() * prior_s
    # p(x_s | x_t) = q(x_t | x_s) p_s(x_s) / p_t(x_t)
    return _sum_of_rows(q.log() + p_s.log() - p_t.log(), known)


def _sum_of_rows(
    values: Float[Tensor, " N"], at: Bool[Tensor, "B L"]
) -> Float[Tensor, " B"]:
    """Sum the values of the chosen positions of each sample."""
    return values.new_zeros(at.shape).masked_scatter(at, values).sum(1)


def _resampled(
    x: Int[Tensor, "P B L"], log_w: Float[Tensor, "P B"], keep_first: bool
) -> tuple[Int[Tensor, "P B L"], Float[Tensor, "P B"]]:
    """Draw particles by weight in samples whose effective number is below half."""
    import torch

    weights = particle_weights(log_w)
    # 1 / sum of squares is the effective number of particles.
    uneven = weights.square().sum(0).reciprocal() < len(x) / 2
    ancestors = weights.T.multinomial(len(x), replacement=True).T
    itself = torch.arange(len(x), device=x.device)[:, None].expand_as(ancestors)
    ancestors = torch.where(uneven, ancestors, itself)
    # The retained path survives every resampling (conditional SMC).
    if keep_first:
        ancestors[0] = 0
    x = x[ancestors, torch.arange(x.shape[1], device=x.device)]
    return x, torch.where(uneven, 0.0, log_w)
