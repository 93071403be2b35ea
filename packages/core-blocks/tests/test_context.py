"""Training on [x_t | x_0]: dependencies, gradients, and equality with sampling with a cache."""

import copy
from itertools import product

import pytest
import torch

from dither.core_blocks.block_causal import CleanAndNoised, number_blocks
from dither.registry import Field, TokenSpace, default_catalog
from dither.registry.flow.records import Context, State

LENGTH, ROWS, IDS = 11, 3, 7
SPACE = TokenSpace((Field("text", LENGTH, IDS),))
BLOCKS = ({}, {"rope": True, "norm": "rms", "mlp": "swiglu"}, {"rope": True, "attention": "sdpa"})


def ids(seed):
    return torch.randint(0, IDS, (ROWS, LENGTH), generator=torch.Generator().manual_seed(seed))


def levels(size, seed=2):
    """One level per row and block, and the same per position."""
    each = torch.rand(ROWS, -(-LENGTH // size), generator=torch.Generator().manual_seed(seed))
    return each, each.repeat_interleave(size, 1)[:, :LENGTH]


def cuts(size):
    return [(number, slice(start, min(start + size, LENGTH))) for number, start in enumerate(range(0, LENGTH, size))]


def everywhere():
    return torch.ones(ROWS, LENGTH, dtype=torch.bool)


def behind(x0):
    return Context(State.of(x0), torch.zeros(len(x0)))


def sampled(model, noised, x0, each, size, valid, cond=None):
    """Denoise block after block like a sampler, with a cache of the clean blocks before."""
    cache, out, cond = model.new_cache(), [], cond or {}
    for number, part in cuts(size):
        for _ in range(2):  # a call without keep changes nothing
            said = model(State.of(noised[:, part]), each[:, number], valid[:, part], cond, cache=cache)
        out.append(said)
        model.trunk(State.of(x0[:, part]), torch.zeros(ROWS), valid[:, part], cond, cache=cache, keep=True)
    return torch.cat(out, 1)


@torch.no_grad()
@pytest.mark.parametrize("size", [1, 3, 4, 10, 11])
@pytest.mark.parametrize("position", ["none", "learned", "sinusoid"])
@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_training_equals_sampling_with_a_cache(model_of, opened, size, position, block):
    model = opened(model_of(SPACE, block=block, embedding={"use": "tokens", "position": position}, block_size=size))
    each, level = levels(size)
    whole = model(State.of(ids(0)), level, everywhere(), {}, context=behind(ids(1)))
    torch.testing.assert_close(sampled(model, ids(0), ids(1), each, size, everywhere()), whole, atol=1e-5, rtol=0)


@torch.no_grad()
def test_a_prompt_may_be_cached_at_once(model_of, opened):
    model = opened(model_of(SPACE, block={"rope": True}, block_size=3))
    each, level = levels(3)
    whole = model(State.of(ids(0)), level, everywhere(), {}, context=behind(ids(1)))
    cache, valid, part = model.new_cache(), everywhere(), slice(6, 9)
    model.trunk(State.of(ids(1)[:, :6]), torch.zeros(ROWS), valid[:, :6], {}, cache=cache, keep=True)
    said = model(State.of(ids(0)[:, part]), each[:, 2], valid[:, part], {}, cache=cache)
    torch.testing.assert_close(said, whole[:, part], atol=1e-5, rtol=0)


@torch.no_grad()
def test_padding_is_ignored(model_of, opened):
    model = opened(model_of(SPACE, block={"rope": True}, block_size=4))
    valid = everywhere()
    valid[0, 7:] = valid[1, :4] = valid[2, 2:3] = False
    each, level = levels(4)
    said = model(State.of(ids(0)), level, valid, {}, context=behind(ids(1)))
    noised, x0 = ids(0).where(valid, ids(5)), ids(1).where(valid, ids(6))
    other = model(State.of(noised), level, valid, {}, context=behind(x0))
    assert torch.equal(said[valid], other[valid])
    assert not torch.equal(said, other)
    torch.testing.assert_close(
        sampled(model, ids(0), ids(1), each, 4, valid)[valid], said[valid], atol=1e-5, rtol=0
    )  # fmt: skip


@torch.no_grad()
@pytest.mark.parametrize("size", [1, 3, 4, 11])
def test_dependencies_by_definition(model_of, opened, size):
    """Position by position, from the definition: x_t of block b sees x_t of block b and x_0 of blocks before b."""
    model = opened(model_of(SPACE, block={"rope": True}, block_size=size))
    level, block = levels(size)[1], torch.arange(LENGTH) // size
    out = model(State.of(ids(0)), level, everywhere(), {}, context=behind(ids(1)))
    for place in range(LENGTH):
        moved = torch.nn.functional.one_hot(torch.tensor(place), LENGTH)
        by_noised = model(State.of((ids(0) + moved) % IDS), level, everywhere(), {}, context=behind(ids(1)))
        by_clean = model(State.of(ids(0)), level, everywhere(), {}, context=behind((ids(1) + moved) % IDS))
        by_level = model(State.of(ids(0)), level + moved, everywhere(), {}, context=behind(ids(1)))
        assert torch.equal((by_noised != out).any(-1).all(0), block == block[place])
        assert torch.equal((by_clean != out).any(-1).all(0), block > block[place])
        assert torch.equal((by_level != out).any(-1).all(0), block == block[place])


@torch.no_grad()
def test_context_does_not_depend_on_noise_levels(model_of, opened):
    model = opened(model_of(SPACE, block={"rope": True}, block_size=4))
    _, level = levels(4)
    out = model(State.of(ids(0)), level, everywhere(), {}, context=behind(ids(1)))
    changed = level.clone()
    changed[:, :8] += 0.5
    other = model(State.of(ids(0)), changed, everywhere(), {}, context=behind(ids(1)))
    assert torch.equal(other[:, 8:], out[:, 8:])
    warm = Context(State.of(ids(1)), torch.full((ROWS,), 0.5))
    assert not torch.allclose(model(State.of(ids(0)), level, everywhere(), {}, context=warm)[:, 8:], out[:, 8:])


@torch.no_grad()
def test_one_block_is_ordinary_diffusion_and_blocks_of_one_are_autoregressive(model_of, opened):
    options = {"block": {"rope": True}, "embedding": {"use": "tokens", "position": "learned"}}
    one, plain = (opened(model_of(SPACE, block_size=size, **options)) for size in (LENGTH, None))
    _, level = levels(LENGTH)
    said = one(State.of(ids(0)), level, everywhere(), {}, context=behind(ids(1)))
    torch.testing.assert_close(said, plain(State.of(ids(0)), level, everywhere(), {}), atol=1e-5, rtol=0)
    single = opened(model_of(SPACE, block_size=1, **options))
    same = torch.zeros(ROWS, LENGTH, dtype=torch.long)
    first = single(State.of(same), level, everywhere(), {}, context=behind(ids(1)))
    later = ids(1)
    later[:, 5:] = (later[:, 5:] + 1) % IDS
    other = single(State.of(same), level, everywhere(), {}, context=behind(later))
    assert torch.equal(other[:, :6], first[:, :6])
    assert (other[:, 6:] != first[:, 6:]).any(-1).all()


def gradients(model, requested=None, checkpointing=False):
    """Gradients of what is asked, in training, with checkpoints or without."""
    model.checkpointing = checkpointing
    model.train().zero_grad()
    wanted = everywhere() if requested is None else requested
    state, level = State(ids(0), torch.zeros(ROWS, LENGTH, dtype=torch.bool), requested), levels(4)[1]
    out = model(state, level, everywhere(), {}, context=behind(ids(1)))
    (out[wanted] * torch.arange(IDS)).sum().backward()
    return out.detach()[wanted], [weight.grad.clone() for weight in model.parameters()]


@pytest.mark.parametrize("requested", [False, True])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_gradients_with_checkpointing_and_requested_positions(model_of, opened, requested, checkpointing):
    model = opened(model_of(SPACE, block={"rope": True}, block_size=4)).double()
    wanted = torch.rand(ROWS, LENGTH, generator=torch.Generator().manual_seed(3)) < 0.5
    out, found = gradients(model, wanted if requested else None, checkpointing)
    model.skip_unrequested = False
    plain, expected = gradients(model, wanted if requested else None)
    torch.testing.assert_close(out, plain, atol=1e-10, rtol=1e-10)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, atol=1e-9, rtol=1e-9)
    assert all(gradient.abs().max() > 0 for gradient in expected), "a weight has no gradient"


def test_last_layer_skips_the_context(model_of, opened):
    model = opened(model_of(SPACE, block={"rope": True}, block_size=4))
    seen = []
    for block in model.blocks:
        block.mlp.register_forward_hook(lambda mlp, given, out: seen.append(given[0].shape[:-1].numel()))
    model(State.of(ids(0)), levels(4)[1], everywhere(), {}, context=behind(ids(1)))
    assert seen == [ROWS * LENGTH, ROWS * LENGTH, 0, ROWS * LENGTH]


@pytest.mark.parametrize(("length", "extra", "size"), [(1, 0, 1), (7, 0, 3), (8, 0, 4), (5, 2, 2), (6, 1, 9)])
def test_masks_are_their_definition(length, extra, size):
    block = number_blocks(extra + length, extra, size, torch.device("cpu"))
    halves = CleanAndNoised.of(torch.zeros(1, 1), torch.zeros(1, 1), block, None)
    number = [0] * extra + [place // size for place in range(length)]
    for (q, of), (k, other) in product(enumerate(number), repeat=2):
        assert halves.clean_mask[0, 0, q, k] == (other <= of)
        assert halves.mask[0, 0, q, k] == (other < of)
        assert halves.mask[0, 0, q, len(number) + k] == (other == of)


@torch.no_grad()
@pytest.mark.parametrize("cls", [True, False])
def test_class_token_belongs_to_the_first_block(model_of, regions, opened, cls):
    embedding = {"use": "regions", "position": "sinusoid", "cls": cls}
    model = opened(model_of(regions, block={"rope": True}, embedding=embedding, block_size=4))
    generator = torch.Generator().manual_seed(0)
    noised, x0 = (torch.randn(ROWS, 9, 5, generator=generator) for _ in range(2))
    valid, each = torch.ones(ROWS, 9, dtype=torch.bool), torch.rand(ROWS, 3, generator=generator)
    level, cache = each.repeat_interleave(4, 1)[:, :9], model.new_cache()
    whole = model(State.of(noised), level, valid, {}, context=behind(x0))
    for number, start in enumerate((0, 4, 8)):
        part = slice(start, min(start + 4, 9))
        said = model(State.of(noised[:, part]), each[:, number], valid[:, part], {}, cache=cache)
        torch.testing.assert_close(said, whole[:, part], atol=1e-5, rtol=0)
        model.trunk(State.of(x0[:, part]), torch.zeros(ROWS), valid[:, part], {}, cache=cache, keep=True)


@torch.no_grad()
def test_cache_stores_rotated_keys_without_copies(model_of, opened, monkeypatch):
    model = opened(model_of(SPACE, block={"rope": True}, block_size=4))
    cache, turned, requested = model.new_cache(), [], []
    model.trunk(State.of(ids(1)[:, :8]), torch.zeros(ROWS), everywhere()[:, :8], {}, cache=cache, keep=True)
    given = (State.of(ids(0)[:, 8:]), levels(4)[0][:, 2], everywhere()[:, 8:], {})
    model(*given, cache=cache)
    for block in model.blocks:
        rotary = block.attention.rotary
        rotary.register_forward_hook(lambda part, args, out: turned.append((out.shape[2], *args[1:])))
        block.attention.register_forward_hook(lambda part, args, out: requested.append(out.shape[1]))
    held = [buffer.data_ptr() for buffer in cache._buffers.values()]
    before = [buffer[:, :, :, :8].clone() for buffer in cache._buffers.values()]
    monkeypatch.setattr(copy, "deepcopy", lambda *args: pytest.fail("the cache is copied"))
    model(*given, cache=cache)
    assert turned == [(3, 8)] * 4, "queries and keys of the block alone, from its own position on"
    assert requested == [3, 3]
    assert [buffer.data_ptr() for buffer in cache._buffers.values()] == held
    for buffer, old in zip(cache._buffers.values(), before, strict=True):
        assert torch.equal(buffer[:, :, :, :8], old), "finished positions changed"


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
    torch.testing.assert_close(compiled(*given, context=behind(ids(1))), plain, atol=1e-5, rtol=0)
