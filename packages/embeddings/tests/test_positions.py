"""Positions: none, index sinusoids, genomic distance, learned."""

from typing import ClassVar

import pytest
import torch

from dither.embeddings.positions import GenomicPositions, LearnedPositions, NoPositions, SinusoidPositions
from dither.embeddings.specs import GenomicSinusoid, LearnedPosition, NoPosition, Regions, Sinusoid, Tokens
from dither.registry import Condition, FeatureSpace, Field, Misfit, TokenSpace
from dither.registry.kinds import PositionSpec

torch.set_num_threads(1)


def test_none_says_nothing():
    assert torch.equal(NoPositions(4)(3, 5, {}), torch.zeros(1, 5, 4))


def test_sinusoids_of_the_index():
    p = SinusoidPositions(6)(2, 3, {})
    expected = [
        [f(m / 10_000 ** (2 * i / 6)) for i in range(3) for f in (torch.sin, torch.cos)]
        for m in torch.arange(2, 5, dtype=torch.float64)
    ]
    torch.testing.assert_close(p.double(), torch.tensor(expected, dtype=torch.float64)[None], atol=1e-6, rtol=1e-6)
    assert not torch.allclose(SinusoidPositions(6, max_period=300.0)(2, 3, {}), p)


@pytest.mark.parametrize("spec", [NoPosition(), Sinusoid(layout="cos-sin", max_period=300.0), LearnedPosition()])
@pytest.mark.parametrize("space", [FeatureSpace(7, 2), TokenSpace((Field("a", 3, 2), Field("b", 4, 2)))])
def test_pieces_equal_the_whole(spec, space):
    torch.manual_seed(0)
    position = spec.build(space, 6)
    whole = position(0, 7, {})
    assert whole.shape == (1, 7, 6)
    for start in range(7):
        torch.testing.assert_close(position(start, 7 - start, {}), whole[:, start:])
    assert (torch.pdist(whole[0]).min() > 1e-3) == (spec.name != "none"), "positions look the same"


CENTRE = torch.tensor([[10_500, 12_000, 20_250, 300_000, 0], [7, 107, 1007, 200_000_007, 240_000_007]])


def test_genomic_sinusoids_are_those_of_the_distance_in_kilobases():
    p = GenomicPositions(6)(0, 5, {"centre": CENTRE})
    distance = (CENTRE - CENTRE[:, :1]).double() / 1000
    waves = [f(distance / 10_000 ** (2 * i / 6)) for i in range(3) for f in (torch.sin, torch.cos)]
    real = distance.abs() < 1e5
    torch.testing.assert_close(p.double()[real], torch.stack(waves, -1)[real], atol=5e-5, rtol=1e-4)
    torch.testing.assert_close(p.double(), torch.stack(waves, -1), atol=0.02, rtol=0.02)
    assert p.isfinite().all(), "padding is 0, far before the first position"
    other = GenomicPositions(6, of="place", unit=1.0, max_period=300.0, layout="sin-cos")(0, 2, {"place": CENTRE % 900})
    first, second = (CENTRE % 900)[0, :2]
    step = [(second - first).double() / 300 ** (i / 3) for i in range(3)]
    wanted = torch.stack([*(s.sin() for s in step), *(s.cos() for s in step)]).float()
    torch.testing.assert_close(other[0, 1], wanted, atol=1e-4, rtol=1e-4)


def test_genomic_sinusoids_know_distances_alone():
    position = GenomicPositions(8)
    whole = position(0, 5, {"centre": CENTRE})
    assert torch.equal(position(0, 5, {"centre": CENTRE + 123_456_789}), whole), "moved along the chromosome"
    for start in range(5):
        piece = position(start, 5 - start, {"centre": CENTRE})
        assert torch.equal(piece, whole[:, start:]), "pieces are counted from the first position of the sample"
    assert torch.equal(position(0, 5, {"centre": CENTRE[1:]}), whole[1:]), "samples do not see each other"
    assert not torch.allclose(position(0, 5, {"centre": CENTRE * 2}), whole)


def test_genomic_sinusoids_need_to_be_told_where_positions_lie():
    told = FeatureSpace(5, 2, conditions=(Condition("cell", 3), Condition("centre")))
    assert not list(GenomicSinusoid().check(told, 8))
    (misfit,) = GenomicSinusoid().check(FeatureSpace(5, 2), 8)
    assert misfit.message == 'the task tells no "centre" beside a sample; it tells nothing'
    (misfit,) = GenomicSinusoid(of="cell").check(told, 8)
    assert misfit.message.startswith('the task tells "cell" as one label per sample, and one number per position')
    with pytest.raises(ValueError, match='need the condition "centre", which is not told'):
        GenomicPositions(8)(0, 5, {"cell": CENTRE[:, 0]})
    spec = GenomicSinusoid(unit=10.0, max_period=50.0, layout="cos-sin")
    built = spec.build(told, 8)
    assert (built.of, built.unit, built.max_period, built.layout) == ("centre", 10.0, 50.0, "cos-sin")
    assert not spec.cost(told, 8).parameters
    assert built.double()(0, 5, {"centre": CENTRE}).dtype == torch.float64
    (misfit,) = Regions(position=GenomicSinusoid()).check(FeatureSpace(5, 2), 8)
    assert misfit.path == ("position", "of")


def test_learned_positions_start_small_and_know_their_number():
    torch.manual_seed(0)
    position = LearnedPosition(std=0.5).build(FeatureSpace(40, 2), 64)
    assert position.table.weight.std().item() == pytest.approx(0.5, rel=0.05)
    assert LearnedPositions(400, 64).table.weight.std().item() == pytest.approx(0.02, rel=0.05)
    with pytest.raises(ValueError, match=r"positions 38\.\.41 are asked for, but a sample has 40"):
        position(38, 4, {})


def test_positions_follow_the_model_to_its_device_and_precision():
    for position in (NoPositions(4), SinusoidPositions(4)):
        assert position.double()(0, 3, {}).dtype == torch.float64
        assert position.to("meta")(0, 3, {}).device.type == "meta"
        assert not position.state_dict()


def test_unknown_layouts_are_refused():
    with pytest.raises(ValueError, match='"cos-sin", "sin-cos" or "interleaved", not "both"'):
        SinusoidPositions(4, layout="both")


class Picky(PositionSpec):
    """Fits nowhere."""

    name: ClassVar[str] = "picky"

    def check(self, space, width):
        yield Misfit("no", ("std",))

    def build(self, space, width):
        raise NotImplementedError


@pytest.mark.parametrize(
    ("embedding", "space"), [(Tokens, TokenSpace((Field("a", 3, 2),))), (Regions, FeatureSpace(3, 2))]
)
def test_what_does_not_fit_in_a_position_is_found_through_the_embedding(embedding, space):
    assert [misfit.path for misfit in embedding(position=Picky()).check(space, 8)] == [("position", "std")]
