"""What blocks and norms take, in closed form. No torch here.

What training keeps is what autograd saves: the input of a linear map, the output of a softmax. Counts are of numbers
for one sample; letters: L positions, D width, M hidden width of the MLP, H heads.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from dither.registry.costs import Cost

if TYPE_CHECKING:
    from .block_options import Affine, NormName, TransformerBlock

__all__ = ["attention_cost", "beside_cost", "linear", "made_again", "mlp_cost", "norm_cost"]


def linear(width: int, out: int, bias: bool = True) -> int:
    """Weights of a linear map."""
    return width * out + out * bias


def norm_cost(norm: NormName, affine: Affine, width: int, length: int) -> Cost:
    """A norm keeps what comes in and what goes out; RMS norm also what its learned scale is multiplied with."""
    vectors = bool(affine) + (affine is True and norm == "layer")
    tensors = 3 if norm == "rms" and affine else 2
    return Cost(vectors * width, tensors * length * width + 2 * length)


def beside_cost(block: Cost, width: int, length: int, *, last: bool = False) -> Cost:
    """A block over a noised sample and the clean one beside it, which pass through it one after the other.

    The noised half has a modulation per position, and keys and values of both, under a mask; twice the weights of
    attention, where they are kept, are not counted. The last block makes only keys and values of the clean half: that
    keeps its norm, what is read, and queries, keys and values.
    """
    from .block_options import WIDE

    state = length * width
    clean, remade = (6 * state, 2 * state * (width >= WIDE)) if last else (block.kept, block.remade)
    kept = block.kept + clean + 12 * state + length * length
    return replace(block, kept=kept, passing=block.passing + 4 * state, remade=block.remade + remade)


def attention_cost(block: TransformerBlock, width: int, length: int) -> Cost:
    """Input, queries, keys, values, what is gathered, what goes out; and weights `H L L` unless a kernel is fused."""
    from .block_options import FEW, FEW_WEIGHTS

    qkv_bias = block.bias if block.qkv_bias is None else block.qkv_bias
    out_bias = block.bias if block.out_bias is None else block.out_bias
    biased = 2 if qkv_bias == "qv" else 3 * qkv_bias
    parameters = linear(width, 3 * width, False) + biased * width + linear(width, width, out_bias)
    rate = block.dropout if block.attention_dropout is None else block.attention_dropout
    plain = block.attention == "math" or (block.attention == "auto" and length <= FEW)
    state, weights, rounded = length * width, block.heads * length * length, 0
    if plain or rate:  # the fused kernel of the CPU knows no dropout
        masks = 0 if not rate else weights + (weights // 4 if plain else weights)  # ours takes a byte for each
        kept, passing = 6 * state + weights + masks, 5 * state + 2 * weights
    else:
        kept, passing = (9 if block.rope else 7) * state + block.heads * length, 7 * state
        rounded = weights if block.attention == "auto" else 0
    angles = 2 * state // block.heads if block.rope == "centre" else 0  # of an index they are one table for all
    cost = Cost(parameters, kept + angles + (state // 4 if block.dropout else 0), passing)
    return replace(cost, rounded=rounded, most_rounded=FEW_WEIGHTS)


def mlp_cost(block: TransformerBlock, width: int, length: int) -> Cost:
    """Input, hidden values before and after the nonlinearity, what goes out."""
    hidden, gated = int(block.ratio * width), block.mlp == "swiglu"
    bias = block.bias if block.mlp_bias is None else block.mlp_bias
    parameters = linear(width, hidden, bias) * (2 if gated else 1) + linear(hidden, width, bias)
    inner, state = (4 if gated else 2) * hidden * length, length * width
    return Cost(parameters, inner + 2 * state + (state // 4 if block.dropout else 0), inner + 2 * state)


def made_again(block: TransformerBlock, width: int, length: int) -> int:
    """What of it a wide block computes again on a CPU: what norms give, modulated or not, and the nonlinearity."""
    norm = norm_cost(block.norm, block.affine, width, length)
    hidden = int(block.ratio * width) * length
    return 2 * norm.kept + (2 if block.mlp == "swiglu" else 1) * hidden
