"""Sampling block by block with a cache equals the whole model with block-causal attention."""

import pytest
import torch

from dither.core_blocks.kv_cache import KVCache
from dither.registry.flow.records import State

LENGTH, ROWS = 12, 3


def pieces(size, length=LENGTH):
    return [(start, min(start + size, length)) for start in range(0, length, size)]


def piece(state, start, stop):
    return State(state.x[:, start:stop], state.masked[:, start:stop])


def compare(model, state, valid, cuts, level=0.7):
    """Denoise each piece at `level` after finished ones at 0, twice; compare with the whole at levels per position."""
    cache, rows = model.new_cache(), len(state.x)
    now, finished = torch.full((rows,), level), torch.zeros(rows)
    for start, stop in cuts:
        levels = torch.zeros(valid.shape)
        levels[:, start:stop] = level
        whole = model(state, levels, valid, {})[:, start:stop]
        given = (piece(state, start, stop), now, valid[:, start:stop], {})
        first, again = model(*given, cache=cache), model(*given, cache=cache)
        assert torch.equal(first, again), "a call without keep changes the next"
        torch.testing.assert_close(first, whole, atol=1e-5, rtol=1e-5)
        model.trunk(piece(state, start, stop), finished, valid[:, start:stop], {}, cache=cache, keep=True)
        assert cache.length == stop


@torch.no_grad()
@pytest.mark.parametrize("size", [1, 4, 5, 7, 12])
@pytest.mark.parametrize("position", ["none", "learned", "sinusoid"])
@pytest.mark.parametrize(
    "block", [{}, {"rope": True, "norm": "rms", "mlp": "swiglu"}, {"rope": True, "attention": "sdpa"}]
)
def test_cached_equals_whole(model_of, opened, text, size, position, block):
    embedding = {"use": "tokens", "position": position}
    model = opened(model_of(text, block=block, embedding=embedding, block_size=size))
    state = State.of(torch.randint(0, 7, (ROWS, LENGTH), generator=torch.Generator().manual_seed(0)))
    compare(model, state, torch.ones(ROWS, LENGTH, dtype=torch.bool), pieces(size))


@torch.no_grad()
def test_several_blocks_at_a_time(model_of, opened, text):
    model = opened(model_of(text, block={"rope": True}, block_size=2))
    state = State.of(torch.randint(0, 7, (ROWS, LENGTH), generator=torch.Generator().manual_seed(0)))
    valid = torch.ones(ROWS, LENGTH, dtype=torch.bool)
    cache = model.new_cache()
    whole = model(state, torch.zeros(ROWS), valid, {})
    for start, stop in ((0, 6), (6, 10), (10, 12)):
        given = (piece(state, start, stop), torch.zeros(ROWS), valid[:, start:stop], {})
        torch.testing.assert_close(model(*given, cache=cache, keep=True), whole[:, start:stop], atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_cached_padding_is_ignored(model_of, opened, text):
    model = opened(model_of(text, block={"rope": True}, block_size=4))
    state = State.of(torch.randint(0, 7, (ROWS, LENGTH), generator=torch.Generator().manual_seed(0)))
    valid = torch.ones(ROWS, LENGTH, dtype=torch.bool)
    valid[0, 2:4] = valid[1, :4] = valid[2, 9:] = False
    cache = model.new_cache()
    whole = model(state, torch.zeros(ROWS), valid, {})
    for start, stop in pieces(4):
        given = (piece(state, start, stop), torch.zeros(ROWS), valid[:, start:stop], {})
        out, real = model(*given, cache=cache, keep=True), valid[:, start:stop]
        torch.testing.assert_close(out[real], whole[:, start:stop][real], atol=1e-5, rtol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("cls", [True, False])
def test_class_token_is_cached_once(model_of, opened, regions, cls):
    embedding = {"use": "regions", "position": "sinusoid", "cls": cls}
    model = opened(model_of(regions, block={"rope": True}, embedding=embedding, block_size=4))
    generator = torch.Generator().manual_seed(0)
    hidden = (torch.rand(ROWS, 9, 1, generator=generator) < 0.4).expand(-1, -1, 5)
    state = State(torch.randn(ROWS, 9, 5, generator=generator).masked_fill(hidden, 0.0), hidden)
    valid, cache = torch.ones(ROWS, 9, dtype=torch.bool), model.new_cache()
    whole = model(state, torch.zeros(ROWS), valid, {})
    for start, stop in pieces(4, 9):
        given = (piece(state, start, stop), torch.zeros(ROWS), valid[:, start:stop], {})
        out = model(*given, cache=cache, keep=True)
        torch.testing.assert_close(out, whole[:, start:stop], atol=1e-5, rtol=1e-5)
        assert (cache.length, cache.extra, cache.num_tokens) == (stop, int(cls), stop + int(cls))


@torch.no_grad()
def test_approximate_without_block_causal_attention(model_of, opened, text):
    """Cached positions have not attended to later ones."""
    model = opened(model_of(text, block={"rope": True}))
    state = State.of(torch.randint(0, 7, (ROWS, LENGTH), generator=torch.Generator().manual_seed(0)))
    with pytest.raises(AssertionError, match="Tensor-likes are not close"):
        compare(model, state, torch.ones(ROWS, LENGTH, dtype=torch.bool), pieces(4))


def test_buffers_grow_and_keep_their_content():
    cache, generator = KVCache(), torch.Generator().manual_seed(0)
    k, v = torch.randn(2, 2, 1, 9, 3, generator=generator)
    for start, stop in ((0, 3), (3, 4), (4, 9)):
        for layer in (0, 1):
            joined = cache.join(layer, k[:, :, start:stop], v[:, :, start:stop])
            assert torch.equal(joined[0], k[:, :, :stop])
            assert torch.equal(joined[1], v[:, :, :stop])
        cache.advance(torch.ones(2, stop - start, dtype=torch.bool), 0)
    assert cache.valid.shape == (2, 9)
    one_more = torch.randn(2, 1, 1, 3, generator=generator)
    before = cache.join(0, one_more, one_more)[0].data_ptr()
    assert cache.join(0, one_more, one_more)[0].data_ptr() == before, "a new buffer at each call"


def test_batch_size_must_match():
    cache = KVCache()
    cache.join(0, *torch.zeros(2, 3, 1, 2, 4))
    with pytest.raises(ValueError, match="batch size 3"):
        cache.join(0, *torch.zeros(2, 1, 1, 2, 4))
