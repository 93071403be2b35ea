"""Position embeddings, sinusoids and the timestep embedding, against the formulas of DiT and Vaswani et al."""

import math

import pytest
import torch

from dither.embeddings.specs import (
    GenomicSinusoid,
    LearnedPosition,
    Level,
    Regions,
    Sinusoid,
)
from dither.embeddings.timestep import sinusoids as all_sinusoids
from dither.registry import Condition, FeatureSpace

SPACE = FeatureSpace(5, 2, conditions=(Condition("cell", 3), Condition("centre")))


def test_sinusoids_of_the_index():
    p = Sinusoid().build(SPACE, 6)(2, 3, {})
    expected = [
        [f(m / 10_000 ** (2 * i / 6)) for i in range(3) for f in (torch.sin, torch.cos)]
        for m in torch.arange(2, 5, dtype=torch.float64)
    ]
    torch.testing.assert_close(
        p.double(),
        torch.tensor(expected, dtype=torch.float64)[None],
        atol=1e-6,
        rtol=1e-6,
    )
    assert not torch.allclose(Sinusoid(max_period=300.0).build(SPACE, 6)(2, 3, {}), p)


CENTRE = torch.tensor(
    [[10_500, 12_000, 20_250, 300_000, 0], [7, 107, 1007, 200_000_007, 240_000_007]]
)


def test_sinusoids_of_the_distance_in_kilobases():
    p = GenomicSinusoid().build(SPACE, 6)(0, 5, {"centre": CENTRE})
    distance = (CENTRE - CENTRE[:, :1]).double() / 1000
    waves = [
        f(distance / 10_000 ** (2 * i / 6))
        for i in range(3)
        for f in (torch.sin, torch.cos)
    ]
    valid = distance.abs() < 1e5
    torch.testing.assert_close(
        p.double()[valid], torch.stack(waves, -1)[valid], atol=5e-5, rtol=1e-4
    )
    torch.testing.assert_close(p.double(), torch.stack(waves, -1), atol=0.02, rtol=0.02)
    assert p.isfinite().all(), "padding is 0, far before the first position"
    spec = GenomicSinusoid(of="place", unit=1.0, max_period=300.0, layout="sin-cos")
    other = spec.build(SPACE, 6)(0, 2, {"place": CENTRE % 900})
    first, second = (CENTRE % 900)[0, :2]
    step = [(second - first).double() / 300 ** (i / 3) for i in range(3)]
    expected = torch.stack([*(s.sin() for s in step), *(s.cos() for s in step)]).float()
    torch.testing.assert_close(other[0, 1], expected, atol=1e-4, rtol=1e-4)


def test_genomic_sinusoids_require_coordinates():
    assert not list(GenomicSinusoid().check(SPACE, 8))
    for spec, space in (
        (GenomicSinusoid(), FeatureSpace(5, 2)),
        (GenomicSinusoid(of="cell"), SPACE),
    ):
        (misfit,) = spec.check(space, 8)
        assert (misfit.path, misfit.related) == (("of",), ("task",))
    with pytest.raises(ValueError, match="centre"):
        GenomicSinusoid().build(SPACE, 8)(0, 5, {"cell": CENTRE[:, 0]})
    (misfit,) = Regions(position=GenomicSinusoid()).check(FeatureSpace(5, 2), 8)
    assert misfit.path == ("position", "of")


def test_learned_positions():
    torch.manual_seed(0)
    position = LearnedPosition(std=0.5).build(FeatureSpace(40, 2), 64)
    assert position.table.weight.std().item() == pytest.approx(0.5, rel=0.05)
    with pytest.raises(ValueError, match=r"38\.\.41"):
        position(38, 4, {})


def sinusoids(values, size, *, max_period=10_000.0, layout="cos-sin", freq_shift=0):
    return all_sinusoids(
        values, size, max_period=max_period, layout=layout, freq_shift=freq_shift
    )


T = torch.tensor([0.0, 0.37, 1.0, 17.0, 999.0], dtype=torch.float64)


def dit(t, size, max_period=10_000.0):
    """One number at a time: cos(t w_i), then sin(t w_i), w_i = max_period^(-i/half)."""
    half = size // 2
    w = [math.exp(-math.log(max_period) * i / half) for i in range(half)]
    return torch.tensor(
        [
            [math.cos(x * f) for f in w] + [math.sin(x * f) for f in w]
            for x in t.tolist()
        ]
    ).double()


@pytest.mark.parametrize("max_period", [10_000.0, 300.0])
def test_cos_sin_equals_dit(max_period):
    torch.testing.assert_close(
        sinusoids(T, 12, max_period=max_period),
        dit(T, 12, max_period),
        atol=1e-6,
        rtol=1e-6,
    )


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
    embedding = (
        Level(frequencies=12, layout="sin-cos", max_period=300.0, freq_shift=1)
        .build(5)
        .double()
    )
    h = (
        sinusoids(T, 12, layout="sin-cos", max_period=300.0, freq_shift=1)
        @ embedding.enter.weight.T
        + embedding.enter.bias
    )
    expected = h * h.sigmoid() @ embedding.leave.weight.T + embedding.leave.bias
    torch.testing.assert_close(embedding(T, {}), expected)
    each = embedding(T[None].expand(2, -1), {})
    torch.testing.assert_close(each, expected.expand(2, -1, -1))


def test_integers_and_low_precision():
    index = torch.tensor([0, 3, 999])
    torch.testing.assert_close(
        sinusoids(index, 8), sinusoids(index.double(), 8).float(), atol=1e-4, rtol=1e-4
    )
    embedding = Level().build(4).bfloat16()
    assert embedding(index.float(), {}).dtype == torch.bfloat16
    assert sinusoids(torch.tensor([999.0]).bfloat16(), 8).dtype == torch.float32


def test_too_few_frequencies_for_the_shift():
    (misfit,) = Level(frequencies=3, freq_shift=1).check(6)
    assert (misfit.code, misfit.path) == ("out-of-range", ("frequencies",))
