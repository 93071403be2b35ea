"""Region embedding: mask token, class token, partly masked positions, groups of columns."""

import pytest
import torch

from dither.embeddings.specs import PatchValues, Regions
from dither.registry import FeatureSpace
from dither.registry.contracts.records import State

MASKED = torch.tensor([[[0, 0, 0], [1, 1, 1], [0, 1, 0], [1, 1, 1]]]).bool()


def regions(width=8, features=3, **options):
    torch.manual_seed(0)
    return Regions.model_validate(options).build(FeatureSpace(4, features), width)


def example(seed=0):
    return torch.randn(1, 4, 3, generator=torch.Generator().manual_seed(seed))


def test_linear_layer_mask_token_and_class_token():
    embedding, x = regions(), example()
    h, extra = embedding(State(x, MASKED), {})
    assert extra == 1
    torch.testing.assert_close(h[0, 0], embedding.cls_token)
    torch.testing.assert_close(h[0, 1], embedding.linear(x[0, 0]))
    torch.testing.assert_close(
        h[0, 3], embedding.linear(x[0, 2] * torch.tensor([1, 0, 1]))
    )
    assert torch.equal(h[0, 2], embedding.mask_token)
    assert torch.equal(h[0, 4], embedding.mask_token)


@pytest.mark.parametrize("elements", [False, True])
def test_masked_values_are_ignored_and_elements_flag_them(elements):
    embedding, x = regions(elements=elements), example()
    h = embedding(State(x, MASKED), {})[0]
    assert torch.equal(
        embedding(State(torch.where(MASKED, example(1), x), MASKED), {})[0], h
    )
    zero = embedding(
        State(x.masked_fill(MASKED, 0.0), MASKED & MASKED.all(-1, keepdim=True)), {}
    )[0]
    assert torch.equal(zero[0, 3], h[0, 3]) == (not elements)
    if elements:
        torch.testing.assert_close(
            h[0, 3] - zero[0, 3], embedding.elements.weight[:, 1]
        )
        assert embedding.elements.bias is None
        noisy = State(x, MASKED, noisy=~MASKED)
        torch.testing.assert_close(
            embedding(noisy, {})[0][0, 1] - h[0, 1],
            embedding.elements.weight.sum(1),
            atol=1e-6,
            rtol=1e-5,
        )
    assert torch.equal(h[0, 1], zero[0, 1])


def test_positions_are_added_to_masked_regions():
    embedding = regions(elements=True, cls=False, position="sinusoid")
    h, extra = embedding(State(example(), torch.ones_like(MASKED)), {})
    assert extra == 0
    torch.testing.assert_close(
        h[0], embedding.mask_token + embedding.position(0, 4, {})[0]
    )


@pytest.mark.parametrize("elements", [False, True])
def test_unread_columns_are_ignored(columns, elements):
    torch.manual_seed(0)
    embedding = Regions(without=["expression"], elements=elements).build(columns, 8)
    narrow = Regions(elements=elements).build(FeatureSpace(5, 4), 8)
    narrow.load_state_dict(embedding.state_dict())
    generator = torch.Generator().manual_seed(0)
    x, masked = (
        torch.rand(2, 5, 6, generator=generator),
        torch.rand(2, 5, 6, generator=generator) < 0.4,
    )
    masked[0, 1, :4] = True  # fully masked in the columns that are read
    h = embedding(State(x, masked), {})[0]
    torch.testing.assert_close(h, narrow(State(x[..., :4], masked[..., :4]), {})[0])
    assert torch.equal(h[0, 2], embedding.mask_token)
    x[..., 4:] = torch.nan
    assert torch.equal(embedding(State(x, masked), {})[0], h)


@pytest.mark.parametrize(
    ("without", "code", "path"),
    [
        (["expresion"], "unknown-value", ("without",)),
        (["motifs", "x"], "unknown-value", ("without", 1)),
        (["motifs", "accessibility", "expression"], "misfit", ("without",)),
    ],
)
def test_incompatible_groups(columns, without, code, path):
    (misfit,) = Regions(without=without).check(columns, 8)
    assert (misfit.code, misfit.path) == (code, path)
    if without == ["expresion"]:
        assert misfit.help == 'did you mean "expression"?'


@pytest.mark.parametrize("spec", [PatchValues, Regions])
def test_states_stay_in_float32_under_a_model_in_bfloat16(spec):
    space = FeatureSpace(4, 3, grid=(2, 2))
    embedding = spec(position="grid-sinusoid").build(space, 8)
    state = State.of(example())
    expected, _ = embedding(state, {})
    h, _ = embedding.bfloat16()(state, {})
    assert h.dtype == torch.bfloat16
    assert torch.allclose(h.float(), expected, atol=0.05)
