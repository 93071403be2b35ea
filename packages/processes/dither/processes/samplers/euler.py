"""Euler steps at the reverse rates of a token process (SEDD, Lou et al. 2023, section 4.1; Campbell et al. 2022).

x jumps to y at the rate sigma'(t) prior(x) s(y): the forward rate from y to x, times the score. A
position leaves with probability 1 - exp(-total rate), which is below 1 for any step, to y with odds
s(y); the rate over a step is taken from sigma(t) - sigma(s), not from sigma'(t) alone. Letters: B
batch, L length.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING

from pydantic import Field

from .options import TokenSteps

if TYPE_CHECKING:
    from jaxtyping import Int
    from torch import Tensor

    from dither.registry.contracts.protocols import Session, TokenProcess
    from dither.registry.contracts.records import Clean

__all__ = ["Euler"]


class Euler(TokenSteps):
    """Small jumps at the reverse rates of a token process (SEDD), in a form that is stable for any step."""

    name = "euler"
    requires = "tokens"
    steps: int = Field(128, ge=1, le=1_000_000)
    """Steps; the model is called once more, at the end. The distribution of samples is exact in the
    limit of many."""
    t_min: float = Field(1e-3, gt=0, lt=1)
    """Time of the last state; from there the sample is drawn clean. At t = 0 ids that have not left
    the prior would stay."""

    def sample(
        self, process: TokenProcess, model: Session, like: Clean
    ) -> Iterator[Int[Tensor, "B L"]]:
        """Yield the state after every step, the clean sample last."""
        import torch

        from dither.registry.contracts.records import State
        from dither.registry.contracts.tensors import lookup

        from ..precision import one_minus_exp, wide
        from ..timestep_sampling import time_rows
        from ..tokens.categorical import draw_log
        from ..tokens.prediction import log_leaving
        from ..tokens.temperature import warp_prediction
        from ..tokens.unmasking import fill, uncertain

        x = process.prior(like).x
        predicts_scores = process.predict == "score" and not self.warps()
        times = time_rows(self.steps, self.t_min, like)
        for t, s in pairwise(times):
            noise_t = process.schedule(t)
            noise_s = process.schedule(s)
            # (sigma(t) - sigma(s)) prior(x), the forward rate from any y to x over the step: B L
            gap = noise_t.since(noise_s)
            to_x = wide(gap.sigma)[:, None] * lookup(
                process.prior_at(noise_t, noise_s), x
            )
            u = torch.rand_like(to_x)
            at = ~like.fixed & (to_x > 0)
            if not predicts_scores:
                # p_t(x) is then at least (1 - alpha) prior(x), which bounds the rate to leave x:
                # positions whose u exceeds the bound stay without a call of the model.
                prior_prob = lookup(process.prior_at(noise_t), x)
                least = one_minus_exp(wide(noise_t.sigma)[:, None]) * prior_prob
                largest_rate = to_x * (1 - least) / least
                at &= u < one_minus_exp(largest_rate)

            # The rate to leave x, sum over y != x of to_x s(y): N
            rows = warp_prediction(model(State.of(x), t, at=at), self)
            leave_rate = to_x[at] * wide(log_leaving(rows, x[at][None])[0]).exp()
            leaves = u[at] < one_minus_exp(leave_rate)

            # Where to: y != x with odds s(y)
            jumps = at.masked_scatter(at, leaves)
            log_score = rows.at(leaves[None]).log_score()[0]
            log_odds = log_score.scatter(-1, x[jumps][:, None], -torch.inf)
            x = x.masked_scatter(jumps, draw_log(log_odds))
            yield x

        where = uncertain(process, x, like)
        rows = warp_prediction(model(State.of(x), times[-1], at=where), self)
        yield fill(x, where, rows)
