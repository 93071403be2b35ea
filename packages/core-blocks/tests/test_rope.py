"""Rotary position embedding by index and by coordinate: closed form, invariances, precision, caches, whole models."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dither.core_blocks.attention import Attention
from dither.core_blocks.denoiser import relative_coordinates
from dither.core_blocks.kv_cache import KVCache
from dither.core_blocks.rope import Rotary
from dither.core_blocks.specs import AdaLNZero
from dither.registry import Condition, FeatureSpace, Field, TokenSpace, default_catalog
from dither.registry.flow.records import Context, State

CONDITIONS = (Condition("cell", 3), Condition("centre"))
REGIONS = FeatureSpace(9, 5, conditions=CONDITIONS)
TEXT = TokenSpace((Field("text", 12, 7),), CONDITIONS)
LEVEL = torch.tensor([0.2, 0.9])
CENTRE = {"rope": "centre"}


def normal(*shape, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=dtype)


def closed_form(x, positions):
    """Each pair (x_j, x_{j+E/2}) as a complex number, times e^{i m 10000^(-2j/E)}."""
    half = x.shape[-1] // 2
    z = torch.complex(x[..., :half].double(), x[..., half:].double())
    theta = torch.tensor([10_000.0 ** (-2 * j / x.shape[-1]) for j in range(half)], dtype=torch.float64)
    z = z * torch.exp(1j * positions.double()[..., None] * theta)
    return torch.cat([z.real, z.imag], -1)


@pytest.mark.parametrize("compiling", [False, True])
@pytest.mark.parametrize("start", [0, 3, 1000])
def test_closed_form_by_index(monkeypatch, start, compiling):
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: compiling)
    x = normal(2, 3, 5, 8)
    y = Rotary(8)(x, start)
    assert y.dtype == torch.float32
    expected = closed_form(x, torch.arange(start, start + 5))
    torch.testing.assert_close(y.double(), expected, atol=2e-4 if compiling else 1e-6, rtol=1e-4)


def test_closed_form_by_coordinate():
    """In float32 a coordinate such as 248,956,422 would already be rounded to 16 bases."""
    x, coordinates = normal(2, 3, 4, 8), torch.tensor([[0, 1, 1000, 248_956_422], [5, 248_956_421, 7, 8]])
    expected = closed_form(x, coordinates[:, None].double() / 1000.0).float()
    torch.testing.assert_close(Rotary(8, unit=1000.0)(x, positions=coordinates), expected, atol=1e-5, rtol=1e-5)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(0, 250_000_000), min_size=2, max_size=2),
    st.integers(-2_000_000_000, 2_000_000_000),
    st.sampled_from([1.0, 1000.0, 65_000.0]),
)
def test_product_of_query_and_key_depends_on_their_distance_only(coordinates, shift, unit):
    rotary, (q, k) = Rotary(8, unit=unit), normal(2, 1, 1, 1, 8, dtype=torch.float64)

    def product(a, b):
        return (rotary(q, positions=torch.tensor([[a]])) * rotary(k, positions=torch.tensor([[b]]))).sum()

    first, second = coordinates
    torch.testing.assert_close(product(first + shift, second + shift), product(first, second), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(product(first - second, 0), product(first, second), atol=1e-5, rtol=1e-5)


def test_angles_stay_exact_in_bfloat16():
    rotary, x = Rotary(8), normal(1, 1, 300, 8).bfloat16()
    rotary(x)
    assert not rotary.state_dict()
    cast = copy.deepcopy(rotary).bfloat16()
    for positions in (None, torch.arange(300)[None]):
        y = cast(x, positions=positions)
        assert y.dtype == torch.bfloat16
        torch.testing.assert_close(y.double(), closed_form(x, torch.arange(300)), atol=0.02, rtol=0.01)


def test_table_from_inference_mode_serves_training():
    rotary = Rotary(4)
    with torch.inference_mode():
        rotary(torch.randn(1, 1, 3, 4))
    x = torch.randn(1, 1, 3, 4, requires_grad=True)
    rotary(x).square().sum().backward()
    torch.testing.assert_close(x.grad, 2 * x.detach())  # a rotation keeps the norm


def test_attention_rotates_queries_and_keys_but_not_values():
    torch.manual_seed(0)
    module = Attention(8, AdaLNZero(heads=2, rope=True)).eval()
    x = torch.randn(1, 6, 8)
    q, k, v = module.qkv(x).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
    scores = closed_form(q, torch.arange(6)) @ closed_form(k, torch.arange(6)).mT / 2
    expected = module.out((scores.softmax(-1).float() @ v).transpose(1, 2).flatten(2))
    torch.testing.assert_close(module(x), expected, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(module(x, positions=1000 * torch.arange(6)[None]), expected, atol=1e-5, rtol=1e-4)
    cache = KVCache()
    module(x[:, :4], cache=cache)
    cache.advance(torch.ones(1, 4, dtype=torch.bool), 0)
    torch.testing.assert_close(module(x[:, 4:], cache=cache), expected[:, 4:], atol=1e-5, rtol=1e-4)


def test_coordinates_are_relative_to_the_first_position():
    cond = {"centre": torch.tensor([[100, 250, 900, 0]])}
    assert relative_coordinates(cond, 0, 4, 1).tolist() == [[0, 0, 150, 800, -100]]
    assert relative_coordinates(cond, 1, 2, 0).tolist() == [[150, 800]]
    with pytest.raises(ValueError, match="centre"):
        relative_coordinates({"cell": torch.zeros(1)}, 0, 4, 0)


def centres(length, rows=2):
    generator = torch.Generator().manual_seed(0)
    return 10_000_000 + torch.randint(200, 90_000, (rows, length), generator=generator).cumsum(1)


def everywhere(state):
    return torch.ones(state.x.shape[:2], dtype=torch.bool)


@pytest.fixture
def coordinate_model(model_of, opened):
    """A denoiser with RoPE by coordinate, in float64."""
    return lambda space, block=CENTRE, **options: opened(model_of(space, block=block, **options)).double()


@pytest.mark.parametrize("block", [CENTRE, {"use": "pre-norm", "rope": "centre", "rope_unit": 50_000.0}], ids=str)
def test_a_model_depends_on_distances_only(coordinate_model, state_of, block):
    model, state = coordinate_model(REGIONS, block), state_of(REGIONS, dtype=torch.float64)
    centre, valid = centres(9), everywhere(state)
    out = model(state, LEVEL, valid, {"centre": centre})
    moved = model(state, LEVEL, valid, {"centre": centre + 77_777_777})
    torch.testing.assert_close(moved, out, atol=1e-6, rtol=1e-6)
    order = torch.cat(
        [torch.zeros(1, dtype=torch.int64), 1 + torch.randperm(8)]
    )  # the first is where the class token is
    shuffled = State(state.x[:, order], state.masked[:, order])
    back = model(shuffled, LEVEL, valid, {"centre": centre[:, order]})
    torch.testing.assert_close(back, out[:, order], atol=1e-6, rtol=1e-6)
    spread = centre + 40_000 * torch.arange(9)
    assert not torch.allclose(model(state, LEVEL, valid, {"centre": spread}), out, atol=1e-4)


POSITIONS = {
    "none": ("none", {}),
    "sinusoid": ("sinusoid", {}),
    "learned": ("learned", {}),
    "genomic-sinusoid": ("genomic-sinusoid", {}),
    "rope": ("none", {"rope": True}),
    "rope by centre": ("none", CENTRE),
}


@pytest.mark.parametrize(("position", "block"), POSITIONS.values(), ids=POSITIONS)
def test_only_without_positions_all_masked_regions_get_the_same_prediction(coordinate_model, state_of, position, block):
    """The degeneracy of seed 000, and every remedy."""
    embedding = {"use": "regions", "position": position}
    model = coordinate_model(REGIONS, block, embedding=embedding, final="norm", affine=True, init="trunc-normal")
    state, cond = state_of(REGIONS, dtype=torch.float64), {"centre": centres(9)}
    out, order = model(state, LEVEL, everywhere(state), cond), torch.randperm(9)
    shuffled = State(state.x[:, order], state.masked[:, order])
    back = model(shuffled, LEVEL, everywhere(state), cond)  # the regions move, the coordinates stay
    degenerate = position == "none" and not block
    assert torch.allclose(back, out[:, order], atol=1e-9) == degenerate
    for row in range(2):
        masked = out[row][state.masked[row].all(-1)]
        assert len(masked) > 2
        spread = (masked - masked[0]).abs().max()
        assert spread < 1e-12 if degenerate else spread > 1e-3


def test_coordinates_of_padding_are_ignored(coordinate_model, state_of):
    model, state = coordinate_model(REGIONS), state_of(REGIONS, dtype=torch.float64)
    valid = everywhere(state)
    valid[0, 6:] = False
    centre = centres(9) * valid
    out = model(state, LEVEL, valid, {"centre": centre})
    assert out.isfinite().all()
    other = State(torch.where(valid[..., None], state.x, 3.0), state.masked)
    changed = model(other, LEVEL, valid, {"centre": torch.where(valid, centre, 123_456)})
    assert torch.equal(changed[valid], out[valid])
    for row, stop in ((0, 6), (1, 9)):
        part = slice(row, row + 1)
        piece = State(state.x[part, :stop], state.masked[part, :stop])
        alone = model(piece, LEVEL[part], valid[part, :stop], {"centre": centre[part, :stop]})
        torch.testing.assert_close(out[part, :stop], alone, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("context", [False, True])
@torch.no_grad()
def test_pieces_with_a_cache_equal_the_whole(coordinate_model, state_of, context):
    model, cond = coordinate_model(TEXT, block_size=5), {"centre": centres(12)}
    noised, clean = state_of(TEXT), state_of(TEXT, seed=1) if context else state_of(TEXT)
    done = torch.zeros(2) if context else LEVEL
    valid, cache, pieces = everywhere(noised), model.new_cache(), []
    whole = model(noised, LEVEL, valid, cond, context=Context(clean, done) if context else None)
    for part in (slice(0, 5), slice(5, 10), slice(10, 12)):
        piece, kept = (State(state.x[:, part], state.masked[:, part]) for state in (noised, clean))
        pieces.append(model(piece, LEVEL, valid[:, part], cond, cache=cache))
        model.trunk(kept, done, valid[:, part], cond, cache=cache, keep=True)
    torch.testing.assert_close(torch.cat(pieces, 1), whole, atol=1e-6, rtol=1e-6)


def test_a_task_without_coordinates_is_incompatible():
    table = {"use": "denoiser", "embedding": "regions", "head": "features", "block": {"use": "adaln-zero", **CENTRE}}
    (misfit,) = default_catalog().parse("model", table).check(FeatureSpace(9, 5, conditions=CONDITIONS[:1]))
    assert (misfit.path, misfit.related) == (("block",), ("task",))
    assert "positions" in AdaLNZero(rope="centre").traits()
    assert not any("positions" in AdaLNZero(rope=rope).traits() for rope in (True, False))
