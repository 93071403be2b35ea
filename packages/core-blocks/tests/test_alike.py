"""Positions hidden as a whole, taken as one: the same values, losses and gradients, with fewer tokens."""

import pytest
import torch

from dither.core_blocks.attention import attend
from dither.core_blocks.cpu.merge_identical import MergedPositions
from dither.registry import FeatureSpace
from dither.registry.flow.records import State

SPACE = FeatureSpace(7, 3)
HIDDEN = torch.tensor(
    [
        [0, 1, 1, 0, 1, 0, 1],  # four as one
        [0, 0, 0, 0, 0, 0, 0],  # none
        [1, 1, 1, 1, 1, 1, 1],  # all
        [0, 0, 0, 1, 0, 0, 0],  # one
        [1, 1, 0, 0, 0, 1, 1],  # some of them on padding
    ],
    dtype=torch.bool,
)
LENGTHS = [7, 5, 7, 6, 6]


def batch(rows, padded):
    """Features with whole positions hidden, one element of another, and what is real."""
    hidden = HIDDEN[rows, :, None].repeat(1, 1, 3)
    hidden[:, 3, 1] = True
    lengths = torch.tensor(LENGTHS)[rows] if padded else torch.full((len(rows),), 7)
    x = torch.randn(hidden.shape, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    return State(x.masked_fill(hidden, 0.0), hidden), torch.arange(7) < lengths[:, None]


def values_and_gradients(model, state, valid, level):
    """What it says of real positions that are asked, the loss of that, and its gradients."""
    model.zero_grad()
    out = model(state, level, valid, {})
    assert out.isfinite().all()
    where = valid if state.requested is None else valid & state.requested
    loss = ((out - torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view_as(out)).square() * where[..., None]).mean()
    loss.backward()
    return [out[where].detach(), loss.detach(), *(weight.grad.clone() for weight in model.parameters())]


@pytest.mark.parametrize("rows", [[0], [2], [0, 3], [0, 1, 2, 3, 4], [4, 4]], ids=str)
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("cls", [True, False])
@pytest.mark.parametrize("requested", [None, "hidden", "some"])
def test_values_loss_and_every_gradient_are_the_same(model_of, opened, rows, padded, cls, requested):
    embedding = {"use": "regions", "cls": cls, "elements": True}
    options = {
        "embedding": embedding,
        "affine": True,
        "block": {"affine": True, "attention": "sdpa" if cls else "math"},
    }
    model = opened(model_of(SPACE, **options)).double().train()
    assert model.join_hidden
    state, valid = batch(rows, padded)
    if requested is not None:
        where = state.masked.all(-1) if requested == "hidden" else torch.tensor([0, 1, 0, 1, 1, 0, 0], dtype=torch.bool)
        state = State(state.x, state.masked, where & valid)
    level = torch.rand(len(rows), generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    joined = values_and_gradients(model, state, valid, level)
    model.join_hidden = False
    for one, other in zip(joined, values_and_gradients(model, state, valid, level), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize(
    "option", [{"checkpointing": True}, {"final": "norm"}, {"norm": "rms"}, {"block": {"mlp": "swiglu"}}]
)
def test_other_options_change_nothing(model_of, opened, option):
    model = opened(model_of(SPACE, **option)).double().train()
    args = (*batch([0, 1, 4], True), torch.rand(3, dtype=torch.float64))
    joined = values_and_gradients(model, *args)
    model.join_hidden = False
    for one, other in zip(joined, values_and_gradients(model, *args), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-11)


def lengths_of(model, *args):
    """How many tokens each block is given."""
    seen = []
    hooks = [block.register_forward_pre_hook(lambda _, args: seen.append(args[0].shape[1])) for block in model.blocks]
    model(*args)
    for hook in hooks:
        hook.remove()
    return seen


def test_blocks_are_given_one_token_for_all_that_are_alike(model_of):
    model = model_of(SPACE)
    for rows, padded, expected in (
        ([0], False, 5),
        ([2], False, 2),
        ([0, 2], False, 5),
        ([3, 1], True, 7),
        ([1], False, 8),
    ):
        state, valid = batch(rows, padded)
        x, level = state.x.float(), torch.rand(len(rows))
        assert lengths_of(model, State(x, state.masked), level, valid, {}) == [expected] * 2, rows


@pytest.mark.parametrize(
    "option",
    [
        {"embedding": {"use": "regions", "position": "sinusoid"}},
        {"block": {"rope": True}},
        {"block": {"dropout": 0.1}},
        {"block": {"attention_dropout": 0.1}},
    ],
    ids=str,
)
def test_it_is_left_alone_where_something_tells_them_apart(model_of, option):
    assert not model_of(SPACE, **option).join_hidden


def test_it_is_left_alone_where_levels_differ_or_order_counts(model_of):
    state, valid = batch([0, 2], False)
    state = State(state.x.float(), state.masked)
    assert lengths_of(model_of(SPACE), state, torch.rand(2, 7), valid, {}) == [8, 8]
    assert lengths_of(model_of(SPACE, block_size=3), state, torch.rand(2), valid, {}) == [8, 8]


def test_only_what_promises_it_is_joined(model_of, monkeypatch):
    """A part of a stranger that promises nothing never sees a mask of numbers."""
    from dither.core_blocks.block_specs import AdaLNZero
    from dither.embeddings.specs import Regions

    for part, trait in ((AdaLNZero, "weighted-keys"), (AdaLNZero, "equivariant"), (Regions, "alike")):
        with monkeypatch.context() as patch:
            own = part.traits
            patch.setattr(part, "traits", lambda self, own=own, trait=trait: own(self) - {trait})
            assert not model_of(SPACE).join_hidden, trait


def test_tokens_that_stay_stand_for_all():
    generator = torch.Generator().manual_seed(0)
    for _ in range(50):
        tokens, hidden = (torch.rand(3, 6, generator=generator) < share for share in (0.8, 0.6))
        found = MergedPositions.of(tokens, hidden, torch.float64)
        if found is None:
            continue
        number = found.weight[:, 0, 0].exp()
        h = torch.arange(18.0).view(3, 6, 1)
        kept, back = found.take(h), found.spread(found.take(h))
        for row in range(3):
            stays, real, alike = found.stays[row][number[row] > 0], tokens[row], (tokens & hidden)[row]
            if not real.any():
                assert len(stays) == 1
                continue
            first = torch.where(alike)[0][:1]
            assert sorted(stays.tolist()) == sorted(torch.where(real & ~alike)[0].tolist() + first.tolist())
            assert torch.equal(kept[row][: len(stays), 0], h[row, stays, 0])
            torch.testing.assert_close(number[row].sum(), real.sum().double())
            assert torch.equal(back[row][real & ~alike], h[row][real & ~alike])
            assert (back[row][alike] == h[row, first]).all()
            requested = torch.zeros(3, 6, dtype=torch.bool)
            requested[row, torch.where(alike)[0][-1:]] = True
            told = found.requested(requested)
            assert told is not None
            assert found.stays[told].tolist() == first.tolist()


def test_nothing_is_to_be_left_out():
    everything = torch.ones(2, 4, dtype=torch.bool)
    assert MergedPositions.of(everything, ~everything, torch.float32) is None
    one = torch.eye(4, dtype=torch.bool)[:2]
    assert MergedPositions.of(everything, one, torch.float32) is None


@pytest.mark.parametrize("implementation", ["sdpa", "math"])
def test_bfloat16_does_not_round_the_weight(implementation):
    """log 450 is 6.109, which bfloat16 makes 6.125: 1.6 % more regions than there are."""
    k = torch.zeros(1, 1, 451, 8, dtype=torch.bfloat16)
    v = torch.zeros_like(k)
    v[:, :, -1] = 1
    weight = torch.zeros(1, 1, 1, 451)
    weight[..., -1] = torch.tensor(450.0).log()
    with torch.autocast("cpu", torch.bfloat16):
        y = attend(k[:, :, :1], k, v, weight, implementation=implementation)
    assert y.dtype == torch.bfloat16
    assert (y == 0.5).all()
