"""Parameter counts and initialisation of the reference models."""

import pytest
import torch

from dither.registry import Field, TokenSpace


def plans(n, width, depth, heads, **options):
    space = TokenSpace(
        (Field("nodes", n, 15, 13, 14), Field("edges", n * (n - 1) // 2, 13, 11, 12))
    )
    block = {"heads": heads, "affine": True, "eps": 1e-5, "dropout": 0.1}
    model = {
        "width": width,
        "depth": depth,
        "embedding": "graph",
        "affine": True,
        "eps": 1e-5,
        **options,
    }
    return space, model, block


LANGUAGE = (
    TokenSpace((Field("text", 1024, 50_257),)),
    {
        "width": 512,
        "depth": 6,
        "cond": 128,
        "norm": "rms",
        "affine": True,
        "embedding": {"use": "tokens", "init": "kaiming"},
    },
    {
        "heads": 8,
        "norm": "rms",
        "affine": True,
        "mlp": "swiglu",
        "bias": False,
        "rope": True,
    },
)


def count(module):
    return sum(weight.numel() for weight in module.parameters())


def built(model_of, system, block=None, **options):
    space, model, own = system
    return model_of(
        space, device="meta", block={**own, **(block or {})}, **{**model, **options}
    )


@pytest.mark.parametrize(
    ("system", "total"),
    [
        (plans(8, 128, 4, 4), 1_281_564),
        (plans(8, 256, 6, 8), 7_389_724),
        (plans(8, 256, 4, 8), 5_020_700),
        (plans(14, 128, 4, 4), 1_283_100),
        (LANGUAGE, 79_245_137),
    ],
    ids=["bubble-small", "bubble-base", "bubble-medium", "bubble-14", "language"],
)
def test_totals(model_of, system, total):
    assert count(built(model_of, system)) == total


def test_totals_include_norms_and_biases(model_of):
    small = plans(8, 128, 4, 4)
    assert (
        count(built(model_of, small, {"affine": False}, affine=False))
        == 1_281_564 - 9 * 256
    )
    assert (
        count(built(model_of, small, {"affine": "scale"}, affine="scale"))
        == 1_281_564 - 9 * 128
    )
    assert count(built(model_of, LANGUAGE, {"bias": True})) == 79_285_073
    assert (
        count(built(model_of, LANGUAGE, tie_embeddings=True))
        == 79_245_137 - 50_257 * 512
    )
    blocks = 6
    assert (
        count(built(model_of, LANGUAGE, {"qkv_bias": True}))
        == 79_245_137 + blocks * 1536
    )
    assert (
        count(built(model_of, LANGUAGE, {"out_bias": True}))
        == 79_245_137 + blocks * 512
    )
    assert count(
        built(model_of, LANGUAGE, {"mlp_bias": True})
    ) == 79_245_137 + blocks * (2 * 2048 + 512)


def test_trunc_normal_initialises_condition_and_blocks_but_keeps_zeros(
    model_of, regions
):
    plain = model_of(regions, width=64, init="torch")
    model = model_of(regions, width=64, init="trunc-normal")
    for part in ("embedding", "head"):
        for a, b in zip(
            getattr(plain, part).parameters(),
            getattr(model, part).parameters(),
            strict=True,
        ):
            assert torch.equal(a, b)
    for block in model.blocks:
        assert not any(weight.any() for weight in block.modulation.parameters())
        for layer in (
            block.attention.qkv,
            block.attention.out,
            block.mlp.up,
            block.mlp.down,
            model.condition.enter,
        ):
            assert layer.weight.std().item() == pytest.approx(0.02, rel=0.05)
            assert not layer.bias.any()
    assert plain.blocks[0].attention.qkv.bias.any()
