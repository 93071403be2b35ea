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

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from dither.registry import Misfit
from dither.registry.contracts.spaces import TokenSpace
from dither.registry.kinds import ModelFacts, ProcessFacts

from .ancestral import sample_tokens
from .constraint_smc import particle_weights
from .options import TokenSteps, no_effect

if TYPE_CHECKING:
    from jaxtyping import Float, Int
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

    def check(self, process: ProcessFacts, model: ModelFacts) -> Iterable[Misfit]:
        """Yield temperatures, which weights do not account for, and a model that requires a mark of known tokens."""
        yield from super().check(process, model)
        if model.reads_known:
            message = 'sampler "particle-gibbs" noises known tokens, but model.embedding.known marks them as clean'
            yield Misfit(message, (), ("model", "embedding"), 'use sampler "ancestral"')
        yield from no_effect(
            self, ("temperature", "top_k", "top_p"), "on weighted particles"
        )

    def sample(
        self, process: TokenProcess, model: Session, like: Clean
    ) -> Iterator[Int[Tensor, "B L"]]:
        """Yield the state of one particle after every step, with the known tokens in place; the clean sample last."""
        import torch

        from dither.registry.contracts.records import State

        from ..timestep_sampling import time_rows
        from ..tokens.unmasking import fill, log_prob, uncertain

        known = like.known
        if not bool(known.any()):
            yield from sample_tokens(process, model, like, self)
            return

        times = time_rows(self.steps, self.t_min, like)
        # Known tokens are noised like all others.
        free = replace(like, known=torch.zeros_like(known))
        best: Tensor | None = None
        for _ in range(1 + self.sweeps):
            path = _forward_path(
                process, like.x0 if best is None else best, times, free
            )
            x = torch.stack([process.prior(free).x for _ in range(self.particles)])
            x = torch.where(known, path[0], x)
            if best is not None:
                x[0] = path[0]
            log_w = torch.zeros(x.shape[:2], dtype=torch.float64, device=x.device)

            for i, (t, s) in enumerate(pairwise(times)):
                now = process.schedule(t)
                then = process.schedule(s)
                for p, state in enumerate(map(State.of, x)):
                    step = process.begin_step(state, now, then, free)
                    at = step.at | known
                    rows = model(state, t, at=at)
                    log_w[p] += log_step_prob(
                        process,
                        state,
                        rows.at(known[at][None]),
                        now,
                        then,
                        path[i + 1],
                        like,
                    )
                    new = step.complete(rows.at(step.at[at][None])).x
                    x[p] = torch.where(known, path[i + 1], new)
                if best is not None:
                    x[0] = path[i + 1]
                x, log_w = _resampled(x, log_w, keep_first=best is not None)
                yield torch.where(known, like.x0, x[-1])

            for p, state in enumerate(map(State.of, x)):
                where = uncertain(process, state.x, free)
                at = where | known
                rows = model(state, times[-1], at=at)
                log_known = log_prob(rows.at(known[at][None]), like.x0[known])
                log_w[p] += (
                    torch.zeros_like(known, dtype=log_w.dtype)
                    .masked_scatter(known, log_known.double())
                    .sum(1)
                )
                x[p] = torch.where(
                    known, like.x0, fill(state.x, where, rows.at(where[at][None]))
                )
            if best is not None:
                x[0] = best
            chosen = particle_weights(log_w).T.multinomial(1)[:, 0]
            best = x[chosen, torch.arange(x.shape[1], device=x.device)]
        assert best is not None
        yield best


def _forward_path(
    process: TokenProcess,
    x0: Int[Tensor, "B L"],
    times: Float[Tensor, "K B"],
    free: Clean,
) -> list[Int[Tensor, "B L"]]:
    """Draw one path of the forward process through all times, the latest (t = 1) first."""
    state = process.corrupt(replace(free, x0=x0), times[-1]).state
    path = [state.x]
    for s, t in pairwise(times.flip(0)):
        state = process.renoise(
            state, process.schedule(t).since(process.schedule(s)), free
        )
        path.append(state.x)
    return path[::-1]


def log_step_prob(
    process: TokenProcess,
    state: State,
    rows: TokenPrediction,
    now: Noise,
    then: Noise,
    x_s: Int[Tensor, "B L"],
    like: Clean,
) -> Float[Tensor, " B"]:
    """Return the log-probability of the known positions of `x_s` given the later state, under the model.

    `rows` is the prediction of the known positions.
    """
    import torch

    from dither.registry.contracts.records import over

    from ..precision import wide
    from ..tokens.posterior import Posterior, lookup
    from ..tokens.prediction import log_context

    assert isinstance(process.space, TokenSpace)
    x = state.x
    known = like.known
    prior = process.prior_probs(x.device)
    posterior = Posterior(x, now, prior, process.space.clean().to(x.device))
    log_m = log_context(rows, posterior.at(known))[0].double()
    ids = x[known]
    ids_s = x_s[known]
    m_t = log_m.gather(-1, ids[:, None])[:, 0].exp()
    m_s = log_m.gather(-1, ids_s[:, None])[:, 0].exp()
    prior_t = lookup(prior, x)[known]
    prior_s = lookup(prior, x_s)[known]
    log_alpha_t = -wide(over(now.sigma, x)).expand(x.shape)[known]
    log_alpha_s = -wide(over(then.sigma, x)).expand(x.shape)[known]

    # p(x_s | x_t) = q(x_t | x_s) p_s(x_s) / p_t(x_t)
    alpha_ts = (log_alpha_t - log_alpha_s).exp()
    q = torch.where(ids == ids_s, alpha_ts, 0.0) + (1 - alpha_ts) * prior_t
    p_t = log_alpha_t.exp() * m_t - log_alpha_t.expm1() * prior_t
    p_s = log_alpha_s.exp() * m_s - log_alpha_s.expm1() * prior_s
    log_p = q.log() + p_s.log() - p_t.log()
    return log_p.new_zeros(x.shape).masked_scatter(known, log_p).sum(1)


def _resampled(
    x: Int[Tensor, "P B L"], log_w: Float[Tensor, "P B"], keep_first: bool
) -> tuple[Int[Tensor, "P B L"], Float[Tensor, "P B"]]:
    """Draw particles by weight in samples whose effective number is below half."""
    import torch

    weights = particle_weights(log_w)
    poor = weights.square().sum(0).reciprocal() < len(x) / 2
    ancestors = weights.T.multinomial(len(x), replacement=True).T
    same = torch.arange(len(x), device=x.device)[:, None].expand_as(ancestors)
    ancestors = torch.where(poor, ancestors, same)
    if keep_first:
        ancestors[0] = 0
    x = x[ancestors, torch.arange(x.shape[1], device=x.device)]
    return x, torch.where(poor, 0.0, log_w)
