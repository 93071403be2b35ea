"""Cross-entropy and score entropy as functions of logits, with their gradients in closed form.

Rows are samples of length 1, all of them targets. Logits are overwritten, to save memory. Letters:
n rows, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dither.registry.contracts.records import Noised, over

from .tokens import FAR, reveal_rate

__all__ = [
    "Support",
    "logit_cross_entropy",
    "logit_score_entropy",
    "set_entries",
    "simple_prior",
]

MIN_LOG_RATIO = -60.0
"""Lower bound of log r; the error is exp(-60) of a token."""

Support = Callable[[Any], Bool[Tensor, "rows V"]]
"""Device -> ids for which the raw output is used."""


@torch.no_grad()
def logit_cross_entropy(
    logits: Float[Tensor, "n V"], noised: Noised, *, support: Support, weighted: bool
) -> tuple[Float[Tensor, " n"], Float[Tensor, "n V"]]:
    """Return -log p(x_0 | x_t) of each row in nats, and its gradient in the logits.

    Args:
        logits: Logits of the clean id; overwritten.
        noised: The rows.
        support: Clean ids, whose logits alone are normalised; the others have gradient 0.
        weighted: Whether to multiply both by sigma' / (exp(sigma) - 1), as the bound is.
    """
    # -log softmax(logits)(x_0): n V -> n
    logits.masked_fill_(~support(logits.device)[0], -torch.inf)
    log_sum = logits.logsumexp(-1, keepdim=True)
    values = (log_sum - logits.gather(1, noised.x0))[:, 0]

    # d/dlogits = softmax(logits) - onehot(x_0)
    grad = logits.sub_(log_sum).exp_()
    grad = set_entries(grad, noised.x0, grad.gather(1, noised.x0) - 1.0)
    if not weighted:
        return values, grad

    weight = reveal_rate(noised).to(values.dtype)
    return values * weight[:, 0], grad.mul_(weight)


@torch.no_grad()
def logit_score_entropy(
    logits: Float[Tensor, "n V"], noised: Noised, *, support: Support, absorbing: bool
) -> tuple[Float[Tensor, " n"], Float[Tensor, "n V"]]:
    """Return the score entropy of each row in nats (SEDD, Lou et al. 2023, eq. 5), and its gradient in the log scores.

    For a `simple_prior`. Each term is r (exp(d) - 1 - d) with d = log s - log r. The ratio r is the same for all y but
    x_0 and x_t, so that it comes out of the sum; x_0 has its own term, and x_t none.

    Args:
        logits: Log scores; overwritten.
        noised: The rows.
        support: Ids whose score may differ from 0.
        absorbing: Whether the prior is all on one id, so that r is 0 for all y but x_0.
    """
    assert noised.prior is not None
    x = noised.state.x
    x0 = noised.x0
    prior = noised.prior[0]
    moved = x != x0

    # In logarithms of 1 - alpha, as 1 - V / (exp(sigma) - 1 + V) cancels for small sigma.
    sigma = over(noised.noise.sigma, x0)
    log_alpha = -sigma.to(prior.dtype)
    log_one_minus_alpha = (-log_alpha.expm1()).log()
    # log((1 - alpha) prior(x_t)) and log q(x_0 | x_0): n 1
    log_drawn = log_one_minus_alpha + prior[x].log()
    log_prob_x0 = torch.logaddexp(log_alpha, log_one_minus_alpha + prior[x0].log())

    # r of all other ids: prior(y) / prior(x_t) = 1 if the token moved; else it is less, for
    # q(x_t | x_0) counts staying, too.
    stayed = log_drawn - torch.logaddexp(log_alpha, log_drawn)
    log_ratio = torch.where(moved, 0.0, stayed).clamp_min(MIN_LOG_RATIO)
    log_ratio_x0 = torch.where(prior[x] > 0, log_prob_x0 - log_drawn, 0.0)

    # sigma' prior(x_t), the forward rate to x_t
    rate = over(noised.noise.rate, x0).to(prior.dtype)
    weight = rate * prior[x]

    # The term of x_0, in the precision of the schedule.
    log_score = logits.gather(1, x0).to(prior.dtype)
    gap_x0 = (log_score - log_ratio_x0).masked_fill(~moved, 0.0)
    ratio = log_ratio_x0.exp()
    score = log_score.exp()
    rise = gap_x0.expm1()
    term_x0 = torch.where(gap_x0 < FAR, ratio * (rise - gap_x0), score)
    grad_x0 = torch.where(gap_x0 < FAR, ratio * rise, score)

    # Those of all other ids, relative to r. Without a ratio a term is the score alone.
    no_term = -torch.inf if absorbing else 0.0
    gap = logits.sub_(log_ratio.to(logits.dtype))
    gap.masked_fill_(~support(logits.device)[0], no_term)
    gap = set_entries(set_entries(gap, x, no_term), x0, no_term)
    if absorbing:
        grad = gap.exp_()
        term_sum = grad.sum(-1, keepdim=True)
    else:
        # sum of exp(d) - 1 - d, whose gradient is exp(d) - 1
        gap_sum = gap.sum(-1, keepdim=True)
        grad = gap.expm1_()
        term_sum = (grad.sum(-1, keepdim=True) - gap_sum).clamp_min(0.0)

    factor = log_ratio.exp() * weight
    term_x0 = torch.where(moved, term_x0, 0.0)
    values = factor * term_sum + weight * term_x0
    grad.mul_(factor.to(grad.dtype))
    grad_x0 = torch.where(moved, grad_x0 * weight, 0.0)
    return values[:, 0], set_entries(grad, x0, grad_x0.to(grad.dtype))


def set_entries(
    values: Float[Tensor, "n V"],
    ids: Int[Tensor, "n 1"],
    entries: Float[Tensor, "n 1"] | float,
) -> Float[Tensor, "n V"]:
    """Return the values with one entry a row replaced; they may be overwritten."""
    # A scatter cannot be fused with what is computed before and after it.
    if torch.compiler.is_compiling():
        columns = torch.arange(values.shape[1], device=values.device)
        return torch.where(columns == ids, entries, values)
    return values.scatter_(1, ids, entries)


def simple_prior(
    prior: Float[Tensor, "rows V"], support: Bool[Tensor, "rows V"]
) -> bool:
    """Whether the prior is uniform over all reachable ids, or all on one."""
    if len(prior) != 1 or len(support) != 1:
        return False
    inside = prior[0] > 0
    # All on one id
    if int(inside.sum()) == 1:
        return True
    inside_probs = prior[0][inside]
    equal = bool((inside_probs == prior.max()).all())
    return equal and torch.equal(inside, support[0])
