"""Blocks and the final norm against their formulas and torch's own layers."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from dither.core_blocks.attention import QVBiasedLinear
from dither.core_blocks.blocks import DropPath
from dither.core_blocks.specs import AdaLNZero, PreNorm
from dither.registry import FeatureSpace, default_catalog

WIDTH, COND, HEADS = 12, 7, 3


def inputs():
    torch.manual_seed(0)
    return torch.randn(2, 5, WIDTH), torch.randn(2, COND)


def pre_norm(**options):
    block = PreNorm(heads=HEADS, **options).build(WIDTH, COND)
    generator = torch.Generator().manual_seed(0)
    for weight in block.parameters():
        nn.init.normal_(weight, std=0.3, generator=generator)
    return block


def test_every_option_reaches_its_layer():
    options = {
        "heads": 2, "ratio": 1.5, "norm": "rms", "affine": True, "eps": 0.01, "mlp": "gelu-tanh", "qkv_bias": False,
        "mlp_bias": False, "rope": True, "dropout": 0.25, "attention_dropout": 0.5, "attention": "math",
    }  # fmt: skip
    block = AdaLNZero(**options).build(8, 3)
    assert (block.attention.heads, block.attention.kernel) == (2, "math")
    assert (block.norm1.eps, type(block.norm2).__name__) == (0.01, "RMSNorm")
    assert (block.mlp.up.weight.shape, block.mlp.approximate) == ((12, 8), "tanh")
    assert (block.attention.qkv.bias, block.mlp.up.bias, block.mlp.down.bias) == (
        None,
        None,
        None,
    )
    assert block.attention.out.bias is not None
    assert (
        block.attention.rotary.head_width,
        block.attention.weight_dropout,
        block.mlp.dropout.p,
    ) == (4, 0.5, 0.25)


@pytest.mark.parametrize(
    ("options", "width", "paths"),
    [
        ({"heads": 5, "ratio": 0.01}, 12, [("heads",), ("ratio",)]),
        ({"heads": 3, "rope": True}, 9, [("rope",)]),
        ({"heads": 4, "rope": True}, 12, [("heads",)]),
        ({"heads": 4}, 12, []),
    ],
)
def test_incompatible_widths(options, width, paths):
    misfits = list(AdaLNZero(**options).check(width, 4))
    assert [misfit.path for misfit in misfits] == paths
    if width == 12 and paths == [("heads",)]:
        allowed = "1, 2, 3, 6" if options.get("rope") else "1, 2, 3, 4, 6, 12"
        assert misfits[0].message.endswith(f"heads may be {allowed}")


@pytest.mark.parametrize("spec", [PreNorm, AdaLNZero])
def test_a_bias_of_keys_has_no_effect(spec, opened):
    without, every = (
        opened(spec(heads=HEADS, qkv_bias=bias).build(WIDTH, COND))
        for bias in ("qv", True)
    )
    qv, qkv = without.attention.qkv, every.attention.qkv
    assert isinstance(qv, QVBiasedLinear)
    weights = {
        name: weight
        for name, weight in without.state_dict().items()
        if not name.endswith(("q_bias", "v_bias"))
    }
    weights["attention.qkv.bias"] = torch.cat(
        [qv.q_bias, torch.randn(WIDTH), qv.v_bias]
    ).detach()
    every.load_state_dict(weights)
    x, c = inputs()
    torch.testing.assert_close(without(x, c), every(x, c), rtol=1e-4, atol=1e-5)
    every(x, c).square().sum().backward()
    without(x, c).square().sum().backward()
    expected = torch.cat([qv.q_bias.grad, torch.zeros(WIDTH), qv.v_bias.grad])
    torch.testing.assert_close(qkv.bias.grad, expected, rtol=1e-3, atol=1e-3)


def test_drop_path_drops_whole_samples_and_keeps_the_mean():
    torch.manual_seed(0)
    drop, x = DropPath(0.3), torch.ones(20_000, 2, 3)
    y = drop(x)
    assert (y == y[:, :1, :1]).all()
    torch.testing.assert_close(y.unique(), torch.tensor([0, 1 / 0.7]))
    dropped = (y[:, 0, 0] == 0).sum().item()
    assert (dropped - 6000) ** 2 / (20_000 * 0.3 * 0.7) < 10.8, "chi-square, 1 in 1000"
    assert drop.eval()(x) is x
    assert DropPath(0.0)(x) is x


def get(**options):
    return {
        "use": "denoiser",
        "width": 48,
        "depth": 2,
        "final": "norm",
        "affine": True,
        "embedding": "regions",
        "condition": "none",
        "block": {"use": "pre-norm", "heads": 12, "qkv_bias": "qv"},
        "head": "features",
    } | options


@pytest.mark.parametrize("depth", [1, 2, 5])
def test_drop_path_increases_linearly_with_depth(depth):
    block = {"use": "pre-norm", "heads": 12, "drop_path": 0.2}
    model = (
        default_catalog()
        .parse("model", get(depth=depth, block=block))
        .build(FeatureSpace(4, 3))
    )
    rates = [block.drop_path.p for block in model.blocks]
    assert rates == pytest.approx(torch.linspace(0, 0.2, depth).tolist())


@pytest.mark.parametrize(
    ("options", "unused"),
    [
        ({"condition": "level"}, True),
        ({}, False),
        ({"condition": {"use": "sum", "parts": ["none", "none"]}}, False),
        ({"condition": "level", "final": "adaln"}, False),
        ({"condition": "level", "block": {"use": "adaln-zero"}}, False),
    ],
)
def test_an_unused_condition_is_reported(options, unused):
    misfits = list(
        default_catalog().parse("model", get(**options)).check(FeatureSpace(9, 3))
    )
    assert [(misfit.code, misfit.path) for misfit in misfits] == [
        ("no-effect", ("condition",))
    ] * unused


class FinalLayer(nn.Module):
    """DiT (Peebles and Xie, 2023): norm without weights, shift and scale from SiLU(c), linear layer; all at zero."""

    def __init__(self, width, out):
        super().__init__()
        self.linear, self.modulation = (
            nn.Linear(width, out),
            nn.Linear(width, 2 * width),
        )
        for layer in (self.linear, self.modulation):
            nn.init.zeros_(layer.weight)
            nn.init.zeros_(layer.bias)

    def forward(self, x, c):
        shift, scale = self.modulation(functional.silu(c)).chunk(2, 1)
        x = functional.layer_norm(x, x.shape[-1:], eps=1e-6)
        return self.linear(x * (1 + scale[:, None]) + shift[:, None])


@pytest.mark.parametrize("moved", [False, True])
def test_final_adaln_and_zero_head_equal_the_final_layer_of_dit(
    model_of, state_of, regions, opened, moved
):
    model = model_of(regions, final="adaln", head={"use": "features", "zero": True})
    model = opened(model) if moved else model
    theirs = FinalLayer(16, 5)
    ours = {"linear": model.head, "modulation": model.final.modulation.linear}
    theirs.load_state_dict(
        {f"{a}.{b}": t for a, m in ours.items() for b, t in m.state_dict().items()}
    )
    assert not list(model.final.norm.parameters())
    seen = []
    model.final.register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    level = torch.tensor([0.2, 0.9])
    out = model(state_of(regions), level, torch.ones(2, 9, dtype=torch.bool), {})
    torch.testing.assert_close(
        out, theirs(seen[0], model.condition(level, {})), atol=1e-6, rtol=1e-5
    )
    assert bool(out.any()) == moved, "starts at exactly 0"
