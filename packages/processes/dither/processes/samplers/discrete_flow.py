"""Discrete flow matching (Gat et al. 2024): jumps to a predicted clean token along a mixture path, with a corrector.

Along q(x_t | x_0) = alpha [x_t = x_0] + (1 - alpha) prior, x_0 is drawn from p(x_0 | x_t), and a
token jumps

    to x_0 at the rate alpha' / (1 - alpha), and with a corrector c
    to x_0 at c alpha' / (1 - alpha) and to a draw from the prior at c alpha' / alpha,

which together leave the distribution at each time unchanged. Rates are integrated exactly over a
step, with alpha' positive from noise to data. Under an absorbing prior c = 0 is ancestral sampling.
Letters: B batch, L length.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import TYPE_CHECKING

from pydantic import Field

from dither.registry import Misfit
from dither.registry.kinds import ModelFacts, ProcessFacts

from .options import TokenSteps

if TYPE_CHECKING:
    from jaxtyping import Int
    from torch import Tensor

    from dither.registry.contracts.protocols import Session, TokenProcess
    from dither.registry.contracts.records import Clean

__all__ = ["DiscreteFlow"]


class DiscreteFlow(TokenSteps):
    """Jumps of discrete flow matching for every token process: its process is the mixture path, alpha its kappa.

    The distribution of samples is exact in the limit of many steps, with and without a corrector.
    """

    name = "discrete-flow"
    requires = "tokens"
    corrector: float = Field(0.0, ge=0, le=1000)
    """Strength of the corrector, which replaces tokens by noise and draws them again; 0 for
    none."""

    def check(self, process: ProcessFacts, model: ModelFacts) -> Iterable[Misfit]:
        """Require one distribution of replaced tokens at all times: the rates know no other path."""
        yield from super().check(process, model)
        if process.prior_varies:
            message = f'sampler "{self.name}" requires a constant prior, not process "{process.name}"'
            yield Misfit(
                message,
                (),
                ("process",),
                'use sampler "ancestral"',
                code="process-mismatch",
            )

    def sample(
        self, process: TokenProcess, model: Session, like: Clean
    ) -> Iterator[Int[Tensor, "B L"]]:
        """Yield the state after every step, the clean sample last."""
        import torch

        from dither.registry.contracts.records import State

        from ..precision import one_minus_exp, wide
        from ..timestep_sampling import time_rows
        from ..tokens.temperature import warp_prediction
        from ..tokens.unmasking import fill, uncertain

        x = process.prior(like).x
        times = time_rows(self.steps, self.t_min, like)
        for t, s in pairwise(times):
            sigma = wide(process.schedule(t).sigma)[:, None]
            sigma_s = wide(process.schedule(s).sigma)[:, None]
            log_noise = one_minus_exp(sigma).log()
            log_noise_s = one_minus_exp(sigma_s).log()

            # alpha' / (1 - alpha) is the derivative of -log(1 - alpha), alpha' / alpha that of
            # -sigma: the rates to x_0, and back to the prior, integrate to differences.
            to_x0_rate = (log_noise - log_noise_s) * (1 + self.corrector)
            to_prior_rate = self.corrector * (sigma - sigma_s)
            rate = (to_x0_rate + to_prior_rate).expand(x.shape)

            # A token jumps with probability 1 - exp(-rate), where to in proportion to the rates.
            jumps = (torch.rand_like(rate) < one_minus_exp(rate)) & ~like.fixed
            from_prior = jumps & (torch.rand_like(rate) * rate < to_prior_rate)
            # Where the prior cannot produce x_t, x_0 is x_t.
            to_clean = jumps & ~from_prior & uncertain(process, x, like)

            rows = warp_prediction(model(State.of(x), t, at=to_clean), self)
            x = torch.where(from_prior, process.prior(like).x, x)
            x = fill(x, to_clean, rows)
            yield x

        where = uncertain(process, x, like)
        rows = warp_prediction(model(State.of(x), times[-1], at=where), self)
        yield fill(x, where, rows)
