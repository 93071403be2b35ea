"""Attention, plain and tiled, against one in float64, gradients included; masks, dropout, and the choice of kernel."""

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.nn.functional import scaled_dot_product_attention

from dither.core_blocks import attention, flex
from dither.core_blocks.attention import Attention, attend
from dither.core_blocks.cpu import tiled_attention as tiled
from dither.core_blocks.cpu.tiled_attention import prefers_tiles, tiled_attention
from dither.core_blocks.specs import AdaLNZero


def oracle(q, k, v, mask=None):
    """One query at a time, over the keys that it may see."""
    rows, mask = [], torch.ones(1, dtype=torch.bool) if mask is None else mask
    batch, heads, length, width = q.shape
    for b in range(batch):
        for h in range(heads):
            for i in range(length):
                seen = mask.expand(batch, heads, length, k.shape[2])[b, h, i]
                weights = (k[b, h, seen] @ q[b, h, i] / width**0.5).exp()
                rows.append(
                    weights @ v[b, h, seen] / weights.sum()
                    if seen.any()
                    else torch.zeros_like(q[b, h, i])
                )
    return torch.stack(rows).view(q.shape)


def causal(length, size):
    block = torch.arange(length) // size
    return (block[:, None] >= block[None])[None, None]


MASKS = {
    "none": None,
    "padding": torch.tensor([[1, 1, 1, 0, 0], [1, 0, 1, 1, 1]]).bool()[:, None, None],
    "no keys": torch.tensor([[0, 0, 0, 0, 0], [1, 1, 0, 1, 1]]).bool()[:, None, None],
    "block-causal": causal(5, 2),
    "both": causal(5, 2) & torch.tensor([[0, 0, 1, 1, 0], [1, 1, 1, 1, 1]]).bool()[:, None, None],
}


