"""The plain layer: torch's own, keys without a bias, stochastic depth, and GETRegionPretrain to the parameter."""

import pytest
import torch
from torch import nn

from dither.core_blocks.block_specs import AdaLNZero
from dither.core_blocks.blocks import DropPath, PreNormBlock
from dither.core_blocks.qkv import QVBiased
from dither.core_blocks.specs import PreNorm
from dither.registry import FeatureSpace, default_catalog

torch.set_num_threads(1)
WIDTH, HEADS = 24, 3
C = torch.zeros(2, 8)


def drawn(module):
    generator = torch.Generator().manual_seed(0)
    for weight in module.parameters():
        nn.init.normal_(weight, std=0.3, generator=generator)
    return module


def test_it_is_torchs_own_layer_with_the_norm_in_front():
    ours = drawn(PreNormBlock(WIDTH, HEADS, eps=1e-5))
    theirs = nn.TransformerEncoderLayer(
        WIDTH, HEADS, 4 * WIDTH, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
    )
    names = {
        "attention.qkv.weight": "self_attn.in_proj_weight",
        "attention.qkv.bias": "self_attn.in_proj_bias",
        "attention.out.": "self_attn.out_proj.",
        "mlp.up.": "linear1.",
        "mlp.down.": "linear2.",
    }
    weights = {}
    for name, weight in ours.state_dict().items():
        begin = next((begin for begin in names if name.startswith(begin)), "")
        weights[names.get(begin, "") + name.removeprefix(begin)] = weight
    theirs.load_state_dict(weights)
    x = torch.randn(2, 9, WIDTH)
    torch.testing.assert_close(ours(x, C), theirs(x), rtol=1e-5, atol=1e-5)
    valid = torch.arange(9) < torch.tensor([[9], [5]])
    masked = ours(x, C, mask=valid[:, None, None])
    padded = theirs(x, src_key_padding_mask=~valid)
    torch.testing.assert_close(masked[valid], padded[valid], rtol=1e-5, atol=1e-5)


def test_the_condition_is_not_looked_at():
    block, x = drawn(PreNormBlock(WIDTH, HEADS)), torch.randn(2, 5, WIDTH)
    assert torch.equal(block(x, C), block(x, C + torch.randn_like(C)))


@pytest.mark.parametrize("spec", [PreNorm, AdaLNZero])
def test_keys_without_a_bias_are_keys_with_any(spec):
    """Softmax does not see a bias of keys, so that the two are one function."""
    some, every = (drawn(spec(heads=HEADS, qkv_bias=bias).build(WIDTH, 8)) for bias in ("qv", True))
    qv, qkv = some.attention.qkv, every.attention.qkv
    assert isinstance(qv, QVBiased)
    weights = {name: weight for name, weight in some.state_dict().items() if not name.endswith(("q_bias", "v_bias"))}
    weights["attention.qkv.bias"] = torch.cat([qv.q_bias, torch.randn(WIDTH), qv.v_bias]).detach()
    every.load_state_dict(weights)
    x, c = torch.randn(2, 7, WIDTH), torch.randn(2, 8)
    torch.testing.assert_close(some(x, c), every(x, c), rtol=1e-4, atol=1e-5)
    every(x, c).square().sum().backward()
    some(x, c).square().sum().backward()
    wanted = torch.cat([qv.q_bias.grad, torch.zeros(WIDTH), qv.v_bias.grad])
    torch.testing.assert_close(qkv.bias.grad, wanted, rtol=1e-3, atol=1e-3)


def test_paths_are_dropped_by_whole_samples_and_the_mean_stays():
    torch.manual_seed(0)
    drop, x = DropPath(0.3), torch.ones(20_000, 2, 3)
    y = drop(x)
    assert (y == y[:, :1, :1]).all(), "a sample goes as a whole"
    torch.testing.assert_close(y.unique(), torch.tensor([0, 1 / 0.7]))
    gone = (y[:, 0, 0] == 0).sum().item()
    assert (gone - 6000) ** 2 / (20_000 * 0.3 * 0.7) < 10.8, "chi-square, 1 in 1000"
    assert drop.eval()(x) is x
    assert DropPath(0.0)(x) is x


def test_attention_and_mlp_are_dropped_by_draws_of_their_own():
    torch.manual_seed(0)
    block = drawn(PreNormBlock(WIDTH, HEADS, drop_path=0.5))
    x, c = torch.randn(1, 4, WIDTH).expand(400, -1, -1), torch.zeros(400, 8)
    with torch.no_grad():
        a = 2 * block.attention(block.norm1(x[:1]))
        ways = [x[:1], x[:1] + a]
        ways += [way + 2 * block.mlp(block.norm2(way)) for way in ways]
        out = block(x, c)
    near = torch.stack([(out - way).abs().amax((1, 2)) < 1e-4 for way in ways])
    assert (near.sum(0) == 1).all(), "every sample went one of the four ways"
    assert ((near.sum(1) - 100.0) ** 2 / 100).sum() < 16.3, "chi-square of 3 degrees, 1 in 1000"


def test_asked_positions_are_served_under_dropped_paths_too():
    block, x = drawn(PreNormBlock(WIDTH, HEADS, drop_path=0.5)), torch.randn(8, 4, WIDTH)
    requested = torch.rand(8, 4) < 0.5
    outs = []
    for told in (None, requested):
        torch.manual_seed(3)
        outs.append(block(x, torch.zeros(8, 8), requested=told)[requested])
    torch.testing.assert_close(*outs)


@pytest.mark.parametrize("depth", [1, 2, 5])
def test_paths_are_dropped_more_the_deeper_they_are(depth):
    spec = default_catalog().parse("model", get(depth=depth, block=BLOCK | {"drop_path": 0.2}))
    model = spec.build(FeatureSpace(4, 3))
    rates = [block.drop_path.p for block in model.blocks]
    assert rates == pytest.approx(torch.linspace(0, 0.2, depth).tolist())


BLOCK = {"use": "pre-norm", "heads": 12, "qkv_bias": "qv"}


def get(**options):
    return {
        "use": "denoiser",
        "width": 48,
        "depth": 2,
        "final": "norm",
        "affine": True,
        "embedding": "regions",
        "condition": "none",
        "block": BLOCK,
        "head": "features",
    } | options


def test_get_region_pretrain_has_85_484_059_parameters():
    spec = default_catalog().parse("model", get(width=768, depth=12))
    space = FeatureSpace(900, 283)
    with torch.device("meta"):
        model = spec.build(space)
    assert sum(weight.numel() for weight in model.parameters()) == 85_484_059
    assert sum(stage.parameters for stage in spec.stages(space)) == 85_484_059
    assert not list(spec.check(space))


@pytest.mark.parametrize("qkv_bias", [True, False, "qv"])
@pytest.mark.parametrize("kind", [PreNorm, AdaLNZero])
def test_biases_are_counted(kind, qkv_bias):
    for bias in (True, False):
        spec = kind(heads=2, qkv_bias=qkv_bias, bias=bias)
        assert spec.cost(16, 8, 5).parameters == sum(w.numel() for w in spec.build(16, 8).parameters())


def test_a_condition_that_nothing_reads_is_told():
    space = FeatureSpace(9, 3)
    (misfit,) = default_catalog().parse("model", get(condition="level")).check(space)
    assert misfit.path == ("condition",)
    assert misfit.message == 'neither block "pre-norm" nor final = "norm" looks at condition "level"'
    for options in (
        {},
        {"condition": "level", "final": "adaln"},
        {"condition": "level", "block": {"use": "adaln-zero"}},
    ):
        assert not list(default_catalog().parse("model", get(**options)).check(space))
