"""Linear layers by oneDNN equal torch's, whatever the strides, derivatives included."""

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrize
from torch.utils.flop_counter import FlopCounterMode

from dither.core_blocks.cpu import onednn
from dither.core_blocks.cpu.onednn import Linear, linear, product

pytestmark = pytest.mark.skipif(onednn.ONEDNN is None, reason="torch has no oneDNN here")


@pytest.fixture(autouse=True)
def no_threshold(monkeypatch):
    """Use oneDNN for the smallest product."""
    monkeypatch.setattr(onednn, "MIN_WEIGHTS", 0)


@pytest.fixture
def calls(monkeypatch):
    """Count the calls of oneDNN."""
    made, kernel = [], onednn.ONEDNN
    monkeypatch.setattr(onednn, "ONEDNN", lambda *args: made.append(1) or kernel(*args))
    return made


def strided(*shape):
    """A transposed tensor with strides of 2."""
    return (
        torch.randn(*shape[:-2], 2 * shape[-1], 2 * shape[-2])[..., ::2, ::2].mT
        if len(shape) > 1
        else torch.randn(2 * shape[0])[::2]
    )


@pytest.mark.parametrize("make", [torch.randn, strided], ids=["whole", "strided"])
@pytest.mark.parametrize("shape", [(5, 16), (2, 3, 16), (1, 16), (0, 16)], ids=str)
@pytest.mark.parametrize("biased", [True, False], ids=["bias", "none"])
def test_values_and_gradients_equal_torch(calls, make, shape, biased):
    torch.manual_seed(0)
    x, weight, bias = make(*shape), make(8, 16), make(8) if biased else None
    parts = [part.requires_grad_() for part in (x, weight, bias) if part is not None]
    ours, expected = linear(x, weight, bias), functional.linear(x, weight, bias)
    torch.testing.assert_close(ours, expected)
    grad = torch.randn_like(expected)
    for one, other in zip(
        torch.autograd.grad(ours, parts, grad), torch.autograd.grad(expected, parts, grad), strict=True
    ):
        torch.testing.assert_close(one, other)
    assert len(calls) == 2  # forward, and for the grads of x


def test_second_derivatives():
    torch.manual_seed(0)
    x, weight, bias = torch.randn(3, 4), torch.randn(5, 4), torch.randn(5)
    parts = [part.requires_grad_() for part in (x, weight, bias)]

    def second(function):
        first = torch.autograd.grad(function(*parts).sin().sum(), parts, create_graph=True)
        return torch.autograd.grad(sum(grad.square().sum() for grad in first), parts)

    for one, other in zip(second(linear), second(functional.linear), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


@pytest.mark.filterwarnings("ignore:TF32 acceleration:UserWarning")
@pytest.mark.parametrize("off", ["switch", "processor", "library"])
def test_unavailable_kernels_fall_back_to_torch(calls, monkeypatch, off):
    x, weight = torch.ones(4, 4, dtype=torch.bfloat16), torch.ones(4, 4, dtype=torch.bfloat16)
    if off == "processor":
        monkeypatch.setattr(onednn, "HAS_BFLOAT16", False)
    if off == "library":
        monkeypatch.setattr(onednn, "ONEDNN", None)
    with torch.backends.mkldnn.flags(enabled=off != "switch"), torch.no_grad():
        for multiply in (product, lambda x, weight: linear(x, weight, None)):
            assert torch.equal(multiply(x, weight), torch.full((4, 4), 4.0, dtype=torch.bfloat16))
    assert not calls


def test_flops_are_counted():
    x, weight = nn.Parameter(torch.randn(6, 4)), nn.Parameter(torch.randn(5, 4))

    def count(function):
        with FlopCounterMode(display=False) as counter:
            function(x, weight, None).sum().backward()
        return counter.get_total_flops()

    assert count(linear) == count(functional.linear) == 3 * 2 * 6 * 4 * 5


class Doubled(nn.Module):
    def forward(self, weight):
        return 2 * weight


def test_layers_support_hooks_and_parametrizations():
    """LoRA replaces the weight of a layer, FSDP hooks into it."""
    x, layer, seen = torch.randn(4, 16), Linear(16, 3), []
    layer.register_forward_hook(lambda *_: seen.append(1))
    parametrize.register_parametrization(layer, "weight", Doubled())
    expected = functional.linear(x, layer.weight, layer.bias)
    torch.testing.assert_close(layer(x), expected)
    assert seen == [1]


@pytest.mark.parametrize("case", ["vector", "float64", "float16", "autocast", "small"])
def test_other_products_fall_back_to_torch(calls, monkeypatch, case):
    dtype = getattr(torch, case) if case.startswith("float") else torch.float32
    x, weight = torch.randn(4, 8, dtype=dtype), torch.randn(8, 8, dtype=dtype)
    x = x[0] if case == "vector" else x
    if case == "small":
        monkeypatch.setattr(onednn, "MIN_WEIGHTS", 1 << 21)
    with torch.autocast("cpu", torch.bfloat16, enabled=case == "autocast"):
        assert torch.equal(linear(x, weight, None), functional.linear(x, weight))
    assert not calls
