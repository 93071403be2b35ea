"""Euler steps at the reverse rates of a token process (SEDD, Lou et al. 2023, section 4.1; Campbell et al. 2022).

x jumps to y at the rate sigma'(t) prior(x) s(y): the forward rate from y to x, times the score. A
position leaves with probability 1 - exp(-total rate), which is below 1 for any step, to y with odds
s(y); the rate over a step is taken from sigma(t) - sigma(s), not from sigma'(t) alone. Letters: B
batch, L length.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import Field

from .options import TokenSteps

if TYPE_CHECKING:
    from dither.registry.contracts.protocols import TokenProcess
    from dither.registry.contracts.records import Clean, Noise, State

__all__ = ["Euler"]


class Euler(TokenSteps):
    """Small jumps at the reverse rates of a token process (SEDD), in a form that is stable for any step."""

    name = "euler"
    requires = "tokens"
    steps: int = Field(128, ge=1, le=1_000_000)
    """Steps; the model is called once more, at the end. The distribution of samples is exact in the
    limit of many."""

    def step(
        self,
        process: TokenProcess,
        state: State,
        pred: Any,
        now: Noise,
        then: Noise,
        like: Clean,
    ) -> State:
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
        from ..tokens.categorical import draw_log
        from ..tokens.posterior import lookup
        from ..tokens.prediction import log_leaving

        x = state.x
        prior_prob = lookup(process.prior_probs(x.device), x)
        scale = wide(over(now.since(then).sigma, x)) * prior_prob
        u = torch.rand_like(scale)
        chosen = ~like.fixed & (scale > 0)
        if (
            getattr(pred, "predict", "score") != "score"
        ):  # then p_t(x) is at least (1 - alpha) prior(x)
            least = -(-wide(over(now.sigma, x))).expm1() * prior_prob
            chosen &= u < -(-scale * (1 - least) / least).expm1()
        where = readable_rows(pred, chosen)
        start = 0
        us = select_rows(u, where)
        scales = select_rows(scale, where)
        ids = select_rows(x, where).clone()
        for rows in prediction_rows(pred, where):
            log_rate = log_leaving(rows, ids[start:])
            part = slice(start, start + len(log_rate))
            leaves = us[part] < -(-scales[part] * wide(log_rate).exp()).expm1()
            read = readable_rows(None, leaves)
            for leaving in prediction_rows(rows, read[None]):
                old = select_rows(ids[part], read)
                log_score = leaving.log_score()[0].scatter(-1, old[:, None], -torch.inf)
                ids[part] = put_rows(ids[part], leaves, draw_log(log_score), read)
            start = part.stop
        return State.of(put_rows(x, chosen, ids, where))
