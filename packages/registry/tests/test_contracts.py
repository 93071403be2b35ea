"""Spaces and records."""

import pytest
import torch

from dither.registry.contracts.records import Clean, Noise, Noised, State, over
from dither.registry.contracts.spaces import FeatureSpace, Field, Group, TokenSpace

GRAPH = TokenSpace(
    (Field("nodes", 3, 5, mask=3, pad=4), Field("edges", 3, 4, mask=2, pad=3))
)


def test_tables_have_a_row_per_position_or_one_for_all():
    assert (
        GRAPH.clean().tolist()
        == [[True, True, True, False, False]] * 3
        + [[True, True, False, False, False]] * 3
    )
    assert GRAPH.usable().sum(-1).tolist() == [5, 5, 5, 4, 4, 4]
    assert TokenSpace((Field("text", 7, 4),)).clean().shape == (1, 4)


def test_with_mask_keeps_a_mask_and_appends_where_there_is_none():
    assert GRAPH.with_mask() == GRAPH
    (field,) = TokenSpace((Field("text", 7, 4),)).with_mask().fields
    assert (field.mask, field.size) == (4, 5)


def test_split_by_fields_and_slices_of_a_single_field():
    x = torch.arange(12).view(2, 6)
    assert {k: v.tolist() for k, v in GRAPH.split(x).items()} == {
        "nodes": [[0, 1, 2], [6, 7, 8]],
        "edges": [[3, 4, 5], [9, 10, 11]],
    }
    assert TokenSpace((Field("text", 7, 4),)).split(x[:, :2])["text"].shape == (2, 2)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: Field("x", 0, 3),
        lambda: Field("x", 1, 3, mask=3),
        lambda: TokenSpace(()),
        lambda: TokenSpace((Field("x", 1, 2), Field("x", 1, 2))),
        lambda: FeatureSpace(0, 1),
        lambda: FeatureSpace(2, 3, (Group("g", 1, 4),)),
        lambda: FeatureSpace(2, 3, (Group("g", 1, 3),), given=("h",)),
    ],
)
def test_invalid_spaces_are_rejected(wrong):
    with pytest.raises(ValueError, match=r"."):
        wrong()


def test_noise_is_exact_for_tiny_sigma_and_broadcasts():
    noise = Noise(
        torch.tensor([1e-12, 2.0], dtype=torch.float64),
        torch.ones(2, dtype=torch.float64),
    )
    x = torch.zeros(2, 3, 4)
    assert noise.one_minus_alpha(x).shape == (2, 1, 1)
    assert noise.one_minus_alpha(x)[0].item() == pytest.approx(1e-12, rel=1e-12)
    torch.testing.assert_close(
        noise.alpha(x) + noise.one_minus_alpha(x),
        torch.ones(2, 1, 1, dtype=torch.float64),
    )
    assert over(torch.zeros(2, 3), x).shape == (2, 3, 1)


def test_records_are_moved_and_sliced():
    clean = Clean.of(torch.arange(6).view(3, 2), cell=torch.arange(3))
    part = clean[1:]
    assert part.x0.tolist() == [[2, 3], [4, 5]]
    assert part.cond["cell"].tolist() == [1, 2]
    assert clean.slice_positions(1, 2).x0.tolist() == [[1], [3], [5]]
    noise = Noise(torch.zeros(3), torch.zeros(3))
    masks = (clean.known, clean.valid, clean.fixed)
    noised = Noised(clean.x0, State.of(clean.x0), noise, *masks, prior=torch.ones(1, 4))
    assert noised[:1].prior is noised.prior
    assert noised[:1].state.x.shape == (1, 2)
    assert noised.to("meta").noise.sigma.device.type == "meta"


def test_fixed_is_padding_and_known():
    valid, known = torch.tensor([[True, False]]), torch.tensor([[False, False]])
    assert Clean.of(torch.zeros(1, 2).long(), valid, known).fixed.tolist() == [
        [False, True]
    ]
    features = Clean.of(
        torch.zeros(1, 2, 2), valid, torch.tensor([[[True, False], [False, False]]])
    )
    assert features.fixed.tolist() == [[[True, False], [True, True]]]
