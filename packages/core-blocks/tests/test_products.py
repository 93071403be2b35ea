"""Products by oneDNN: those of torch's own linear map, whatever the strides, and all that is derived from them."""

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from dither.core_blocks.cpu import onednn as products
from dither.core_blocks.cpu.onednn import linear, product, weight_grad

pytestmark = pytest.mark.skipif(products.ONEDNN is None, reason="torch has no oneDNN here")


LARGE = products.LARGE


@pytest.fixture(autouse=True)
def always(monkeypatch):
    """Let it pay for the smallest product."""
    monkeypatch.setattr(products, "LARGE", 0)


@pytest.fixture
def asked(monkeypatch):
    """Count how often oneDNN is asked."""
    calls, known = [], products.ONEDNN
    monkeypatch.setattr(products, "ONEDNN", lambda *parts: calls.append(1) or known(*parts))
    return calls


def strided(*shape):
    """Numbers that lie twice as far apart as they might, in turned order."""
    return (
        torch.randn(*shape[:-2], 2 * shape[-1], 2 * shape[-2])[..., ::2, ::2].mT
        if len(shape) > 1
        else torch.randn(2 * shape[0])[::2]
    )


@pytest.mark.parametrize("make", [torch.randn, strided], ids=["whole", "strided"])
@pytest.mark.parametrize("shape", [(5, 16), (2, 3, 16), (1, 16), (0, 16)], ids=str)
@pytest.mark.parametrize("biased", [True, False], ids=["bias", "none"])
def test_values_and_slopes_are_those_of_torch(asked, make, shape, biased):
    torch.manual_seed(0)
    x, weight, bias = make(*shape), make(8, 16), make(8) if biased else None
    parts = [part.requires_grad_() for part in (x, weight, bias) if part is not None]
    ours, known = linear(x, weight, bias), functional.linear(x, weight, bias)
    torch.testing.assert_close(ours, known)
    slope = torch.randn_like(known)
    for one, other in zip(
        torch.autograd.grad(ours, parts, slope), torch.autograd.grad(known, parts, slope), strict=True
    ):
        torch.testing.assert_close(one, other)
    assert len(asked) == 2  # forward, and for the slopes of x


def test_slopes_can_be_differentiated_again():
    torch.manual_seed(0)
    x, weight, bias = torch.randn(3, 4), torch.randn(5, 4), torch.randn(5)
    parts = [part.requires_grad_() for part in (x, weight, bias)]

    def second(function):
        first = torch.autograd.grad(function(*parts).sin().sum(), parts, create_graph=True)
        return torch.autograd.grad(sum(slope.square().sum() for slope in first), parts)

    for one, other in zip(second(linear), second(functional.linear), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


def test_function_transforms_see_a_linear_map():
    x, weight = torch.randn(3, 2, 4), torch.randn(5, 4)
    ours = torch.func.vmap(torch.func.grad(lambda x: linear(x, weight, None).sin().sum()))(x)
    torch.testing.assert_close(ours, (functional.linear(x, weight).cos() @ weight))


@pytest.mark.filterwarnings("ignore:.*is deprecated:DeprecationWarning")
def test_forward_mode_derivatives():
    x, weight, bias = torch.randn(3, 4), torch.randn(5, 4), torch.randn(5)
    changes = [torch.randn_like(part) for part in (x, weight, bias)]

    def change(function):
        with forward_ad.dual_level():
            parts = [forward_ad.make_dual(*pair) for pair in zip((x, weight, bias), changes, strict=True)]
            return forward_ad.unpack_dual(function(*parts)).tangent

    torch.testing.assert_close(change(linear), change(functional.linear))


def test_a_row_without_a_batch_is_left_to_torch(asked):
    x = torch.randn(4, requires_grad=True)
    linear(x, torch.randn(5, 4), None).sum().backward()
    assert x.grad.shape == (4,)
    assert not asked


@pytest.mark.filterwarnings("ignore:TF32 acceleration:UserWarning")
@pytest.mark.parametrize("off", ["switch", "processor"])
def test_what_is_switched_off_or_unknown_to_the_processor_is_not_asked(asked, monkeypatch, off):
    x, weight = torch.ones(4, 4, dtype=torch.bfloat16), torch.ones(4, 4, dtype=torch.bfloat16)
    if off == "processor":
        monkeypatch.setattr(products, "HALF", False)
    with torch.backends.mkldnn.flags(enabled=off != "switch"), torch.no_grad():
        assert torch.equal(product(x, weight), torch.full((4, 4), 4.0, dtype=torch.bfloat16))
    assert not asked


@pytest.mark.filterwarnings("ignore:.*is deprecated:DeprecationWarning")
def test_tracing_sees_torch_alone(asked):
    layer = torch.jit.trace(lambda x: linear(x, torch.ones(3, 4), None), torch.ones(2, 4), check_trace=False)
    assert torch.equal(layer(torch.ones(2, 4)), torch.full((2, 3), 4.0))
    assert not asked


@pytest.mark.parametrize("precisions", [(torch.float64,) * 3, (torch.float16,) * 3], ids=str)
def test_other_precisions_are_left_to_torch(asked, precisions):
    x, weight, bias = (torch.ones(4, 4, dtype=kind) for kind in precisions)
    assert linear(x, weight, bias[0]).dtype == precisions[0]
    assert not asked


def test_autocast_lowers_as_it_would(asked):
    x, weight = torch.randn(4, 8), torch.randn(8, 8)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(linear(x, weight, None), functional.linear(x, weight))
    assert not asked


def test_small_products_are_left_to_torch(asked, monkeypatch):
    monkeypatch.setattr(products, "LARGE", LARGE)
    linear(torch.ones(64, 128), torch.ones(128, 128), None)
    assert not asked
    linear(torch.ones(2048, 128), torch.ones(128, 128), None)
    assert asked


def test_operations_are_counted():
    x, weight = nn.Parameter(torch.randn(6, 4)), nn.Parameter(torch.randn(5, 4))

    def count(function):
        with FlopCounterMode(display=False) as counter:
            function(x, weight, None).sum().backward()
        return counter.get_total_flops()

    assert count(linear) == count(functional.linear) == 3 * 2 * 6 * 4 * 5


def test_without_onednn_all_is_as_torch_does_it(monkeypatch):
    monkeypatch.setattr(products, "ONEDNN", None)
    x, weight, bias = torch.randn(3, 4), torch.randn(5, 4), torch.randn(5)
    with torch.no_grad():
        assert torch.equal(linear(x, weight, bias), functional.linear(x, weight, bias))
        assert torch.equal(product(x, weight), functional.linear(x, weight))


def test_slope_of_weights_of_a_single_row():
    slope, x = torch.randn(1, 5), torch.randn(1, 4)
    assert torch.equal(weight_grad(slope, x), slope.mT @ x)
