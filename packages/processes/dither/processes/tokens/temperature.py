"""From what a model believes to an id: drawn as it says, or nearer to what is likeliest.

Letters: B batch, L length, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..precision import wide

__all__ = ["FEW", "UNCHANGED", "LogitsWarper"]

FEW = 1024
"""Ids that are sorted whole; of more, so many of the likeliest are looked at first."""


@dataclass(frozen=True)
class LogitsWarper:
    """Sharpens what a model says of the clean ids; the draw itself stays exact, by `draws.draw`.

    It changes p(x_0 | the other positions), before x_t is taken into account, so that it means the same under every
    process. The order is that of language models: temperature, then top_k, then top_p.

    Attributes:
        temperature: log p is divided by it; 0 leaves the likeliest id alone.
        top_k: Only so many of the likeliest ids are kept; None for all.
        top_p: Only the likeliest ids are kept, as few as have this chance together (nucleus, Holtzman et al. 2020).
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float = 1.0

    def __post_init__(self) -> None:
        if not self.temperature >= 0 or not 0 < self.top_p <= 1 or (self.top_k is not None and self.top_k < 1):
            allowed = "a temperature of at least 0, a top_k of at least 1 and a top_p in (0, 1]"
            raise ValueError(f"a choice takes {allowed}, not {self.temperature}, {self.top_k} and {self.top_p}")

    def __call__(self, pred: Any) -> Any:
        """Sharpen a prediction.

        Raises:
            TypeError: There is something to sharpen, and the prediction has no method `sharpened`.
        """
        if self == UNCHANGED:
            return pred
        if not hasattr(pred, "sharpened"):
            raise TypeError(f"temperature, top_k and top_p need a TokenReading, not {type(pred).__name__}")
        return pred.sharpened(self.sharpen)

    def sharpen(self, log_p: Float[Tensor, "*B V"]) -> Float[Tensor, "*B V"]:
        """Return other logarithms of chances, normalised; an id that cannot be never comes in."""
        kept = 1 if self.temperature == 0 else self.top_k
        if self.temperature > 0:
            log_p = (log_p / self.temperature).log_softmax(-1)
        if kept is None and self.top_p == 1:
            return log_p
        falling, ids = _sorted_log_probs(log_p, kept, self.top_p)
        p = wide(falling).exp() if kept is None else wide(falling).softmax(-1)
        # The first id stays whatever top_p is: what comes before it has a chance of 0.
        falling = falling.masked_fill(p.cumsum(-1) - p >= self.top_p, -torch.inf).log_softmax(-1)
        return torch.full_like(log_p, -torch.inf).scatter_(-1, ids, falling)


def _sorted_log_probs(
    log_p: Float[Tensor, "*B V"], kept: int | None, top_p: float
) -> tuple[Float[Tensor, "*B K"], Int[Tensor, "*B K"]]:
    """Return the likeliest ids from the top, `kept` of them, or at least as many as have the chance `top_p` together.

    Of many ids a few are selected, instead of sorting all; more only where these few are not enough.
    """
    vocab = log_p.shape[-1]
    count = vocab if vocab <= FEW and kept is None else min(kept or FEW, vocab)
    if vocab <= FEW:
        falling, ids = log_p.sort(dim=-1, descending=True, stable=True)
        return falling[..., :count], ids[..., :count]
    falling, ids = log_p.topk(count, -1)
    while kept is None and count < vocab and bool((wide(falling).exp().sum(-1) < top_p).any()):
        count = min(8 * count, vocab)
        falling, ids = log_p.topk(count, -1)
    return falling, ids


UNCHANGED = LogitsWarper()
"""Draw as the model says."""
