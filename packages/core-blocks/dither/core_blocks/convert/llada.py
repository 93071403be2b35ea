"""Weights of LLaDA (Nie et al., 2025) and of other models with the architecture of Llama and full attention.

RMSNorm before attention and before a SwiGLU, RoPE with half-split pairs, grouped-query attention,
no bias, no input for the noise level. Ours joins queries, keys and values in one layer.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from .name_mapping import Layout

__all__ = ["LLADA", "LLAMA", "options_of_llada", "resize_vocabulary"]

OURS = {
    "attention.qkv.weight": "attention.qkv.weight",
    "attention.qkv.bias": "attention.qkv.bias",
}
PROJECTION = re.compile(r"(.*\.)q_proj\.(weight|bias)$")
BUFFERS = re.compile(r"(.*\.)?rotary_emb\.(inv_freq|cos_cached|sin_cached)$")


def _join_projections(theirs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Join q_proj, k_proj and v_proj of each block; drop tables of RoPE."""
    weights = {
        name: weight for name, weight in theirs.items() if not BUFFERS.match(name)
    }
    for name in theirs:
        match = PROJECTION.match(name)
        if match is None:
            continue
        prefix, kind = match.groups()
        names = [f"{prefix}{letter}_proj.{kind}" for letter in "qkv"]

        # An incomplete set keeps its names, which are reported as unknown.
        if all(part in weights for part in names):
            block = prefix.removesuffix("self_attn.")
            weights[f"{block}attention.qkv.{kind}"] = torch.cat(
                [weights.pop(n) for n in names]
            )
    return weights


LLADA = Layout(
    "a LLaDA",
    outer={
        "transformer.wte.weight": "embedding.tables.0.weight",
        "transformer.ln_f.weight": "final.norm.weight",
        "transformer.ff_out.weight": "head.maps.0.weight",
    },
    inner={
        **OURS,
        "attn_norm.weight": "norm1.weight",
        "attn_out.weight": "attention.out.weight",
        "ff_norm.weight": "norm2.weight",
        "ff_proj.weight": "mlp.gate.weight",
        "up_proj.weight": "mlp.up.weight",
        "ff_out.weight": "mlp.down.weight",
    },
    blocks="transformer.blocks",
    optional=frozenset({"attention.qkv.bias", "transformer.ff_out.weight"}),
    normalize=_join_projections,
)
"""GSAI-ML/LLaDA-8B, without the prefix "model.", which `read_weights` drops."""

LLAMA = Layout(
    "a Llama",
    outer={
        "embed_tokens.weight": "embedding.tables.0.weight",
        "norm.weight": "final.norm.weight",
        "lm_head.weight": "head.maps.0.weight",
    },
    inner={
        **OURS,
        "input_layernorm.weight": "norm1.weight",
        "self_attn.o_proj.weight": "attention.out.weight",
        "post_attention_layernorm.weight": "norm2.weight",
        "mlp.gate_proj.weight": "mlp.gate.weight",
        "mlp.up_proj.weight": "mlp.up.weight",
        "mlp.down_proj.weight": "mlp.down.weight",
    },
    blocks="layers",
    optional=frozenset({"attention.qkv.bias", "lm_head.weight"}),
    normalize=_join_projections,
)
"""Llama of transformers, and diffusion language models with its names (Qwen2 with a bias of
queries, keys, values)."""

KEYS = {
    "width": ("d_model", "hidden_size"),
    "depth": ("n_layers", "num_hidden_layers"),
    "heads": ("n_heads", "num_attention_heads"),
    "kv_heads": ("n_kv_heads", "num_key_value_heads"),
    "hidden": ("mlp_hidden_size", "intermediate_size"),
    "eps": ("rms_norm_eps",),
    "rope_theta": ("rope_theta",),
    "tied": ("weight_tying", "tie_word_embeddings"),
}


def options_of_llada(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of the equivalent `denoiser` for a config.json of LLaDA or Llama.

    Raises:
        KeyError: A size is missing; its argument lists the names that are accepted.
    """
    # Newer configurations hold the base of RoPE in a table of its own.
    nested = {**config, **(config.get("rope_parameters") or {})}
    options: dict[str, Any] = dict.fromkeys(KEYS)
    for key, names in KEYS.items():
        for name in names:
            if options[key] is None:
                options[key] = nested.get(name)

    for key in ("width", "depth", "heads", "hidden"):
        if options[key] is None:
            raise KeyError(" or ".join(KEYS[key]))

    eps = options["eps"] or 1e-5
    bias = bool(nested.get("include_qkv_bias") or nested.get("attention_bias"))
    return {
        "use": "denoiser",
        "width": options["width"],
        "depth": options["depth"],
        "final": "norm",
        "norm": "rms",
        "affine": True,
        "eps": eps,
        "tie_embeddings": bool(options["tied"]),
        "embedding": {"use": "tokens", "init": "kaiming"},
        "condition": "none",
        "head": {"use": "tokens", "bias": False},
        "block": {
            "use": "pre-norm",
            "heads": options["heads"],
            "kv_heads": options["kv_heads"] or options["heads"],
            # Half a unit more, so that rounding down gives the hidden width.
            "ratio": (options["hidden"] + 0.5) / options["width"],
            "norm": "rms",
            "eps": eps,
            "mlp": "swiglu",
            "bias": False,
            "qkv_bias": bias,
            "rope": True,
            "rope_theta": options["rope_theta"] or 10_000.0,
        },
    }


def resize_vocabulary(
    ours: Mapping[str, Tensor], size: int, mask: int
) -> dict[str, Tensor]:
    """Return the weights for ids 0 .. size - 1 of a tokenizer followed by MASK, whose id in the file is `mask`."""
    rows = torch.tensor([*range(size), mask])
    resized = dict(ours)
    # A tied head has no weight of its own.
    for name in ("embedding.tables.0.weight", "head.maps.0.weight"):
        if name in ours:
            resized[name] = ours[name][rows]
    return resized
