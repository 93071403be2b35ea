"""Analytic steps of SEDD (Lou et al. 2023, section 4.2): Tweedie tau-leaping with the predicted scores.

With d = sigma(t) - sigma(s), P(x_s = y | x_t = x) = (e^{-dQ} s)(y) (e^{dQ})(y -> x), position by
position, where

    (e^{-dQ} s)(y)    = e^d s(y) + (1 - e^d) prior(y) S,    S = sum of all s(z)
    (e^{dQ})(y -> x)  = e^{-d} [y = x] + (1 - e^{-d}) prior(x)

It sums to s(x) = 1 over y for any score, but entries are negative where no distribution has such
scores; these count as 0. For the scores of a distribution it is the step of ancestral sampling.
Letters: B batch, L length, N rows, V vocabulary.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .options import TokenSteps

if TYPE_CHECKING:
    from jaxtyping import Float, Int
    from torch import Tensor

    from dither.registry.contracts.protocols import TokenProcess
    from dither.registry.contracts.records import Clean, Noise, State

__all__ = ["Analytic", "step_odds"]


class Analytic(TokenSteps):
    """SEDD's analytic steps (Tweedie tau-leaping): the reverse of the noise of a step, applied to scores.

    If the model predicts clean ids (predict = "posterior" or "plug-in") it is ancestral sampling.
    """

    name = "analytic"
    requires = "tokens"

    def step(
        self,
        process: TokenProcess,
        state: State,
        pred: Any,
        now: Noise,
        then: Noise,
        like: Clean,
    ) -> State:
        """Draw x_s given x_t; a prediction of clean ids takes the step of the process."""
        import torch

        from dither.registry.contracts.records import (
            State,
            over,
            prediction_rows,
            put_rows,
            readable_rows,
            select_rows,
        )

        from ..precision import wide
        from ..tokens.categorical import draw
        from ..tokens.posterior import lookup

        if getattr(pred, "predict", "score") != "score":
            return process.step(state, pred, now, then, like)
        x = state.x
        prior = process.prior_probs(state.x.device)
        gap = wide(over(now.since(then).sigma, x)).expand(x.shape)
        chosen = ~like.fixed & (lookup(prior, x) > 0) & (gap > 0)
        where = readable_rows(pred, chosen)
        ids = select_rows(x, where).clone()
        gaps = select_rows(gap, where)
        start = 0
        places = torch.arange(x.shape[1], device=x.device).expand(x.shape)
        prior = prior if len(prior) == 1 else prior[select_rows(places, where)]
        for rows in prediction_rows(pred, where):
            log_score = rows.log_score()[0]
            part = slice(start, start + len(log_score))
            rest = prior if len(prior) == 1 else prior[part]
            # Below its rounding an entry of a score has no significant digits, and all entries may
            # be so small.
            least = torch.finfo(log_score.dtype).eps
            odds = step_odds(log_score, ids[part], rest, gaps[part], least=least)
            ids[part] = draw(odds)
            start = part.stop
        return State.of(put_rows(x, chosen, ids, where))


def step_odds(
    log_score: Float[Tensor, "N V"],
    x: Int[Tensor, " N"],
    prior: Float[Tensor, "#N V"],
    gap: Float[Tensor, " N"],
    *,
    least: float | None = None,
) -> Float[Tensor, "N V"]:
    """Return P(x_s = y | x_t = x) / (e^d S) for the gap d, from the score of every y, 0 at x.

    `least` is the least share of p_t(y) that an entry of e^{-dQ} s counts; None keeps negative
    entries.
    """
    import torch

    from ..precision import wide

    moved = -(-gap).expm1()[:, None]
    p = wide(log_score).softmax(-1)
    odds = p - moved * prior  # cancels where the step moves little of the noise
    if least is not None:
        odds = torch.maximum(odds, p.mul_(least))
    prior_prob = prior.expand(len(x), -1).gather(-1, x[:, None])
    at_x = odds.gather(-1, x[:, None]) * (1 + (1 - moved) / (moved * prior_prob))
    return odds.scatter_(-1, x[:, None], at_x).mul_(moved * prior_prob)
