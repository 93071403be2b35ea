"""Weights of GET (Fu et al., 2025) under the names of our denoiser.

GETRegionPretrain is a linear map of each region, a token for masked ones, a class token, twelve plain transformer
layers and a linear map back: our `regions`, `pre-norm` and `features`. Its keys have no bias. Two models of others have
its ends around blocks of DiT, the first with a bias of keys and the second without.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from torch import Tensor, nn

from .name_mapping import Layout

__all__ = ["DIT_BLOCK", "GET", "GET_DIT", "load_get", "weights_of_dit_block", "weights_of_get"]

ENDS = {
    "region_embed.embed.weight": "embedding.linear.weight",
    "region_embed.embed.bias": "embedding.linear.bias",
    "mask_token": "embedding.mask_token",
    "cls_token": "embedding.cls_token",
    "encoder.norm.weight": "final.norm.weight",
    "encoder.norm.bias": "final.norm.bias",
    "head_mask.weight": "head.weight",
    "head_mask.bias": "head.bias",
}
MAPS = {
    "attn.qkv.weight": "attention.qkv.weight",
    "attn.q_bias": "attention.qkv.q_bias",
    "attn.v_bias": "attention.qkv.v_bias",
    "attn.proj.weight": "attention.out.weight",
    "attn.proj.bias": "attention.out.bias",
    "mlp.fc1.weight": "mlp.up.weight",
    "mlp.fc1.bias": "mlp.up.bias",
    "mlp.fc2.weight": "mlp.down.weight",
    "mlp.fc2.bias": "mlp.down.bias",
}
NORMS = {f"norm{n}.{name}": f"norm{n}.{name}" for n in (1, 2) for name in ("weight", "bias")}
EXPRESSION = {"head_exp.head.weight": "head.linear.weight", "head_exp.head.bias": "head.linear.bias"}
TIME = {
    f"encoder.t_embedder.mlp.{n}.{name}": f"condition.{ours}.{name}"
    for n, ours in ((0, "enter"), (2, "leave"))
    for name in ("weight", "bias")
}
EARLIER = {
    "encoder.region_embed.proj.": "region_embed.embed.",
    "region_embed.proj.": "region_embed.embed.",
    "encoder.head.": "head_mask.",
    "encoder.cls_token": "cls_token",
}
"""How the names of the first release begin, and those of today."""
SCHEDULE = ("betas", "alphas", "alphas_cumprod", "sqrt_alphas_cumprod", "sqrt_one_minus_alphas_cumprod")
"""Tables that the models with blocks of DiT keep, and that follow from the schedule."""
LORA = ".parametrizations."


def _renewed(theirs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the names of today: tokens as vectors, and a convolution of one region as the linear map that it is."""
    renewed = {}
    for earlier, weight in theirs.items():
        begin = next(filter(earlier.startswith, EARLIER), "")
        renewed[EARLIER.get(begin, "") + earlier.removeprefix(begin)] = weight
    for name in renewed.keys() & {"cls_token", "mask_token"}:
        renewed[name] = renewed[name].flatten()
    embed = renewed.get("region_embed.embed.weight")
    if embed is not None and embed.ndim == 3 and embed.shape[-1] == 1:
        renewed["region_embed.embed.weight"] = embed[..., 0]
    return renewed


def _changed(theirs: Mapping[str, Tensor]) -> Iterator[str]:
    """Yield if changes of LoRA were not added: how large they are, the file does not say."""
    apart = sorted({name.partition(LORA)[0] for name in theirs if LORA in name})
    if apart:
        yield f"{len(apart)} weights have changes of LoRA beside them, {apart[0]} the first: merge them before saving"


GET = Layout(
    whose="a GET",
    outer=ENDS | EXPRESSION,
    inner=MAPS | NORMS,
    blocks="encoder.blocks",
    optional=frozenset({"mask_token", "head_mask.weight", "head_mask.bias", *EXPRESSION}),
    renewed=_renewed,
    otherwise=_changed,
)
"""GETRegionPretrain, of either release, and GETRegionFinetune, which has a head for expression and no mask token."""
GET_DIT = Layout(
    whose="a GET with blocks of DiT",
    outer=ENDS | TIME,
    inner=MAPS
    | {
        "attn.qkv.bias": "attention.qkv.bias",
        "adaLN_modulation.1.weight": "modulation.linear.weight",
        "adaLN_modulation.1.bias": "modulation.linear.bias",
    },
    blocks="encoder.blocks",
    optional=frozenset({"attn.qkv.bias", "attn.q_bias", "attn.v_bias"}),
    passed=frozenset(SCHEDULE),
    renewed=_renewed,
)
"""GETRegionDiffusion, of which one version has a bias of keys and the other has none."""
DIT_BLOCK = Layout(
    whose="a DiT block around nn.MultiheadAttention",
    outer={
        "attn.in_proj_weight": "attention.qkv.weight",
        "attn.in_proj_bias": "attention.qkv.bias",
        "attn.out_proj.weight": "attention.out.weight",
        "attn.out_proj.bias": "attention.out.bias",
        "mlp.0.weight": "mlp.up.weight",
        "mlp.0.bias": "mlp.up.bias",
        "mlp.2.weight": "mlp.down.weight",
        "mlp.2.bias": "mlp.down.bias",
        "modulation.linear.weight": "modulation.linear.weight",
        "modulation.linear.bias": "modulation.linear.bias",
    },
)
"""A single block whose attention is torch's: queries, keys and values stand on top of each other there too."""


def weights_of_get(theirs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights of a GET under our names, those of a head for expression as of our head `expression`.

    Raises:
        Refused: Names are missing or strange; all are said at once.
    """
    return GET.weights(theirs)


def load_get(path: str | Path, model: nn.Module) -> None:
    """Read the weights of a GET into a denoiser, from safetensors or from a file of `torch.save`.

    Raises:
        Refused: The file cannot be read, holds no GET, or one of other sizes; the model is then as it was.
    """
    GET.load(path, model)


def weights_of_dit_block(theirs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights of one block of DiT around `nn.MultiheadAttention` under the names of our block.

    Raises:
        Refused: Names are missing or strange; all are said at once.
    """
    return DIT_BLOCK.weights(theirs)
