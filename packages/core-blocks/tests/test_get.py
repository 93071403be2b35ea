"""Converted GET weights compute the same as the public model, to float32 rounding; other files are rejected."""

import math

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional

from dither.core_blocks.convert.get import GET, GET_DIT
from dither.registry import FeatureSpace, Group, default_catalog
from dither.registry.config.errors import Refused
from dither.registry.contracts.records import State

torch.set_num_threads(1)
FEATURES, WIDTH, HEADS, DEPTH, LENGTH = 7, 24, 3, 2, 6
SPACE = FeatureSpace(LENGTH, FEATURES)


def filled(shapes: dict[str, tuple[int, ...]], std: float = 0.3) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {
        name: std * torch.randn(shape, generator=generator)
        for name, shape in shapes.items()
    }


def outer(features=FEATURES, width=WIDTH):
    return {
        "mask_token": (1, 1, width),
        "cls_token": (1, 1, width),
        "region_embed.embed.weight": (width, features),
        "region_embed.embed.bias": (width,),
        "encoder.norm.weight": (width,),
        "encoder.norm.bias": (width,),
        "head_mask.weight": (features, width),
        "head_mask.bias": (features,),
    }


def inner(n, width=WIDTH):
    return {
        f"encoder.blocks.{n}.attn.qkv.weight": (3 * width, width),
        f"encoder.blocks.{n}.attn.proj.weight": (width, width),
        f"encoder.blocks.{n}.attn.proj.bias": (width,),
        f"encoder.blocks.{n}.mlp.fc1.weight": (4 * width, width),
        f"encoder.blocks.{n}.mlp.fc1.bias": (4 * width,),
        f"encoder.blocks.{n}.mlp.fc2.weight": (width, 4 * width),
        f"encoder.blocks.{n}.mlp.fc2.bias": (width,),
    }


def made(depth=DEPTH, width=WIDTH, features=FEATURES):
    """Weights with the names and shapes of GETRegionPretrain, none of them zero."""
    shapes = outer(features, width)
    for n in range(depth):
        shapes |= inner(n, width)
        for name in (
            "attn.q_bias",
            "attn.v_bias",
            "norm1.weight",
            "norm1.bias",
            "norm2.weight",
            "norm2.bias",
        ):
            shapes[f"encoder.blocks.{n}.{name}"] = (width,)
    return filled(shapes)


def made_dit(depth=DEPTH, width=WIDTH, keys=True):
    """The same for the model with DiT blocks, with or without a bias for keys."""
    shapes = outer() | {
        "encoder.t_embedder.mlp.0.weight": (width, 256),
        "encoder.t_embedder.mlp.0.bias": (width,),
        "encoder.t_embedder.mlp.2.weight": (width, width),
        "encoder.t_embedder.mlp.2.bias": (width,),
    }
    for n in range(depth):
        block = f"encoder.blocks.{n}"
        shapes |= inner(n, width)
        shapes |= {f"{block}.adaLN_modulation.1.weight": (6 * width, width)}
        shapes |= {f"{block}.adaLN_modulation.1.bias": (6 * width,)}
        biases = (
            {"attn.qkv.bias": 3 * width}
            if keys
            else {"attn.q_bias": width, "attn.v_bias": width}
        )
        shapes |= {f"{block}.{name}": (size,) for name, size in biases.items()}
    return filled(shapes, 0.2) | {
        "betas": torch.linspace(1e-4, 0.02, 1000),
        "alphas": torch.ones(1000),
    }


def norm(x: Tensor, scale: Tensor | float = 1.0, shift: Tensor | float = 0.0) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    return (
        centred / (centred.square().mean(-1, keepdim=True) + 1e-6).sqrt() * scale
        + shift
    )


