"""Multi-head self-attention. Letters: B batch, H heads, L queries, K keys, D width, E head width."""

from __future__ import annotations

from contextlib import nullcontext
from importlib.util import find_spec
from typing import Literal

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn
from torch.nn import functional

from .cpu.dropout import Dropout, drop
from .cpu.tiled_attention import prefers_tiles, tiled_attention
from .kv_cache import KVCache
from .options import AttentionKernel, TransformerBlock
from .rope import Rotary

__all__ = ["Attention", "QVBiasedLinear", "attend"]

MAX_PLAIN_KEYS = 64
"""Largest number of keys for which plain products beat the fused kernel of a CPU in bfloat16 or
with dropout."""

HAS_TRITON = find_spec("triton") is not None
MIN_FLEX_WIDTH = 16
"""What flex_attention requires on CUDA: Triton, and the least head width."""


class Attention(nn.Module):
    """Multi-head self-attention (Vaswani et al., 2017).

    Args:
        width: Width of input and output, divisible by the number of heads.
        options: Options of the block.
    """

    def __init__(self, width: int, options: TransformerBlock) -> None:
        super().__init__()
        bias = options.bias
        dropout = options.dropout
        qkv_bias = bias if options.qkv_bias is None else options.qkv_bias
        self.heads = options.heads
        self.kernel = options.attention
        self.kv_heads = options.kv_heads or options.heads
        self.weight_dropout = (
            dropout if options.attention_dropout is None else options.attention_dropout
        )
        self.dropout = Dropout(dropout)
        out = width + 2 * self.kv_heads * (width // options.heads)
        self.qkv = QVBiasedLinear(width) if qkv_bias == "qv" else nn.Linear(width, out, qkv_bias)
        self.out = nn.Linear(width, width, bias if options.out_bias is None else options.out_bias)
        self.rotary = (
            Rotary(width // options.heads, options.rope_unit, options.rope_theta)
            if options.rope
            else None
        )

    def forward(
        self,
        x: Float[Tensor, "B L D"],
        mask: Shaped[Tensor, "#B 1 #L K"] | None = None,
        cache: KVCache | None = None,
        layer: int = 0,
        positions: Shaped[Tensor, "B L"] | None = None,
        rows: Int[Tensor, " N"] | None = None,
    ) -> Float[Tensor, "B L D"] | Float[Tensor, "N D"]:
        """Attend from each position to the others.

        Args:
            x: The sequence; with a cache, the positions after the cached ones.
            mask: True where a query may attend to a key. A float mask is added to the logits.
            cache: Keys and values of earlier positions.
            layer: Index of this layer in the cache.
            positions: Coordinates for RoPE; indices by default.
            rows: Return only these positions, counted over the flattened batch.
        """
        qkv = self.qkv(x).view(*x.shape[:2], self.heads + 2 * self.kv_heads, -1).transpose(1, 2)
        q, k, v = qkv.split_with_sizes([self.heads, self.kv_heads, self.kv_heads], 1)
        if self.rotary is not None:
            start = 0 if cache is None else cache.num_tokens
            q = self.rotary(q, start, positions=positions)
            k = self.rotary(k, start, positions=positions)
        if cache is not None:
            k, v = cache.join(layer, k, v)
        if self.kv_heads != self.heads:
            k, v = (part.repeat_interleave(self.heads // self.kv_heads, 1) for part in (k, v))
        queries = (
            rows if len(x) == 1 and x.device.type == "cpu" else None
        )  # on a GPU masks for all queries are cached
        if queries is not None:
            q = q.index_select(2, queries)
            mask = mask if mask is None or mask.shape[2] == 1 else mask.index_select(2, queries)
        y = attend(q, k, v, mask, self.weight_dropout if self.training else 0.0, self.kernel)
        y = y.transpose(1, 2).flatten(2)
        if rows is not None:
            y = y[0] if queries is not None else y.flatten(0, 1).index_select(0, rows)
        out: Tensor = self.dropout(self.out(y))
        return out


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
    kernel: AttentionKernel = "auto",
) -> Float[Tensor, "B H L E"]:
    """Return softmax(q k' / sqrt(E)) v over the keys where `mask` is True; 0 for a query without any key.

    A float mask is added to the logits in its own precision: log n makes a key count as n equal
    ones.
    """
    chosen = _fastest_kernel(q, k, dropout) if kernel == "auto" else kernel
    float_mask = mask is not None and mask.is_floating_point()
    wider = (
        mask is not None and float_mask and mask.dtype != q.dtype
    )  # which the fused kernels of CUDA refuse
    if wider and q.device.type == "cuda":
        one_row = mask is not None and mask.shape == (len(q), 1, 1, k.shape[2]) and not dropout
        chosen = "flex" if HAS_TRITON and one_row and q.shape[-1] >= MIN_FLEX_WIDTH else "math"
    if (
        chosen == "flex"
        and mask is not None
        and (wider or not float_mask)
        and q.device.type == "cuda"
    ):
        from .flex import flex_attention  # imports torch._dynamo: 2 s

        return flex_attention(q, k, v, mask)
    has_keys = None if mask is None or float_mask else mask.any(-1, keepdim=True)
    if (
        type(has_keys) is Tensor
        and has_keys.device.type == "cpu"
        and not torch.compiler.is_compiling()
    ):  # not fake
        has_keys = None if has_keys.all() else has_keys
    if mask is not None and has_keys is not None:
        mask = mask | ~has_keys  # without any key some kernels return NaN
    if chosen == "tiles":
        y = tiled_attention(q, k, v, mask)
    elif chosen == "math":
        scores = (q * q.shape[-1] ** -0.5) @ k.mT
        if mask is not None:
            scores = scores + mask if float_mask else scores.masked_fill(~mask, -torch.inf)
        y = drop(scores.softmax(-1).to(v.dtype), dropout) @ v
    else:
        rounds = float_mask and q.device.type != "meta"  # autocast, by up to 0.8 %; "meta" has none
        with torch.autocast(q.device.type, enabled=False) if rounds else nullcontext():
            y = functional.scaled_dot_product_attention(q, k, v, mask, dropout)
    return y if has_keys is None else y.masked_fill(~has_keys, 0.0)


def _fastest_kernel(
    q: Float[Tensor, "B H L E"], k: Float[Tensor, "B H K E"], dropout: float
) -> Literal["math", "tiles", "sdpa"]:
    if (
        k.shape[-2] <= MAX_PLAIN_KEYS
        and k.device.type == "cpu"
        and (dropout or k.dtype == torch.bfloat16)
    ):
        return "math"
    return "tiles" if not dropout and prefers_tiles(q, k) else "sdpa"
