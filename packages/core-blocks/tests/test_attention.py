"""Attention against a plain one in float64, gradients included; masks, dropout, and the choice of kernel."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from dither.core_blocks import attention
from dither.core_blocks.attention import Attention, attend
from dither.core_blocks.specs import AdaLNZero


def oracle(q, k, v, mask=None):
    """One query at a time, over the keys that it may see."""
    rows = []
    batch, heads, length, width = q.shape
    for b in range(batch):
        for h in range(heads):
            for i in range(length):
                seen = (
                    torch.ones(k.shape[2], dtype=torch.bool)
                    if mask is None
                    else mask.expand(batch, heads, length, -1)[b, h, i]
                )
                weights = (k[b, h, seen] @ q[b, h, i] / width**0.5).exp()
                rows.append(weights @ v[b, h, seen] / weights.sum() if seen.any() else torch.zeros_like(q[b, h, i]))
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


@pytest.mark.parametrize("kernel", ["auto", "sdpa", "math"])
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


@given(
    batch=st.integers(1, 3),
    heads=st.integers(1, 3),
    queries=st.integers(1, 5),
    keys=st.integers(1, 6),
    width=st.integers(1, 4),
    shape=st.tuples(st.booleans(), st.booleans()),
    seed=st.integers(0, 2**16),
)
def test_any_shape_and_mask(batch, heads, queries, keys, width, shape, seed):
    generator = torch.Generator().manual_seed(seed)
    q = torch.randn(batch, heads, queries, width, generator=generator)
    k, v = torch.randn(2, batch, heads, keys, width, generator=generator)
    mask = torch.rand(batch if shape[0] else 1, 1, queries if shape[1] else 1, keys, generator=generator) < 0.6
    expected = oracle(q.double(), k.double(), v.double(), mask).float()
    for kernel in ("sdpa", "math"):
        actual = attend(q, k, v, mask, kernel=kernel)
        torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-4)


def test_auto_takes_plain_products_for_few_keys(monkeypatch):
    calls = []
    fused = torch.nn.functional.scaled_dot_product_attention
    monkeypatch.setattr(attention.functional, "scaled_dot_product_attention", lambda *a: calls.append(1) or fused(*a))
    for keys in (64, 65):
        q = torch.randn(1, 1, 2, 4)
        attend(q, *torch.randn(2, 1, 1, keys, 4))
        assert len(calls) == (keys > 64)


def test_equals_multi_head_attention_of_torch():
    torch.manual_seed(0)
    ours, theirs = Attention(12, AdaLNZero(heads=3)), nn.MultiheadAttention(12, 3, batch_first=True)
    theirs.in_proj_weight, theirs.in_proj_bias = ours.qkv.weight, ours.qkv.bias
    theirs.out_proj.weight, theirs.out_proj.bias = ours.out.weight, ours.out.bias
    x, valid = torch.randn(2, 5, 12), MASKS["padding"][:, 0, 0]
    nn.init.normal_(ours.qkv.bias)
    expected, _ = theirs(x, x, x, key_padding_mask=~valid)
    torch.testing.assert_close(ours(x, valid[:, None, None]), expected, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("kernel", ["sdpa", "math"])
def test_weight_dropout_keeps_the_mean_and_is_for_training(kernel):
    torch.manual_seed(0)
    q, v = torch.zeros(1, 1, 400, 4), torch.ones(1, 1, 50, 4)
    y = attend(q, torch.zeros_like(v), v, None, 0.5, kernel)[..., 0].double()
    assert y.mean().item() == pytest.approx(1.0, abs=0.02)
    assert y.var().item() == pytest.approx(1 / 50, rel=0.3)  # of 50 weights 1/50, each doubled or dropped
    module = Attention(8, AdaLNZero(heads=2, attention_dropout=0.5, attention=kernel))
    x = torch.randn(2, 5, 8)
    assert not torch.equal(module(x), module(x))
    assert torch.equal(module.eval()(x), module(x))


def test_dropout_of_the_result_is_for_training():
    torch.manual_seed(0)
    module = Attention(8, AdaLNZero(heads=2, dropout=0.5, attention_dropout=0.0))
    x = torch.randn(2, 5, 8)
    whole, dropped = module.eval()(x), module.train()(x)
    kept = dropped != 0
    assert 0.2 < kept.float().mean() < 0.8
    torch.testing.assert_close(dropped[kept], 2 * whole[kept])
