"""Training on [x_t | x_0]: dependencies, gradients, and equality with sampling with a cache."""

import pytest
import torch

from dither.registry import Condition, Field, TokenSpace, default_catalog
from dither.registry.contracts.records import Context, State

LENGTH, ROWS, IDS = 11, 3, 7
SPACE = TokenSpace((Field("text", LENGTH, IDS),), (Condition("centre"),))
CENTRES = torch.tensor([10_000_000]) + 70_000 * torch.arange(LENGTH).expand(ROWS, -1)
CASES = [
    (1, "none", {}),
    (3, "learned", {"rope": True, "norm": "rms", "mlp": "swiglu"}),
    (4, "sinusoid", {"attention": "sdpa"}),
    (4, "none", {"use": "pre-norm", "kv_heads": 1, "rope": True, "rope_theta": 100.0}),
    (10, "none", {"rope": "centre"}),
    (11, "learned", {"rope": True, "attention": "sdpa"}),
]
"""Block sizes, positions and blocks."""


def ids(seed):
    return torch.randint(
        0, IDS, (ROWS, LENGTH), generator=torch.Generator().manual_seed(seed)
    )


def levels(size, seed=2):
    """One level per row and block, and the same per position."""
    each = torch.rand(
        ROWS, -(-LENGTH // size), generator=torch.Generator().manual_seed(seed)
    )
    return each, each.repeat_interleave(size, 1)[:, :LENGTH]


def cuts(size):
    return [
        (number, slice(start, min(start + size, LENGTH)))
        for number, start in enumerate(range(0, LENGTH, size))
    ]


def everywhere():
    return torch.ones(ROWS, LENGTH, dtype=torch.bool)


def behind(x0):
    return Context(State.of(x0), torch.zeros(len(x0)))


def sampled(model, noised, x0, each, size, valid, cond):
    """Denoise block after block like a sampler, with a cache of the clean blocks before."""
    cache, out = model.new_cache(), []
    for number, part in cuts(size):
        for _ in range(2):  # a call without keep changes nothing
            said = model(
                State.of(noised[:, part]),
                each[:, number],
                valid[:, part],
                cond,
                cache=cache,
            )
        out.append(said)
        model.trunk(
            State.of(x0[:, part]),
            torch.zeros(ROWS),
            valid[:, part],
            cond,
            cache=cache,
            keep=True,
        )
    return torch.cat(out, 1)


@torch.no_grad()
@pytest.mark.parametrize(("size", "position", "block"), CASES, ids=str)
def test_training_equals_sampling_with_a_cache(model_of, opened, size, position, block):
    model = opened(
        model_of(
            SPACE,
            block=block,
            embedding={"use": "tokens", "position": position},
            block_size=size,
        )
    )
    (each, level), cond = levels(size), {"centre": CENTRES}
    whole = model(State.of(ids(0)), level, everywhere(), cond, context=behind(ids(1)))
    pieces = sampled(model, ids(0), ids(1), each, size, everywhere(), cond)
    torch.testing.assert_close(pieces, whole, atol=5e-5, rtol=0)


@torch.no_grad()
@pytest.mark.parametrize(("_", "position", "block"), CASES, ids=str)
@pytest.mark.parametrize("start", [0, 4, 8])
def test_positions_recomputed_between_cached_ones(
    model_of, opened, _, position, block, start
):
    """After `rewind` a block sees the keys and values behind it, too; a call without keep changes nothing."""
    model = opened(
        model_of(SPACE, block=block, embedding={"use": "tokens", "position": position})
    )
    cond, valid, cache, level = (
        {"centre": CENTRES},
        everywhere(),
        model.new_cache(),
        torch.rand(ROWS),
    )
    valid[0, 7:] = valid[1, 2] = False
    whole, part = model(State.of(ids(0)), level, valid, cond), slice(start, start + 4)
    model.trunk(State.of(ids(0)), level, valid, cond, cache=cache, keep=True)
    cache.rewind(start)
    for x in (ids(1), ids(0)):
        said = model(State.of(x[:, part]), level, valid[:, part], cond, cache=cache)
    torch.testing.assert_close(said, whole[:, part], atol=5e-5, rtol=0)


@torch.no_grad()
@pytest.mark.parametrize("kernel", ["auto", "math"])
def test_padding_is_ignored(model_of, opened, kernel):
    block = {"rope": True, "attention": kernel}
    model = opened(model_of(SPACE, block=block, block_size=4))
    valid = everywhere()
    valid[0, 7:] = valid[1, :4] = valid[2, 2:3] = False
    each, level = levels(4)
    said = model(State.of(ids(0)), level, valid, {}, context=behind(ids(1)))
    noised, x0 = ids(0).where(valid, ids(5)), ids(1).where(valid, ids(6))
    other = model(State.of(noised), level, valid, {}, context=behind(x0))
    assert torch.equal(said[valid], other[valid])
    assert not torch.equal(said, other)
    pieces = sampled(model, ids(0), ids(1), each, 4, valid, {})
    # Also in a block of padding alone, whose queries have no keys
    assert said.isfinite().all()
    assert pieces.isfinite().all()
    torch.testing.assert_close(pieces[valid], said[valid], atol=5e-5, rtol=0)


@torch.no_grad()
@pytest.mark.parametrize("kernel", ["auto", "math"])
def test_a_sample_may_be_all_padding(model_of, opened, kernel):
    model = opened(model_of(SPACE, block={"attention": kernel}))
    valid = everywhere()
    valid[1] = False
    assert model(State.of(ids(0)), 0.5, valid, {}).isfinite().all()


@torch.no_grad()
@pytest.mark.parametrize("size", [1, 4, 11])
def test_dependencies_by_definition(model_of, opened, size):
    """Position by position, from the definition: x_t of block b sees x_t of block b and x_0 of blocks before b."""
    model = opened(model_of(SPACE, block={"rope": True}, block_size=size))
    level, block = levels(size)[1], torch.arange(LENGTH) // size
    out = model(State.of(ids(0)), level, everywhere(), {}, context=behind(ids(1)))
    for place in range(LENGTH):
        moved = torch.nn.functional.one_hot(torch.tensor(place), LENGTH)
        by_noised = model(
            State.of((ids(0) + moved) % IDS),
            level,
            everywhere(),
            {},
            context=behind(ids(1)),
        )
        by_clean = model(
            State.of(ids(0)),
            level,
            everywhere(),
            {},
            context=behind((ids(1) + moved) % IDS),
        )
        by_level = model(
            State.of(ids(0)), level + moved, everywhere(), {}, context=behind(ids(1))
        )
        assert torch.equal((by_noised != out).any(-1).all(0), block == block[place])
        assert torch.equal((by_clean != out).any(-1).all(0), block > block[place])
        assert torch.equal((by_level != out).any(-1).all(0), block == block[place])


def gradients(model, checkpointing):
    """Output and gradients in training, with checkpoints or without."""
    model.checkpointing = checkpointing
    model.train().zero_grad()
    out = model(
        State.of(ids(0)), levels(4)[1], everywhere(), {}, context=behind(ids(1))
    )
    (out * torch.arange(IDS)).sum().backward()
    return out.detach(), [weight.grad.clone() for weight in model.parameters()]


def test_gradients_with_checkpointing(model_of, opened):
    model = opened(model_of(SPACE, block={"rope": True}, block_size=4)).double()
    out, found = gradients(model, checkpointing=True)
    plain, expected = gradients(model, checkpointing=False)
    torch.testing.assert_close(out, plain, atol=1e-10, rtol=1e-10)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, atol=1e-9, rtol=1e-9)
    assert all(gradient.abs().max() > 0 for gradient in expected), (
        "a weight has no gradient"
    )


