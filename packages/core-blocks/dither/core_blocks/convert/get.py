"""Weights of GET (Fu et al., 2025).

GETRegionPretrain is a linear embedding of each region, a mask token, a class token, twelve plain
transformer layers and a linear head: our `regions`, `pre-norm` and `features`. Its keys have no
bias. Two later models have DiT blocks instead, the first with a bias for keys and the second
without.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from torch import Tensor

from .name_mapping import Layout

__all__ = ["GET", "GET_DIT"]

OUTER = {
    "region_embed.embed.weight": "embedding.linear.weight",
    "region_embed.embed.bias": "embedding.linear.bias",
    "mask_token": "embedding.mask_token",
    "cls_token": "embedding.cls_token",
    "encoder.norm.weight": "final.norm.weight",
    "encoder.norm.bias": "final.norm.bias",
    "head_mask.weight": "head.weight",
    "head_mask.bias": "head.bias",
}
INNER = {
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
NORMS = {
    name: name for name in ("norm1.weight", "norm1.bias", "norm2.weight", "norm2.bias")
}
EXPRESSION = {
    "head_exp.head.weight": "head.linear.weight",
    "head_exp.head.bias": "head.linear.bias",
}
TIME = {
    "encoder.t_embedder.mlp.0.weight": "condition.enter.weight",
    "encoder.t_embedder.mlp.0.bias": "condition.enter.bias",
    "encoder.t_embedder.mlp.2.weight": "condition.leave.weight",
    "encoder.t_embedder.mlp.2.bias": "condition.leave.bias",
}
FIRST_RELEASE = {
    "encoder.region_embed.proj.": "region_embed.embed.",
    "region_embed.proj.": "region_embed.embed.",
    "encoder.head.": "head_mask.",
    "encoder.cls_token": "cls_token",
}
"""Prefixes of the first release and of the current one."""
SCHEDULE = (
    "betas",
    "alphas",
    "alphas_cumprod",
    "sqrt_alphas_cumprod",
    "sqrt_one_minus_alphas_cumprod",
)
"""Tables of the models with DiT blocks that follow from the schedule."""
LORA = ".parametrizations."


def _current_names(theirs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Convert the first release: rename, flatten tokens, and turn the convolution of width 1 into a linear layer."""
    weights = {}
    for name, weight in theirs.items():
        # Names of the current release have none of the prefixes.
        current = name
        for prefix, replacement in FIRST_RELEASE.items():
            if name.startswith(prefix):
                current = replacement + name.removeprefix(prefix)
        weights[current] = weight

    # 1 1 D -> D
    for name in weights.keys() & {"cls_token", "mask_token"}:
        weights[name] = weights[name].flatten()

    # A convolution of width 1 is a linear layer.
    embed = weights.get("region_embed.embed.weight")
    if embed is not None and embed.ndim == 3 and embed.shape[-1] == 1:
        weights["region_embed.embed.weight"] = embed[..., 0]
    return weights


def _unmerged_lora(theirs: Mapping[str, Tensor]) -> Iterator[str]:
    """Report separate LoRA weights: the file does not say how they are scaled."""
    separate = sorted({name.partition(LORA)[0] for name in theirs if LORA in name})
    if separate:
        yield (
            f"{len(separate)} weights have separate LoRA weights, the first {separate[0]}: "
            "merge them before saving"
        )


GET = Layout(
    model_name="a GET",
    outer=OUTER | EXPRESSION,
    inner=INNER | NORMS,
    blocks="encoder.blocks",
    optional=frozenset(
        {"mask_token", "head_mask.weight", "head_mask.bias", *EXPRESSION}
    ),
    normalize=_current_names,
    incompatibilities=_unmerged_lora,
)
"""GETRegionPretrain, of either release, and GETRegionFinetune, which has an expression head and no
mask token."""
GET_DIT = Layout(
    model_name="a GET with DiT blocks",
    outer=OUTER | TIME,
    inner=INNER
    | {
        "attn.qkv.bias": "attention.qkv.bias",
        "adaLN_modulation.1.weight": "modulation.linear.weight",
        "adaLN_modulation.1.bias": "modulation.linear.bias",
    },
    blocks="encoder.blocks",
    optional=frozenset({"attn.qkv.bias", "attn.q_bias", "attn.v_bias"}),
    ignored=frozenset(SCHEDULE),
    normalize=_current_names,
)
"""GETRegionDiffusion, with or without a bias for keys."""
