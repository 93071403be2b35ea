"""The previous prediction as an input of the denoiser."""

from dataclasses import replace

import pytest
import torch

from dither.registry import FeatureSpace, Field, TokenSpace

LEVEL = torch.tensor([0.3, 0.7])
TEXT = TokenSpace((Field("text", 12, 7),))
GRAPH = TokenSpace((Field("nodes", 4, 5), Field("pairs", 6, 3)))
REGIONS = FeatureSpace(10, 6)
IMAGE = FeatureSpace(16, 2, grid=(4, 4))


def prediction(space, rows=2):
    """Random probabilities, or values."""
    if isinstance(space, TokenSpace):
        logits = torch.randn(rows, space.length, space.vocab)
        return logits.masked_fill(~space.usable(), -torch.inf).softmax(-1)
    return torch.randn(rows, space.length, space.width)


@pytest.mark.parametrize(
    ("space", "options"),
    [
        (TEXT, {"block_size": 3}),
        (GRAPH, {"embedding": "graph"}),
        (REGIONS, {}),
        (IMAGE, {"patch": 2, "embedding": "patches"}),
    ],
    ids=str,
)
def test_a_new_model_ignores_it_and_zeros_are_none(
    model_of, state_of, opened, space, options
):
    plain = model_of(space, **options)
    model = model_of(space, **options, self_conditioning=True)
    model.load_state_dict(plain.state_dict(), strict=False)
    state = state_of(space)
    valid = torch.ones(state.x.shape[:2], dtype=torch.bool)
    told = replace(state, previous=prediction(space))
    out = plain(state, LEVEL, valid, {})
    assert torch.equal(model(told, LEVEL, valid, {}), out)
    opened(model)
    out = model(state, LEVEL, valid, {})
    zeros = replace(state, previous=torch.zeros_like(told.previous))
    assert torch.equal(model(zeros, LEVEL, valid, {}), out)
    usable = out.isfinite()
    assert not torch.allclose(model(told, LEVEL, valid, {})[usable], out[usable])


@pytest.mark.parametrize("options", [{}, {"patch": 2, "embedding": "patches"}], ids=str)
def test_predictions_of_padding_have_no_influence(model_of, state_of, opened, options):
    model = opened(model_of(IMAGE, **options, self_conditioning=True)).double()
    state = state_of(IMAGE, dtype=torch.float64)
    valid = torch.ones(2, 16, dtype=torch.bool)
    valid[:, 5:7] = False
    outputs = []
    for _ in range(2):
        previous = torch.ones(2, 16, 2).double()
        previous[~valid] = torch.randn(4, 2).double()
        told = replace(state, previous=previous)
        outputs.append(model(told, LEVEL.double(), valid, {})[valid])
    torch.testing.assert_close(*outputs, rtol=0, atol=0)


def test_masked_positions_with_other_predictions_are_not_merged(
    model_of, state_of, opened
):
    """Without positions all fully masked regions are one token, unless their predictions differ."""
    model = opened(model_of(REGIONS, self_conditioning=True))
    state = state_of(REGIONS)
    state = replace(state, masked=torch.ones_like(state.masked))
    valid = torch.ones(2, 10, dtype=torch.bool)
    out = model(replace(state, previous=prediction(REGIONS)), LEVEL, valid, {})
    assert not torch.allclose(out[:, 0], out[:, 1])


def test_the_fields_of_a_graph_have_tables_of_their_own(model_of):
    model = model_of(GRAPH, embedding="graph", self_conditioning=True)
    nodes, pairs = model.previous.tables
    assert (len(nodes.weight), len(pairs.weight)) == (5, 3)
    torch.nn.init.ones_(nodes.weight)
    vectors = model.previous(prediction(GRAPH))
    torch.testing.assert_close(vectors[:, :4], torch.ones(2, 4, 16))
    assert not vectors[:, 4:].any()


def test_the_loss_of_a_model_that_copies_the_answer_is_zero(model_of, state_of):
    """All tokens are masked: without the previous prediction the loss is log V."""
    model = model_of(TEXT, self_conditioning=True, width=7, block={"heads": 1})
    model.requires_grad_(False)
    model.embedding.tables[0].weight.zero_()
    model.previous.tables[0].weight.copy_(torch.eye(7))
    model.head.maps[0].weight.copy_(100 * torch.eye(7))
    x0 = state_of(TEXT).x
    state = replace(state_of(TEXT), x=torch.full_like(x0, 6))
    valid = torch.ones_like(x0, dtype=torch.bool)
    answer = torch.nn.functional.one_hot(x0, 7).float()
    losses = []
    for previous in (None, answer):
        raw = model(replace(state, previous=previous), LEVEL, valid, {})
        losses.append(
            torch.nn.functional.cross_entropy(raw.flatten(0, 1), x0.flatten())
        )
    assert losses[0] == pytest.approx(torch.tensor(7.0).log().item(), rel=1e-5)
    assert losses[1] < 1e-6