@pytest.mark.parametrize("kernel", ["auto", "sdpa", "math", "flex"])
@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_values_and_gradients_equal_the_plain_ones(kernel, mask):
    torch.manual_seed(0)
    plain = [torch.randn(2, 3, 5, 4, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    ours = [tensor.detach().clone().requires_grad_() for tensor in plain]
    grad = torch.randn(2, 3, 5, 4, dtype=torch.float64)
    expected, actual = oracle(*plain, mask), attend(*ours, mask, kernel=kernel)
    torch.testing.assert_close(actual, expected, atol=1e-12, rtol=1e-10)
    (expected * grad).sum().backward()
    (actual * grad).sum().backward()
    for a, b in zip(ours, plain, strict=True):
        torch.testing.assert_close(a.grad, b.grad, atol=1e-12, rtol=1e-10)


@torch.no_grad()
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("mask", [mask for mask in MASKS.values() if mask is not None])
def test_flex_attention_equals_the_dense_mask(monkeypatch, mask):
    """Its block masks are those of the mask, and all layers share one; queries without keys return zeros."""
    flex._BLOCK_MASKS.clear()
    calls, make = [], flex.flex.create_block_mask
    monkeypatch.setattr(
        flex.flex, "create_block_mask", lambda *a, **o: calls.append(a) or make(*a, **o)
    )
    monkeypatch.setattr(flex, "_compiled", lambda: flex.flex.flex_attention)
    q, k, v = torch.randn(3, 2, 3, 5, 4, generator=torch.Generator().manual_seed(0))
    for _ in range(2):
        actual = flex.flex_attention(q, k, v, mask)
    assert len(calls) == 1
    flex.flex_attention(q, k, v, mask.clone())
    assert [*flex._BLOCK_MASKS.keys()] == [mask]  # a mask that is gone leaves nothing behind
    torch.testing.assert_close(actual, oracle(q, k, v, mask), atol=1e-6, rtol=1e-5)


@torch.no_grad()
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_flex_attention_adds_a_float_mask(monkeypatch):
    """In float32, also to logits of bfloat16."""
    monkeypatch.setattr(flex, "_compiled", lambda: flex.flex.flex_attention)
    q, k, v = torch.randn(3, 2, 3, 5, 16, generator=torch.Generator().manual_seed(0)).bfloat16()
    mask = torch.tensor([[450.0, 1, 1, 1, 0], [1, 1, 1, 0, 0]]).log()[:, None, None]
    actual = flex.flex_attention(q, k, v, mask)
    torch.testing.assert_close(
        actual, attention.attend(q, k, v, mask, kernel="math"), atol=0.02, rtol=0.02
    )


@pytest.mark.parametrize(("rows", "dropout", "used"), [(1, 0.0, 1), (5, 0.0, 0), (1, 0.1, 0)])
def test_flex_attention_only_gets_float_masks_that_it_can_add(monkeypatch, rows, dropout, used):
    calls = []
    monkeypatch.setattr(attention, "HAS_TRITON", True)
    monkeypatch.setattr(flex, "flex_attention", lambda q, *_: calls.append(q) or q)
    with FakeTensorMode():
        q = torch.empty(2, 3, 5, 16, dtype=torch.bfloat16, device="cuda")
        attend(q, q, q, torch.empty(2, 1, rows, 5, device="cuda"), dropout)
    assert len(calls) == used


@pytest.mark.slow  # compiles
@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")
@torch.no_grad()
def test_compiled_flex_attention_equals_the_dense_mask():
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 1, 2, 300, 16)
    mask = causal(300, 7)
    torch.testing.assert_close(flex.flex_attention(q, k, v, mask), attend(q, k, v, mask))


@pytest.mark.parametrize("kernel", ["sdpa", "math"])
def test_weight_dropout_keeps_the_mean_and_is_for_training(kernel):
    torch.manual_seed(0)
    q, v = torch.zeros(1, 1, 400, 4), torch.ones(1, 1, 50, 4)
    y = attend(q, torch.zeros_like(v), v, None, 0.5, kernel)[..., 0].double()
    assert y.mean().item() == pytest.approx(1.0, abs=0.02)
    assert y.var().item() == pytest.approx(
        1 / 50, rel=0.3
    )  # of 50 weights 1/50, each doubled or dropped
    module = Attention(8, AdaLNZero(heads=2, attention_dropout=0.5, attention=kernel))
    x = torch.randn(2, 5, 8)
    assert not torch.equal(module(x), module(x))
    assert torch.equal(module.eval()(x), module(x))


@pytest.mark.parametrize("shape", [None, (1, 1, 1, 5), (1, 1, 5, 5)])
def test_one_sample_attends_from_requested_positions_only(monkeypatch, shape):
    module, x, rows, queries = (
        Attention(8, AdaLNZero(heads=2)),
        torch.randn(1, 5, 8),
        torch.tensor([4, 1, 1]),
        [],
    )
    mask = (
        None if shape is None else (torch.arange(5) != 2) & (torch.arange(shape[2]) != 4)[:, None]
    )
    mask = None if mask is None else mask.view(shape)
    whole = module(x, mask)
    attended = attention.attend
    monkeypatch.setattr(
        attention, "attend", lambda q, *rest: queries.append(q.shape[2]) or attended(q, *rest)
    )
    torch.testing.assert_close(module(x, mask, rows=rows), whole[0, rows])
    assert queries == [3]


def parts(rows=2, queries=70, keys=90, dtype=torch.bfloat16, scale=3.0):
    generator = torch.Generator().manual_seed(0)
    return [
        (torch.randn(rows, length, 3, 8, generator=generator) * size)
        .to(dtype)
        .transpose(1, 2)
        .requires_grad_()
        for length, size in ((queries, scale), (keys, 1.0), (keys, 1.0))
    ]


def masks():
    generator = torch.Generator().manual_seed(1)
    some = torch.rand(2, 1, 70, 90, generator=generator) < 0.4
    some[..., 0] = True
    return {
        "all": None,
        "bool": some,
        "padding": some[:, :, :1],
        "one": some[:1],
        "numbers": torch.randn(2, 1, 1, 90),
    }


def values_and_gradients(attend, given, mask):
    y = attend(*given, mask)
    grad = torch.randn(y.shape, generator=torch.Generator().manual_seed(2)).to(y.dtype)
    return [y.detach().double(), *(g.double() for g in torch.autograd.grad(y, given, grad))]


@pytest.mark.parametrize("mask", masks(), ids=str)
@pytest.mark.parametrize("tile", [1, 2 * 70 * 90, tiled.TILE], ids=["one head", "two heads", "all"])
def test_values_and_gradients_are_exact(monkeypatch, mask, tile):
    """In float64, where only the logits are rounded, to float32."""
    monkeypatch.setattr(tiled, "TILE", tile)
    inputs, chosen = parts(dtype=torch.float64), masks()[mask]
    exact = values_and_gradients(
        scaled_dot_product_attention, inputs, chosen.double() if mask == "numbers" else chosen
    )
    for one, other in zip(
        values_and_gradients(tiled_attention, inputs, chosen), exact, strict=True
    ):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("mask", masks(), ids=str)
def test_bfloat16_is_as_precise_as_the_fused_kernel(mask):
    inputs, chosen = parts(), masks()[mask]
    wide = [part.detach().double().requires_grad_() for part in inputs]
    exact = values_and_gradients(
        scaled_dot_product_attention, wide, chosen.double() if mask == "numbers" else chosen
    )
    ways = (tiled_attention, scaled_dot_product_attention)
    ours, fused = (
        [float((one - other).norm() / other.norm()) for one, other in zip(got, exact, strict=True)]
        for got in (values_and_gradients(way, inputs, chosen) for way in ways)
    )
    assert max(ours) < 1.2 * max(fused)
    assert torch.backends.mkldnn.matmul.fp32_precision != "bf16", "others are rounded, too"


def test_used_where_it_is_faster(monkeypatch):
    q, k, v = parts()
    called = []
    monkeypatch.setattr(
        attention, "tiled_attention", lambda *a: (called.append(1), tiled_attention(*a))[1]
    )
    attend(q, k, v)
    assert called == [1]
    with torch.no_grad():
        assert not prefers_tiles(q, k)
    assert not prefers_tiles(q.detach(), k.detach())
    assert not prefers_tiles(q.float(), k.float())
    monkeypatch.setattr(tiled, "MAX_WEIGHTS", 2 * 3 * 70 * 90 - 1)
    assert not prefers_tiles(q, k)
    monkeypatch.undo()
    monkeypatch.setattr(attention, "tiled_attention", lambda *a: called.append(2))
    attend(q, k, v, dropout=0.1)
    attend(q, k, v, kernel="sdpa")
    attend(q[:, :, :9], k[:, :, :9], v[:, :, :9])
    assert called == [1]


def test_a_query_without_keys_returns_zeros():
    q, k, v = parts()
    mask = torch.ones(2, 1, 70, 90, dtype=torch.bool)
    mask[1, :, 5] = False
    y = attend(q, k, v, mask)
    assert y.isfinite().all()
    assert (y[1, :, 5] == 0).all()
    assert (y[1, :, 4] != 0).all()


def test_without_the_private_kernel_of_torch(monkeypatch):
    inputs = parts(dtype=torch.float64)
    expected = values_and_gradients(tiled_attention, inputs, None)
    monkeypatch.setattr(tiled, "FUSED_SOFTMAX_BACKWARD", None)
    for one, other in zip(
        values_and_gradients(tiled_attention, inputs, None), expected, strict=True
    ):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)
