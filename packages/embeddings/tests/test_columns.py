"""Parts that go by groups of columns: what is not read, what is predicted alone; and a model that is told nothing."""

from dataclasses import replace

import pytest
import torch
from torch.nn import functional

from dither.embeddings.condition_specs import NoCondition
from dither.embeddings.features import RegionEmbedding
from dither.embeddings.head_specs import Softplus
from dither.embeddings.heads import SoftplusHead
from dither.embeddings.specs import Regions
from dither.registry import FeatureSpace, Field, Group, TokenSpace
from dither.registry.flow.records import State

torch.set_num_threads(1)

GROUPS = (Group("motifs", 0, 3), Group("accessibility", 3, 4), Group("expression", 4, 6))
SPACE = FeatureSpace(5, 6, GROUPS)


def state(seed=0):
    generator = torch.Generator().manual_seed(seed)
    return State(torch.rand(2, 5, 6, generator=generator), torch.rand(2, 5, 6, generator=generator) < 0.4)


@pytest.mark.parametrize("elements", [False, True])
def test_columns_that_are_not_read_are_as_if_they_were_not_there(elements):
    torch.manual_seed(0)
    embedding = RegionEmbedding(6, 8, columns=[0, 1, 2, 3], elements=elements)
    narrow = RegionEmbedding(4, 8, elements=elements)
    narrow.load_state_dict(embedding.state_dict())
    whole = state()
    whole.masked[0, 1, :4] = True  # hidden in all that is read, but not as a whole
    cut = State(whole.x[..., :4], whole.masked[..., :4])
    torch.testing.assert_close(embedding(whole, {})[0], narrow(cut, {})[0])
    assert torch.equal(embedding(whole, {})[0][0, 2], embedding.mask_token)
    other = State(whole.x.clone(), whole.masked)
    other.x[..., 4:] = torch.nan
    assert torch.equal(embedding(other, {})[0], embedding(whole, {})[0])


def test_regions_without_groups():
    spec = Regions(without=["motifs", "expression"])
    built = spec.build(SPACE, 8)
    assert built.linear.weight.shape == (8, 1)
    assert built.columns.tolist() == [3]
    assert "columns" not in built.state_dict()
    assert spec.cost(SPACE, 8).parameters == sum(p.numel() for p in built.parameters())
    assert not list(spec.check(SPACE, 8))
    (misfit,) = Regions(without=["expresion"]).check(SPACE, 8)
    assert misfit.path == ("without",)
    assert "groups: motifs, accessibility, expression" in misfit.message
    assert misfit.help == 'did you mean "expression"?'
    (misfit,) = Regions(without=["motifs", "x"]).check(SPACE, 8)
    assert misfit.path == ("without", 1)
    (misfit,) = Regions(without=[group.name for group in GROUPS]).check(SPACE, 8)
    assert misfit.message == "no column is left to be read"


def test_one_group_is_predicted_and_the_others_are_zero():
    torch.manual_seed(0)
    head, h = SoftplusHead(6, 8, GROUPS[1]), torch.randn(2, 5, 8)
    out = head(h)
    torch.testing.assert_close(out[..., 3], (1 + (h @ head.linear.weight[0] + head.linear.bias).exp()).log())
    assert not out[..., [0, 1, 2, 4, 5]].any()
    every = SoftplusHead(6, 8)
    torch.testing.assert_close(every(h), functional.softplus(h @ every.linear.weight.T + every.linear.bias))
    assert every(h).min() > 0
    assert (SoftplusHead(6, 8, zero=True)(h) == torch.tensor(2.0).log()).all()


def test_the_head_in_the_menu():
    spec = Softplus(group="expression")
    built = spec.build(SPACE, 8)
    assert built.linear.weight.shape == (2, 8)
    for choice in (spec, Softplus(), Softplus(bias=False)):
        assert choice.cost(SPACE, 8).parameters == sum(p.numel() for p in choice.build(SPACE, 8).parameters())
        assert not list(choice.check(SPACE, 8))
    (misfit,) = Softplus(group="expresion").check(SPACE, 8)
    assert (misfit.path, misfit.help) == (("group",), 'did you mean "expression"?')
    assert "is for features" in next(iter(Softplus().check(TokenSpace((Field("text", 4, 3),)), 8))).message
    for choice in (spec, Softplus()):
        (misfit,) = choice.check(replace(SPACE, standardised=True), 8)
        assert (misfit.related, misfit.help) == (("task", "standardise"), "set task.standardise = false")
        assert not list(choice.check(replace(SPACE, standardised=False), 8))


def test_no_condition_has_no_weights_and_says_nothing():
    spec = NoCondition()
    built = spec.build(8)
    assert not list(built.parameters())
    assert spec.cost(8).parameters == 0
    for level in (torch.rand(3), torch.rand(3, 4)):
        c = built(level, {"cell": torch.ones(3)})
        assert c.shape == (*level.shape, 8)
        assert not c.any()
