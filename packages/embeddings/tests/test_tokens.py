"""Token and graph embeddings, and output heads."""

import math
from dataclasses import replace

import pytest
import torch
from torch.nn import functional

from dither.embeddings.specs import (
    FeatureValues,
    Graph,
    Sigmoid,
    Softplus,
    TokenLogits,
    Tokens,
)
from dither.embeddings.tokens import make_embedding_table
from dither.registry import FeatureSpace, Field, TokenSpace
from dither.registry.contracts.records import State


def test_initialisation_of_tables():
    torch.manual_seed(0)
    assert make_embedding_table(
        400, 100, "normal"
    ).weight.std().item() == pytest.approx(1, rel=0.02)
    assert make_embedding_table(400, 100, 0.02).weight.std().item() == pytest.approx(
        0.02, rel=0.02
    )
    kaiming = make_embedding_table(400, 100, "kaiming").weight
    assert kaiming.abs().max().item() == pytest.approx(0.1, rel=1e-3)
    assert kaiming.std().item() == pytest.approx(0.1 / math.sqrt(3), rel=0.02)
    torch.manual_seed(1)
    expected = torch.nn.init.kaiming_uniform_(
        torch.nn.Embedding(5, 3).weight, a=math.sqrt(5)
    )
    torch.manual_seed(1)
    torch.testing.assert_close(make_embedding_table(5, 3, "kaiming").weight, expected)


def test_each_field_has_its_own_table(graph):
    embedding = Tokens().build(graph, 8)
    assert [tuple(table.weight.shape) for table in embedding.tables] == [(6, 8), (5, 8)]
    x = torch.tensor([[0, 5, 4, 2, 0, 1, 2, 3, 4, 0]])
    h, extra = embedding(State.of(x), {})
    assert extra == 0
    for position in range(10):
        assert torch.equal(
            h[0, position], embedding.tables[position >= 4].weight[x[0, position]]
        )
    assert not torch.equal(h[0, 0], h[0, 4]), "id 0 of a node is not id 0 of an edge"


def test_positions_are_added_from_start(text):
    embedding = Tokens.model_validate({"position": "learned"}).build(text, 4)
    ids = torch.tensor([[0, 1], [2, 2]])
    expected = embedding.tables[0](ids) + embedding.position.table.weight[3:5]
    torch.testing.assert_close(embedding(State.of(ids), {}, 3)[0], expected)


def test_graph_positions_of_the_seed(graph):
    """The example of seed 001, section 3.2."""
    embedding = Graph().build(graph, 8)
    kind, room, pair = (
        embedding.entity.weight,
        embedding.node.weight,
        embedding.pair[0].weight,
    )
    expected = [kind[0] + room[i] for i in range(4)]
    expected += [
        kind[1] + pair[i] + pair[j]
        for i, j in ((0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3))
    ]
    torch.testing.assert_close(embedding.position_embedding(), torch.stack(expected))
    nodes, edges = (table.weight[:1] for table in embedding.tokens.tables)
    tokens = torch.cat([nodes.expand(4, 8), edges.expand(6, 8)])
    h, _ = embedding(State.of(torch.zeros(2, 10, dtype=torch.long)), {})
    torch.testing.assert_close(
        h, (tokens + embedding.position_embedding()).expand(2, 10, 8)
    )


def test_further_fields_of_a_graph_of_three_nodes():
    """One token per node takes the vectors of nodes, although there are as many pairs; then one per pair and node."""
    lengths = {"nodes": 3, "edges": 3, "areas": 3, "doors": 6}
    embedding = Graph().build(
        TokenSpace(tuple(Field(name, length, 4) for name, length in lengths.items())), 8
    )
    pairs = (
        embedding.pair[0].weight[torch.tensor([0, 0, 1])]
        + embedding.pair[0].weight[torch.tensor([1, 2, 2])]
    )
    expected = torch.cat(
        [
            embedding.node.weight,
            pairs,
            embedding.node.weight,
            pairs,
            embedding.node.weight,
        ]
    )
    kinds = embedding.entity.weight.repeat_interleave(
        torch.tensor(list(lengths.values())), 0
    )
    torch.testing.assert_close(embedding.position_embedding(), expected + kinds)


