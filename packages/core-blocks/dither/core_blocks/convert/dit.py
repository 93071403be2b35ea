"""Weights of published diffusion transformers for images (DiT; Peebles and Xie, 2023) and of SiT.

DiT and our denoiser with `patch` compute the same function. Of a patch, our embedding reads the
channels of each pixel in turn; the convolution of DiT has the channels first.

SiT (Ma et al., 2024) is DiT with flow matching, whose time runs from noise to data.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import torch
from einops import rearrange
from torch import Tensor

from .name_mapping import Layout

__all__ = ["DIT", "SIT"]

CONVOLUTION = "x_embedder.proj.weight"
LEVEL = "t_embedder.mlp.0.weight"
OUTPUT = "final_layer.linear"
POSITIONS = "pos_embed"
"""Sinusoids of the grid, which ours computes from its size."""
OUTER = {
    CONVOLUTION: "embedding.linear.weight",
    "x_embedder.proj.bias": "embedding.linear.bias",
    LEVEL: "condition.parts.0.enter.weight",
    "t_embedder.mlp.0.bias": "condition.parts.0.enter.bias",
    "t_embedder.mlp.2.weight": "condition.parts.0.leave.weight",
    "t_embedder.mlp.2.bias": "condition.parts.0.leave.bias",
    "y_embedder.embedding_table.weight": "condition.parts.1.table.weight",
    f"{OUTPUT}.weight": "head.inner.weight",
    f"{OUTPUT}.bias": "head.inner.bias",
    "final_layer.adaLN_modulation.1.weight": "final.modulation.linear.weight",
    "final_layer.adaLN_modulation.1.bias": "final.modulation.linear.bias",
}
LAYERS = {
    "attn.qkv": "attention.qkv",
    "attn.proj": "attention.out",
    "mlp.fc1": "mlp.up",
    "mlp.fc2": "mlp.down",
    "adaLN_modulation.1": "modulation.linear",
}
INNER = {
    **{f"{theirs}.weight": f"{ours}.weight" for theirs, ours in LAYERS.items()},
    **{f"{theirs}.bias": f"{ours}.bias" for theirs, ours in LAYERS.items()},
}


def _positions_mismatch(theirs: Mapping[str, Tensor]) -> Iterator[str]:
    """Report positions other than the sinusoids of a square grid, columns before rows."""
    if POSITIONS not in theirs:
        return
    table = theirs[POSITIONS].double().flatten(0, -2)
    length, width = table.shape
    side = round(length**0.5)
    index = torch.arange(length)
    frequency = 10_000.0 ** -(torch.arange(width // 4).double() / (width // 4))
    parts = []
    for values in (index % side, index // side):
        angle = values[:, None] * frequency
        parts += [angle.sin(), angle.cos()]
    ours = torch.cat(parts, 1)
    if ours.shape != table.shape or not torch.allclose(table, ours, atol=1e-3):
        yield f"{POSITIONS} differs from the sinusoids of a grid of {side} x {side}"


def _linear(theirs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Turn the convolution over patches into a linear layer of their values."""
    weights = dict(theirs)
    if CONVOLUTION in weights:
        weights[CONVOLUTION] = rearrange(weights[CONVOLUTION], "d c p q -> d (p q c)")
    return weights


DIT = Layout(
    "a DiT",
    OUTER,
    INNER,
    ignored=frozenset({POSITIONS}),
    normalize=_linear,
    incompatibilities=_positions_mismatch,
)
"""The published models; conditions must be the level, then the label."""


def _reversed_time(theirs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Turn a velocity towards the data at time 1 - u into the velocity eps - x_0 at u.

    Predicted variances, which no sampler of SiT reads, are dropped.
    """
    weights = _linear(theirs)
    if LEVEL in weights:
        # cos((1 - u) f) and sin((1 - u) f) are a rotation of cos(u f) and sin(u f).
        cosines, sines = weights[LEVEL].double().chunk(2, 1)
        count = cosines.shape[1]
        frequency = 10_000.0 ** -(torch.arange(count).double() / count)
        of_cosines = cosines * frequency.cos() + sines * frequency.sin()
        of_sines = cosines * frequency.sin() - sines * frequency.cos()
        rotated = torch.cat([of_cosines, of_sines], 1)
        weights[LEVEL] = rotated.to(weights[LEVEL].dtype)

    if CONVOLUTION in theirs:
        _, channels, height, width = theirs[CONVOLUTION].shape
        for name in (f"{OUTPUT}.weight", f"{OUTPUT}.bias"):
            if name in weights:
                of_pixels = rearrange(
                    weights[name], "(p c) ... -> p c ...", p=height * width
                )
                means = of_pixels[:, :channels]
                weights[name] = -rearrange(means, "p c ... -> (p c) ...")
    return weights


SIT = replace(DIT, model_name="a SiT", normalize=_reversed_time)
"""The published models of velocity; the level is u in 0 .. 1, of `time_scale` 1."""
