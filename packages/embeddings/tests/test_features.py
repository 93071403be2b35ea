"""Region embedding: mask token, class token, partly hidden positions, starts."""

import pytest
import torch

from dither.embeddings.features import RegionEmbedding
from dither.embeddings.specs import Regions
from dither.registry import FeatureSpace, Field, TokenSpace
from dither.registry.flow.records import State

torch.set_num_threads(1)

HIDDEN = torch.tensor([[[0, 0, 0], [1, 1, 1], [0, 1, 0], [1, 1, 1]]]).bool()


def example(seed=0):
    return torch.randn(1, 4, 3, generator=torch.Generator().manual_seed(seed))


def test_linear_map_mask_token_and_class_token():
    torch.manual_seed(0)
    embedding = RegionEmbedding(3, 8)
    x = example()
    h, extra = embedding(State(x, HIDDEN), {})
    assert extra == 1
    weight, bias = embedding.linear.weight, embedding.linear.bias
    torch.testing.assert_close(h[0, 0], embedding.cls_token)
    torch.testing.assert_close(h[0, 1], x[0, 0] @ weight.T + bias)
    assert torch.equal(h[0, 2], embedding.mask_token)
    assert torch.equal(h[0, 4], embedding.mask_token)
    torch.testing.assert_close(h[0, 3], (x[0, 2] * torch.tensor([1, 0, 1])) @ weight.T + bias)


@pytest.mark.parametrize("elements", [False, True])
def test_hidden_values_say_nothing_and_elements_say_that_they_are_hidden(elements):
    torch.manual_seed(0)
    embedding = RegionEmbedding(3, 8, elements=elements)
    x = example()
    seen = embedding(State(x, HIDDEN), {})[0]
    assert torch.equal(embedding(State(torch.where(HIDDEN, example(1), x), HIDDEN), {})[0], seen)
    zero = embedding(State(x.masked_fill(HIDDEN, 0.0), HIDDEN & HIDDEN.all(-1, keepdim=True)), {})[0]
    assert torch.equal(zero[0, 3], seen[0, 3]) == (not elements)
    if elements:
        torch.testing.assert_close(seen[0, 3] - zero[0, 3], embedding.elements.weight[:, 1])
        assert embedding.elements.bias is None
    assert torch.equal(seen[0, 2], embedding.mask_token)
    assert torch.equal(seen[0, 1], zero[0, 1])


def test_class_token_leads_the_first_piece_alone_and_can_be_left_out():
    state = State(example(), HIDDEN)
    embedding = RegionEmbedding(3, 8)
    first, later = embedding(state, {}), embedding(state, {}, 4)
    assert (first[1], later[1]) == (1, 0)
    assert torch.equal(first[0][:, 1:], later[0])
    bare = RegionEmbedding(3, 8, cls=False)
    assert bare(state, {})[1] == 0
    assert [name for name, _ in bare.named_parameters()] == ["mask_token", "linear.weight", "linear.bias"]


def test_tokens_start_small():
    torch.manual_seed(0)
    embedding = RegionEmbedding(3, 4096)
    for token in (embedding.mask_token, embedding.cls_token):
        assert token.std().item() == pytest.approx(0.02, rel=0.05)


def test_menu():
    space = FeatureSpace(4, 3)
    spec = Regions.model_validate({"elements": True, "cls": False, "position": "sinusoid"})
    built = spec.build(space, 8)
    h, extra = built(State(example(), torch.ones_like(HIDDEN)), {})
    assert extra == 0
    torch.testing.assert_close(h[0], built.mask_token + built.position(0, 4, {})[0])
    assert built.elements is not None
    (misfit,) = spec.check(TokenSpace((Field("text", 4, 3),)), 8)
    assert 'embedding "regions" is for features' in misfit.message
    assert not list(spec.check(space, 8))
