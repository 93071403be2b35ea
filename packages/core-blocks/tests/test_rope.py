"""Rotary positions: closed form, relative positions, offsets, precision."""

import copy

import pytest
import torch

from dither.core_blocks.attention import Attention
from dither.core_blocks.kv_cache import KVCache
from dither.core_blocks.rope import Rotary


def closed_form(x, start):
    """Each pair (x_j, x_{j+E/2}) as a complex number, times e^{i m 10000^(-2j/E)}."""
    half = x.shape[-1] // 2
    z = torch.complex(x[..., :half].double(), x[..., half:].double())
    m = torch.arange(start, start + x.shape[-2], dtype=torch.float64)
    theta = torch.tensor([10_000.0 ** (-2 * j / x.shape[-1]) for j in range(half)], dtype=torch.float64)
    z = z * torch.exp(1j * m[:, None] * theta)
    return torch.cat([z.real, z.imag], -1)


@pytest.mark.parametrize("compiling", [False, True])
@pytest.mark.parametrize("start", [0, 3, 1000])
def test_closed_form(monkeypatch, start, compiling):
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: compiling)
    x = torch.randn(2, 3, 5, 8, generator=torch.Generator().manual_seed(0))
    actual = Rotary(8)(x, start)
    assert actual.dtype == torch.float32
    torch.testing.assert_close(actual.double(), closed_form(x, start), atol=2e-4 if compiling else 1e-6, rtol=1e-4)


def test_only_distance_matters():
    rotary = Rotary(8)
    q, k = torch.randn(2, 1, 1, 1, 8, generator=torch.Generator().manual_seed(0))
    products = torch.stack([(rotary(q, m + 5) * rotary(k, m)).sum() for m in (0, 1, 7, 100)])
    torch.testing.assert_close(products, products[:1].expand(4))
    assert not torch.isclose((rotary(q, 6) * rotary(k, 0)).sum(), products[0])
    torch.testing.assert_close(rotary(q, 9).norm(), q.norm())


def test_pieces_equal_the_whole_in_any_order():
    x = torch.randn(1, 2, 40, 4, generator=torch.Generator().manual_seed(0))
    whole, cuts = Rotary(4)(x), ((0, 3), (3, 30), (30, 40))
    for order in (cuts, cuts[::-1]):  # the table of angles grows, or serves shorter ones
        rotary = Rotary(4)
        for start, stop in order:
            assert torch.equal(rotary(x[:, :, start:stop], start), whole[:, :, start:stop])


def test_angles_stay_exact_in_a_model_cast_to_bfloat16():
    rotary = Rotary(8)
    x = torch.randn(1, 1, 300, 8, generator=torch.Generator().manual_seed(0)).bfloat16()
    rotary(x)
    cast = copy.deepcopy(rotary).bfloat16()(x)
    assert cast.dtype == torch.bfloat16
    torch.testing.assert_close(cast.double(), closed_form(x, 0), atol=0.02, rtol=0.01)
    assert not rotary.state_dict()


def test_angles_met_in_inference_serve_training():
    rotary = Rotary(4)
    with torch.inference_mode():
        rotary(torch.randn(1, 1, 3, 4))
    x = torch.randn(1, 1, 3, 4, requires_grad=True)
    rotary(x).square().sum().backward()
    torch.testing.assert_close(x.grad, 2 * x.detach())  # a rotation keeps the norm


def test_attention_turns_queries_and_keys_by_absolute_position_and_leaves_values():
    torch.manual_seed(0)
    module = Attention(8, 2, rope=True).eval()
    x = torch.randn(1, 6, 8)
    q, k, v = module.qkv(x).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
    scores = closed_form(q, 0) @ closed_form(k, 0).mT / 2
    expected = module.out((scores.softmax(-1).float() @ v).transpose(1, 2).flatten(2))
    torch.testing.assert_close(module(x), expected, atol=1e-5, rtol=1e-4)
    cache = KVCache()
    module(x[:, :4], cache=cache)
    cache.advance(torch.ones(1, 4, dtype=torch.bool), 0)
    torch.testing.assert_close(module(x[:, 4:], cache=cache), expected[:, 4:], atol=1e-5, rtol=1e-4)


def test_odd_heads_are_refused():
    with pytest.raises(ValueError, match="width 3 is odd"):
        Rotary(3)