@torch.no_grad()
@pytest.mark.parametrize("cls", [True, False])
def test_class_token_belongs_to_the_first_block(model_of, regions, opened, cls):
    embedding = {"use": "regions", "position": "sinusoid", "cls": cls}
    model = opened(
        model_of(regions, block={"rope": True}, embedding=embedding, block_size=4)
    )
    generator = torch.Generator().manual_seed(0)
    noised, x0 = (torch.randn(ROWS, 9, 5, generator=generator) for _ in range(2))
    valid, each = (
        torch.ones(ROWS, 9, dtype=torch.bool),
        torch.rand(ROWS, 3, generator=generator),
    )
    level, cache = each.repeat_interleave(4, 1)[:, :9], model.new_cache()
    whole = model(State.of(noised), level, valid, {}, context=behind(x0))
    for number, start in enumerate((0, 4, 8)):
        part = slice(start, min(start + 4, 9))
        said = model(
            State.of(noised[:, part]), each[:, number], valid[:, part], {}, cache=cache
        )
        torch.testing.assert_close(said, whole[:, part], atol=5e-5, rtol=0)
        model.trunk(
            State.of(x0[:, part]),
            torch.zeros(ROWS),
            valid[:, part],
            {},
            cache=cache,
            keep=True,
        )


@torch.no_grad()
@pytest.mark.parametrize(("size", "context"), [(1, 1), (2, 4), (3, 3), (4, 8), (5, 5)])
def test_dropped_positions_equal_a_banded_mask(
    model_of, opened, monkeypatch, size, context
):
    """After `drop` a block sees itself and `context` positions before it, in every layer."""
    model = opened(model_of(SPACE, block={"rope": True}, depth=3, block_size=size))
    model, valid = model.double(), everywhere()
    valid[1, 2] = False
    x0, level = State.of(ids(0)), torch.zeros(ROWS, dtype=torch.float64)
    cache, parts = model.new_cache(), []
    for number, part in cuts(size):
        inputs = (x0[:, part], level, valid[:, part], {})
        parts.append(model(*inputs, cache=cache))
        model.trunk(*inputs, cache=cache, keep=True)
        if number >= context // size:
            cache.drop(size)
    assert cache.held < context + size

    block = torch.arange(LENGTH) // size
    behind = (block[:, None] - block) * size
    band = (behind >= 0) & (behind <= context)
    mask = band & valid[:, None, None, :]
    monkeypatch.setattr(model, "_mask", lambda tokens: mask)
    whole = model(x0, level, valid, {})
    torch.testing.assert_close(torch.cat(parts, 1), whole, atol=1e-12, rtol=0)


