"""Position embeddings: none, sinusoids of the index or of the distance, learned."""

import pytest
import torch

from dither.embeddings.specs import GenomicSinusoid, LearnedPosition, Regions, Sinusoid
from dither.registry import Condition, FeatureSpace

SPACE = FeatureSpace(5, 2, conditions=(Condition("cell", 3), Condition("centre")))


def test_sinusoids_of_the_index():
    p = Sinusoid().build(SPACE, 6)(2, 3, {})
    expected = [
        [f(m / 10_000 ** (2 * i / 6)) for i in range(3) for f in (torch.sin, torch.cos)]
        for m in torch.arange(2, 5, dtype=torch.float64)
    ]
    torch.testing.assert_close(p.double(), torch.tensor(expected, dtype=torch.float64)[None], atol=1e-6, rtol=1e-6)
    assert not torch.allclose(Sinusoid(max_period=300.0).build(SPACE, 6)(2, 3, {}), p)


CENTRE = torch.tensor([[10_500, 12_000, 20_250, 300_000, 0], [7, 107, 1007, 200_000_007, 240_000_007]])


def test_sinusoids_of_the_distance_in_kilobases():
    p = GenomicSinusoid().build(SPACE, 6)(0, 5, {"centre": CENTRE})
    distance = (CENTRE - CENTRE[:, :1]).double() / 1000
    waves = [f(distance / 10_000 ** (2 * i / 6)) for i in range(3) for f in (torch.sin, torch.cos)]
    valid = distance.abs() < 1e5
    torch.testing.assert_close(p.double()[valid], torch.stack(waves, -1)[valid], atol=5e-5, rtol=1e-4)
    torch.testing.assert_close(p.double(), torch.stack(waves, -1), atol=0.02, rtol=0.02)
    assert p.isfinite().all(), "padding is 0, far before the first position"
    spec = GenomicSinusoid(of="place", unit=1.0, max_period=300.0, layout="sin-cos")
    other = spec.build(SPACE, 6)(0, 2, {"place": CENTRE % 900})
    first, second = (CENTRE % 900)[0, :2]
    step = [(second - first).double() / 300 ** (i / 3) for i in range(3)]
    expected = torch.stack([*(s.sin() for s in step), *(s.cos() for s in step)]).float()
    torch.testing.assert_close(other[0, 1], expected, atol=1e-4, rtol=1e-4)


def test_genomic_sinusoids_depend_on_distances_only():
    position = GenomicSinusoid().build(SPACE, 8)
    whole = position(0, 5, {"centre": CENTRE})
    assert torch.equal(position(0, 5, {"centre": CENTRE + 123_456_789}), whole), "shifted along the chromosome"
    for start in range(5):
        piece = position(start, 5 - start, {"centre": CENTRE})
        assert torch.equal(piece, whole[:, start:]), "distances start at the first position of the sample"
    assert torch.equal(position(0, 5, {"centre": CENTRE[1:]}), whole[1:]), "samples are independent"
    assert not torch.allclose(position(0, 5, {"centre": CENTRE * 2}), whole)


def test_genomic_sinusoids_require_coordinates():
    assert not list(GenomicSinusoid().check(SPACE, 8))
    for spec, space in ((GenomicSinusoid(), FeatureSpace(5, 2)), (GenomicSinusoid(of="cell"), SPACE)):
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
