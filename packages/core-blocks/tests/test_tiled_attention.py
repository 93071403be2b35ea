"""Tiled attention in bfloat16 on a CPU: precision compared with float64, and when it is used."""

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from dither.core_blocks import attention
from dither.core_blocks.attention import attend
from dither.core_blocks.cpu import tiled_attention as tiled
from dither.core_blocks.cpu.tiled_attention import prefers_tiles, tiled_attention


def parts(rows=2, queries=70, keys=90, dtype=torch.bfloat16, scale=3.0):
    generator = torch.Generator().manual_seed(0)
    return [
        (torch.randn(rows, length, 3, 8, generator=generator) * size).to(dtype).transpose(1, 2).requires_grad_()
        for length, size in ((queries, scale), (keys, 1.0), (keys, 1.0))
    ]


def masks():
    generator = torch.Generator().manual_seed(1)
    some = torch.rand(2, 1, 70, 90, generator=generator) < 0.4
    some[..., 0] = True
    return {"all": None, "bool": some, "padding": some[:, :, :1], "one": some[:1], "numbers": torch.randn(2, 1, 1, 90)}


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
    exact = values_and_gradients(scaled_dot_product_attention, inputs, chosen.double() if mask == "numbers" else chosen)
    for one, other in zip(values_and_gradients(tiled_attention, inputs, chosen), exact, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("mask", masks(), ids=str)
def test_bfloat16_is_as_precise_as_the_fused_kernel(mask):
    inputs, chosen = parts(), masks()[mask]
    wide = [part.detach().double().requires_grad_() for part in inputs]
    exact = values_and_gradients(scaled_dot_product_attention, wide, chosen.double() if mask == "numbers" else chosen)
    ways = (tiled_attention, scaled_dot_product_attention)
    ours, fused = (
        [float((one - other).norm() / other.norm()) for one, other in zip(got, exact, strict=True)]
        for got in (values_and_gradients(way, inputs, chosen) for way in ways)
    )
    assert max(ours) < 1.2 * max(fused)


def test_used_where_it_is_faster(monkeypatch):
    q, k, v = parts()
    called = []
    monkeypatch.setattr(attention, "tiled_attention", lambda *a: (called.append(1), tiled_attention(*a))[1])
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
    for one, other in zip(values_and_gradients(tiled_attention, inputs, None), expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)
