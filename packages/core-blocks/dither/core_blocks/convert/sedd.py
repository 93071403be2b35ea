"""Weights of published score-entropy models (SEDD, Lou et al., 2023).

SEDD and our denoiser compute the same function: a token embedding, sinusoids of sigma (cosines
first), adaLN-Zero blocks whose LayerNorms have a scale and no shift, RoPE with half-split pairs,
tanh-approximated GELU, and a modulated final norm. Only the names differ.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from .name_mapping import Layout

__all__ = ["MDLM", "SEDD"]

OUTER = {
    "vocab_embed.embedding": "embedding.tables.0.weight",
    "sigma_map.mlp.0.weight": "condition.enter.weight",
    "sigma_map.mlp.0.bias": "condition.enter.bias",
    "sigma_map.mlp.2.weight": "condition.leave.weight",
    "sigma_map.mlp.2.bias": "condition.leave.bias",
    "output_layer.norm_final.weight": "final.norm.weight",
    "output_layer.adaLN_modulation.weight": "final.modulation.linear.weight",
    "output_layer.adaLN_modulation.bias": "final.modulation.linear.bias",
    "output_layer.linear.weight": "head.maps.0.weight",
    "output_layer.linear.bias": "head.maps.0.bias",
}
INNER = {
    "norm1.weight": "norm1.weight",
    "attn_qkv.weight": "attention.qkv.weight",
    "attn_out.weight": "attention.out.weight",
    "norm2.weight": "norm2.weight",
    "mlp.0.weight": "mlp.up.weight",
    "mlp.0.bias": "mlp.up.bias",
    "mlp.2.weight": "mlp.down.weight",
    "mlp.2.bias": "mlp.down.bias",
    "adaLN_modulation.weight": "modulation.linear.weight",
    "adaLN_modulation.bias": "modulation.linear.bias",
}
INV_FREQ = "rotary_emb.inv_freq"
"""Frequencies of RoPE; ours follow from the width of a head."""


def _rope_mismatch(theirs: Mapping[str, Tensor]) -> Iterator[str]:
    """Report frequencies of RoPE other than 10000^(-2j/E) for heads of width E."""
    if INV_FREQ in theirs:
        count = len(theirs[INV_FREQ])
        ours = 10_000.0 ** -(torch.arange(count, dtype=torch.float64) / max(count, 1))
        # The frequencies may be saved in bfloat16.
        if not torch.allclose(theirs[INV_FREQ].double(), ours, rtol=1e-2):
            yield f"{INV_FREQ} differs from 10000^(-2j/{2 * count})"


SEDD = Layout(
    "a SEDD",
    OUTER,
    INNER,
    ignored=frozenset({INV_FREQ}),
    incompatibilities=_rope_mismatch,
)
"""The published models, for uniform and absorbing noise."""


def _without_time(theirs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Drop the prefix of the backbone, and fold its constant noise level 0 into the bias of the first layer."""
    weights = {
        name.removeprefix("backbone."): weight for name, weight in theirs.items()
    }
    enter = "sigma_map.mlp.0.weight"
    bias = "sigma_map.mlp.0.bias"
    if enter in weights and bias in weights:
        # The sinusoids of 0: cosines, the first half, are 1, and sines are 0.
        cosines = weights[enter][:, : weights[enter].shape[1] // 2]
        weights[bias] = weights[bias] + cosines.sum(1)
        weights[enter] = torch.zeros_like(weights[enter])
    return weights


MDLM = replace(SEDD, model_name="an MDLM", normalize=_without_time)
"""MDLM (Sahoo et al., 2024) and, with `block_size`, BD3-LM (Arriola et al., 2025), without time
conditioning."""
