"""Where tokens lie, as a task tells it. Letters: B batch, L positions of a sample, K tokens (extra ones too)."""

from __future__ import annotations

from collections.abc import Mapping

from jaxtyping import Shaped
from torch import Tensor
from torch.nn import functional

from .block_options import CENTRE

__all__ = ["places_of"]


def places_of(cond: Mapping[str, Tensor], start: int, length: int, extra: int) -> Shaped[Tensor, "B K"]:
    """Return how far tokens lie from the first position of their sample; extra tokens lie where that does.

    Args:
        cond: Conditions by name; that of places is of whole samples.
        start: The first position of the tokens.
        length: Number of their positions.
        extra: Tokens before them that belong to no position.

    Raises:
        ValueError: It is not told where positions lie.
    """
    if CENTRE not in cond:
        raise ValueError(f'the blocks need the condition "{CENTRE}", which is not told')
    places = cond[CENTRE]
    return functional.pad(places[:, start : start + length] - places[:, :1], (extra, 0))
