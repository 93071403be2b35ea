"""Attention by each kernel against a loop over queries, gradients included; masks and dropout."""

import pytest
import torch

from dither.core_blocks.attention import Attention, attend
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
