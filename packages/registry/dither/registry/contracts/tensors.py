"""Operations on tensors that several packages share.

Letters: B batch, L length, V vocabulary, rows one per position or one for all.
"""

from __future__ import annotations

import torch
from jaxtyping import Int, Shaped
from torch import Tensor

__all__ = ["at_ids", "at_least_float32", "lookup"]


def at_ids(
    values: Shaped[Tensor, "*N V"], ids: Int[Tensor, " *N"]
) -> Shaped[Tensor, " *N"]:
    """Return the value of each position at its id."""
    return values.gather(-1, ids[..., None])[..., 0]


def lookup(
    table: Shaped[Tensor, "*B rows V"], x: Int[Tensor, "B L"]
) -> Shaped[Tensor, "B L"]:
    """Return the entry of each position's row at its id."""
    if table.ndim == 2 and len(table) == 1:
        return table.take(x)
    return at_ids(table.expand(*x.shape, -1), x)


def at_least_float32(values: Shaped[Tensor, "..."]) -> Shaped[Tensor, "..."]:
    """Return values in float32, or in float64 if they are that.

    Losses, samplers and sinusoids compute so, also with a model in half precision.
    """
    return values.to(torch.promote_types(values.dtype, torch.float32))
