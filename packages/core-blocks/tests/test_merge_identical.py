"""Merging fully masked positions: the same values, losses and gradients with fewer tokens."""

import pytest
import torch

from dither.core_blocks.attention import attend
from dither.registry import FeatureSpace
from dither.registry.contracts.records import State

SPACE = FeatureSpace(7, 3)
HIDDEN = torch.tensor(
    [
        [0, 1, 1, 0, 1, 0, 1],  # four are merged
        [0, 0, 0, 0, 0, 0, 0],  # none
        [1, 1, 1, 1, 1, 1, 1],  # all
        [0, 0, 0, 1, 0, 0, 0],  # one
        [1, 1, 0, 0, 0, 1, 1],  # some of them on padding
    ],
    dtype=torch.bool,
)
LENGTHS = [7, 5, 7, 6, 6]


def batch(rows, padded):
    """Features with fully masked positions and one masked element of another; which positions are valid."""
    hidden = HIDDEN[rows, :, None].repeat(1, 1, 3)
    hidden[:, 3, 1] = True
    lengths = torch.tensor(LENGTHS)[rows] if padded else torch.full((len(rows),), 7)
    x = torch.randn(
        hidden.shape, generator=torch.Generator().manual_seed(5), dtype=torch.float64
    )
    return State(x.masked_fill(hidden, 0.0), hidden), torch.arange(7) < lengths[:, None]


def values_and_gradients(model, state, valid, level):
    """Outputs at valid positions, their loss, and its gradients."""
    model.zero_grad()
    out = model(state, level, valid, {})
    assert out.isfinite().all()
    loss = (
        (
            out - torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view_as(out)
        ).square()
        * valid[..., None]
    ).mean()
    loss.backward()
    return [
        out[valid].detach(),
        loss.detach(),
        *(weight.grad.clone() for weight in model.parameters()),
    ]


@pytest.mark.parametrize("rows", [[0], [0, 1, 2, 3, 4], [4, 4]], ids=str)
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("cls", [True, False])
def test_values_and_gradients_are_exact(model_of, opened, rows, padded, cls):
    embedding = {"use": "regions", "cls": cls, "elements": True}
    options = {
        "embedding": embedding,
        "affine": True,
        "block": {"affine": True, "attention": "sdpa" if cls else "math"},
    }
    model = opened(model_of(SPACE, **options)).double().train()
    assert model.merge_masked
    state, valid = batch(rows, padded)
    level = torch.rand(
        len(rows), generator=torch.Generator().manual_seed(2), dtype=torch.float64
    )
    merged = values_and_gradients(model, state, valid, level)
    model.merge_masked = False
    for one, other in zip(
        merged, values_and_gradients(model, state, valid, level), strict=True
    ):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize(
    "option",
    [
        {"checkpointing": True},
        {"final": "norm"},
        {"norm": "rms"},
        {"block": {"mlp": "swiglu"}},
    ],
)
def test_exact_with_other_options(model_of, opened, option):
    model = opened(model_of(SPACE, **option)).double().train()
    args = (*batch([0, 1, 4], True), torch.rand(3, dtype=torch.float64))
    merged = values_and_gradients(model, *args)
    model.merge_masked = False
    for one, other in zip(merged, values_and_gradients(model, *args), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-11)


def lengths_of(model, *args):
    """Number of tokens in each block."""
    seen = []
    hooks = [
        block.register_forward_pre_hook(lambda _, args: seen.append(args[0].shape[1]))
        for block in model.blocks
    ]
    model(*args)
    for hook in hooks:
        hook.remove()
    return seen


def test_number_of_tokens_in_the_blocks(model_of):
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
        assert (
            lengths_of(model, State(x, state.masked), level, valid, {})
            == [expected] * 2
        ), rows


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
def test_off_where_positions_differ(model_of, option):
    assert not model_of(SPACE, **option).merge_masked


def test_off_with_a_level_per_position_or_block_causal_attention(model_of):
    state, valid = batch([0, 2], False)
    state = State(state.x.float(), state.masked)
    assert lengths_of(model_of(SPACE), state, torch.rand(2, 7), valid, {}) == [8, 8]
    assert lengths_of(
        model_of(SPACE, block_size=3), state, torch.rand(2), valid, {}
    ) == [8, 8]


def test_requires_the_traits_of_block_and_embedding(model_of, monkeypatch):
    """Third-party components without the traits never get a float mask."""
    from dither.core_blocks.specs import AdaLNZero
    from dither.embeddings.specs import Regions

    for part, trait in (
        (AdaLNZero, "weighted-keys"),
        (AdaLNZero, "equivariant"),
        (Regions, "identical-masked"),
    ):
        with monkeypatch.context() as patch:
            own = part.traits
            patch.setattr(
                part, "traits", lambda self, own=own, trait=trait: own(self) - {trait}
            )
            assert not model_of(SPACE).merge_masked, trait


@pytest.mark.parametrize("kernel", ["sdpa", "math"])
def test_autocast_does_not_round_the_weight(kernel):
    """log 450 is 6.109, which bfloat16 rounds to 6.125: 1.6 % more regions."""
    k = torch.zeros(1, 1, 451, 8, dtype=torch.bfloat16)
    v = torch.zeros_like(k)
    v[:, :, -1] = 1
    weight = torch.zeros(1, 1, 1, 451)
    weight[..., -1] = torch.tensor(450.0).log()
    with torch.autocast("cpu", torch.bfloat16):
        y = attend(k[:, :, :1], k, v, weight, kernel=kernel)
    assert y.dtype == torch.bfloat16
    assert (y == 0.5).all()
