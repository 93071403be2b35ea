"""Tables of tokens and the composite places of graphs."""

import math

import pytest
import torch

from dither.embeddings.graph import GraphEmbedding
from dither.embeddings.positions import LearnedPositions
from dither.embeddings.specs import Graph, Tokens
from dither.embeddings.tokens import TokenEmbedding, make_embedding_table
from dither.registry import FeatureSpace, Field, TokenSpace
from dither.registry.flow.records import State

torch.set_num_threads(1)

GRAPH = TokenSpace((Field("nodes", 4, 6, mask=4, pad=5), Field("edges", 6, 5, mask=3, pad=4)))


def test_tables_start_as_they_are_asked_to():
    torch.manual_seed(0)
    assert make_embedding_table(400, 100, "normal").weight.std().item() == pytest.approx(1, rel=0.02)
    assert make_embedding_table(400, 100, 0.02).weight.std().item() == pytest.approx(0.02, rel=0.02)
    kaiming = make_embedding_table(400, 100, "kaiming").weight
    assert kaiming.abs().max().item() == pytest.approx(0.1, rel=1e-3)
    assert kaiming.std().item() == pytest.approx(0.1 / math.sqrt(3), rel=0.02)
    torch.manual_seed(1)
    expected = torch.nn.init.kaiming_uniform_(torch.nn.Embedding(5, 3).weight, a=math.sqrt(5))
    torch.manual_seed(1)
    torch.testing.assert_close(make_embedding_table(5, 3, "kaiming").weight, expected)
    with pytest.raises(ValueError, match='not "xavier"'):
        make_embedding_table(4, 4, "xavier")


def test_each_field_has_its_own_table():
    embedding = TokenEmbedding(GRAPH, 8)
    assert [tuple(table.weight.shape) for table in embedding.tables] == [(6, 8), (5, 8)]
    x = torch.tensor([[0, 5, 4, 2, 0, 1, 2, 3, 4, 0]])
    h, extra = embedding(State.of(x), {})
    assert extra == 0
    for place in range(10):
        assert torch.equal(h[0, place], embedding.tables[place >= 4].weight[x[0, place]])
    assert not torch.equal(h[0, 0], h[0, 4]), "id 0 of a node is not id 0 of an edge"


def test_a_field_may_have_any_name():
    space = TokenSpace((Field("values", 2, 3), Field("a.b", 1, 3)))
    assert TokenEmbedding(space, 4)(State.of(torch.zeros(1, 3, dtype=torch.long)), {})[0].shape == (1, 3, 4)


def test_positions_are_added_from_the_start_given():
    space = TokenSpace((Field("text", 6, 3),))
    position = LearnedPositions(6, 4)
    embedding, plain = TokenEmbedding(space, 4, position=position), TokenEmbedding(space, 4)
    plain.tables = embedding.tables
    state = State.of(torch.tensor([[0, 1], [2, 2]]))
    torch.testing.assert_close(
        embedding(state, {}, 3)[0] - plain(state, {}, 3)[0], position.table.weight[3:5].expand(2, 2, 4)
    )


def test_places_of_the_seed_with_four_rooms():
    """The example of seed 001, section 3.2, line by line."""
    embedding = GraphEmbedding(GRAPH, 8)
    kind, room, pair = embedding.entity.weight, embedding.node.weight, embedding.pair[0].weight
    expected = [kind[0] + room[i] for i in range(4)]
    expected += [kind[1] + pair[i] + pair[j] for i, j in ((0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3))]
    torch.testing.assert_close(embedding.places(), torch.stack(expected))
    state = State.of(torch.zeros(2, 10, dtype=torch.long))
    tokens = torch.cat(
        [embedding.tokens.tables[0].weight[:1].expand(4, 8), embedding.tokens.tables[1].weight[:1].expand(6, 8)]
    )
    torch.testing.assert_close(embedding(state, {})[0], (tokens + embedding.places()).expand(2, 10, 8))


def test_ends_of_a_pair():
    directed, tied = GraphEmbedding(GRAPH, 8, endpoint="directed"), GraphEmbedding(GRAPH, 8, endpoint="tied")
    first, second = (table.weight for table in directed.pair)
    torch.testing.assert_close(directed.places()[7], directed.entity.weight[1] + first[1] + second[2])
    torch.testing.assert_close(tied.places()[7], tied.entity.weight[1] + tied.node.weight[1] + tied.node.weight[2])
    own = [
        sum(w.numel() for w in GraphEmbedding(GRAPH, 8, endpoint=e).parameters())
        for e in ("shared", "directed", "tied")
    ]
    rows = 6 + 5 + 2 + 4
    assert own == [8 * (rows + 4), 8 * (rows + 8), 8 * rows]


def test_start_reaches_every_table_of_a_graph():
    torch.manual_seed(0)
    nodes, edges = Field("nodes", 40, 40), Field("edges", 780, 40)
    embedding = GraphEmbedding(TokenSpace((nodes, edges)), 64, init=0.02)
    for table in (*embedding.tokens.tables, embedding.node, *embedding.pair):
        assert table.weight.std().item() == pytest.approx(0.02, rel=0.1)


def test_what_is_no_graph_is_refused_and_the_message_says_why():
    for space in (
        TokenSpace((Field("text", 10, 5),)),
        TokenSpace((Field("nodes", 4, 6), Field("edges", 5, 6))),
        TokenSpace((Field("nodes", 4, 6), Field("edges", 6, 6), Field("more", 1, 6))),
    ):
        (misfit,) = Graph().check(space, 8)
        assert "two fields, n nodes and then their n(n-1)/2 pairs" in misfit.message
        assert str(space) in misfit.message
        with pytest.raises(ValueError, match="n nodes and their"):
            GraphEmbedding(space, 8)
    (misfit,) = Graph().check(FeatureSpace(3, 4), 8)
    assert "is for tokens" in misfit.message
    assert not list(Graph().check(GRAPH, 8))
    with pytest.raises(ValueError, match='"shared", "directed" or "tied", not "both"'):
        GraphEmbedding(GRAPH, 8, endpoint="both")


def test_options_of_the_menu_reach_the_parts():
    assert len(Graph(endpoint="tied").build(GRAPH, 8).pair) == 0
    built = Tokens.model_validate({"init": 0.5, "position": {"use": "learned", "std": 3.0}}).build(GRAPH, 64)
    assert built.tables[0].weight.std().item() == pytest.approx(0.5, rel=0.15)
    assert built.position.table.weight.shape == (10, 64)
    assert built.position.table.weight.std().item() == pytest.approx(3, rel=0.15)
    assert [misfit.message for misfit in Tokens().check(FeatureSpace(3, 4), 8)]
