"""Norms against their formulas."""

import pytest
import torch

from dither.core_blocks.norms import make_norm


def normal(*shape):
    return torch.randn(
        *shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64
    )


def test_norms():
    x, eps = normal(2, 3, 5) + 1, 0.1
    mean, variance = x.mean(-1, keepdim=True), x.var(-1, unbiased=False, keepdim=True)
    expected = {
        "layer": (x - mean) / (variance + eps).sqrt(),
        "rms": x / (variance + mean**2 + eps).sqrt(),
    }
    for norm, y in expected.items():
        torch.testing.assert_close(make_norm(norm, 5, affine=False, eps=eps)(x), y)


@pytest.mark.parametrize(
    ("norm", "affine", "names"),
    [
        ("layer", False, []),
        ("layer", "scale", ["weight"]),
        ("layer", True, ["weight", "bias"]),
        ("rms", False, []),
        ("rms", "scale", ["weight"]),
        ("rms", True, ["weight"]),
    ],
)
def test_learned_scale_and_shift(norm, affine, names):
    module, x = make_norm(norm, 5, affine=affine, eps=1e-6).double(), normal(2, 3, 5)
    assert [name for name, _ in module.named_parameters()] == names
    plain = make_norm(norm, 5, affine=False, eps=1e-6)(x)
    assert torch.equal(module(x), plain)
    with torch.no_grad():
        for value, weight in enumerate(module.parameters(), 2):
            weight.fill_(value)
    torch.testing.assert_close(
        module(x), plain * (2 if names else 1) + (3 if "bias" in names else 0)
    )


@pytest.mark.parametrize("norm", ["layer", "rms"])
def test_weights_of_lower_precision(norm):
    """FSDP gathers the weights of a block in bfloat16 while the residual stream stays in float32."""
    module, x = make_norm(norm, 5, affine=True, eps=1e-6), normal(2, 3, 5).float()
    expected = module(x)
    low = module.bfloat16()(x)
    assert low.dtype == torch.float32
    torch.testing.assert_close(low, expected)


def test_rms_norm_of_a_lower_precision_than_its_weight():
    """Queries and keys under autocast; torch warns of mixed precisions and does not fuse them."""
    module = make_norm("rms", 5, affine=True, eps=1e-6)
    x = normal(2, 3, 5).bfloat16()
    y = module(x)
    assert y.dtype == torch.bfloat16
    torch.testing.assert_close(y, module(x.float()).bfloat16())
