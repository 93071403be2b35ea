"""Sinusoids and the timestep embedding: formulas of DiT and Vaswani et al., layouts, shift, scale."""

import math

import pytest
import torch

from dither.embeddings.specs import Level
from dither.embeddings.timestep import sinusoids as all_sinusoids


def sinusoids(values, size, *, max_period=10_000.0, layout="cos-sin", freq_shift=0):
    return all_sinusoids(values, size, max_period=max_period, layout=layout, freq_shift=freq_shift)


T = torch.tensor([0.0, 0.37, 1.0, 17.0, 999.0], dtype=torch.float64)


def dit(t, size, max_period=10_000.0):
    """One number at a time: cos(t w_i), then sin(t w_i), w_i = max_period^(-i/half)."""
    half = size // 2
    w = [math.exp(-math.log(max_period) * i / half) for i in range(half)]
    return torch.tensor([[math.cos(x * f) for f in w] + [math.sin(x * f) for f in w] for x in t.tolist()]).double()


@pytest.mark.parametrize("max_period", [10_000.0, 300.0])
def test_cos_sin_equals_dit(max_period):
    torch.testing.assert_close(sinusoids(T, 12, max_period=max_period), dit(T, 12, max_period), atol=1e-6, rtol=1e-6)


def test_layouts_are_permutations_of_each_other():
    """Erratum 2 of seed 000: interleaved and concatenated are not equal, but the same numbers in another order."""
    a, b, c = (sinusoids(T, 12, layout=layout) for layout in ("cos-sin", "sin-cos", "interleaved"))
    assert torch.equal(b, a.roll(6, 1))
    order = torch.arange(12).view(2, 6).flip(0).T.flatten()  # sin 0, cos 0, sin 1, ...
    assert torch.equal(c, a[:, order])
    assert not torch.equal(a, b)
    assert not torch.equal(a, c)


def test_interleaved_equals_vaswani():
    d = 8
    expected = torch.zeros(len(T), d, dtype=torch.float64)
    for i in range(d // 2):
        expected[:, 2 * i], expected[:, 2 * i + 1] = (
            (T / 10_000 ** (2 * i / d)).sin(),
            (T / 10_000 ** (2 * i / d)).cos(),
        )
    torch.testing.assert_close(sinusoids(T, d, layout="interleaved"), expected)


def test_shift_makes_the_lowest_frequency_exact():
    half, step = 4, torch.tensor([1e-3], dtype=torch.float64)
    for shift, lowest in ((0, 10_000 ** (-3 / 4)), (1, 1e-4)):
        angles = sinusoids(step, 2 * half, freq_shift=shift)[0, half:].asin() / step
        assert angles[0].item() == pytest.approx(1.0)
        assert angles[-1].item() == pytest.approx(lowest)


def test_time_scale_separates_levels():
    """Erratum E6 of seed 001: at t = 0.10 and 0.11 the waves are 0.027 apart, of a norm of 11.3; times 1000, 9.1."""
    a, b = sinusoids(torch.tensor([0.10, 0.11]), 256)
    assert a.norm().item() == pytest.approx(11.3, abs=0.02)
    assert (a - b).norm().item() == pytest.approx(0.027, abs=5e-4)
    a, b = sinusoids(torch.tensor([100.0, 110.0]), 256)
    assert (a - b).norm().item() == pytest.approx(9.1, abs=0.05)
    torch.manual_seed(0)
    plain, scaled = Level().build(8), Level(time_scale=1000.0).build(8)
    scaled.load_state_dict(plain.state_dict())
    torch.testing.assert_close(scaled(T.float() / 1000, {}), plain(T.float(), {}), atol=1e-4, rtol=1e-4)


def test_two_linear_layers_with_a_silu_between():
    torch.manual_seed(0)
    embedding = Level(frequencies=12, layout="sin-cos", max_period=300.0, freq_shift=1).build(5).double()
    h = (
        sinusoids(T, 12, layout="sin-cos", max_period=300.0, freq_shift=1) @ embedding.enter.weight.T
        + embedding.enter.bias
    )
    expected = h * h.sigmoid() @ embedding.leave.weight.T + embedding.leave.bias
    torch.testing.assert_close(embedding(T, {}), expected)
    each = embedding(T[None].expand(2, -1), {})
    torch.testing.assert_close(each, expected.expand(2, -1, -1))


def test_integers_and_low_precision():
    index = torch.tensor([0, 3, 999])
    torch.testing.assert_close(sinusoids(index, 8), sinusoids(index.double(), 8).float(), atol=1e-4, rtol=1e-4)
    embedding = Level().build(4).bfloat16()
    assert embedding(index.float(), {}).dtype == torch.bfloat16
    assert sinusoids(torch.tensor([999.0]).bfloat16(), 8).dtype == torch.float32


def test_too_few_frequencies_for_the_shift():
    (misfit,) = Level(frequencies=3, freq_shift=1).check(6)
    assert (misfit.code, misfit.path) == ("out-of-range", ("frequencies",))
