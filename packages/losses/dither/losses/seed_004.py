"""The loss of seed 004 as its document writes it, kept to compare with. Letters: B batch, L length, V vocabulary."""

from __future__ import annotations

import torch
from torch import Tensor

from dither.registry.flow.records import Measured, Noised, TokenPrediction, over

__all__ = ["seed_004"]


def seed_004(pred: TokenPrediction, noised: Noised) -> Measured:
    """Return p - n + c with s = softmax(l), l = 0 at x = x_t, e = exp(sigma) - 1 and r = 1 - V / (e + V).

        p = mean_v s_v - s_x / V
        n = r p where x = x_0, else s_{x_0} / e + p
        c = (V-1)/V r (log r - 1) where x = x_0, else ((-log r - 1) / r - (V - 2)) / V

    c is right; s should be exp(l), and n should have l in place of s. As it is, p - n is linear in s, so that it is
    least where all of s is on one id, whatever the data: logits grow without end. The rate is missing, too.

    The means over v are those over the prior, which is even over the ids of a field. r is computed in float64: in
    float32 it cancels to 0 for most V, and its logarithm with it. Weights are 1 on real positions that are not known.

    Raises:
        TypeError: The record comes from no token process.
    """
    if noised.prior is None:
        raise TypeError("the loss of seed 004 needs a token process; features have no prior over ids")
    x, x0 = noised.state.x, noised.x0
    share = noised.prior.expand(x.shape[1], -1).gather(1, x.T).T  # 1 / V
    active = ~noised.fixed & (share > 0)
    s = torch.where(active[..., None], pred.log_score(), 0.0).softmax(-1)
    s_x, s_x0 = (s.gather(-1, ids[..., None])[..., 0] for ids in (x, x0))
    e = over(noised.noise.sigma, x).to(share.dtype).expm1()
    size = torch.where(active, share, 1.0).reciprocal()
    r = 1 - size / (e + size)
    p = (s * noised.prior.to(s.dtype)).sum(-1) - s_x * share
    n = torch.where(x == x0, r * p, s_x0 / torch.where(x == x0, 1.0, e) + p)
    stayed = (size - 1) / size * (torch.special.xlogy(r, r) - r)
    safe = torch.where(x == x0, 1.0, r)  # a token that has moved was moved by some noise, so that r > 0
    moved = ((-safe.log() - 1) / safe - (size - 2)) / size
    values: Tensor = torch.where(active, p - n + torch.where(x == x0, stayed, moved), 0.0).to(s.dtype)
    return Measured(values, (~noised.fixed).to(values.dtype))
