"""Score entropy from hidden states, in closed form. Letters: N rows, V vocabulary.

Of a row, the sum over y of  s - r log s + r (log r - 1)  has no normaliser that runs over all ids:
these may be gone through in any order, and no row is ever there as a whole. Each term is r (exp(d)
- 1 - d) with d = log s - log r. Where the prior is even, r is the same for all y but x_0 and x_t,
which stand apart, and comes out of the sum.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dither.registry.contracts.records import Noised, over

from ..tokens import FAR
from .tiled_linear import TiledLinear, fill_outside

__all__ = ["score_entropy_of_scores", "simple_prior"]

MIN_LOG_RATIO = -60.0
"""Lower bound of log r; the error is exp(-60) of a token."""


def simple_prior(prior: Float[Tensor, "rows V"], support: Bool[Tensor, "rows V"]) -> bool:
    """Whether the prior is uniform over all reachable ids, or all on one."""
    if len(prior) != 1 or len(support) != 1:
        return False
    inside = prior[0] > 0
    even = torch.equal(inside, support[0]) and bool((prior[0][inside] == prior.max()).all())
    return even or int(inside.sum()) == 1


@dataclass(frozen=True)
class _Rows:
    """Inputs of the closed form for each row.

    Attributes:
        x: Noised ids.
        x0: Clean ids.
        weight: Of the row in the loss.
        log_ratio: log r of all ids but x_t and x_0; 0 where r is 0 for all of these.
        own: log r at x_0.
        absent: Whether r is 0 but at x_0.
    """

    x: Int[Tensor, " N"]
    x0: Int[Tensor, " N"]
    weight: Float[Tensor, " N"]
    log_ratio: Float[Tensor, " N"]
    own: Float[Tensor, " N"]
    absent: bool

    @classmethod
    def of(cls, noised: Noised, absent: bool) -> _Rows:
        """Compute the inputs of rows; finite, but without meaning, where the clean id is certain."""
        assert noised.prior is not None
        x = noised.state.x[:, 0]
        x0 = noised.x0[:, 0]
        prior = noised.prior[0]
        log_alpha = -over(noised.noise.sigma, noised.x0).to(prior.dtype)[:, 0]
        log_prior_prob, log_prior_prob_0 = (
            (-log_alpha.expm1()).log() + prior[ids].log() for ids in (x, x0)
        )
        stayed = log_prior_prob - torch.logaddexp(log_alpha, log_prior_prob)
        log_ratio = torch.where(x == x0, stayed, 0.0).clamp_min(MIN_LOG_RATIO)
        own = torch.where(
            prior[x] > 0, torch.logaddexp(log_alpha, log_prior_prob_0) - log_prior_prob, 0.0
        )
        weight = over(noised.noise.rate, noised.x0).to(prior.dtype)[:, 0] * prior[x]
        return cls(x, x0, weight, log_ratio, own, absent)


def score_entropy_of_scores(
    head: TiledLinear,
    noised: Noised,
    support: Bool[Tensor, "rows V"],
    share: Float[Tensor, " N"],
    *,
    absent: bool,
) -> Float[Tensor, " N"]:
    """Return the loss of each row, and accumulate its gradient times `share`.

    Args:
        head: The last layer; its output are log scores.
        noised: Record of each row, `N 1`; those with a share have uncertain clean ids.
        support: Ids whose score may differ from 0.
        share: Weight of each row in the total.
        absent: Whether the prior is all on one id.

    Returns:
        The loss per row, without its share.
    """
    rows = _Rows.of(noised, absent)
    dtype = head.h.dtype
    factor = rows.log_ratio.exp() * rows.weight
    counted = (factor * share).to(dtype)[:, None]
    sums = _over_tiles(head, rows, counted, support[0])
    moved = rows.x != rows.x0
    log_score = head.output_at(rows.x0).to(rows.own.dtype)
    gap = (log_score - rows.own).masked_fill(~moved, 0.0)
    ratio = rows.own.exp()
    score = log_score.exp()
    term = torch.where(gap < FAR, ratio * (gap.expm1() - gap), score)
    grad = torch.where(gap < FAR, ratio * gap.expm1(), score)
    if head.needs_grad:
        head.scale(counted)
        head.backward_at((grad * moved * rows.weight * share).to(dtype), rows.x0)
    return factor * sums + rows.weight * torch.where(moved, term, 0.0)


def _over_tiles(
    head: TiledLinear,
    rows: _Rows,
    counted: Float[Tensor, "N 1"],
    support: Bool[Tensor, " V"],
) -> Float[Tensor, " N"]:
    """Return the sum of exp(d) - 1 - d over all ids but x_t and x_0, or of exp(d) where r is 0 there."""
    sums = torch.zeros_like(rows.weight)
    offset = rows.log_ratio.to(head.h.dtype)[:, None]
    blank = -torch.inf if rows.absent else 0.0
    for ids, blocks in head.tiles():
        weights = head.weights(ids)
        for some in blocks:
            gap = fill_outside(head.output(some, ids, weights, offset[some]), support[ids], blank)
            for apart in (rows.x, rows.x0):
                _blank(gap, apart[some] - ids.start, blank)
            part = 0.0 if rows.absent else gap.sum(-1)
            if rows.absent:
                grad = gap.exp_()
            # Products in bfloat16 round more than exp - 1, which takes a third of the time of expm1
            elif head.half:
                grad = gap.exp_().sub_(1)
            else:
                grad = gap.expm1_()
            sums[some] += (grad.sum(-1) - part).clamp_min(0.0)
            if head.needs_grad:
                head.backward_tile(grad, counted[some], some, ids, weights)
    return sums


def _blank(tile: Float[Tensor, "n v"], column: Int[Tensor, " n"], value: float) -> None:
    """Write a value to one column of each row, if the tile has that column; without synchronising."""
    inside = (column >= 0) & (column < tile.shape[1])
    index = column.clamp(0, tile.shape[1] - 1)[:, None]
    tile.scatter_(1, index, torch.where(inside[:, None], value, tile.gather(1, index)))
