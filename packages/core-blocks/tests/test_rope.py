"""Rotary position embedding by index and by coordinate: closed form, invariances, precision, caches, whole models."""

import copy

import pytest
import torch

from dither.core_blocks.denoiser import relative_coordinates
from dither.core_blocks.rope import Rotary
from dither.core_blocks.specs import AdaLNZero
from dither.registry import Condition, FeatureSpace, default_catalog
from dither.registry.contracts.records import State

CONDITIONS = (Condition("cell", 3), Condition("centre"))
REGIONS = FeatureSpace(9, 5, conditions=CONDITIONS)
LEVEL = torch.tensor([0.2, 0.9])
CENTRE = {"rope": "centre"}
GRID = {"use": "adaln-zero", "rope": "grid"}


def normal(*shape, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=dtype)


def closed_form(x, positions):
    """Each pair (x_j, x_{j+E/2}) as a complex number, times e^{i m 10000^(-2j/E)}."""
    half = x.shape[-1] // 2
    z = torch.complex(x[..., :half].double(), x[..., half:].double())
    theta = torch.tensor(
        [10_000.0 ** (-2 * j / x.shape[-1]) for j in range(half)], dtype=torch.float64
    )
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
    torch.testing.assert_close(
        y.double(), expected, atol=2e-4 if compiling else 1e-6, rtol=1e-4
    )


def test_closed_form_by_coordinate():
    """In float32 a coordinate such as 248,956,422 would already be rounded to 16 bases."""
    x, coordinates = (
        normal(2, 3, 4, 8),
        torch.tensor([[0, 1, 1000, 248_956_422], [5, 248_956_421, 7, 8]]),
    )
    expected = closed_form(x, coordinates[:, None].double() / 1000.0).float()
    torch.testing.assert_close(
        Rotary(8, unit=1000.0)(x, positions=coordinates), expected, atol=1e-5, rtol=1e-5
    )


def test_angles_stay_exact_in_bfloat16():
    rotary, x = Rotary(8), normal(1, 1, 300, 8).bfloat16()
    rotary(x)
    assert not rotary.state_dict()
    cast = copy.deepcopy(rotary).bfloat16()
    for positions in (None, torch.arange(300)[None]):
        y = cast(x, positions=positions)
        assert y.dtype == torch.bfloat16
        torch.testing.assert_close(
            y.double(), closed_form(x, torch.arange(300)), atol=0.02, rtol=0.01
        )


def test_table_from_inference_mode_serves_training():
    rotary = Rotary(4)
    with torch.inference_mode():
        rotary(torch.randn(1, 1, 3, 4))
    x = torch.randn(1, 1, 3, 4, requires_grad=True)
    rotary(x).square().sum().backward()
    torch.testing.assert_close(x.grad, 2 * x.detach())  # a rotation keeps the norm


def test_coordinates_are_relative_to_the_first_position():
    cond = {"centre": torch.tensor([[100, 250, 900, 0]])}
    assert relative_coordinates(cond, 0, 4, 1).tolist() == [[0, 0, 150, 800, -100]]
    assert relative_coordinates(cond, 1, 2, 0).tolist() == [[150, 800]]
    with pytest.raises(ValueError, match="centre"):
        relative_coordinates({"cell": torch.zeros(1)}, 0, 4, 0)


def centres(length, rows=2):
    generator = torch.Generator().manual_seed(0)
    return 10_000_000 + torch.randint(
        200, 90_000, (rows, length), generator=generator
    ).cumsum(1)


def everywhere(state):
    return torch.ones(state.x.shape[:2], dtype=torch.bool)


@pytest.fixture
def coordinate_model(model_of, opened):
    """A denoiser with RoPE by coordinate, in float64."""
    return lambda space, block=CENTRE, **options: opened(
        model_of(space, block=block, **options)
    ).double()


POSITIONS = {
    "none": ("none", {}),
    "sinusoid": ("sinusoid", {}),
    "learned": ("learned", {}),
    "genomic-sinusoid": ("genomic-sinusoid", {}),
    "rope": ("none", {"rope": True}),
    "rope by centre": ("none", CENTRE),
}


