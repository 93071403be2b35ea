"""What it costs the bound that something of the data is left where sampling starts from noise. No torch here."""

from __future__ import annotations

import math

from dither.registry.spaces import TokenSpace

__all__ = ["prior_cost", "prior_cost_of"]


def prior_cost(ids: int, sigma: float) -> float:
    """Return KL(q(x_1 | x_0) || even) in nats, for a token that is moved to one of `ids` ids with 1 - exp(-sigma).

    A token stays with s = exp(-sigma) + (1 - exp(-sigma)) / ids, and each of the others has 1 - exp(-sigma) times its
    chance under the prior: s log(ids s) + (1 - s) log(1 - exp(-sigma)).
    """
    lost = -math.expm1(-sigma)
    stays = math.exp(-sigma) + lost / ids
    return stays * math.log(ids * stays) + ((1 - stays) * math.log(lost) if lost else 0.0)


def prior_cost_of(space: TokenSpace, sigma: float) -> float:
    """Return the mean over the tokens of a sample, each of them even over the clean ids of its field."""
    costs = ((f.length, prior_cost(f.size - (f.mask is not None) - (f.pad is not None), sigma)) for f in space.fields)
    return sum(length * cost for length, cost in costs) / space.length
