"""Attention by torch's flex_attention, which skips blocks of keys that a mask excludes.

Letters: B batch, H heads, L queries, K keys, E head width.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor
from torch.nn.attention import flex_attention as flex
from torch.utils.weak import WeakTensorKeyDictionary

__all__ = ["flex_attention"]

_BLOCK_MASKS: Any = WeakTensorKeyDictionary()
"""Block masks by mask: the layers of a call share one."""


def flex_attention(
    q: Float[Tensor, "B H L E"],
    k: Float[Tensor, "B H K E"],
    v: Float[Tensor, "B H K E"],
    mask: Shaped[Tensor, "B 1 #L K"],
) -> Float[Tensor, "B H L E"]:
    """Return attention over the keys where `mask` is True, 0 for a query without any. The first call compiles.

    A float mask, of one row per sample, is added to the logits in its own precision.

    `attend` does not call it on a CPU, where torch 2.13 has no gradients of it and compiles for
    half a minute.
    """
    run = flex.flex_attention if torch.compiler.is_compiling() else _compiled()
    if mask.dtype == torch.bool:
        return run(q, k, v, block_mask=_block_mask(mask, q.shape[2]))  # type: ignore[no-any-return]

    def weighted(
        score: Tensor,
        b: Tensor,
        h: Tensor,
        i: Tensor,
        j: Tensor,
    ) -> Tensor:
        return score + mask[b, 0, 0, j]

    return run(q, k, v, score_mod=weighted)  # type: ignore[no-any-return]


@torch.compiler.disable  # type: ignore[untyped-decorator]
def _block_mask(mask: Bool[Tensor, "#B 1 #L K"], queries: int) -> Any:
    if mask not in _BLOCK_MASKS:
        table = (
            mask[:, 0].expand(-1, queries, -1).clone()
        )  # a view would keep the mask alive, and so this entry
        last = len(table) - 1

        def allowed(
            b: Tensor,
            h: Tensor,
            i: Tensor,
            j: Tensor,
        ) -> Tensor:
            return table[b.clamp_max(last), i, j]

        rows = len(table) if last else None
        _BLOCK_MASKS[mask] = flex.create_block_mask(
            allowed, rows, None, queries, mask.shape[-1], device=mask.device
        )
    return _BLOCK_MASKS[mask]


@cache
def _compiled() -> Any:
    return torch.compile(flex.flex_attention)
