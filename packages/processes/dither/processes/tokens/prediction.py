"""Token predictions: raw model output as log p(x_0 | x_t), as logits to plug in, or as log scores.

Letters: B batch, L length, V vocabulary, N chosen positions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dither.registry.contracts.records import TokenPrediction
from dither.registry.contracts.tensors import at_ids, lookup

from ..precision import wide
from .posterior import Posterior

if TYPE_CHECKING:
    from ..options import PredictionType

__all__ = ["CategoricalPrediction", "log_context", "log_leaving"]


class CategoricalPrediction(TokenPrediction):
    """Raw model output with its meaning.

    Args:
        log: Log p(x_0 | x_t), normalised (posterior); log p(x_0 | the other positions), normalised
            (plug-in); or log p_t(y) / p_t(x_t), 0 at x_t (score). Impossible ids are at -inf.
        predict: Which of the three `log` is.
        posterior: x_t and its noise.
    """

    def __init__(
        self, log: Float[Tensor, "B L V"], predict: PredictionType, posterior: Posterior
    ) -> None:
        self.log = log
        self.predict = predict
        self.posterior = posterior

    def log_clean(self) -> Float[Tensor, "B L V"]:
        if self.predict == "posterior":
            return self.log
        # score -> context -> posterior
        return self.posterior.posterior(self.log_context())

    def log_context(self) -> Float[Tensor, "B L V"]:
        """Return log p(x_0 | the other positions), normalised: the x_0 to plug into q(x_s | x_t, x_0)."""
        if self.predict == "posterior":
            return self.posterior.context(self.log)
        if self.predict == "score":
            return self.posterior.context_of_score(self.log)
        return self.log

    def log_score(self) -> Float[Tensor, "B L V"]:
        """Return log p_t(y) / p_t(x_t) with one position changed to y; 0 at y = x_t.

        Under an absorbing prior it is exact at MASK, the only place where a reverse rate needs it.
        """
        if self.predict == "score":
            return self.log
        return self.posterior.score(self.log_context())

    def at(self, where: Bool[Tensor, "B L"]) -> CategoricalPrediction:
        log = self.log[where][None]
        return CategoricalPrediction(log, self.predict, self.posterior.at(where))

    def warped(self, warp: Callable[[Tensor], Tensor]) -> CategoricalPrediction:
        """Apply temperature, top-k or top-p to log p(x_0 | the other positions)."""
        return CategoricalPrediction(
            warp(self.log_context()), "plug-in", self.posterior
        )


def log_context(pred: TokenPrediction, posterior: Posterior) -> Float[Tensor, "B L V"]:
    """Return log p(x_0 | the other positions) of any prediction at the state of `posterior`."""
    if isinstance(pred, CategoricalPrediction):
        return pred.log_context()
    return posterior.context(pred.log_clean())


def log_leaving(pred: TokenPrediction, x: Int[Tensor, "B L"]) -> Float[Tensor, "B L"]:
    """Return the log of the sum of all scores except that of x_t, (1 - p_t(x_t)) / p_t(x_t)."""
    if not isinstance(pred, CategoricalPrediction) or pred.predict == "score":
        other_scores = pred.log_score().scatter(-1, x[..., None], -torch.inf)
        return other_scores.logsumexp(-1)

    # From probabilities it needs one id per position instead of the scores of all: B L
    posterior = pred.posterior
    log_m = wide(at_ids(pred.log_context(), x))
    alpha = posterior.log_alpha.exp()
    one_minus_alpha = posterior.log_one_minus_alpha.exp()
    prior_prob = lookup(posterior.prior, x)

    # p_t(x) = alpha m(x) + (1 - alpha) prior(x), and 1 - p_t(x) without cancelling
    stays = alpha * log_m.exp() + one_minus_alpha * prior_prob
    leaves = -alpha * log_m.expm1() + one_minus_alpha * (1 - prior_prob)
    return leaves.log() - stays.log()