def test_endpoints_of_a_pair(graph):
    shared, directed, tied = (
        Graph(endpoint=e).build(graph, 8) for e in ("shared", "directed", "tied")
    )
    first, second = (table.weight for table in directed.pair)
    torch.testing.assert_close(
        directed.position_embedding()[7],
        directed.entity.weight[1] + first[1] + second[2],
    )
    ends = tied.node.weight[1] + tied.node.weight[2]
    torch.testing.assert_close(
        tied.position_embedding()[7], tied.entity.weight[1] + ends
    )
    rows = 6 + 5 + 2 + 4
    counts = [
        sum(w.numel() for w in embedding.parameters())
        for embedding in (shared, directed, tied)
    ]
    assert counts == [8 * (rows + 4), 8 * (rows + 8), 8 * rows]


@pytest.mark.parametrize(
    "space",
    [
        TokenSpace((Field("text", 10, 5),)),
        TokenSpace((Field("nodes", 4, 6), Field("edges", 5, 6))),
        TokenSpace((Field("nodes", 4, 6), Field("edges", 6, 6), Field("more", 1, 6))),
        FeatureSpace(3, 4),
    ],
    ids=str,
)
def test_spaces_that_are_not_graphs(space):
    (misfit,) = Graph().check(space, 8)
    assert (misfit.path, misfit.related) == ((), ("process",))
    assert bool(list(Tokens().check(space, 8))) == isinstance(space, FeatureSpace)


def test_each_field_has_its_own_layer(graph):
    torch.manual_seed(0)
    head, h = TokenLogits(zero=False).build(graph, 8), torch.randn(2, 10, 8)
    out = head(h)
    assert out.shape == (2, 10, 6)
    torch.testing.assert_close(out[:, :4], head.maps[0](h[:, :4]))
    torch.testing.assert_close(out[:, 4:, :5], head.maps[1](h[:, 4:]))
    assert (out[:, 4:, 5] == -torch.inf).all()


def test_heads_require_their_kind_of_space(graph, columns):
    for spec, space in (
        (TokenLogits(), columns),
        (FeatureValues(), graph),
        (Softplus(), graph),
    ):
        (misfit,) = spec.check(space, 8)
        assert misfit.related == ("process",)


def test_softplus_of_one_group_or_all_columns(columns):
    torch.manual_seed(0)
    head, h = Softplus(group="accessibility").build(columns, 8), torch.randn(2, 5, 8)
    out = head(h)
    torch.testing.assert_close(
        out[..., 3], (1 + (h @ head.linear.weight[0] + head.linear.bias).exp()).log()
    )
    assert not out[..., [0, 1, 2, 4, 5]].any()
    every = Softplus().build(columns, 8)
    torch.testing.assert_close(every(h), functional.softplus(every.linear(h)))
    assert (Softplus(zero=True).build(columns, 8)(h) == torch.tensor(2.0).log()).all()


def test_probabilities_of_one_group_in_float32(columns):
    torch.manual_seed(0)
    head = Sigmoid(group="accessibility").build(columns, 8).bfloat16()
    h = 30 * torch.randn(200, 5, 8, dtype=torch.bfloat16)
    out = head(h)
    assert out.dtype == torch.float32
    torch.testing.assert_close(out[..., 3], head.linear(h)[..., 0].float().sigmoid())
    assert not out[..., [0, 1, 2, 4, 5]].any()
    (misfit,) = Sigmoid().check(replace(columns, standardised=True), 8)
    assert misfit.related == ("task", "standardise")


def test_incompatibilities_of_softplus(columns):
    (misfit,) = Softplus(group="expresion").check(columns, 8)
    assert (misfit.code, misfit.path, misfit.help) == (
        "unknown-value",
        ("group",),
        'did you mean "expression"?',
    )
    for spec in (Softplus(), Softplus(group="expression")):
        (misfit,) = spec.check(replace(columns, standardised=True), 8)
        assert misfit.related == ("task", "standardise")
        assert not list(spec.check(columns, 8))
