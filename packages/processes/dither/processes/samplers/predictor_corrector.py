"""Predictor-corrector sampling of tokens (Campbell et al. 2022, section 4.4): ancestral steps, each with corrections.

A correction adds the noise from s up to r and takes a step from r back to s. Noise and an exact
step leave p_s as it is; a correction shorter than the step is more exact than the step, so that
several bring the sample nearer to p_s. Or it draws tokens again given all others (leave-one-out
Gibbs, arXiv 2605.22765),

    p_s(x_l = y | the others) = alpha_s m(y) + (1 - alpha_s) prior_s(y),   m = p(x_0 | the others)

which leaves p_s as it is for one token under any noise. Letters: B batch, L length, N chosen
positions, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from dither.registry import Misfit
from dither.registry.kinds import ModelFacts, ProcessFacts

from ..options import no_effect
from .options import TokenSteps

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int
    from torch import Tensor

    from dither.registry.contracts.protocols import Session, TokenProcess
    from dither.registry.contracts.records import Clean, State

__all__ = ["PredictorCorrector"]


class PredictorCorrector(TokenSteps):
    """Ancestral sampling of tokens with corrections: after a step, noise is added again and removed by another step.

    A correction leaves the distribution of the data unchanged, the more nearly the shorter it is;
    several correct the errors of a step.
    """

    name = "predictor-corrector"
    requires = "tokens"
    steps: int = Field(64, ge=1, le=1_000_000)
    """Steps; the model is called steps (corrections + 1) + 1 times."""
    corrections: int = Field(1, ge=0, le=1000)
    """Corrections after each step."""
    reach: float = Field(0.5, gt=0, le=1)
    """How far a correction goes back up, as a share of the step."""
    corrector: Literal["renoise", "gibbs", "gibbs-margin"] = "renoise"
    """renoise: noise and a step back. gibbs: draw tokens of random positions again given all others.
    gibbs-margin: prefer positions whose id has the least margin over the likeliest other, which is
    no longer exact."""
    tokens: int = Field(1, ge=1)
    """Positions that a Gibbs correction draws again; exact for one at a time."""

    def check(self, process: ProcessFacts, model: ModelFacts) -> Iterable[Misfit]:
        """Require wrong tokens for Gibbs corrections, and options that have an effect."""
        yield from super().check(process, model)
        if self.corrector == "renoise":
            yield from no_effect(self, ("tokens",), 'with corrector = "renoise"')
            return
        yield from no_effect(self, ("reach",), f'with corrector = "{self.corrector}"')
        # Of an unmasked token such a model predicts the token itself, not from the others.
        if process.prior == "mask":
            yield Misfit(
                f'corrector = "{self.corrector}" requires a model that has seen wrong tokens, '
                f'not process "{process.name}"',
                ("corrector",),
                ("process",),
                'set corrector = "renoise"',
                code="process-mismatch",
            )

    def sample(
        self, process: TokenProcess, model: Session, like: Clean
    ) -> Iterator[Int[Tensor, "B L"]]:
        """Yield the state after every step, the clean sample last."""
        from ..timestep_sampling import time_rows
        from ..tokens.temperature import warp_prediction
        from ..tokens.unmasking import fill, uncertain

        state = process.prior(like)
        times = time_rows(self.steps, self.t_min, like)
        for t, s in pairwise(times):
            # s < r <= t
            r = s + self.reach * (t - s)
            noise_t = process.schedule(t)
            noise_r = process.schedule(r)
            noise_s = process.schedule(s)

            # Predictor: x_s ~ p(x_s | x_t)
            step = process.begin_step(state, noise_t, noise_s, like)
            rows = warp_prediction(model(state, t, at=step.at), self)
            state = step.complete(rows)

            # Corrector: x_l ~ p_s(x_l | the others), or x_r ~ q(x_r | x_s), x_s ~ p(x_s | x_r)
            for _ in range(self.corrections):
                if self.corrector != "renoise":
                    state = self.resample(process, model, state, s, like)
                    continue
                state = process.renoise(state, noise_r, noise_s, like)
                step = process.begin_step(state, noise_r, noise_s, like)
                rows = warp_prediction(model(state, r, at=step.at), self)
                state = step.complete(rows)
            yield state.x

        where = uncertain(process, state.x, like)
        rows = warp_prediction(model(state, times[-1], at=where), self)
        yield fill(state.x, where, rows)

    def resample(
        self,
        process: TokenProcess,
        model: Session,
        state: State,
        s: Float[Tensor, " B"],
        like: Clean,
    ) -> State:
        """Draw some tokens of x_s again, each given all others."""
        import torch

        from dither.registry.contracts.records import State

        from ..tokens.categorical import draw_log
        from ..tokens.unmasking import gumbel, top_positions

        x = state.x
        free = ~like.fixed
        due = torch.full((len(x),), self.tokens, device=x.device)
        score = torch.rand(x.shape, device=x.device)
        at = top_positions(score, free, due)
        # Margins are compared at all positions, so that all are predicted.
        if self.corrector == "gibbs-margin":
            at = free
        log_p = self.log_conditional(process, model, state, s, at)
        if self.corrector == "gibbs-margin":
            ids = x[at][:, None]
            others = log_p.scatter(-1, ids, -torch.inf).amax(-1)
            margin = log_p.gather(-1, ids)[:, 0] - others
            score = score.to(margin.dtype).masked_scatter(at, gumbel(margin) - margin)
            chosen = top_positions(score, free, due)
            log_p = log_p[chosen[at]]
            at = chosen
        return State.of(x.masked_scatter(at, draw_log(log_p)))

    def log_conditional(
        self,
        process: TokenProcess,
        model: Session,
        state: State,
        s: Float[Tensor, " B"],
        at: Bool[Tensor, "B L"],
    ) -> Float[Tensor, "N V"]:
        """Return log p_s of every id at the chosen positions, given all other tokens of x_s."""
        import torch

        from dither.registry.contracts.spaces import TokenSpace

        from ..precision import wide
        from ..tokens.posterior import Posterior
        from ..tokens.prediction import log_context
        from ..tokens.temperature import warp_prediction

        assert isinstance(process.space, TokenSpace)
        noise = process.schedule(s)
        clean = process.space.clean().to(at.device)
        posterior = Posterior(state.x, noise, process.prior_at(noise), clean).at(at)
        rows = warp_prediction(model(state, s, at=at), self)
        log_m = wide(log_context(rows, posterior)[0])

        # N -> N 1
        log_alpha = posterior.log_alpha[0, :, None]
        log_replaced = posterior.log_one_minus_alpha[0, :, None] + posterior.prior.log()
        return torch.logaddexp(log_alpha + log_m, log_replaced)
