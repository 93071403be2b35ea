"""Temperature, top-k and top-p. Letters: B batch, L length, V vocabulary, K likeliest ids."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..precision import wide
from .prediction import CategoricalPrediction

if TYPE_CHECKING:
    from dither.registry.contracts.records import Prediction

    from ..samplers.options import TokenSampler

__all__ = ["FEW", "warp_log_probs", "warp_options", "warp_prediction"]

COLDEST = 1e-12
"""Temperatures below count as 0, for log p / temperature would be infinite for all ids."""
FEW = 1024
"""Vocabularies up to this size are sorted; of larger ones, at least this many likeliest ids are
selected."""


def warp_prediction(pred: Prediction, options: TokenSampler) -> Any:
    """Apply temperature, top-k and top-p to a prediction, before x_t is taken into account.

    They change p(x_0 | the other positions), so that they mean the same under every process.
    TypeError if an option is set and the prediction is not a `CategoricalPrediction`.
    """
    if not options.warps():
        return pred
    if not isinstance(pred, CategoricalPrediction):
        raise TypeError(
            f"temperature, top_k and top_p require a CategoricalPrediction, not {type(pred).__name__}"
        )
    return pred.warped(partial(warp_options, options=options))


def warp_options(
    log_p: Float[Tensor, "*B V"], options: TokenSampler
) -> Float[Tensor, "*B V"]:
    """Apply temperature, top-k and top-p of a sampler to log-probabilities."""
    return warp_log_probs(log_p, options.temperature, options.top_k, options.top_p)


def warp_log_probs(
    log_p: Float[Tensor, "*B V"],
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float = 1.0,
) -> Float[Tensor, "*B V"]:
    """Apply temperature, then top-k, then top-p (nucleus, Holtzman et al. 2020); return log-probabilities, normalised.

    Args:
        log_p: Log-probabilities, normalised.
        temperature: Divides log p; 0 keeps only the likeliest id.
        top_k: Number of likeliest ids to keep; None for all.
        top_p: Keep the smallest set of likeliest ids with at least this probability.
    """
    count = top_k
    if temperature < COLDEST:
        count = 1
    else:
        log_p = (log_p / temperature).log_softmax(-1)
    if count is None and top_p == 1:
        return log_p

    # The K likeliest ids in descending order: *B K
    falling, ids = _sorted_log_probs(log_p, count, top_p)
    # top-p is a share of the probability that top-k leaves.
    p = wide(falling)
    p = p.exp() if count is None else p.softmax(-1)

    # An id stays if the probability before it is below top_p, so that the first always stays.
    before = p.cumsum(-1) - p
    falling = falling.masked_fill(before >= top_p, -torch.inf).log_softmax(-1)
    return torch.full_like(log_p, -torch.inf).scatter_(-1, ids, falling)


def _sorted_log_probs(
    log_p: Float[Tensor, "*B V"], top_k: int | None, top_p: float
) -> tuple[Float[Tensor, "*B K"], Int[Tensor, "*B K"]]:
    """Return the likeliest ids in descending order: `top_k` of them, or at least a set of probability `top_p`.

    Of a large vocabulary a few are selected instead of sorting all, and more only if these are not
    enough.
    """
    vocab = log_p.shape[-1]
    if vocab <= FEW:
        falling, ids = log_p.sort(dim=-1, descending=True, stable=True)
        return falling[..., :top_k], ids[..., :top_k]

    count = min(top_k or FEW, vocab)
    falling, ids = log_p.topk(count, -1)
    if top_k is not None:
        return falling, ids
    # Reading whether the probability suffices waits for the device, so that there are few rounds.
    while count < vocab and bool((wide(falling).exp().sum(-1) < top_p).any()):
        count = min(8 * count, vocab)
        falling, ids = log_p.topk(count, -1)
    return falling, ids
