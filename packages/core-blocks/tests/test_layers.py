"""Norms, MLPs and dropout against their formulas."""

import pytest
import torch

from dither.core_blocks.cpu import dropout
from dither.core_blocks.cpu.dropout import STEPS, Dropout, drop
from dither.core_blocks.norms import make_norm


def normal(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


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


@pytest.mark.parametrize("p", [0.1, 0.5, 0.937])
def test_mean_and_probability_at_every_element(p):
    torch.manual_seed(0)
    many = torch.stack([drop(torch.ones(50, 7), p) for _ in range(2000)])
    exact = 1 - round(p * STEPS) / STEPS
    assert set(many.unique().tolist()) <= {0.0, torch.tensor(1 / exact).item()}
    seen = (many > 0).double().mean(0)
    deviation = (exact * (1 - exact) / 2000) ** 0.5
    assert (seen - exact).abs().max() < 5 * deviation
    assert abs(seen.mean() - exact) < 5 * deviation / 350**0.5
    pairs = (
        ((many[:, 0, 0] > 0) & (many[:, 0, 1] > 0)).double().mean()
    )  # from one draw of the generator
    assert abs(pairs - exact**2) < 5 * (exact**2 * (1 - exact**2) / 2000) ** 0.5


def test_gradient_is_the_mask():
    x = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
    torch.manual_seed(3)
    y = drop(x, 0.5)
    (gradient,) = torch.autograd.grad(y.sum(), x)
    torch.testing.assert_close(y, x * gradient)
    assert 0 < (gradient == 0).sum() < 15

    def seeded(x):
        torch.manual_seed(3)
        return drop(x, 0.5)

    assert torch.autograd.gradcheck(seeded, x)
    assert torch.equal(seeded(x), y)


def test_masks_of_floats_and_of_int8_give_the_same(monkeypatch):
    x, results = torch.randn(50, 7, requires_grad=True), []
    for few in (dropout.FEW, 0):
        monkeypatch.setattr(dropout, "FEW", few)
        torch.manual_seed(3)
        y = drop(x, 0.3)
        results.append([y, *torch.autograd.grad(y.square().sum(), x)])
    assert all(map(torch.equal, *results))


def test_identity_in_evaluation_and_with_probability_zero():
    x = torch.randn(9)
    assert Dropout(0.5).eval()(x) is x
    assert drop(x, 0.0) is x
    assert torch.equal(drop(torch.ones(0, 3), 0.5), torch.ones(0, 3))


def test_switched_off_it_is_torchs(monkeypatch):
    monkeypatch.setattr(dropout, "ENABLED", False)
    x = torch.ones(100)
    torch.manual_seed(0)
    ours = drop(x, 0.5)
    torch.manual_seed(0)
    assert torch.equal(ours, torch.nn.functional.dropout(x, 0.5))
