"""Weights of published score-entropy models (SEDD, Lou et al. 2023) under the names of our denoiser.

The two models are the same function: a table of ids, sinusoids of sigma (cosines first), adaLN-Zero blocks with layer
norms that have a scale and no shift, rotary positions by half-split pairs, GELU by tanh, and a final layer. Only names
differ. Letters: none; everything here is a mapping from names to tensors.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from dither.registry.problems import Refused, nearest

__all__ = ["load_sedd", "options_of_sedd", "weights_of_sedd"]

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
SHOWN = 8


def weights_of_sedd(theirs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights of a SEDD under our names. The tensors are the same, not copies.

    Raises:
        Refused: Names are missing or not of a SEDD, or its rotary positions are others than ours.
    """
    expected = _names(theirs)
    missing = [name for name in expected if name not in theirs]
    stray = [name for name in theirs if name not in expected and name != TURNS]
    problems = [f"{len(missing)} weights of a SEDD are missing: {_listed(missing)}"] if missing else []
    if stray:
        close = nearest(stray[0], list(expected))
        hint = f'; did you mean "{close}"?' if close else ""
        problems.append(f"{len(stray)} weights are not of a SEDD: {_listed(stray)}{hint}")
    problems += _turned_otherwise(theirs)
    if problems:
        raise Refused("; ".join(problems))
    return {ours: theirs[name] for name, ours in expected.items()}


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
        "depth": len(_numbers(theirs)),
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
    """Read the weights of a SEDD from a safetensors file into a denoiser, whatever the precision they were saved in.

    Raises:
        Refused: The file cannot be read, holds no SEDD, or one of other sizes; the model is then as it was.
    """
    try:
        theirs = load_file(path)
    except (OSError, SafetensorError) as error:
        raise Refused(f"{path} cannot be read as safetensors: {error}") from None
    weights, own = weights_of_sedd(theirs), model.state_dict()
    names = {ours: name for name, ours in _names(theirs).items()}
    problems = [
        f"{names[key]} is {_shape(weights[key])}, the model has {_shape(own[key])}"
        for key in weights
        if key in own and weights[key].shape != own[key].shape
    ]
    problems += [f"the model has no {key}, as {names[key]} would be" for key in weights if key not in own]
    problems += [f"the model has {key}, and a SEDD has no such weight" for key in own if key not in weights]
    if problems:
        raise Refused(f"{path} does not fit the model: {_listed(problems, '; ')}")
    model.load_state_dict(weights)


def _names(theirs: Mapping[str, Tensor]) -> dict[str, str]:
    """Return our name for each name that a SEDD of this depth has."""
    inner = {
        f"blocks.{n}.{name}": f"blocks.{n}.{ours}" for n in _numbers(theirs) or range(1) for name, ours in INNER.items()
    }
    return OUTER | inner


def _numbers(theirs: Mapping[str, Tensor]) -> range:
    found = [int(match[1]) for name in theirs if (match := re.match(r"blocks\.(\d+)\.", name))]
    return range(max(found, default=-1) + 1)


def _turned_otherwise(theirs: Mapping[str, Tensor]) -> Iterator[str]:
    """Yield if rotary positions turn at other speeds than 10000^(-2j/E) for a head of width E."""
    if TURNS in theirs:
        count = len(theirs[TURNS])
        ours = 10_000.0 ** -(torch.arange(count, dtype=torch.float64) / max(count, 1))
        if not torch.allclose(theirs[TURNS].double(), ours, rtol=1e-2):  # it may have been saved in bfloat16
            yield f"{TURNS} holds other speeds than 10000^(-2j/{2 * count})"


def _shape(weight: Tensor) -> str:
    return " x ".join(map(str, weight.shape))


def _listed(names: list[str], between: str = ", ") -> str:
    more = f"{between}and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return between.join(names[:SHOWN]) + more
