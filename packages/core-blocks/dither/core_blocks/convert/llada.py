"""Weights of LLaDA (Nie et al., 2025) and of other models with the architecture of Llama and full attention.

RMSNorm before attention and before a SwiGLU, RoPE with half-split pairs, grouped-query attention,
no bias, no input for the noise level. Ours joins queries, keys and values in one layer.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from dither.registry.config.errors import Problem, Refused

from .name_mapping import Layout

__all__ = ["LLADA", "LLAMA", "options_of_llada", "resize_vocabulary"]

OURS = {
    "attention.qkv.weight": "attention.qkv.weight",
    "attention.qkv.bias": "attention.qkv.bias",
    "self_attn.q_norm.weight": "attention.q_norm.weight",
    "self_attn.k_norm.weight": "attention.k_norm.weight",
}
OPTIONAL = frozenset(OURS) - {"attention.qkv.weight"}
"""Biases of queries, keys and values (Qwen2, Dream), and norms of queries and keys (Qwen3)."""
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
    optional=OPTIONAL | {"transformer.ff_out.weight"},
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
    optional=OPTIONAL | {"lm_head.weight"},
    normalize=_join_projections,
)
"""Llama of transformers, and diffusion language models with its names (Qwen2, Qwen3, Dream)."""

KEYS = {
    "width": ("d_model", "hidden_size"),
    "depth": ("n_layers", "num_hidden_layers"),
    "heads": ("n_heads", "num_attention_heads"),
    "kv_heads": ("n_kv_heads", "num_key_value_heads"),
    "head_width": ("head_dim",),
    "hidden": ("mlp_hidden_size", "intermediate_size"),
    "eps": ("rms_norm_eps",),
    "rope_theta": ("rope_theta",),
    "tied": ("weight_tying", "tie_word_embeddings"),
}

SIZES = tuple(chain.from_iterable(list(KEYS.values())[:6]))
"""Keys of whole numbers."""


REQUIRED: dict[str, tuple[Any, ...]] = {
    "model_type": ("llada", "llama", "mistral", "qwen2", "qwen3", "Dream"),
    "hidden_act": ("silu", "swish"),
    "activation_type": ("silu", "swiglu"),
    "block_type": ("llama",),
    "layer_norm_type": ("rms",),
    "layer_norm_with_affine": (True,),
    "rope": (True,),
    "rope_type": ("default",),
    "block_group_size": (1,),
    "pretraining_tp": (1,),
}
"""Values that the denoiser computes, by key."""
HARMLESS = re.compile(
    r"_.*|.*dropout|.*_token_id|.*_token_ids|init.*|id2label|label2id|architectures|auto_map"
    r"|dtype|torch_dtype|precision|.*_version|use_cache|.*vocab_size|embedding_size"
    r"|max_position_embeddings|max_sequence_length|max_window_layers|(use_)?sliding_window|layer_types"
    r"|mlp_ratio|alibi_bias_max|attention_layer_norm_with_affine|attention_bias|include_qkv_bias"
    r"|rope_full_precision|rope_parameters|flash_attention|return_dict|problem_type"
    r"|output_.*|name_or_path|chunk_size_feed_forward|tokenizer_class|task_specific_params"
)
"""Keys without effect on the logits, and those that are compared with others."""


def _refuse_wrong_types(config: Mapping[str, Any]) -> None:
    """Raise Refused for values that no configuration has, such as a text for a size."""
    kinds: dict[str, type[Any] | tuple[type[Any], ...]] = dict.fromkeys(SIZES, int)
    kinds |= {"rope_parameters": dict, "layer_types": list}
    kinds |= dict.fromkeys((*KEYS["eps"], *KEYS["rope_theta"]), (int, float))
    problems = []
    for key, kind in kinds.items():
        value = config.get(key)
        # In JSON, true is an int of Python.
        wrong = not isinstance(value, kind) or isinstance(value, bool)
        if value is not None and (wrong or (key in SIZES and value < 1)):
            message = f"{key} = {value!r} is not possible"
            problems.append(Problem(message, code="invalid-value"))
    if problems:
        raise Refused(problems)


def _refuse_other_computations(config: Mapping[str, Any]) -> None:
    """Raise Refused for keys that change the logits, or that are not known not to."""
    reasons = [*_unsupported_values(config), *_unsupported_attention(config)]
    if reasons:
        raise Refused([Problem(reason, code="misfit") for reason in reasons])


def _unsupported_values(config: Mapping[str, Any]) -> Iterator[str]:
    known = set(chain.from_iterable(KEYS.values()))
    for key, value in config.items():
        if key in known or value is None:
            continue
        if key in REQUIRED:
            if value not in REQUIRED[key]:
                supported = ", ".join(map(str, REQUIRED[key]))
                yield f"{key} = {value!r}, supported are {supported}"
            continue
        # Most switches that are off, and multipliers of 1, change nothing.
        off = value is False or (key.endswith("_multiplier") and value == 1)
        if not off and not HARMLESS.fullmatch(key):
            yield f"{key} = {value!r} is not supported"


def _unsupported_attention(config: Mapping[str, Any]) -> Iterator[str]:
    types = set(config.get("layer_types") or ())
    if types - {"full_attention"} or config.get("use_sliding_window"):
        yield "sliding windows are not supported"
    elif config.get("model_type") == "mistral" and config.get("sliding_window"):
        yield "sliding_window is not supported"


def options_of_llada(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of the equivalent `denoiser` for a config.json of LLaDA or Llama.

    Raises:
        KeyError: A size is missing; its argument lists the names that are accepted.
        Refused: A key changes the computation in a way that is not supported.
    """
    _refuse_wrong_types(config)
    # Newer configurations hold the base of RoPE in a table of its own.
    nested = {**config, **(config.get("rope_parameters") or {})}
    _refuse_other_computations(nested)
    options = _values(nested)
    # The defaults of LLaDA, and of the models of transformers.
    eps = options["eps"] or (1e-5 if "d_model" in config else 1e-6)
    bias = bool(nested.get("include_qkv_bias") or nested.get("attention_bias"))
    head_width = options["head_width"]
    shape = {}
    if head_width is not None and head_width * options["heads"] != options["width"]:
        shape = {"head_width": head_width}
    # Dream continues from an autoregressive model, which predicts the next token.
    reads = "previous" if config.get("model_type") == "Dream" else "same"
    return {
        "use": "denoiser",
        "width": options["width"],
        "depth": options["depth"],
        "final": "norm",
        "norm": "rms",
        "affine": True,
        "eps": eps,
        "reads": reads,
        "tie_embeddings": bool(options["tied"]),
        "embedding": {"use": "tokens", "init": "kaiming"},
        "condition": "none",
        "head": {"use": "tokens", "bias": False},
        "block": {
            "use": "pre-norm",
            "heads": options["heads"],
            **shape,
            "kv_heads": options["kv_heads"] or options["heads"],
            # Half a unit more, so that rounding down gives the hidden width.
            "ratio": (options["hidden"] + 0.5) / options["width"],
            "norm": "rms",
            "eps": eps,
            "mlp": "swiglu",
            "bias": False,
            "qkv_bias": bias,
            "qk_norm": config.get("model_type") == "qwen3",
            "rope": True,
            "rope_theta": options["rope_theta"] or 10_000.0,
        },
    }


def _values(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the value of each of `KEYS`, None if it is missing; KeyError for a size."""
    values: dict[str, Any] = dict.fromkeys(KEYS)
    for key, names in KEYS.items():
        for name in names:
            if values[key] is None:
                values[key] = config.get(name)
    for key in ("width", "depth", "heads", "hidden"):
        if values[key] is None:
            raise KeyError(" or ".join(KEYS[key]))
    return values


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
