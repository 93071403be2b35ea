"""Heads: a map per field, -inf outside its vocabulary, starts at zero."""

import torch

from dither.embeddings.head_specs import FeatureValues, TokenLogits
from dither.embeddings.heads import TokenHead
from dither.registry import FeatureSpace, Field, TokenSpace

torch.set_num_threads(1)

GRAPH = TokenSpace((Field("nodes", 4, 6), Field("edges", 6, 5)))


def test_each_field_is_read_by_its_own_map():
    torch.manual_seed(0)
    head, h = TokenHead(GRAPH, 8, zero=False), torch.randn(2, 10, 8)
    out = head(h)
    assert out.shape == (2, 10, 6)
    torch.testing.assert_close(out[:, :4], h[:, :4] @ head.maps[0].weight.T + head.maps[0].bias)
    torch.testing.assert_close(out[:, 4:, :5], h[:, 4:] @ head.maps[1].weight.T + head.maps[1].bias)
    assert (out[:, 4:, 5] == -torch.inf).all()
    assert out[GRAPH.usable().expand_as(out)].isfinite().all()


def test_zero_maps_give_every_id_the_same_chance_whatever_they_read():
    out = TokenHead(GRAPH, 8)(torch.randn(2, 10, 8))
    probabilities = out.softmax(-1)
    torch.testing.assert_close(probabilities[:, :4], torch.full((2, 4, 6), 1 / 6))
    torch.testing.assert_close(probabilities[:, 4:, :5], torch.full((2, 6, 5), 1 / 5))


def test_gradients_stay_finite_beside_the_filling():
    head = TokenHead(GRAPH, 8)
    torch.nn.functional.cross_entropy(head(torch.randn(2, 10, 8)).flatten(0, 1), torch.zeros(20).long()).backward()
    for weight in head.parameters():
        assert weight.grad.isfinite().all()
        assert weight.grad.any()


def test_a_single_field_reads_positions_in_pieces_without_a_copy():
    head, h = TokenHead(TokenSpace((Field("text", 9, 5),)), 4, zero=False), torch.randn(2, 9, 4)
    torch.testing.assert_close(head(h[:, 2:5]), head(h)[:, 2:5])
    assert type(head(h).grad_fn).__name__ not in ("CatBackward0", "ConstantPadNdBackward0", "CloneBackward0")


def test_menu():
    space = FeatureSpace(7, 3)
    plain, zero = FeatureValues().build(space, 8), FeatureValues(zero=True).build(space, 8)
    assert plain.weight.shape == (3, 8)
    assert plain.weight.any()
    assert plain.bias.any()
    assert not zero.weight.any()
    assert not zero.bias.any()
    assert FeatureValues(bias=False, zero=True).build(space, 8).bias is None
    assert all(m.bias is None for m in TokenLogits(bias=False).build(GRAPH, 8).maps)
    assert any(m.weight.any() for m in TokenLogits(zero=False).build(GRAPH, 8).maps)
    assert not any(m.weight.any() or m.bias.any() for m in TokenLogits().build(GRAPH, 8).maps)
    assert "is for features" in next(iter(FeatureValues().check(GRAPH, 8))).message
    assert "is for tokens" in next(iter(TokenLogits().check(space, 8))).message
