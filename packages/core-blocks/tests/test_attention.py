"""Attention by each kernel against a loop over queries, gradients included; masks and dropout."""

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from dither.core_blocks import tiled_attention as tiled
from dither.core_blocks.attention import Attention, attend, with_keys
from dither.core_blocks.specs import AdaLNZero
from dither.core_blocks.tiled_attention import prefers_tiles, tiled_attention


def oracle(q, k, v, mask=None):
    """One query at a time, over the keys that it may see."""
    rows, mask = [], torch.ones(1, dtype=torch.bool) if mask is None else mask
    batch, heads, length, width = q.shape
    for b in range(batch):
        for h in range(heads):
            for i in range(length):
                seen = mask.expand(batch, heads, length, k.shape[2])[b, h, i]
                weights = (k[b, h, seen] @ q[b, h, i] / width**0.5).exp()
                rows.append(weights @ v[b, h, seen] / weights.sum())
    return torch.stack(rows).view(q.shape)


def causal(length, size):
    block = torch.arange(length) // size
    return (block[:, None] >= block[None])[None, None]


MASKS = {
    "none": None,
    "padding": torch.tensor([[1, 1, 1, 0, 0], [1, 0, 1, 1, 1]]).bool()[:, None, None],
    "block-causal": causal(5, 2),
    "both": causal(5, 2)
    & torch.tensor([[1, 0, 1, 1, 0], [1, 1, 1, 1, 1]]).bool()[:, None, None],
}


@pytest.mark.parametrize("kernel", ["auto", "sdpa", "math"])
@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_values_and_gradients_equal_the_plain_ones(kernel, mask):
    torch.manual_seed(0)
    plain = [
        torch.randn(2, 3, 5, 4, dtype=torch.float64, requires_grad=True)
        for _ in range(3)
    ]
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
    return [
        y.detach().double(),
        *(g.double() for g in torch.autograd.grad(y, given, grad)),
    ]


@pytest.mark.parametrize("mask", masks(), ids=str)
@pytest.mark.parametrize(
    "tile",
    [1, 2 * 70 * 90, 3 * 70 * 90, 6 * 70 * 90],
    ids=["one query", "two heads", "one sample", "all"],
)
def test_values_and_gradients_are_exact(monkeypatch, mask, tile):
    """In float64, where only the logits are rounded, to float32."""
    monkeypatch.setattr(tiled, "FORWARD_TILE", tile)
    monkeypatch.setattr(tiled, "BACKWARD_TILE", tile)
    inputs, chosen = parts(dtype=torch.float64), masks()[mask]
    exact = values_and_gradients(
        scaled_dot_product_attention,
        inputs,
        chosen.double() if mask == "numbers" else chosen,
    )
    for one, other in zip(
        values_and_gradients(tiled_attention, inputs, chosen), exact, strict=True
    ):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)
    with torch.no_grad():
        alone = tiled_attention(*(part.detach() for part in inputs), chosen)
    torch.testing.assert_close(alone, exact[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("mask", masks(), ids=str)
def test_bfloat16_is_as_precise_as_the_fused_kernel(mask):
    inputs, chosen = parts(), masks()[mask]
    wide = [part.detach().double().requires_grad_() for part in inputs]
    exact = values_and_gradients(
        scaled_dot_product_attention,
        wide,
        chosen.double() if mask == "numbers" else chosen,
    )
    ways = (tiled_attention, scaled_dot_product_attention)
    ours, fused = (
        [
            float((one - other).norm() / other.norm())
            for one, other in zip(got, exact, strict=True)
        ]
        for got in (values_and_gradients(way, inputs, chosen) for way in ways)
    )
    assert max(ours) < 1.2 * max(fused)
    assert torch.backends.mkldnn.matmul.fp32_precision != "bf16", (
        "others are rounded, too"
    )


def test_tiles_are_used_in_bfloat16_unless_weights_are_few_or_too_many(monkeypatch):
    q, k, _ = parts()
    assert prefers_tiles(q, k, 0.0)
    assert not prefers_tiles(q, k, 0.1)
    assert not prefers_tiles(q.float(), k.float(), 0.0)
    # A forward alone keeps no weights, but is slower for few of them.
    weights = 2 * 3 * 70 * 90
    monkeypatch.setattr(tiled, "MAX_WEIGHTS", weights - 1)
    monkeypatch.setattr(tiled, "MIN_WEIGHTS", weights)
    assert not prefers_tiles(q, k, 0.0)
    assert prefers_tiles(q.detach(), k.detach(), 0.0)
    with torch.no_grad():
        assert prefers_tiles(q, k, 0.0)
        assert not prefers_tiles(q[:, :, 1:], k, 0.0)

    # Single queries after a KV cache of 90 positions
    monkeypatch.setattr(tiled, "MIN_WEIGHTS_OF_SINGLE_QUERIES", 2 * 3 * 90)
    with torch.no_grad():
        assert prefers_tiles(q[:, :, :1], k, 0.0)
        assert not prefers_tiles(q[:1, :, :1], k[:1], 0.0)
        assert not prefers_tiles(q[:, :, :2], k, 0.0)


@pytest.mark.parametrize("kernel", ["sdpa", "math", "tiles"])
def test_a_query_without_keys_is_finite_and_changes_no_other(kernel: str) -> None:
    q, k, v = parts()
    mask = torch.ones(2, 1, 70, 90, dtype=torch.bool)
    mask[1, :, 5] = False
    y = attend(q, k, v, with_keys(mask), kernel=kernel)
    assert y.isfinite().all()
    # The only one to be changed: the others attend to all.
    others = torch.arange(70) != 5
    expected = attend(q, k, v, torch.ones_like(mask), kernel=kernel)
    assert torch.equal(y[:, :, others], expected[:, :, others])
    some = torch.rand(2, 1, 70, 90) < 0.5
    some[..., 0] = True
    assert torch.equal(with_keys(some), some)
