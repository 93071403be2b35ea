"""Posterior of a clean id given its noised one, in three equivalent forms; all in logarithms.

    q(x_t | x_0) = alpha [x_t = x_0] + (1 - alpha) prior(x_t)

- context    m(x_0) = p(x_0 | the other positions), without this position.
- posterior  p(x_0 | x_t), proportional to m(x_0) q(x_t | x_0).
- score      s(y) = p_t(y) / p_t(x_t), p_t(y) = alpha m(y) + (1 - alpha) prior(y).

q(x_t | x_0) is the same for every x_0 but x_t itself, so posterior and context differ at one id, by
`gain`. Scores sum to 1 / p_t(x_t), so that their softmax is p_t, and m = (p_t - (1 - alpha) prior)
/ alpha.
Letters: B batch, L length, V vocabulary, rows one per position or one for all.
"""

from __future__ import annotations

from functools import cached_property

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor
from torch.nn.functional import softplus

from dither.registry.contracts.records import Noise, over
from dither.registry.contracts.tensors import lookup

from ..precision import piece_size, wide
from .categorical import block_sums

__all__ = ["Posterior", "noise_at", "rows_at"]

LARGE_VOCAB = 4096
"""Number of ids above which `context_of_score` computes in the precision of the score."""


def noise_at(noise: Noise, where: Bool[Tensor, "B L"]) -> Noise:
    """Return the noise of the chosen positions, in order, as one sample `1 N`."""
    sigma = over(noise.sigma, where).expand(where.shape)
    rate = over(noise.rate, where).expand(where.shape)
    return Noise(sigma[where][None], rate[where][None])


def rows_at(
    table: Shaped[Tensor, "*B rows V"], where: Bool[Tensor, "B L"]
) -> Shaped[Tensor, "rows V"]:
    """Return a table with a row per chosen position; one row for all is kept."""
    if table.ndim == 2 and len(table) == 1:
        return table
    return table.expand(*where.shape, -1)[where]


