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
