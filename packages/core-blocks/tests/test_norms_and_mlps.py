"""Norms and MLPs against their formulas."""

import math

import pytest
import torch

from dither.core_blocks.mlps import GELUMLP, SwiGLU, make_mlp
from dither.core_blocks.norms import make_norm
from dither.core_blocks.specs import AdaLNZero


def normal(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def test_layer_norm():
    x, eps = normal(2, 3, 5), 0.1
    mean, variance = x.mean(-1, keepdim=True), x.var(-1, unbiased=False, keepdim=True)
    torch.testing.assert_close(make_norm("layer", 5, affine=False, eps=eps)(x), (x - mean) / (variance + eps).sqrt())


def test_rms_norm():
    x, eps = normal(2, 3, 5) + 1, 0.1
    torch.testing.assert_close(
        make_norm("rms", 5, affine=False, eps=eps)(x), x / (x.square().mean(-1, keepdim=True) + eps).sqrt()
    )


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
    torch.testing.assert_close(module(x), plain * (2 if names else 1) + (3 if "bias" in names else 0))


def test_gelu():
    module, x = GELUMLP(3, 7, bias=True, approximate="none", dropout=0.0).double(), normal(2, 4, 3)
    h = x @ module.up.weight.T + module.up.bias
    exact = h * (1 + torch.erf(h / math.sqrt(2))) / 2
    tanh = h * (1 + torch.tanh(math.sqrt(2 / math.pi) * (h + 0.044715 * h**3))) / 2
    for approximate, hidden in (("none", exact), ("tanh", tanh)):
        module.approximate = approximate
        torch.testing.assert_close(module(x), hidden @ module.down.weight.T + module.down.bias)
    assert not torch.allclose(exact, tanh, atol=1e-6), "the inputs are too small"


def test_swiglu():
    module, x = SwiGLU(3, 7, bias=False, dropout=0.0).double(), normal(2, 4, 3)
    gate, up = x @ module.gate.weight.T, x @ module.up.weight.T
    torch.testing.assert_close(module(x), (gate / (1 + (-gate).exp()) * up) @ module.down.weight.T)


@pytest.mark.parametrize("mlp", ["gelu", "gelu-tanh", "swiglu"])
def test_by_name(mlp):
    torch.manual_seed(0)
    module = make_mlp(4, AdaLNZero(mlp=mlp, ratio=2.25, bias=False, dropout=0.5))
    assert all(weight.shape in ((9, 4), (4, 9)) for weight in module.parameters())
    assert getattr(module, "approximate", None) == {"gelu": "none", "gelu-tanh": "tanh", "swiglu": None}[mlp]
    x = torch.randn(8, 16, 4)
    whole, dropped = module.eval()(x), module.train()(x)
    kept = dropped != 0
    assert 0.4 < kept.float().mean() < 0.6
    torch.testing.assert_close(dropped[kept], 2 * whole[kept])


@pytest.mark.parametrize("norm", ["layer", "rms"])
def test_weights_of_lower_precision(norm):
    """FSDP gathers the weights of a block in bfloat16 while the residual stream stays in float32."""
    module, x = make_norm(norm, 5, affine=True, eps=1e-6), normal(2, 3, 5).float()
    expected = module(x)
    low = module.bfloat16()(x)
    assert low.dtype == torch.float32
    torch.testing.assert_close(low, expected)
