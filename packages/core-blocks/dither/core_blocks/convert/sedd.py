"""Weights of published score-entropy models (SEDD, Lou et al. 2023) under the names of our denoiser.

The two models are the same function: a table of ids, sinusoids of sigma (cosines first), adaLN-Zero blocks with layer
norms that have a scale and no shift, rotary positions by half-split pairs, GELU by tanh, and a final layer. Only names
differ. Letters: none; everything here is a mapping from names to tensors.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dither.registry.config.errors import Refused

from .name_mapping import Layout

__all__ = ["SEDD", "load_sedd", "options_of_sedd", "weights_of_sedd"]

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
TURNS = "rotary_emb.inv_freq"
"""What rotary positions are computed from; ours follow from the width of a head."""


def _turned_otherwise(theirs: Mapping[str, Tensor]) -> Iterator[str]:
    """Yield if rotary positions turn at other speeds than 10000^(-2j/E) for a head of width E."""
    if TURNS in theirs:
        count = len(theirs[TURNS])
        ours = 10_000.0 ** -(torch.arange(count, dtype=torch.float64) / max(count, 1))
        if not torch.allclose(theirs[TURNS].double(), ours, rtol=1e-2):  # it may have been saved in bfloat16
            yield f"{TURNS} holds other speeds than 10000^(-2j/{2 * count})"


SEDD = Layout("a SEDD", OUTER, INNER, passed=frozenset({TURNS}), otherwise=_turned_otherwise)
"""The published models, for uniform and for absorbing noise."""


def weights_of_sedd(theirs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights of a SEDD under our names. The tensors are the same, not copies.

    Raises:
        Refused: Names are missing or not of a SEDD, or its rotary positions are others than ours.
    """
    return SEDD.weights(theirs)


def options_of_sedd(theirs: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return the options of the `denoiser` that a SEDD is, as they stand in an experiment file.

    Raises:
        Refused: It is no SEDD, or does not say how wide its heads are.
    """
    ours = weights_of_sedd(theirs)
    if TURNS not in theirs:
        raise Refused(f"{TURNS} is missing, and with it the number of heads; the published models have 12 or 16")
    width, frequencies = ours["embedding.tables.0.weight"].shape[1], ours["condition.enter.weight"].shape[1]
    return {
        "use": "denoiser",
        "width": width,
        "depth": SEDD.depth(theirs),
        "cond": len(ours["condition.enter.bias"]),
        "affine": "scale",
        "eps": 1e-5,
        "embedding": {"use": "tokens", "init": "kaiming"},
        "condition": {"use": "level", "frequencies": frequencies},
        "head": "tokens",
        "block": {
            "use": "adaln-zero",
            "heads": width // (2 * len(theirs[TURNS])),
            "affine": "scale",
            "eps": 1e-5,
            "mlp": "gelu-tanh",
            "qkv_bias": False,
            "out_bias": False,
            "rope": True,
            "dropout": 0.1,
            "attention_dropout": 0.0,
        },
    }


def load_sedd(path: str | Path, model: nn.Module) -> None:
    """Read the weights of a SEDD into a denoiser, from safetensors or from a file of `torch.save`.

    Raises:
        Refused: The file cannot be read, holds no SEDD, or one of other sizes; the model is then as it was.
    """
    SEDD.load(path, model)
