"""Token predictions: raw model output as log p(x_0 | x_t), as logits to plug in, or as log scores.

Letters: B batch, L length, V vocabulary, N chosen positions, n those of one chunk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dither.registry.contracts.records import none_chosen, prediction_rows, select_rows

from ..precision import wide
from .categorical import draw_log
from .posterior import Posterior, lookup

if TYPE_CHECKING:
    from ..options import PredictionType

__all__ = ["CategoricalPrediction", "clean_rows", "context_rows", "log_leaving", "sample_clean"]


class CategoricalPrediction:
    """Raw model output with its meaning; a `TokenPrediction` and a `RowPrediction`.

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
        return (
            self.log
            if self.predict == "posterior"
            else self.posterior.posterior(self.log_context())
        )

    def log_context(self) -> Float[Tensor, "B L V"]:
        """Return log p(x_0 | the other positions), normalised: the x_0 to plug into q(x_s | x_t, x_0)."""
        if self.predict == "posterior":
            return self.posterior.context(self.log)
        return self.log if self.predict == "plug-in" else self.posterior.context_of_score(self.log)

    def log_score(self) -> Float[Tensor, "B L V"]:
        """Return log p_t(y) / p_t(x_t) with one position changed to y; 0 at y = x_t.

        Under an absorbing prior it is exact at MASK, the only place where a reverse rate needs it.
        """
        return self.log if self.predict == "score" else self.posterior.score(self.log_context())

    def log_leaving(self) -> Float[Tensor, "B L"]:
        """Return the log of the sum of all scores except that of x_t, (1 - p_t(x_t)) / p_t(x_t)."""
        x = self.posterior.x
        posterior = self.posterior
        if self.predict == "score":
            return self.log.scatter(-1, x[..., None], -torch.inf).logsumexp(-1)
        log_m = wide(self.log_context().gather(-1, x[..., None])[..., 0])
        alpha = posterior.log_alpha.exp()
        noise_share = posterior.log_one_minus_alpha.exp()
        prior_prob = lookup(posterior.prior, x)
        away = -alpha * log_m.expm1() + noise_share * (1 - prior_prob)
        return away.log() - (alpha * log_m.exp() + noise_share * prior_prob).log()

    def warped(self, warp: Callable[[Tensor], Tensor]) -> CategoricalPrediction:
        """Apply temperature, top-k or top-p to log p(x_0 | the other positions)."""
        return CategoricalPrediction(warp(self.log_context()), "plug-in", self.posterior)

    def rows(self, where: Bool[Tensor, "B L"]) -> Iterator[CategoricalPrediction]:
        """Yield the prediction of the chosen positions, as one sample `1 N V`."""
        if not none_chosen(where):
            yield CategoricalPrediction(
                select_rows(self.log, where)[None], self.predict, self.posterior.rows(where)
            )


def context_rows(
    pred: Any, posterior: Posterior, where: Bool[Tensor, "B L"]
) -> Iterator[tuple[slice, Float[Tensor, "n V"]]]:
    """Yield log p(x_0 | the other positions) of the chosen positions in order, from any `TokenPrediction`."""
    start = 0
    for rows in prediction_rows(pred, where):
        if isinstance(rows, CategoricalPrediction):
            log = rows.log_context()[0]
        else:
            log = rows.log_clean()[0]
            part = torch.zeros_like(where)
            part[tuple(where.nonzero()[start : start + len(log)].T)] = True
            log = posterior.rows(part).context(log[None])[0]
        yield slice(start, start + len(log)), log
        start += len(log)


def clean_rows(pred: Any, where: Bool[Tensor, "B L"]) -> Iterator[Float[Tensor, "n V"]]:
    """Yield log p(x_0 | x_t) of the chosen positions in order, from any `TokenPrediction`."""
    for rows in prediction_rows(pred, where):
        yield rows.log_clean()[0]


def log_leaving(rows: Any, x: Int[Tensor, " N"]) -> Float[Tensor, " n"]:
    """Return the log of the sum of all scores except that of x_t, for rows of any `TokenPrediction`.

    `x` holds x_t of these positions, and perhaps of later ones.
    """
    if isinstance(rows, CategoricalPrediction):
        return rows.log_leaving()[0]
    log_score: Tensor = rows.log_score()[0]
    return log_score.scatter(-1, x[: len(log_score), None], -torch.inf).logsumexp(-1)


def sample_clean(pred: Any, where: Bool[Tensor, "B L"]) -> Int[Tensor, " N"]:
    """Draw from p(x_0 | x_t) at the chosen positions, from any `TokenPrediction`."""
    none = torch.zeros(0, dtype=torch.long, device=where.device)
    return torch.cat([none, *(draw_log(log) for log in clean_rows(pred, where))])
