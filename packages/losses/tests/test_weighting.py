"""Some tokens count more than others, in the loss that is no bound anyway."""

import pytest
import torch

from dither.losses.reductions import weight_table
from dither.losses.specs import MaskedCEActive
from dither.registry.flow.records import Clean
from dither.registry.flow.spaces import Field, TokenSpace
from dither.registry.kinds import ProcessFacts

SPACE = TokenSpace((Field("nodes", 2, 5, mask=3, pad=4), Field("edges", 3, 4, mask=3)))
FACTS = ProcessFacts("absorbing", SPACE, "posterior", "mask")
WEIGHTS = {"nodes": [1.0, 2.0, 5.0], "edges": 0.5}


def test_a_field_has_one_weight_or_one_for_each_clean_id():
    assert weight_table(SPACE, WEIGHTS).tolist() == [[1, 2, 5, 1, 1]] * 2 + [[0.5, 0.5, 0.5, 1, 1]] * 3
    assert (weight_table(SPACE, {}) == 1).all()


def test_each_token_counts_by_its_true_id(process_of):
    process = process_of("absorbing", SPACE)
    clean = Clean.of(
        torch.tensor([[0, 1, 0, 1, 2], [2, 4, 2, 1, 0]]), torch.tensor([[True] * 5, [True, False, *[True] * 3]])
    )
    t = torch.full((2,), 0.97)
    noised = process.corrupt(clean, t)
    raw = torch.randn(2, 5, 5, requires_grad=True)
    pred = process.read(raw, noised.state, process.schedule(t))
    plain, weighted = (MaskedCEActive(weights=some).build(FACTS)(pred, noised) for some in ({}, WEIGHTS))
    assert noised.target_mask.any(1).all(), "something is masked"
    factor = torch.tensor([[1, 2, 0.5, 0.5, 0.5], [5, 1, 0.5, 0.5, 0.5]])
    torch.testing.assert_close(weighted.values, plain.values * factor)
    assert torch.equal(weighted.weights, plain.weights)
    weighted.total().backward()
    assert raw.grad.isfinite().all()


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({"edge": 2.0}, 'no field is named "edge"; fields: nodes, edges'),
        ({"nodes": [1.0, 2.0]}, 'field "nodes" has 3 clean ids, but here are 2 weights'),
    ],
)
def test_weights_that_do_not_fit_are_named(weights, message):
    (misfit,) = MaskedCEActive(weights=weights).check(FACTS)
    assert misfit.message == message
    assert list(MaskedCEActive(weights=WEIGHTS).check(FACTS)) == []


@pytest.mark.parametrize("weight", [-1.0, float("inf"), float("nan"), [1.0, -1.0, 0.0]])
def test_weights_are_no_less_than_nothing(weight):
    with pytest.raises(ValueError, match="weights"):
        MaskedCEActive(weights={"nodes": weight})


def test_it_stays_no_bound():
    loss = MaskedCEActive(weights=WEIGHTS)
    assert not loss.bound
    (warning,) = loss.warn(FACTS)
    assert "no bound" in warning.message
