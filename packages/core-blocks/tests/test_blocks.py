"""The adaLN-Zero block against DiT's formula, its start as the identity, and what it refuses."""

import pytest
import torch
from torch.nn import functional

from dither.core_blocks.adaln import Final
from dither.core_blocks.block_specs import AdaLNZero
from dither.core_blocks.blocks import AdaLNZeroBlock


def inputs():
    torch.manual_seed(0)
    return torch.randn(2, 5, 12), torch.randn(2, 7)


@pytest.mark.parametrize(
    "options", [{}, {"norm": "rms", "affine": True, "mlp": "swiglu", "rope": True, "dropout": 0.3}]
)
def test_starts_as_the_identity_even_in_training(options):
    x, c = inputs()
    assert torch.equal(AdaLNZeroBlock(12, 7, 3, **options).train()(x, c), x)


def test_equals_the_formula_of_dit(opened):
    """Linear(c) -> shift, scale, gate of attention, then of the MLP (as DiT's code; the text of seed 000 swaps two)."""
    x, c = inputs()
    block = opened(AdaLNZeroBlock(12, 7, 3).eval())
    shift1, scale1, gate1, shift2, scale2, gate2 = (
        (c @ block.modulation.linear.weight.T + block.modulation.linear.bias).view(2, 6, 1, 12).unbind(1)
    )
    h = x + gate1 * block.attention(functional.layer_norm(x, (12,), eps=1e-6) * (1 + scale1) + shift1)
    expected = h + gate2 * block.mlp(functional.layer_norm(h, (12,), eps=1e-6) * (1 + scale2) + shift2)
    torch.testing.assert_close(block(x, c), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("cond", [7, None])
def test_final_norm_is_shifted_and_scaled_in_this_order(opened, cond):
    x, c = inputs()
    final = opened(Final(12, cond, eps=0.1))
    expected = functional.layer_norm(x, (12,), eps=0.1)
    if cond is not None:
        vectors = c @ final.modulation.linear.weight.T + final.modulation.linear.bias
        expected = expected * (1 + vectors[:, None, 12:]) + vectors[:, None, :12]
    torch.testing.assert_close(final(x, c), expected, atol=1e-6, rtol=1e-5)


def test_condition_per_position(opened):
    x, c = inputs()
    block = opened(AdaLNZeroBlock(12, 7, 3).eval())
    torch.testing.assert_close(block(x, c[:, None].expand(-1, 5, -1)), block(x, c), atol=1e-6, rtol=1e-5)
    with torch.no_grad():  # without attention, each position is what it is under its own condition
        block.attention.out.weight.zero_()
        block.attention.out.bias.zero_()
    each = c[:, None].repeat(1, 5, 1)
    each[:, 3] = c.flip(0)
    y = block(x, each)
    torch.testing.assert_close(y[:, 3], block(x, c.flip(0))[:, 3], atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(y[:, :3], block(x, c)[:, :3], atol=1e-6, rtol=1e-5)
    assert not torch.allclose(y[:, 3], block(x, c)[:, 3])


def test_attention_and_mlp_have_the_same_dropout_unless_asked(opened):
    block = AdaLNZeroBlock(12, 7, 3, dropout=0.2)
    assert (block.attention.weight_dropout, block.attention.dropout.p, block.mlp.dropout.p) == (0.2, 0.2, 0.2)
    block = AdaLNZeroBlock(12, 7, 3, dropout=0.2, attention_dropout=0.0)
    assert (block.attention.weight_dropout, block.attention.dropout.p, block.mlp.dropout.p) == (0.0, 0.2, 0.2)
    x, c = inputs()
    block = opened(block)
    assert not torch.equal(block(x, c), block(x, c))
    assert torch.equal(block.eval()(x, c), block(x, c))


def test_spec_hands_on_every_option():
    options = {
        "heads": 2, "ratio": 1.5, "norm": "rms", "affine": True, "eps": 0.01, "mlp": "gelu-tanh", "qkv_bias": False,
        "mlp_bias": False, "rope": True, "dropout": 0.25, "attention_dropout": 0.5, "attention": "math",
    }  # fmt: skip
    block = AdaLNZero(**options).build(8, 3)
    assert (block.attention.heads, block.attention.implementation) == (2, "math")
    assert (block.norm1.eps, type(block.norm2).__name__) == (0.01, "RMSNorm")
    assert (block.mlp.up.weight.shape, block.mlp.approximate) == ((12, 8), "tanh")
    assert (block.attention.qkv.bias, block.mlp.up.bias, block.mlp.down.bias) == (None, None, None)
    assert block.attention.out.bias is not None
    assert (block.attention.rotary.head_width, block.attention.weight_dropout, block.mlp.dropout.p) == (4, 0.5, 0.25)


def test_misfits_come_all_at_once_and_list_what_is_possible():
    misfits = list(AdaLNZero(heads=5, ratio=0.01).check(12, 4))
    assert [misfit.path for misfit in misfits] == [("heads",), ("ratio",)]
    assert misfits[0].message == "width 12 does not split into 5 equal heads; heads may be 1, 2, 3, 4, 6, 12"
    assert [misfit.path for misfit in AdaLNZero(heads=3, rope=True).check(9, 4)] == [("rope",)]
    assert [misfit.path for misfit in AdaLNZero(heads=4, rope=True).check(12, 4)] == [("heads",)]
    assert not list(AdaLNZero(heads=4).check(12, 4))
