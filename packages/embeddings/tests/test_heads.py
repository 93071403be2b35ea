"""Output heads."""

from dataclasses import replace

import torch
from torch.nn import functional

from dither.embeddings.specs import FeatureValues, Softplus, TokenLogits


def test_each_field_has_its_own_layer(graph):
    torch.manual_seed(0)
    head, h = TokenLogits(zero=False).build(graph, 8), torch.randn(2, 10, 8)
    out = head(h)
    assert out.shape == (2, 10, 6)
    torch.testing.assert_close(out[:, :4], head.maps[0](h[:, :4]))
    torch.testing.assert_close(out[:, 4:, :5], head.maps[1](h[:, 4:]))
    assert (out[:, 4:, 5] == -torch.inf).all()


def test_a_single_field_is_not_copied(text):
    head, h = TokenLogits(zero=False).build(text, 4), torch.randn(2, 6, 4)
    torch.testing.assert_close(head(h[:, 2:5]), head(h)[:, 2:5])
    assert type(head(h).grad_fn).__name__ not in ("CatBackward0", "ConstantPadNdBackward0", "CloneBackward0")
    assert head.linear is head.maps[0]


def test_heads_require_their_kind_of_space(graph, columns):
    for spec, space in ((TokenLogits(), columns), (FeatureValues(), graph), (Softplus(), graph)):
        (misfit,) = spec.check(space, 8)
        assert misfit.related == ("process",)


def test_softplus_of_one_group_or_all_columns(columns):
    torch.manual_seed(0)
    head, h = Softplus(group="accessibility").build(columns, 8), torch.randn(2, 5, 8)
    out = head(h)
    torch.testing.assert_close(out[..., 3], (1 + (h @ head.linear.weight[0] + head.linear.bias).exp()).log())
    assert not out[..., [0, 1, 2, 4, 5]].any()
    every = Softplus().build(columns, 8)
    torch.testing.assert_close(every(h), functional.softplus(every.linear(h)))
    assert (Softplus(zero=True).build(columns, 8)(h) == torch.tensor(2.0).log()).all()


def test_incompatibilities_of_softplus(columns):
    (misfit,) = Softplus(group="expresion").check(columns, 8)
    assert (misfit.code, misfit.path, misfit.help) == ("unknown-value", ("group",), 'did you mean "expression"?')
    for spec in (Softplus(), Softplus(group="expression")):
        (misfit,) = spec.check(replace(columns, standardised=True), 8)
        assert misfit.related == ("task", "standardise")
        assert not list(spec.check(columns, 8))
