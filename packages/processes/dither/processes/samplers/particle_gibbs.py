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
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field

from dither.registry import Misfit
from dither.registry.contracts.spaces import TokenSpace
from dither.registry.kinds import ModelFacts, ProcessFacts

from .constraint_smc import particle_weights
from .options import TokenSteps, no_effect

if TYPE_CHECKING:
    from jaxtyping import Float, Int
    from torch import Tensor

    from dither.registry.contracts.protocols import Session, TokenProcess
    from dither.registry.contracts.records import Clean, Noise, State

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
        yield from no_effect(self, ("temperature", "top_k", "top_p"), "on weighted particles")

    def sample(
        self, process: TokenProcess, model: Session, like: Clean
    ) -> Iterator[Int[Tensor, "B L"]]:
        """Yield the state of one particle after every step, with the known tokens in place; the clean sample last."""
        import torch

        from dither.registry.contracts.records import State

        from ..timestep_sampling import time_rows

        times = time_rows(self.steps, self.t_min, like)
        known = like.known
        free = replace(
            like, known=torch.zeros_like(known)
        )  # known tokens are noised like the others
        weighted = bool(known.any())
        best: Tensor | None = None
        for _ in range(1 + self.sweeps if weighted else 1):
            path = _forward_path(process, like.x0 if best is None else best, times, free)
            x = torch.stack(
                [process.prior(free).x for _ in range(self.particles if weighted else 1)]
            )
            x = torch.where(known, path[0], x)
            if best is not None:
                x[0] = path[0]
            log_w = torch.zeros(x.shape[:2], dtype=torch.float64, device=x.device)
            for i, (t, s) in enumerate(pairwise(times)):
                now = process.schedule(t)
                then = process.schedule(s)
                for p, state in enumerate(map(State.of, x)):
                    pred: Any = model(state, t)
                    log_w[p] += log_step_prob(process, state, pred, now, then, path[i + 1], like)
                    x[p] = torch.where(
                        known, path[i + 1], process.step(state, pred, now, then, free).x
                    )
                if best is not None:
                    x[0] = path[i + 1]
                x, log_w = _resampled(x, log_w, kept=best is not None)
                yield torch.where(known, like.x0, x[-1])
            for p, state in enumerate(map(State.of, x)):
                pred = model(state, times[-1])
                log_clean = pred.log_clean().gather(-1, like.x0[..., None])[..., 0]
                log_w[p] += torch.where(known, log_clean.double(), 0.0).sum(1)
                x[p] = torch.where(known, like.x0, process.finish(state, pred, free))
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
        state = process.renoise(state, process.schedule(t).since(process.schedule(s)), free)
        path.append(state.x)
    return path[::-1]


def log_step_prob(
    process: TokenProcess,
    state: State,
    pred: Any,
    now: Noise,
    then: Noise,
    x_s: Int[Tensor, "B L"],
    like: Clean,
) -> Float[Tensor, " B"]:
    """Return the log-probability of the known positions of `x_s` given the later state, under the model."""
    import torch

    from dither.registry.contracts.records import over, put_rows, readable_rows, select_rows

    from ..precision import wide
    from ..tokens.posterior import Posterior, lookup
    from ..tokens.prediction import context_rows

    assert isinstance(process.space, TokenSpace)
    x = state.x
    where = readable_rows(pred, like.known)
    prior = process.prior_probs(state.x.device)
    posterior = Posterior(x, now, prior, process.space.clean().to(x.device, non_blocking=True))
    ids = torch.stack([select_rows(each, where) for each in (x, x_s)])
    log_m = torch.zeros(ids.shape, dtype=torch.float64, device=x.device)
    for part, log in context_rows(pred, posterior, where):
        log_m[:, part] = log.gather(-1, ids[:, part].T).T.double()
    log_alpha, log_alpha_s = (
        select_rows(-wide(over(noise.sigma, x)).expand(x.shape), where) for noise in (now, then)
    )
    prior_t, prior_s = (select_rows(lookup(prior, each), where) for each in (x, x_s))
    kept = (log_alpha - log_alpha_s).exp()
    p_t = (log_alpha + log_m[0]).exp() - log_alpha.expm1() * prior_t
    p_s = (log_alpha_s + log_m[1]).exp() - log_alpha_s.expm1() * prior_s
    reached = kept * (ids[0] == ids[1]) + (1 - kept) * prior_t
    log_p = reached.log() + p_s.log() - p_t.log()
    return put_rows(log_p.new_zeros(x.shape), like.known, log_p, where).sum(1)


def _resampled(
    x: Int[Tensor, "P B L"], log_w: Float[Tensor, "P B"], kept: bool
) -> tuple[Int[Tensor, "P B L"], Float[Tensor, "P B"]]:
    """Draw particles by weight in samples whose effective number is below half; `kept`: the first one stays."""
    import torch

    weights = particle_weights(log_w)
    poor = weights.square().sum(0).reciprocal() < len(x) / 2
    ancestors = weights.T.multinomial(len(x), replacement=True).T
    same = torch.arange(len(x), device=x.device)[:, None].expand_as(ancestors)
    ancestors = torch.where(poor, ancestors, same)
    if kept:
        ancestors[0] = 0
    return x[ancestors, torch.arange(x.shape[1], device=x.device)], torch.where(poor, 0.0, log_w)
