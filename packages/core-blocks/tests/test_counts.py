"""The three systems of the seeds, to the parameter: in total and part by part."""

import pytest
import torch

from dither.registry import FeatureSpace, Field, TokenSpace


def plans(n, width, depth, heads, **options):
    space = TokenSpace((Field("nodes", n, 15, 13, 14), Field("edges", n * (n - 1) // 2, 13, 11, 12)))
    block = {"heads": heads, "affine": True, "eps": 1e-5, "dropout": 0.1}
    model = {"width": width, "depth": depth, "embedding": "graph", "affine": True, "eps": 1e-5, **options}
    return space, model, block


GET = (
    FeatureSpace(900, 283),
    {"width": 768, "depth": 12, "init": "trunc-normal", "final": "norm", "affine": True},
    {"heads": 12},
)
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
    {"heads": 8, "norm": "rms", "affine": True, "mlp": "swiglu", "bias": False, "rope": True},
)


def count(module):
    return sum(weight.numel() for weight in module.parameters())


def built(model_of, system, block=None, **options):
    space, model, own = system
    return model_of(space, device="meta", block={**own, **(block or {})}, **{**model, **options})


@pytest.mark.parametrize(
    ("system", "total"),
    [
        (GET, 128_767_003),
        (plans(8, 128, 4, 4), 1_281_564),
        (plans(8, 256, 6, 8), 7_389_724),
        (plans(8, 256, 4, 8), 5_020_700),
        (plans(14, 128, 4, 4), 1_283_100),
        (LANGUAGE, 79_245_137),
    ],
    ids=["get", "bubble-small", "bubble-base", "bubble-medium", "bubble-14", "language"],
)
def test_totals(model_of, system, total):
    assert count(built(model_of, system)) == total


def test_norms_and_biases_are_part_of_the_totals(model_of):
    small = plans(8, 128, 4, 4)
    assert count(built(model_of, small, {"affine": False}, affine=False)) == 1_281_564 - 9 * 256
    assert count(built(model_of, small, {"affine": "scale"}, affine="scale")) == 1_281_564 - 9 * 128
    assert count(built(model_of, LANGUAGE, {"bias": True})) == 79_285_073
    blocks = 6
    assert count(built(model_of, LANGUAGE, {"qkv_bias": True})) == 79_245_137 + blocks * 1536
    assert count(built(model_of, LANGUAGE, {"out_bias": True})) == 79_245_137 + blocks * 512
    assert count(built(model_of, LANGUAGE, {"mlp_bias": True})) == 79_245_137 + blocks * (2 * 2048 + 512)


def test_get_part_by_part(model_of):
    model = built(model_of, GET)
    block = model.blocks[0]
    parts = {
        model.embedding.linear: 218_112,  # the seed's table says 217,856, which is 283 * 768 + 512
        model.embedding: 218_112 + 1_536,
        model.condition: 787_968,
        block.attention.qkv: 1_771_776,
        block.attention.out: 590_592,
        block.mlp.up: 2_362_368,
        block.mlp.down: 2_360_064,
        block.modulation: 3_543_552,
        block.norm1: 0,
        block: 10_628_352,
        model.blocks: 127_540_224,
        model.final: 1_536,
        model.head: 217_627,
    }
    assert {part: count(part) for part in parts} == parts


def test_bubble_part_by_part(model_of):
    model = built(model_of, plans(8, 128, 4, 4))
    block = model.blocks[0]
    parts = {
        model.embedding.tokens.tables[0]: 1_920,
        model.embedding.tokens.tables[1]: 1_664,
        model.embedding: 1_920 + 1_664 + 2_304,
        model.condition: 49_408,
        block.attention.qkv: 49_536,
        block.attention.out: 16_512,
        block.mlp: 131_712,
        block.modulation: 99_072,
        block: 297_344,
        model.final: 33_280,
        model.head.maps[0]: 1_935,
        model.head.maps[1]: 1_677,
    }
    assert {part: count(part) for part in parts} == parts


def test_language_part_by_part(model_of):
    model = built(model_of, LANGUAGE)
    block = model.blocks[0]
    parts = {
        model.embedding: 25_731_584,
        model.condition: 49_408,
        block.attention: 1_048_576,  # the seed says 1.57 M
        block.mlp: 3_145_728,
        block.modulation: 396_288,  # the seed says 0.02 M
        block.norm1: 512,
        block: 4_591_616,
        model.final.norm: 512,
        model.final.modulation: 132_096,
        model.head: 25_781_841,
    }
    assert {part: count(part) for part in parts} == parts


def test_trunc_normal_leaves_embedding_and_head_alone_and_keeps_zeros(model_of, regions):
    plain = model_of(regions, width=64, init="torch")
    model = model_of(regions, width=64, init="trunc-normal")
    for part in ("embedding", "head"):
        for a, b in zip(getattr(plain, part).parameters(), getattr(model, part).parameters(), strict=True):
            assert torch.equal(a, b)
    for block in model.blocks:
        assert not any(weight.any() for weight in block.modulation.parameters())
        for layer in (block.attention.qkv, block.attention.out, block.mlp.up, block.mlp.down, model.condition.enter):
            assert layer.weight.std().item() == pytest.approx(0.02, rel=0.05)
            assert not layer.bias.any()
    assert plain.blocks[0].attention.qkv.bias.any()


def test_embedding_and_tokens_of_get_start_as_the_seed_says(model_of):
    model = model_of(FeatureSpace(4, 25), width=400, depth=1, block={"heads": 1})
    bound = 25**-0.5
    assert model.embedding.linear.weight.abs().max().item() == pytest.approx(bound, rel=1e-3)
    for token in (model.embedding.mask_token, model.embedding.cls_token):
        assert token.std().item() == pytest.approx(0.02, rel=0.1)
