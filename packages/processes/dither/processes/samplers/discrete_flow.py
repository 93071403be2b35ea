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

from typing import TYPE_CHECKING, Any

from pydantic import Field

from .options import TokenSteps

if TYPE_CHECKING:
    from dither.registry.contracts.protocols import TokenProcess
    from dither.registry.contracts.records import Clean, Noise, State

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

        from dither.registry.contracts.records import State, over

        from ..precision import wide
        from ..tokens.posterior import lookup
        from ..tokens.unmasking import fill

        x = state.x
        before, after = (wide(over(noise.sigma, x)) for noise in (now, then))
        forward = ((-(-before).expm1()).log() - (-(-after).expm1()).log()) * (1 + self.corrector)
        back = self.corrector * (before - after)
        u = torch.rand_like(back.expand(x.shape))
        rate = (forward + back).expand(x.shape)
        jumps = (u < -(-rate).expm1()) & ~like.fixed
        from_prior = jumps & (torch.rand_like(u) * rate < back)
        # Where the prior cannot produce x_t it is clean, and p(x_0 | x_t) is all on it.
        to_clean = jumps & ~from_prior & (lookup(process.prior_probs(x.device), x) > 0)
        new = torch.where(from_prior, process.prior(like).x, x)
        return State.of(fill(new, pred, to_clean))