class Posterior:
    """x_t = x at a noise level, under a prior.

    Args:
        x: The noised ids.
        noise: The level, per sample or per position.
        prior: Distribution of replaced tokens; rows sum to 1. With the batch dimension if it
            depends on the noise.
        clean: True for the ids that clean data may hold.

    Attributes:
        determined: True where the prior cannot produce x, so that x_0 = x.
    """

    def __init__(
        self,
        x: Int[Tensor, "B L"],
        noise: Noise,
        prior: Float[Tensor, "*B rows V"],
        clean: Bool[Tensor, "rows V"],
    ) -> None:
        self.x = x
        self.noise = noise
        self.prior = prior
        self.clean = clean
        self.log_alpha = -wide(over(noise.sigma, x))
        self._prior_prob = lookup(prior, x)
        self.determined = (self._prior_prob == 0) | (self.log_alpha == 0)

    @cached_property
    def log_one_minus_alpha(self) -> Float[Tensor, "B *L"]:
        """log(1 - alpha), shaped to broadcast over x."""
        return (-self.log_alpha.expm1()).log()

    @cached_property
    def gain(self) -> Float[Tensor, "B L"]:
        """The logarithm of q(x_t | x_0 = x_t) over that of any other x_0; 0 where x_0 is determined."""
        # log(1 + alpha / ((1 - alpha) prior(x_t)))
        log_replaced = self.log_one_minus_alpha + self._prior_prob.log()
        log_odds = self.log_alpha - log_replaced
        gain = torch.logaddexp(torch.zeros_like(log_odds), log_odds)
        return gain.masked_fill(self.determined, 0.0)

    def at(self, where: Bool[Tensor, "B L"]) -> Posterior:
        """Return the chosen positions, in order, as one sample `1 N`."""
        noise = noise_at(self.noise, where)
        prior = rows_at(self.prior, where)
        clean = rows_at(self.clean, where)
        return Posterior(self.x[where][None], noise, prior, clean)

    def normalize(self, raw: Float[Tensor, "B L V"]) -> Float[Tensor, "B L V"]:
        """Normalise logits over the possible clean ids; where x_0 is determined, all mass is on x (SUBS of MDLM)."""
        return self.restrict(raw).log_softmax(-1)

    def restrict(self, raw: Float[Tensor, "B L V"]) -> Float[Tensor, "B L V"]:
        """Return logits of the possible clean ids, -inf for others; where x_0 is determined, 0 for x alone."""
        determined = self.determined[..., None]
        possible = self.clean & ~determined
        restricted = raw.masked_fill(~possible, -torch.inf)

        # The logit of a certain x is set, for raw output may hold -inf there (PAD).
        x = self.x[..., None]
        logit_x = restricted.gather(-1, x).masked_fill(determined, 0.0)
        return restricted.scatter(-1, x, logit_x)

    def posterior(self, log_context: Float[Tensor, "B L V"]) -> Float[Tensor, "B L V"]:
        """Context -> posterior."""
        return self._shift(log_context, self.gain)

    def context(self, log_posterior: Float[Tensor, "B L V"]) -> Float[Tensor, "B L V"]:
        """Posterior -> context."""
        return self._shift(log_posterior, -self.gain)

    def _shift(
        self, log: Float[Tensor, "B L V"], by: Float[Tensor, "B L"]
    ) -> Float[Tensor, "B L V"]:
        # q(x_t | x_0) differs at x_0 = x_t alone.
        by = by[..., None].to(log.dtype)
        return log.scatter_add(-1, self.x[..., None], by).log_softmax(-1)

    def score(self, log_context: Float[Tensor, "B L V"]) -> Float[Tensor, "B L V"]:
        """Context -> score; 0 at x."""
        # log(alpha m / (1 - alpha)); the clamp keeps it finite at sigma = 0, where all other
        # scores are 0.
        log_odds = self.log_alpha - self.log_one_minus_alpha.clamp_min(-80.0)
        log_m = log_context + log_odds[..., None].to(log_context.dtype)

        # log p_t(y) / (1 - alpha) = log(alpha m / (1 - alpha) + prior), with gradients that stay
        # finite where m = 0
        reached = self.prior > 0
        log_prior = torch.where(reached, self.prior, 1.0).log().to(log_m.dtype)
        log_sum = log_prior + softplus(log_m - log_prior, threshold=40.0)
        log_p_t = torch.where(reached, log_sum, log_m)
        return log_p_t - log_p_t.gather(-1, self.x[..., None])

    def context_of_score(
        self, log_score: Float[Tensor, "B L V"]
    ) -> Float[Tensor, "B L V"]:
        """Score -> context. Negative probabilities of an inconsistent score are set to 0.

        m is the difference p_t - (1 - alpha) prior, which has no significant digits below the
        rounding of the score. There it is kept positive, proportional to p_t, so that equal scores
        give a uniform context. m is computed in float64; for a large vocabulary only its terms per
        position are, for that would take most of a sampling step.
        """
        rounding = torch.finfo(log_score.dtype).eps
        rows, length, vocab = log_score.shape
        if vocab <= LARGE_VOCAB:
            log_m = self._context_of_score(wide(log_score), rounding)
            return log_m.to(log_score.dtype)

        # In pieces: on a CPU a step of 79M parameters at t = 0.9 takes 1.4 times as long without.
        size = max(1, piece_size(log_score.device) // (rows * vocab))
        position = torch.arange(length, device=log_score.device).expand(rows, length)
        pieces = []
        for start in range(0, length, size):
            where = (position >= start) & (position < start + size)
            piece = self.at(where)._context_of_score(log_score[where][None], rounding)
            pieces.append(piece.view(rows, -1, vocab))
        return torch.cat(pieces, 1)

    def _context_of_score(
        self, log_score: Float[Tensor, "B L V"], rounding: float
    ) -> Float[Tensor, "B L V"]:
        # Scores of impossible ids may be -inf, and -inf + inf would be NaN.
        finite = log_score
        if not bool(self.clean.all()):
            finite = log_score.masked_fill(~self.clean, 0.0)

        # log p_t(y) = log s(y) - log sum s, so that the log of (1 - alpha) prior / p_t is a sum of
        # a term per position and a term per id; `peak` moves the larger part to the first.
        peak = self.prior.amax(-1, keepdim=True).log()
        per_position = _log_sum(log_score) + self.log_one_minus_alpha[..., None] + peak
        per_id = self.prior.log() - peak
        dtype = log_score.dtype
        log_share = per_id.to(dtype) - finite + per_position.to(dtype)

        # m is proportional to p_t (1 - share).
        log_rest = (-log_share.clamp_max(-rounding).expm1()).log()
        log_m = self.restrict(log_score + log_rest)
        # Not log_softmax, which is off by up to 4e-5 where many numbers are equal.
        return log_m - _log_sum(log_m).to(log_m.dtype)


def _log_sum(log: Float[Tensor, "*B V"]) -> Float[Tensor, "*B 1"]:
    """Return the logarithm of the sum of exp(log), in float64 from sums of blocks."""
    top = log.detach().amax(-1, keepdim=True)
    return wide(block_sums((log - top).exp())).sum(-1, keepdim=True).log() + top
