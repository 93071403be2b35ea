"""Positions: none, index sinusoids, learned."""

from typing import ClassVar

import pytest
import torch

from dither.embeddings.positions import LearnedPositions, NoPositions, SinusoidPositions
from dither.embeddings.specs import LearnedPosition, NoPosition, Regions, Sinusoid, Tokens
from dither.registry import FeatureSpace, Field, Misfit, TokenSpace
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
