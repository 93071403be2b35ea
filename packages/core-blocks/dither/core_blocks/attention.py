"""Self-attention. Letters: B batch, H heads, L queries, K keys, D width, E head width."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Literal

import torch
from einops import rearrange
from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn
from torch.nn import functional

from dither.registry.spec.misfit import raise_misfits

from .cpu.dropout import Dropout, drop
from .cpu.recompute_linear import DeferredInput, apply_linear
from .cpu.tiled_attention import prefers_tiles, tiled_attention
from .kv_cache import KVCache
from .options import FEW, Implementation, QKVBias, misfit_heads
from .qkv import make_qkv
from .rope import Rotary

__all__ = ["Attention", "attend"]


class Attention(nn.Module):
    """Multi-head self-attention (Vaswani et al., 2017).

    Args:
        width: Width in and out.
        heads: Number of heads; they divide the width.
        qkv_bias: Whether queries, keys and values have a bias; "qv" is without that of keys.
        out_bias: Whether the map out has a bias.
        rope: Whether queries and keys are turned by their position.
        rope_unit: What positions that are given are counted in.
        weight_dropout: Share of the attention weights that is dropped in training.
        dropout: Share of the result that is dropped in training.
        implementation: "sdpa" for torch's fused kernels, "math" for plain matrix products, "auto" for the faster.

    Raises:
        ValueError: The width does not split into the heads.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        qkv_bias: QKVBias = True,
        out_bias: bool = True,
        rope: bool = False,
        rope_unit: float = 1.0,
        weight_dropout: float = 0.0,
        dropout: float = 0.0,
        implementation: Implementation = "auto",
    ) -> None:
        super().__init__()
        raise_misfits(misfit_heads(width, heads, rope=rope))
        if implementation not in ("auto", "sdpa", "math"):
            raise ValueError(f'attention may be "auto", "sdpa" or "math", not "{implementation}"')
        self.heads, self.implementation = heads, implementation
        self.weight_dropout, self.dropout = weight_dropout, Dropout(dropout)
        self.qkv = make_qkv(width, qkv_bias)
        self.out = nn.Linear(width, width, out_bias)
        self.rotary = Rotary(width // heads, unit=rope_unit) if rope else None

    def forward(
        self,
        x: Float[Tensor, "B L D"] | DeferredInput,
        mask: Shaped[Tensor, "#B 1 #L K"] | None = None,
        cache: KVCache | None = None,
        layer: int = 0,
        positions: Shaped[Tensor, "B L"] | None = None,
        own: Int[Tensor, " N"] | None = None,
    ) -> Float[Tensor, "B L D"] | Float[Tensor, "N D"]:
        """Let each position look where `mask` is True, or everywhere without one; numbers are added to the logits.

        With a cache the positions of x stand behind those that it holds for this layer, and see them too. With `own`,
        which counts positions through the batch, the result is of these alone.
        """
        q, k, v = rearrange(
            apply_linear(self.qkv, x), "B L (three H E) -> three B H L E", three=3, H=self.heads
        ).unbind()
        if self.rotary is not None:
            start = 0 if cache is None else cache.num_tokens
            q, k = self.rotary(q, start, positions=positions), self.rotary(k, start, positions=positions)
        if cache is not None:
            k, v = cache.join(layer, k, v)
        y = attend(q, k, v, mask, self.weight_dropout if self.training else 0.0, self.implementation)
        y = rearrange(y, "B H L E -> B L (H E)")
        out: Tensor = self.dropout(apply_linear(self.out, y if own is None else y.flatten(0, 1).index_select(0, own)))
        return out


def attend(
    q: Float[Tensor, "B H L E"],
    k: Float[Tensor, "B H K E"],
    v: Float[Tensor, "B H K E"],
    mask: Shaped[Tensor, "#B #H #L K"] | None = None,
    dropout: float = 0.0,
    implementation: Implementation = "auto",
) -> Float[Tensor, "B H L E"]:
    """Return softmax(q k' / sqrt(E)) v over the keys where `mask` is True; 0 for a query that has no such key.

    A mask of numbers is added to the logits, in its own precision: with log n a key counts as n of them.
    """
    way = _fastest(q, k, dropout) if implementation == "auto" else implementation
    some = None if mask is None or mask.is_floating_point() else mask.any(-1, keepdim=True)
    if mask is not None and some is not None:
        mask = mask | ~some  # a query without keys would come out as NaN, or not, depending on the kernel
    if way == "tiles":
        y = tiled_attention(q, k, v, mask)
    elif way == "math":
        scores = (q * q.shape[-1] ** -0.5) @ k.mT
        if mask is not None:
            scores = scores.masked_fill(~mask, -torch.inf) if some is not None else scores + mask
        y = drop(scores.softmax(-1).to(v.dtype), dropout) @ v
    else:
        rounding = mask is not None and some is None  # autocast would round the numbers, by up to 0.8 %
        with torch.autocast(q.device.type, enabled=False) if rounding else nullcontext():
            y = functional.scaled_dot_product_attention(q, k, v, mask, dropout)
    return y if some is None else y.masked_fill(~some, 0.0)


def _fastest(
    q: Float[Tensor, "B H L E"], k: Float[Tensor, "B H K E"], dropout: float
) -> Literal["math", "tiles", "sdpa"]:
    """Choose how to compute."""
    if k.shape[-2] <= FEW and k.device.type == "cpu":
        return "math"
    return "tiles" if not dropout and prefers_tiles(q, k) else "sdpa"
