"""Masked cross-entropy from hidden states, in closed form. Letters: N rows, V vocabulary, n rows of one tile."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from dither.registry.contracts.records import Noised, over

from .tiled_linear import TiledLinear, fill_outside

__all__ = ["masked_ce_of_logits"]


def masked_ce_of_logits(
    head: TiledLinear,
    noised: Noised,
    support: Bool[Tensor, "rows V"],
    share: Float[Tensor, " N"],
    *,
    weighted: bool = True,
) -> Float[Tensor, " N"]:
    """Return the loss of each row, and accumulate its gradient times `share`.

    Args:
        head: The last layer; its output are logits of the clean id.
        noised: Record of each row, `N 1`; those with a share are masked.
        support: Clean ids.
        share: Weight of each row in the total.
        weighted: Multiply with sigma' / (exp(sigma) - 1), as the bound does.

    Returns:
        The loss per row, without its share.
    """
    sigma, rate = (
        over(value, noised.x0)[:, 0] for value in (noised.noise.sigma, noised.noise.rate)
    )
    weight = (
        torch.where(sigma > 0, rate / sigma.expm1(), 0.0) if weighted else torch.ones_like(sigma)
    )
    weight = weight.to(head.h.dtype)
    counted = (weight * share.to(weight.dtype))[:, None]
    x0 = noised.x0[:, 0]
    own = head.output_at(noised.x0[:, 0])
    log_sum = torch.zeros_like(own)
    rest = torch.zeros_like(own)
    each = torch.zeros_like(counted)
    for rows in head.rows():
        here = x0[rows, None]
        logits = fill_outside(head.table(rows), support[0], -torch.inf).scatter_(
            1, here, own[rows, None]
        )
        top = logits.amax(-1, keepdim=True)
        odds = logits.sub_(top).exp_()
        total = odds.sum(-1, keepdim=True)
        log_sum[rows] = (top + total.log())[:, 0]
        if head.needs_grad:  # the gradient at x0 is separate: p - 1 is minus the sum of all others
            odds.scatter_(1, here, 0.0)
            each[rows] = counted[rows] / total
            rest[rows] = odds.sum(-1)
            head.backward_rows(odds, each[rows], rows)
    if head.needs_grad:
        head.scale(each)
        head.backward_at(-rest * each[:, 0], x0)
    return (log_sum - own) * weight
