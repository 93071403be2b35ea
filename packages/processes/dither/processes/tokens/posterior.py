"""What one noised id says of the clean one, and the three ways to say it; all in logarithms.

    q(x_t | x_0) = alpha [x_t = x_0] + (1 - alpha) prior(x_t)

- context    m(x_0) = p(x_0 | the other positions): what the model believes before it looks at this position.
- posterior  p(x_0 | x_t), proportional to m(x_0) q(x_t | x_0).
- score      s(y) = p_t(y) / p_t(x_t) = (alpha m(y) + (1 - alpha) prior(y)) / (alpha m(x_t) + (1 - alpha) prior(x_t)).

q(x_t | x_0) is the same for every x_0 but x_t itself, so posterior and context differ at one id, by `gain`. Scores sum
to 1 / p_t(x_t), so that their softmax is p_t, and m = (p_t - (1 - alpha) prior) / alpha.
Letters: B batch, L length, V vocabulary, rows one per position or one for all.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor
from torch.nn.functional import softplus

from dither.registry.flow.records import Noise, over

from ..precision import wide

__all__ = ["Posterior", "lookup"]


def lookup(table: Shaped[Tensor, "rows V"], x: Int[Tensor, "B L"]) -> Shaped[Tensor, "B L"]:
    """Read the row of each position at its id."""
    return table.expand(x.shape[1], -1)[torch.arange(x.shape[1], device=x.device), x]


class Posterior:
    """x_t = x at a noise level, under a prior.

    Args:
        x: The noised ids.
        noise: The level, per sample or per position.
        prior: Where moved tokens land; rows sum to 1.
        clean: True for the ids that clean data may hold.

    Attributes:
        sure: True where x must be clean, because the prior cannot have put it there: then x_0 = x.
    """

    def __init__(
        self,
        x: Int[Tensor, "B L"],
        noise: Noise,
        prior: Float[Tensor, "rows V"],
        clean: Bool[Tensor, "rows V"],
    ) -> None:
        self.x, self.noise, self.prior, self.clean = x, noise, prior, clean
        self.log_alpha = -wide(over(noise.sigma, x))
        self.log_lost = (-self.log_alpha.expm1()).log()
        landed = self.log_lost + lookup(prior, x).log()
        self.sure = landed == -torch.inf
        gain = torch.logaddexp(torch.zeros_like(landed), self.log_alpha - landed)
        self.gain = gain.masked_fill(self.sure, 0.0)

    def rows(self, where: Bool[Tensor, "B L"]) -> Posterior:
        """Return what is known of some positions, as if they were one sample of as many positions, `1 n`."""

        def chosen(value: Tensor) -> Tensor:
            return over(value, self.x).expand(self.x.shape)[where][None]

        prior, clean = self.prior, self.clean
        if len(prior) > 1:
            place = where.nonzero()[:, 1]
            prior, clean = prior[place], clean[place]
        noise = Noise(chosen(self.noise.sigma), chosen(self.noise.rate))
        return Posterior(self.x[where][None], noise, prior, clean)

    def settle(self, raw: Float[Tensor, "B L V"]) -> Float[Tensor, "B L V"]:
        """Normalise logits over the clean ids that can be; where x is sure, all is on x (SUBS of MDLM)."""
        if raw.device.type == "cpu" and not self.sure.any():  # elsewhere the host would have to wait for the answer
            return (raw if self.clean.all() else raw.masked_fill(~self.clean, -torch.inf)).log_softmax(-1)
        here = torch.arange(raw.shape[-1], device=raw.device) == self.x[..., None]
        sure = self.sure[..., None]
        logits = raw.masked_fill(torch.where(sure, ~here, ~self.clean), -torch.inf)
        # Where x is sure its own logit does not matter, and may be -inf (PAD).
        return logits.masked_fill_(sure & here, 0.0).log_softmax(-1)

    def posterior(self, log_context: Float[Tensor, "B L V"]) -> Float[Tensor, "B L V"]:
        """Context -> posterior."""
        return self._shift(log_context, self.gain)

    def context(self, log_posterior: Float[Tensor, "B L V"]) -> Float[Tensor, "B L V"]:
        """Posterior -> context."""
        return self._shift(log_posterior, -self.gain)

    def _shift(self, log: Float[Tensor, "B L V"], by: Float[Tensor, "B L"]) -> Float[Tensor, "B L V"]:
        return log.scatter_add(-1, self.x[..., None], by[..., None].to(log.dtype)).log_softmax(-1)

    def score(self, log_context: Float[Tensor, "B L V"]) -> Float[Tensor, "B L V"]:
        """Context -> score; 0 at x."""
        odds = self.log_alpha - self.log_lost.clamp_min(-80.0)  # finite at sigma = 0, where every other score is 0
        log_m = log_context + odds[..., None].to(log_context.dtype)
        reached = self.prior > 0
        log_prior = torch.where(reached, self.prior, 1.0).log().to(log_m.dtype)
        # log(m + prior), with gradients that stay finite where m = 0; relative to 1 - alpha, as m is here.
        mixed = torch.where(reached, log_prior + softplus(log_m - log_prior, threshold=40.0), log_m)
        return mixed - mixed.gather(-1, self.x[..., None])

    def context_of_score(self, log_score: Float[Tensor, "B L V"]) -> Float[Tensor, "B L V"]:
        """Score -> context. A score that no context could have is brought to the nearest: what would be negative is 0.

        m is a difference, so it cannot be told from 0 below the rounding of the score; there it is kept positive, in
        proportion to p_t, so that equal scores give an even context at any noise.
        """
        log_p = log_score.log_softmax(-1)
        log_noise = (self.log_lost[..., None] + self.prior.log()).to(log_p.dtype)
        share = (log_noise - log_p.masked_fill(~self.clean, 0.0)).exp()
        share = share.clamp_max(1 - torch.finfo(log_p.dtype).eps)
        return self.settle(log_p + (-share).log1p())
