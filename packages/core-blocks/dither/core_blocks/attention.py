"""Multi-head self-attention.

Letters: B batch, H heads, L queries, K keys, D width, E head width.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor, nn
from torch.nn import functional

from .kv_cache import KVCache
from .norms import RMSNorm
from .options import AttentionKernel, TransformerBlock
from .rope import Rotary
from .tiled_attention import prefers_tiles, tiled_attention

__all__ = ["Attention", "QVBiasedLinear", "attend", "take_rows", "with_keys"]

Kernel = Callable[[Tensor, Tensor, Tensor, Tensor | None, float], Tensor]


class Attention(nn.Module):
    """Multi-head self-attention (Vaswani et al., 2017).

    Args:
        width: Width of input and output.
        options: Options of the block.
    """

    def __init__(self, width: int, options: TransformerBlock) -> None:
        super().__init__()
        self.heads = options.heads
        self.kv_heads = options.kv_heads or options.heads
        self.kernel = options.attention
        self.weight_dropout = (
            options.dropout
            if options.attention_dropout is None
            else options.attention_dropout
        )
        self.dropout = nn.Dropout(options.dropout)

        head_width = options.head_width or width // options.heads
        joined = options.heads * head_width
        qkv_bias = options.bias if options.qkv_bias is None else options.qkv_bias
        out_bias = options.bias if options.out_bias is None else options.out_bias
        if qkv_bias == "qv":
            self.qkv: nn.Linear = QVBiasedLinear(width)
        else:
            self.qkv = nn.Linear(
                width, joined + 2 * self.kv_heads * head_width, qkv_bias
            )
        self.out = nn.Linear(joined, width, out_bias)
        self.q_norm: nn.Module = nn.Identity()
        self.k_norm: nn.Module = nn.Identity()
        if options.qk_norm:
            self.q_norm = RMSNorm(head_width, options.eps)
            self.k_norm = RMSNorm(head_width, options.eps)
        self.rotary = None
        if options.rope == "grid":
            self.rotary = Rotary(head_width, theta=options.rope_theta, axes=2)
        elif options.rope:
            self.rotary = Rotary(head_width, options.rope_unit, options.rope_theta)

    def forward(
        self,
        x: Float[Tensor, "B L D"],
        mask: Shaped[Tensor, "#B 1 #L K"] | None = None,
        cache: KVCache | None = None,
        layer: int = 0,
        positions: Shaped[Tensor, "B L *axes"] | None = None,
        rows: Int[Tensor, " N"] | None = None,
    ) -> Float[Tensor, "B L D"] | Float[Tensor, "N D"]:
        """Attend from each position to the others.

        Args:
            x: The sequence; with a cache, the positions after the cached ones.
            mask: True where a query may attend to a key, at least one for each. A float mask is
                added to the logits.
            cache: Keys and values of earlier positions.
            layer: Index of this layer in the cache.
            positions: Coordinates for RoPE; indices by default.
            rows: Rows of the flattened batch whose output is returned; all by default.
        """
        # One product for queries, keys and values, split by heads: B L D -> B (H + 2 H_kv) L E
        qkv = (
            self.qkv(x)
            .unflatten(-1, (self.heads + 2 * self.kv_heads, -1))
            .transpose(1, 2)
        )
        q, k, v = qkv.split_with_sizes([self.heads, self.kv_heads, self.kv_heads], 1)
        q = self.q_norm(q)
        k = self.k_norm(k)

        # Keys are cached after RoPE, so that a cached key is never rotated again.
        if self.rotary is not None:
            start = 0 if cache is None else cache.num_tokens
            q = self.rotary(q, start, positions=positions)
            k = self.rotary(k, start, positions=positions)
        if cache is not None:
            k, v = cache.join(layer, k, v)

        # Grouped-query attention: several heads of queries share one of keys and values.
        if self.kv_heads != self.heads:
            k = k.repeat_interleave(self.heads // self.kv_heads, 1)
            v = v.repeat_interleave(self.heads // self.kv_heads, 1)

        y = attend(
            q, k, v, mask, self.weight_dropout if self.training else 0.0, self.kernel
        )
        # The heads side by side, of the rows that are used: B H L E -> B L D or N D
        y = take_rows(y.transpose(1, 2).flatten(2), rows)
        out: Tensor = self.dropout(self.out(y))
        return out


def take_rows(
    x: Float[Tensor, "B L D"], rows: Int[Tensor, " N"] | None
) -> Float[Tensor, "B L D"] | Float[Tensor, "N D"]:
    """Return some rows of the flattened batch; x itself if `rows` is None."""
    return x if rows is None else x.flatten(0, 1).index_select(0, rows)


class QVBiasedLinear(nn.Linear):
    """Projection to queries, keys and values without a bias for keys (BEiT, Bao et al., 2022).

    A bias of keys would add one constant to all logits of a query, which softmax ignores.

    Args:
        width: Width of the input; the output is three times as wide.
    """

    def __init__(self, width: int) -> None:
        super().__init__(width, 3 * width, bias=False)
        self.q_bias = nn.Parameter(torch.zeros(width))
        self.v_bias = nn.Parameter(torch.zeros(width))

    def forward(self, input: Float[Tensor, "*B L D"]) -> Float[Tensor, "*B L 3D"]:
        bias = torch.cat([self.q_bias, torch.zeros_like(self.q_bias), self.v_bias])
        return functional.linear(input, self.weight, bias)


def attend(
    q: Float[Tensor, "B H L E"],
    k: Float[Tensor, "B H K E"],
    v: Float[Tensor, "B H K E"],
    mask: Shaped[Tensor, "#B #H #L K"] | None = None,
    dropout: float = 0.0,
    kernel: AttentionKernel | Literal["tiles"] = "auto",
) -> Float[Tensor, "B H L E"]:
    """Return softmax(q k' / sqrt(E)) v over the keys where `mask` is True, at least one for each query.

    A float mask is added to the logits in its own precision: log n makes a key count as n equal
    ones.
    """
    if kernel == "auto":
        kernel = "tiles" if prefers_tiles(q, k, dropout) else "sdpa"
    return KERNELS[kernel](q, k, v, mask, dropout)


def with_keys(
    mask: Bool[Tensor, "#B #H #L K"],
) -> Bool[Tensor, "#B #H #L K"]:
    """Let queries without keys, which are padding, attend to all: some kernels return NaN for none."""
    return mask | ~mask.any(-1, keepdim=True)


def _matmul(
    q: Float[Tensor, "B H L E"],
    k: Float[Tensor, "B H K E"],
    v: Float[Tensor, "B H K E"],
    mask: Shaped[Tensor, "#B #H #L K"] | None,
    dropout: float,
) -> Float[Tensor, "B H L E"]:
    """Attention by two matrix products."""
    # The smaller of the two tensors is scaled: B H L E @ B H E K -> B H L K
    logits = (q * q.shape[-1] ** -0.5) @ k.mT
    if mask is not None and mask.is_floating_point():
        logits = logits + mask
    elif mask is not None:
        logits = logits.masked_fill(~mask, -torch.inf)
    return functional.dropout(logits.softmax(-1).to(v.dtype), dropout) @ v


def _fused(
    q: Float[Tensor, "B H L E"],
    k: Float[Tensor, "B H K E"],
    v: Float[Tensor, "B H K E"],
    mask: Shaped[Tensor, "#B #H #L K"] | None,
    dropout: float,
) -> Float[Tensor, "B H L E"]:
    """Attention by torch's fused kernel (FlashAttention; Dao et al., 2022)."""
    if mask is None or not mask.is_floating_point():
        return functional.scaled_dot_product_attention(q, k, v, mask, dropout)

    # Autocast would round the float mask to bfloat16, an error of up to 0.8 % of a weight.
    with torch.autocast(q.device.type, enabled=False):
        return functional.scaled_dot_product_attention(q, k, v, mask, dropout)


def _tiled(
    q: Float[Tensor, "B H L E"],
    k: Float[Tensor, "B H K E"],
    v: Float[Tensor, "B H K E"],
    mask: Shaped[Tensor, "#B #H #L K"] | None,
    dropout: float,
) -> Float[Tensor, "B H L E"]:
    """Attention by tiles of samples, heads and queries, without dropout."""
    assert not dropout
    return tiled_attention(q, k, v, mask)


KERNELS: dict[str, Kernel] = {"sdpa": _fused, "math": _matmul, "tiles": _tiled}
"""Attention kernels by name: (q, k, v, mask, dropout) -> output."""
