"""Attention that knows distances in bases: exact angles, distances alone, padding, caches, and who is told."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from dither.core_blocks.attention import Attention
from dither.core_blocks.block_specs import AdaLNZero
from dither.core_blocks.denoiser import Denoiser, relative_coordinates
from dither.core_blocks.rope import Rotary
from dither.core_blocks.specs import DenoiserModel, PreNorm
from dither.registry import Condition, FeatureSpace, Field, TokenSpace, default_catalog
from dither.registry.flow.records import Context, State

torch.set_num_threads(1)

TOLD = (Condition("cell", 3), Condition("centre"))
REGIONS = FeatureSpace(9, 5, conditions=TOLD)
TEXT = TokenSpace((Field("text", 12, 7),), TOLD)
LEVEL = torch.tensor([0.2, 0.9])
BLOCKS = [AdaLNZero(heads=2, rope="centre"), PreNorm(heads=2, rope="centre", rope_unit=50_000.0)]


def model_of(space, opened, **options):
    """A denoiser whose blocks are told where positions lie, in float64."""
    spec = DenoiserModel(width=16, depth=2, **({"block": BLOCKS[0]} | options))
    if isinstance(space, FeatureSpace):
        spec = spec.model_copy(update={"embedding": _part("embedding", "regions"), "head": _part("head", "features")})
    assert not list(spec.check(space))
    torch.manual_seed(0)
    return opened(spec.build(space)).double().eval()


def _part(kind, name):
    return default_catalog().parse(kind, name)


def state_of(space, rows=2):
    generator = torch.Generator().manual_seed(rows)
    if isinstance(space, TokenSpace):
        return State.of(torch.randint(0, 7, (rows, space.length), generator=generator))
    hidden = (torch.rand(rows, space.length, 1, generator=generator) < 0.5).expand(-1, -1, space.width)
    x = torch.randn(hidden.shape, dtype=torch.float64, generator=generator)
    return State(x.masked_fill(hidden, 0.0), hidden)


def centres(length, rows=2, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return 10_000_000 + torch.randint(200, 90_000, (rows, length), generator=generator).cumsum(1)


def everywhere(state):
    return torch.ones(state.x.shape[:2], dtype=torch.bool)


def test_turns_are_exact_far_along_a_chromosome():
    """In float32 a place such as 248,956,422 would already be rounded to 16 bases."""
    x = torch.randn(2, 3, 4, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    places = torch.tensor([[0, 1, 1000, 248_956_422], [5, 248_956_421, 7, 8]])
    rate = torch.tensor([10_000.0 ** (-2 * j / 8) for j in range(4)], dtype=torch.float64)
    angle = (places.double() / 1000.0)[:, None, :, None] * rate
    z = torch.complex(x[..., :4], x[..., 4:]) * torch.exp(1j * angle)
    torch.testing.assert_close(
        Rotary(8, unit=1000.0)(x, positions=places), torch.cat([z.real, z.imag], -1), atol=1e-6, rtol=1e-5
    )


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(0, 250_000_000), min_size=2, max_size=2),
    st.integers(-2_000_000_000, 2_000_000_000),
    st.sampled_from([1.0, 1000.0, 65_000.0]),
)
def test_the_product_of_query_and_key_depends_on_their_distance_alone(places, shift, unit):
    rotary = Rotary(8, unit=unit)
    q, k = torch.randn(2, 1, 1, 1, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))

    def product(a, b):
        return (rotary(q, positions=torch.tensor([[a]])) * rotary(k, positions=torch.tensor([[b]]))).sum()

    first, second = places
    torch.testing.assert_close(product(first + shift, second + shift), product(first, second), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(product(first - second, 0), product(first, second), atol=1e-5, rtol=1e-5)


def test_an_index_given_as_positions_is_the_index():
    x = torch.randn(2, 3, 5, 8, generator=torch.Generator().manual_seed(0))
    index = torch.arange(7, 12).expand(2, 5)
    torch.testing.assert_close(Rotary(8)(x, positions=index), Rotary(8)(x, 7), atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(Rotary(8, unit=1000.0)(x, positions=index * 1000), Rotary(8)(x, 7), atol=1e-6, rtol=1e-6)
    torch.manual_seed(0)
    attention = Attention(16, 2, rope=True, rope_unit=10.0).eval()
    h = torch.randn(2, 6, 16)
    torch.testing.assert_close(attention(h, positions=10 * torch.arange(6).expand(2, 6)), attention(h))


def test_places_are_counted_from_the_first_position_and_extra_tokens_lie_there():
    cond = {"centre": torch.tensor([[100, 250, 900, 0]])}
    assert relative_coordinates(cond, 0, 4, 1).tolist() == [[0, 0, 150, 800, -100]]
    assert relative_coordinates(cond, 1, 2, 0).tolist() == [[150, 800]]
    with pytest.raises(ValueError, match='the blocks need the condition "centre", which is not told'):
        relative_coordinates({"cell": torch.zeros(1)}, 0, 4, 0)


@pytest.mark.parametrize("block", BLOCKS, ids=["adaln-zero", "pre-norm"])
def test_a_model_knows_distances_and_nothing_else_of_places(opened, block):
    model, state = model_of(REGIONS, opened, block=block), state_of(REGIONS)
    centre, valid = centres(9), everywhere(state)
    out = model(state, LEVEL, valid, {"centre": centre})
    moved = model(state, LEVEL, valid, {"centre": centre + 77_777_777})
    torch.testing.assert_close(moved, out, atol=1e-6, rtol=1e-6)
    order = torch.cat([torch.zeros(1, dtype=torch.int64), 1 + torch.randperm(8)])  # the class token lies by the first
    shuffled = State(state.x[:, order], state.masked[:, order])
    back = model(shuffled, LEVEL, valid, {"centre": centre[:, order]})
    torch.testing.assert_close(back, out[:, order], atol=1e-6, rtol=1e-6)
    spread = centre + 40_000 * torch.arange(9)
    assert not torch.allclose(model(state, LEVEL, valid, {"centre": spread}), out, atol=1e-4)
    for row in range(2):
        masked = out[row][state.masked[row].all(-1)]
        assert (masked - masked[0]).abs().max() > 1e-3, "masked regions are told apart"


WAYS = {
    "none": ({}, {}),
    "sinusoid": ({"position": "sinusoid"}, {}),
    "learned": ({"position": "learned"}, {}),
    "genomic-sinusoid": ({"position": "genomic-sinusoid"}, {}),
    "rope": ({}, {"rope": True}),
    "rope by centre": ({}, {"rope": "centre"}),
}


@pytest.mark.parametrize(("embedding", "block"), WAYS.values(), ids=WAYS)
def test_only_without_positions_all_masked_regions_get_one_prediction(opened, embedding, block):
    """The seed, and every way out of it: with regions in another order, what is said of them only changes order."""
    parse = default_catalog().parse
    spec = DenoiserModel(
        width=16,
        depth=2,
        final="norm",
        affine=True,
        init="trunc-normal",
        embedding=parse("embedding", {"use": "regions", **embedding}),
        block=parse("block", {"use": "adaln-zero", "heads": 2, **block}),
        head=parse("head", "features"),
    )
    torch.manual_seed(0)
    model, state, cond = opened(spec.build(REGIONS)).double().eval(), state_of(REGIONS), {"centre": centres(9)}
    out, order = model(state, LEVEL, everywhere(state), cond), torch.randperm(9)
    shuffled = State(state.x[:, order], state.masked[:, order])
    back = model(shuffled, LEVEL, everywhere(state), cond)  # the regions move, the places stay
    placeless = not embedding and not block
    assert torch.allclose(back, out[:, order], atol=1e-9) == placeless
    for row in range(2):
        masked = out[row][state.masked[row].all(-1)]
        assert len(masked) > 2
        spread = (masked - masked[0]).abs().max()
        assert spread < 1e-12 if placeless else spread > 1e-3


def test_padding_and_its_places_reach_nobody(opened):
    model, state = model_of(REGIONS, opened), state_of(REGIONS)
    valid = everywhere(state)
    valid[0, 6:] = False
    centre = centres(9) * valid
    out = model(state, LEVEL, valid, {"centre": centre})
    assert out.isfinite().all()
    other = State(torch.where(valid[..., None], state.x, 3.0), state.masked)
    changed = model(other, LEVEL, valid, {"centre": torch.where(valid, centre, 123_456)})
    assert torch.equal(changed[valid], out[valid])
    short = State(state.x[:1, :6], state.masked[:1, :6])
    alone = model(short, LEVEL[:1], valid[:1, :6], {"centre": centre[:1, :6]})
    torch.testing.assert_close(out[:1, :6], alone, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("rows", [1, 2, 5])
def test_samples_have_places_of_their_own(opened, rows):
    model, state, centre = model_of(REGIONS, opened), state_of(REGIONS, rows), centres(9, rows)
    level, valid = torch.linspace(0.1, 0.9, rows), everywhere(state)
    out = model(state, level, valid, {"centre": centre})
    for row in range(rows):
        part = slice(row, row + 1)
        alone = model(state[part], level[part], valid[part], {"centre": centre[part]})
        torch.testing.assert_close(out[part], alone, atol=1e-9, rtol=1e-9)


def test_pieces_behind_a_cache_are_the_whole(opened):
    model, state, cond = model_of(TEXT, opened, block_size=5), state_of(TEXT), {"centre": centres(12)}
    valid, cache, pieces = everywhere(state), model.new_cache(), []
    with torch.no_grad():
        whole = model(state, LEVEL, valid, cond)
        for part in (slice(0, 5), slice(5, 10), slice(10, 12)):
            piece = State(state.x[:, part], state.masked[:, part])
            pieces.append(model(piece, LEVEL, valid[:, part], cond, cache=cache))
            model.trunk(piece, LEVEL, valid[:, part], cond, cache=cache, keep=True)
    torch.testing.assert_close(torch.cat(pieces, 1), whole, atol=1e-6, rtol=1e-6)


def test_a_clean_sample_beside_the_noised_one_lies_where_that_does(opened):
    model, cond, done = model_of(TEXT, opened, block_size=5), {"centre": centres(12)}, torch.zeros(2)
    noised, clean = state_of(TEXT), state_of(TEXT, 2)
    clean = State.of((clean.x + 1) % 7)
    valid, cache, pieces = everywhere(noised), model.new_cache(), []
    with torch.no_grad():
        whole = model(noised, LEVEL, valid, cond, context=Context(clean, done))
        for part in (slice(0, 5), slice(5, 10), slice(10, 12)):
            piece = State(noised.x[:, part], noised.masked[:, part])
            pieces.append(model(piece, LEVEL, valid[:, part], cond, cache=cache))
            kept = State(clean.x[:, part], clean.masked[:, part])
            model.trunk(kept, done, valid[:, part], cond, cache=cache, keep=True)
    torch.testing.assert_close(torch.cat(pieces, 1), whole, atol=1e-6, rtol=1e-6)


def test_recomputed_blocks_are_told_places_too(opened):
    state, cond, gradients = state_of(REGIONS), {"centre": centres(9)}, []
    for checkpointing in (False, True):
        model = model_of(REGIONS, opened, checkpointing=checkpointing).train()
        model(state, LEVEL, everywhere(state), cond).square().sum().backward()
        gradients.append([p.grad for p in model.parameters()])
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b)


class Strange(nn.Module):
    """A block of a stranger, with the arguments of the protocol and no others."""

    def forward(self, x, c, *, mask=None, cache=None, layer=0, keep=False):
        return x + 1


def test_blocks_that_do_not_ask_are_not_told(opened):
    model = model_of(REGIONS, opened)
    strange = Denoiser(model.embedding, model.condition, [Strange()], model.final, model.head)
    state = state_of(REGIONS)
    assert strange(state, LEVEL, everywhere(state), {}).isfinite().all()
    index = model_of(REGIONS, opened, block=AdaLNZero(heads=2, rope=True))
    assert not index.positions
    torch.testing.assert_close(
        index(state, LEVEL, everywhere(state), {}), index(state, LEVEL, everywhere(state), {"centre": centres(9)})
    )


def test_a_task_that_does_not_tell_places_is_refused():
    spec = DenoiserModel(block=BLOCKS[0], embedding=_part("embedding", "regions"), head=_part("head", "features"))
    (misfit,) = spec.check(FeatureSpace(9, 5, conditions=TOLD[:1]))
    assert misfit.message == 'the task tells no "centre" beside a sample; it tells "cell"'
    assert (misfit.path, misfit.related) == (("block",), ("task",))
    assert "positions" in BLOCKS[0].traits()
    for rope in (True, False):
        assert "positions" not in AdaLNZero(rope=rope).traits()


@pytest.mark.parametrize("attention", ["sdpa", "math"])
def test_memory_counts_the_angles_of_each_sample(attention):
    spec = AdaLNZero(heads=4, rope="centre", attention=attention)
    index = spec.model_copy(update={"rope": True})
    assert spec.cost(48, 16, 40).kept - index.cost(48, 16, 40).kept == 2 * 40 * 12
    block, kept = spec.build(48, 16), {}
    x, c = torch.randn(3, 40, 48, requires_grad=True), torch.randn(3, 16)
    own = {p.untyped_storage().data_ptr() for p in block.parameters()}

    def keep(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage
        return tensor

    places, mask = centres(40, 3), torch.ones(3, 1, 1, 40, dtype=torch.bool)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        block(x, c, mask=mask, positions=places).sum().backward()
    numbers = sum(storage.nbytes() for storage in kept.values()) / 4 - c.numel()
    assert spec.cost(48, 16, 40).kept == pytest.approx(numbers / 3, rel=0.01)


def test_a_copy_in_low_precision_keeps_its_angles():
    rotary = Rotary(8, unit=1000.0)
    x = torch.randn(1, 1, 5, 8, generator=torch.Generator().manual_seed(0))
    places = centres(5, 1)
    low = copy.deepcopy(rotary).bfloat16()(x.bfloat16(), positions=places)
    torch.testing.assert_close(low.float(), rotary(x, positions=places), atol=0.03, rtol=0.02)