@pytest.mark.parametrize(("position", "block"), POSITIONS.values(), ids=POSITIONS)
def test_only_without_positions_all_masked_regions_get_the_same_prediction(
    coordinate_model, state_of, position, block
):
    """The degeneracy of seed 000, and every remedy."""
    embedding = {"use": "regions", "position": position}
    model = coordinate_model(
        REGIONS,
        block,
        embedding=embedding,
        final="norm",
        affine=True,
        init="trunc-normal",
    )
    state, cond = state_of(REGIONS, dtype=torch.float64), {"centre": centres(9)}
    out, order = model(state, LEVEL, everywhere(state), cond), torch.randperm(9)
    shuffled = State(state.x[:, order], state.masked[:, order])
    back = model(
        shuffled, LEVEL, everywhere(state), cond
    )  # the regions move, the coordinates stay
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
    changed = model(
        other, LEVEL, valid, {"centre": torch.where(valid, centre, 123_456)}
    )
    assert torch.equal(changed[valid], out[valid])
    for row, stop in ((0, 6), (1, 9)):
        part = slice(row, row + 1)
        piece = State(state.x[part, :stop], state.masked[part, :stop])
        alone = model(
            piece, LEVEL[part], valid[part, :stop], {"centre": centre[part, :stop]}
        )
        torch.testing.assert_close(out[part, :stop], alone, atol=1e-6, rtol=1e-6)


def test_a_task_without_coordinates_is_incompatible():
    table = {
        "use": "denoiser",
        "embedding": "regions",
        "head": "features",
        "block": {"use": "adaln-zero", **CENTRE},
    }
    (misfit,) = (
        default_catalog()
        .parse("model", table)
        .check(FeatureSpace(9, 5, conditions=CONDITIONS[:1]))
    )
    assert (misfit.path, misfit.related) == (("block",), ("task",))
    assert "positions" in AdaLNZero(rope="centre").traits()
    assert not any(
        "positions" in AdaLNZero(rope=rope).traits() for rope in (True, False)
    )


def test_closed_form_on_a_grid():
    """One half of a head as a head of its own, rotated by the column, the other by the row."""
    x = normal(2, 3, 6, 8)
    places = torch.tensor([[c, r] for r in (0, 7) for c in (0, 1, 5)]).expand(2, -1, -1)
    found = Rotary(8, axes=2)(x, positions=places)
    # The pairs (x_j, x_{j+4}): j = 0, 1 turn with the column, j = 2, 3 with the row.
    by_column = closed_form(x[..., [0, 1, 4, 5]], places[:, None, :, 0])
    by_row = closed_form(x[..., [2, 3, 6, 7]], places[:, None, :, 1])
    torch.testing.assert_close(
        found[..., [0, 1, 4, 5]].double(), by_column, atol=1e-5, rtol=1e-5
    )
    torch.testing.assert_close(
        found[..., [2, 3, 6, 7]].double(), by_row, atol=1e-5, rtol=1e-5
    )

    # Without coordinates positions are one row; a product depends on differences of both alone.
    line = torch.tensor([[3 + n, 0] for n in range(6)]).expand(2, -1, -1)
    torch.testing.assert_close(
        Rotary(8, axes=2)(x, 3), Rotary(8, axes=2)(x, positions=line)
    )
    moved = Rotary(8, axes=2)(x, positions=places + torch.tensor([4, 9]))
    torch.testing.assert_close(moved @ moved.mT, found @ found.mT, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("patch", [None, 2])
def test_blocks_of_a_grid_get_column_and_row(patch):
    space = FeatureSpace(24, 1, grid=(4, 6))
    model = {"use": "denoiser", "width": 16, "depth": 2, "patch": patch}
    model |= {
        "embedding": "patches",
        "head": "features",
        "blocks": ["conv", GRID | {"heads": 2}],
    }
    spec = default_catalog().parse("model", model)
    built = spec.build(space)
    seen = []

    def look(module, args, options):
        seen.append(options.get("positions"))

    for block in built.blocks:
        block.register_forward_pre_hook(look, with_kwargs=True)
    state = State.of(normal(2, 24, 1))
    valid = torch.ones(2, 24, dtype=torch.bool)
    built(state, LEVEL, valid, {})
    rows, columns = (4, 6) if patch is None else (2, 3)
    expected = [[c, r] for r in range(rows) for c in range(columns)]
    assert seen[0] is None
    assert seen[1].tolist() == [expected, expected]


def test_a_grid_is_required_and_heads_of_both_axes():
    catalog = default_catalog()
    model = {"use": "denoiser", "width": 16, "depth": 1}
    misfits = catalog.parse("model", model | {"block": GRID}).check(FeatureSpace(6, 1))
    assert "misfit" in {misfit.code for misfit in misfits}
    grid = FeatureSpace(6, 1, grid=(2, 3))
    for block, fits in ((GRID | {"heads": 4}, True), (GRID | {"heads": 8}, False)):
        spec = catalog.parse("model", model | {"block": block})
        places = [misfit.path for misfit in spec.check(grid)]
        assert (("block", "heads") in places) != fits
