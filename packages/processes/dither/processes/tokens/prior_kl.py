"""KL divergence between q(x_1 | x_0) and the prior: the cost of signal left at t = 1. No torch here."""

from __future__ import annotations

import math

from dither.registry.flow.spaces import TokenSpace

__all__ = ["mean_prior_kl", "prior_kl"]


def prior_kl(ids: int, sigma: float) -> float:
    """Return KL(q(x_1 | x_0) || uniform) in nats, for a token replaced by one of `ids` ids with 1 - exp(-sigma).

    A token stays with s = exp(-sigma) + (1 - exp(-sigma)) / ids, and each other id has 1 - exp(-sigma) times its
    probability under the prior: s log(ids s) + (1 - s) log(1 - exp(-sigma)).
    """
    level = -math.expm1(-sigma)
    stays = math.exp(-sigma) + level / ids
    return stays * math.log(ids * stays) + ((1 - stays) * math.log(level) if level else 0.0)


def mean_prior_kl(space: TokenSpace, sigma: float) -> float:
    """Return the mean over the tokens of a sample, each uniform over the clean ids of its field."""
    costs = ((f.length, prior_kl(f.size - (f.mask is not None) - (f.pad is not None), sigma)) for f in space.fields)
    return sum(length * cost for length, cost in costs) / space.length
