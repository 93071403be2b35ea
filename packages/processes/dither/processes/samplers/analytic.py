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

from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING

from .ancestral import sample_tokens
from .options import TokenSteps

if TYPE_CHECKING:
    from jaxtyping import Float, Int
    from torch import Tensor

    from dither.registry.contracts.protocols import Session, TokenProcess
    from dither.registry.contracts.records import Clean

__all__ = ["Analytic", "step_odds"]


class Analytic(TokenSteps):
    """SEDD's analytic steps (Tweedie tau-leaping): the reverse of the noise of a step, applied to scores.

    If the model predicts clean ids (predict = "posterior" or "plug-in") it is ancestral sampling.
    """

    name = "analytic"
    requires = "tokens"

    def sample(
        self, process: TokenProcess, model: Session, like: Clean
    ) -> Iterator[Int[Tensor, "B L"]]:
        """Yield the state after every step, the clean sample last."""
        import torch

        from dither.registry.contracts.records import State

        from ..precision import wide
        from ..timestep_sampling import time_rows
        from ..tokens.categorical import draw
        from ..tokens.posterior import rows_at
        from ..tokens.temperature import warp_prediction
        from ..tokens.unmasking import fill, uncertain

        # From p(x_0 | x_t) the same step is exact, without a detour over scores.
        if process.predict != "score" or self.warps():
            yield from sample_tokens(process, model, like, self)
            return

        x = process.prior(like).x
        times = time_rows(self.steps, self.t_min, like)
        for t, s in pairwise(times):
            # d = sigma(t) - sigma(s) of every position: B L
            noise_t = process.schedule(t)
            noise_s = process.schedule(s)
            gap = noise_t.since(noise_s)
            gap_sigma = wide(gap.sigma)[:, None].expand(x.shape)

            # log s(y) of the N tokens that the step may replace: N V
            at = uncertain(process, x, like) & (gap_sigma > 0)
            log_score = model(State.of(x), t, at=at).log_score()[0]
            rows_prior = rows_at(process.prior_at(noise_t, noise_s), at)

            # Below its rounding an entry of a score has no significant digits, and all entries may
            # be so small.
            least = torch.finfo(log_score.dtype).eps
            odds = step_odds(log_score, x[at], rows_prior, gap_sigma[at], least=least)
            x = x.masked_scatter(at, draw(odds))
            yield x

        where = uncertain(process, x, like)
        rows = warp_prediction(model(State.of(x), times[-1], at=where), self)
        yield fill(x, where, rows)


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

    from ..precision import one_minus_exp, wide

    # 1 - e^{-d}, the probability that a token is replaced within the step
    replaced = one_minus_exp(gap)[:, None]
    # Scores are p_t(y) / p_t(x), so that their softmax is p_t.
    p = wide(log_score).softmax(-1)

    # e^{-dQ} s; the difference cancels where the step replaces few tokens
    odds = p - replaced * prior
    if least is not None:
        odds = torch.maximum(odds, p.mul_(least))

    # e^{dQ}: y -> x by a draw of x from the prior, and from x itself by staying as well
    x = x[:, None]
    prior_prob = prior.expand(len(x), -1).gather(-1, x)
    odds_x = odds.gather(-1, x) * (1 + (1 - replaced) / (replaced * prior_prob))
    return odds.scatter_(-1, x, odds_x).mul_(replaced * prior_prob)