def upstream(
    w: dict[str, Tensor],
    x: Tensor,
    masked: Tensor,
    t: Tensor | None = None,
    head="head_mask",
) -> Tensor:
    """The public models, written from their description."""

    def linear(y: Tensor, name: str) -> Tensor:
        return y @ w[f"{name}.weight"].T + w.get(f"{name}.bias", 0)

    h = linear(x, "region_embed.embed")
    h = torch.where(masked[..., None], w["mask_token"], h) if masked.any() else h
    h = torch.cat([w["cls_token"].expand(len(x), 1, -1), h], 1)
    six: list[Tensor] = []
    if t is not None:
        angle = t[:, None] * 10_000.0 ** (-torch.arange(128) / 128)
        c = linear(
            torch.cat([angle.cos(), angle.sin()], -1), "encoder.t_embedder.mlp.0"
        )
        c = functional.silu(linear(functional.silu(c), "encoder.t_embedder.mlp.2"))
    for n in range(sum(name.endswith("attn.qkv.weight") for name in w)):
        name = f"encoder.blocks.{n}"
        if t is not None:
            six = list(linear(c, f"{name}.adaLN_modulation.1")[:, None].chunk(6, -1))
            y = norm(h) * (1 + six[1]) + six[0]
        else:
            y = norm(h, w[f"{name}.norm1.weight"], w[f"{name}.norm1.bias"])
        q, k, v = (y @ part.T for part in w[f"{name}.attn.qkv.weight"].chunk(3))
        if f"{name}.attn.qkv.bias" in w:
            q, k, v = (
                y + b
                for y, b in zip(
                    (q, k, v), w[f"{name}.attn.qkv.bias"].chunk(3), strict=True
                )
            )
        else:
            q, v = q + w[f"{name}.attn.q_bias"], v + w[f"{name}.attn.v_bias"]
        seen = []
        for head_q, head_k, head_v in zip(
            *(part.split(WIDTH // HEADS, -1) for part in (q, k, v)), strict=True
        ):
            scores = torch.einsum("bqe,bke->bqk", head_q, head_k) / math.sqrt(
                WIDTH // HEADS
            )
            seen.append(scores.softmax(-1) @ head_v)
        y = linear(torch.cat(seen, -1), f"{name}.attn.proj")
        h = h + (six[2] * y if six else y)
        y = (
            norm(h) * (1 + six[4]) + six[3]
            if six
            else norm(h, w[f"{name}.norm2.weight"], w[f"{name}.norm2.bias"])
        )
        y = linear(y, f"{name}.mlp.fc1")
        y = linear(0.5 * y * (1 + torch.erf(y / math.sqrt(2))), f"{name}.mlp.fc2")
        h = h + (six[5] * y if six else y)
    return linear(
        norm(h, w["encoder.norm.weight"], w["encoder.norm.bias"])[:, 1:], head
    )


def options(**changes):
    return {
        "use": "denoiser",
        "width": WIDTH,
        "depth": DEPTH,
        "final": "norm",
        "affine": True,
        "embedding": "regions",
        "condition": "none",
        "block": {"use": "pre-norm", "heads": HEADS, "qkv_bias": "qv"},
        "head": "features",
    } | changes


def dit(keys=True):
    block = {"use": "adaln-zero", "heads": HEADS, "qkv_bias": True if keys else "qv"}
    return options(condition={"use": "level", "frequencies": 256}, block=block)


def ours(choice: dict, space: FeatureSpace = SPACE) -> nn.Module:
    return default_catalog().parse("model", choice).build(space).eval()


def windows():
    torch.manual_seed(1)
    return torch.rand(3, LENGTH, FEATURES), torch.rand(3, LENGTH) < 0.5


def run(model: nn.Module, x: Tensor, masked: Tensor, t: Tensor | None = None) -> Tensor:
    hidden = masked[..., None].expand(*masked.shape, x.shape[-1])
    level = torch.zeros(len(x)) if t is None else t
    with torch.no_grad():
        return model(
            State(x.masked_fill(hidden, 0.0), hidden),
            level,
            torch.ones_like(masked),
            {},
        )


@pytest.fixture
def file(tmp_path):
    def write(weights, name="get.safetensors"):
        save_file(
            {key: weight.contiguous() for key, weight in weights.items()},
            tmp_path / name,
        )
        return tmp_path / name

    return write


def test_equals_the_public_model(file):
    weights, (x, masked) = made(), windows()
    model = ours(options())
    GET.load(file(weights), model)
    expected = upstream(weights, x, masked)
    assert expected.std() > 0.3, "the output is not constant"
    torch.testing.assert_close(run(model, x, masked), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("keys", [True, False])
def test_equals_the_public_model_with_dit_blocks(file, keys):
    weights, (x, masked), t = (
        made_dit(keys=keys),
        windows(),
        torch.tensor([0.0, 7.0, 100.0]),
    )
    model = ours(dit(keys))
    GET_DIT.load(file(weights), model)
    torch.testing.assert_close(
        run(model, x, masked, t), upstream(weights, x, masked, t), rtol=1e-5, atol=1e-5
    )


def test_names_of_the_first_release(file):
    """The embedding was a convolution of width 1 inside the encoder, like the head."""
    earlier = {}
    for key, weight in made().items():
        name = key.replace("region_embed.embed", "encoder.region_embed.proj").replace(
            "head_mask", "encoder.head"
        )
        name = "encoder.cls_token" if name == "cls_token" else name
        earlier[name] = (
            weight[..., None]
            if name.endswith("proj.weight") and "region" in name
            else weight
        )
    assert earlier.keys() != made().keys()
    expected, converted = GET.weights(made()), GET.weights(earlier)
    assert converted.keys() == expected.keys()
    assert all(torch.equal(converted[name], expected[name]) for name in expected)
    model = ours(options())
    GET.load(file(earlier), model)


def test_a_finetuned_model_has_a_head_for_expression(file):
    """GETRegionFinetune: softplus, two strands, no mask token; the expression columns are not read."""
    weights = made() | filled(
        {"head_exp.head.weight": (2, WIDTH), "head_exp.head.bias": (2,)}
    )
    weights = {
        name: weight
        for name, weight in weights.items()
        if not name.startswith("head_mask")
    }
    groups = (Group("motifs", 0, FEATURES), Group("expression", FEATURES, FEATURES + 2))
    embedding = {"use": "regions", "without": ["expression"]}
    choice = options(
        embedding=embedding, head={"use": "softplus", "group": "expression"}
    )
    model = ours(choice, FeatureSpace(LENGTH, FEATURES + 2, groups))
    GET.load(file(weights), model)
    x, _ = windows()
    columns = torch.cat([x, torch.full((3, LENGTH, 2), torch.nan)], -1)
    hidden = torch.arange(FEATURES + 2) >= FEATURES
    state = State(columns.masked_fill(hidden, 0.0), hidden.expand_as(columns))
    with torch.no_grad():
        out = model(state, torch.zeros(3), torch.ones(3, LENGTH, dtype=torch.bool), {})
    nothing = torch.zeros(3, LENGTH, dtype=torch.bool)
    expected = functional.softplus(upstream(weights, x, nothing, head="head_exp.head"))
    torch.testing.assert_close(out[..., FEATURES:], expected, rtol=1e-5, atol=1e-5)
    assert not out[..., :FEATURES].any()
    assert "embedding.mask_token" in GET.weights(weights)
    del weights["mask_token"]
    assert "embedding.mask_token" not in GET.weights(weights)


def test_missing_and_unknown_names_are_reported_together(refused):
    weights = made()
    weights = {
        n: w
        for n, w in weights.items()
        if n not in ("encoder.blocks.1.attn.q_bias", "cls_token")
    }
    weights |= {
        "encoder.blocks.0.attn.kqv.weight": torch.zeros(1),
        "head_atac.weight": torch.zeros(1),
    }
    with refused("misfit") as info:
        GET.weights(weights)
    for name in (
        "cls_token",
        "blocks.1.attn.q_bias",
        "blocks.0.attn.kqv.weight",
        "head_atac.weight",
    ):
        assert name in str(info.value)
    for incomplete in (
        {},
        {n: w for n, w in made().items() if not n.startswith("encoder.blocks.0.")},
    ):
        with pytest.raises(Refused, match="missing"):
            GET.weights(incomplete)


def test_unmerged_lora_is_rejected():
    weights, name = made(), "encoder.blocks.0.attn.qkv"
    lora = {f"{name}.parametrizations.weight.original": weights.pop(f"{name}.weight")}
    for convert in (GET.weights, GET.rename):
        with pytest.raises(Refused, match="LoRA"):
            convert(weights | lora)


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"width": 12}, "region_embed.embed.weight"),
        ({"block": {"use": "pre-norm", "heads": HEADS}}, "blocks.0.attention.qkv.bias"),
        ({"depth": 1}, "blocks.1.attention.qkv.weight"),
    ],
)
def test_a_model_of_another_shape_stays_unchanged(file, changes, name, refused):
    model = ours(options(**changes))
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    with refused("shape-mismatch", match=name):
        GET.load(file(made()), model)
    assert all(
        torch.equal(before[name], weight) for name, weight in model.state_dict().items()
    )