@torch.no_grad()
def test_part_of_a_block_is_dropped(model_of, opened, monkeypatch):
    """The other positions stay in their blocks."""
    model = opened(model_of(SPACE, block={"rope": True}, block_size=4)).double()
    x0, level = State.of(ids(0)), torch.zeros(ROWS, dtype=torch.float64)
    cache = model.new_cache()
    for part in (slice(0, 4), slice(4, 8)):
        inputs = (x0[:, part], level, everywhere()[:, part], {})
        model.trunk(*inputs, cache=cache, keep=True)
    cache.drop(2)
    part = slice(8, LENGTH)
    last = model(x0[:, part], level, everywhere()[:, part], {}, cache=cache)

    block = torch.arange(LENGTH) // 4
    mask = block[:, None] >= block
    mask[8:, :2] = False
    monkeypatch.setattr(model, "_mask", lambda tokens: mask[None, None])
    whole = model(x0, level, everywhere(), {})
    torch.testing.assert_close(last, whole[:, part], atol=1e-12, rtol=0)


@torch.no_grad()
def test_a_class_token_is_not_dropped(model_of, regions, opened, monkeypatch):
    embedding = {"use": "regions", "position": "sinusoid", "cls": True}
    model = model_of(regions, block={"rope": True}, embedding=embedding, block_size=2)
    model = opened(model).double()
    x = torch.randn(ROWS, 6, 5, dtype=torch.float64)
    valid, level = torch.ones(ROWS, 6, dtype=torch.bool), torch.zeros(ROWS).double()
    cache, parts = model.new_cache(), []
    for start in (0, 2, 4):
        part = slice(start, start + 2)
        inputs = (State.of(x[:, part]), level, valid[:, part], {})
        parts.append(model(*inputs, cache=cache))
        model.trunk(*inputs, cache=cache, keep=True)
        if start:
            cache.drop(2)

    block = torch.tensor([0, 0, 0, 1, 1, 2, 2])
    behind = block[:, None] - block
    mask = (behind >= 0) & (behind <= 1)
    mask[:, 0] = True
    monkeypatch.setattr(model, "_mask", lambda tokens: mask[None, None])
    whole = model(State.of(x), level, valid, {})
    torch.testing.assert_close(torch.cat(parts, 1), whole, atol=1e-12, rtol=0)


@torch.no_grad()
@pytest.mark.parametrize("size", [1, 3, 4, 11])
def test_packed_documents_equal_single_ones(model_of, opened, size):
    """Also where a block holds the end of one document and the beginning of the next."""
    model = opened(model_of(SPACE, block={"rope": True}, block_size=size)).double()
    level = torch.rand(ROWS, LENGTH, dtype=torch.float64)
    documents = torch.tensor([[0] * 5 + [1] * 6, [3] * 2 + [4] * 7 + [5] * 2, [7] * 11])
    valid = everywhere()
    valid[2, 8:] = False
    context = Context(State.of(ids(1)), torch.zeros(ROWS, dtype=torch.float64))
    inputs = (State.of(ids(0)), level)
    packed = model(*inputs, valid, {"document": documents}, context=context)
    assert packed.isfinite().all()
    for document in documents.unique():
        inside = (documents == document) & valid
        # Its clean copy sees no other one either.
        clean = State.of(ids(1).where(inside, ids(2)))
        other = Context(clean, torch.zeros(ROWS, dtype=torch.float64))
        alone = model(*inputs, inside, {}, context=other)
        torch.testing.assert_close(packed[inside], alone[inside], atol=1e-12, rtol=0)


def test_context_requires_blocks_and_no_cache(model_of):
    state, level = State.of(ids(0)), torch.zeros(ROWS)
    for size, cached in ((None, False), (4, True)):
        model = model_of(SPACE, block_size=size)
        cache = model.new_cache() if cached else None
        with pytest.raises(ValueError, match="context"):
            model(state, level, everywhere(), {}, context=behind(ids(1)), cache=cache)


def test_block_size_is_limited_by_the_length(model_of):
    parse = default_catalog().parse
    (misfit,) = parse("model", {"use": "denoiser", "block_size": 12}).check(SPACE)
    assert (misfit.code, misfit.path) == ("out-of-range", ("block_size",))
    assert not list(parse("model", {"use": "denoiser", "block_size": 11}).check(SPACE))


@pytest.mark.slow
def test_compiles(model_of, opened):
    model = opened(model_of(SPACE, block={"rope": True}, block_size=4))
    given = (State.of(ids(0)), levels(4)[1], everywhere(), {})
    plain = model(*given, context=behind(ids(1)))
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(
        compiled(*given, context=behind(ids(1))), plain, atol=5e-5, rtol=0
    )
