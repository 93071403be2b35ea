"""Masks: what is taken as one, how much of it, and that nothing else is touched."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from dither.processes.features.gaussian import GaussianProcess
from dither.processes.features.masked_features import MaskedRegionProcess
from dither.processes.features.masks import Masks
from dither.processes.schedules.alpha import log_linear
from dither.processes.schedules.betas import LinearBeta
from dither.processes.timestep_sampling import TimestepSampling
from dither.registry.flow.records import Clean
from dither.registry.flow.spaces import Condition, FeatureSpace, Group

SPACE = FeatureSpace(6, 4, (Group("motifs", 0, 3), Group("open", 3, 4)), (Condition("tss"),))
KINDS = ["region", "block", "column", "element", "group", "tss"]


def clean_of(rows: int, padded: bool = False, known: float = 0.0) -> Clean:
    valid = torch.arange(6) < torch.randint(1, 7, (rows, 1)) if padded else torch.ones(rows, 6, dtype=torch.bool)
    starts = (torch.rand(rows, 6) < 0.5).float()
    return Clean.of(torch.randn(rows, 6, 4), valid, torch.rand(rows, 6, 4) < known, tss=starts)


def masks_of(kind: str, exact: bool = False) -> Masks:
    return Masks(SPACE, kind, "open" if kind == "group" else None, exact, block=4)


def unit_of(kind: str) -> Tensor:
    """A number for each element, the same within a unit: said here a second time."""
    place, m = torch.meshgrid(torch.arange(6), torch.arange(4), indexing="ij")
    return {"element": 4 * place + m, "column": m, "block": place // 4}.get(kind, place)


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_units_are_taken_whole(kind: str, exact: bool) -> None:
    masks, clean = masks_of(kind, exact), clean_of(200, padded=True, known=0.2)
    among = masks.maskable(clean)
    taken = masks.pick(among, torch.full((200, 1, 1), 0.5))
    assert 0.1 < taken.float().mean() / among.float().mean() < 0.9
    assert not (taken & ~among).any()
    assert not (taken & clean.fixed).any()
    for number in unit_of(kind).unique():
        inside = unit_of(kind) == number
        some, every = (taken & inside).flatten(1).any(1), ((~among | taken) | ~inside).flatten(1).all(1)
        assert (~some | every).all(), "a unit is taken in part"


@pytest.mark.parametrize("kind", KINDS)
def test_share_of_the_units(kind: str) -> None:
    clean = clean_of(4_000)
    for exact in (False, True):
        masks = masks_of(kind, exact)
        among = masks.units(masks.maskable(clean))
        taken = masks.units(masks.pick(masks.maskable(clean), torch.full((4_000, 1, 1), 0.5)))
        if exact:
            assert torch.equal(taken.sum(1), (0.5 * among.sum(1)).round().long())
        else:
            assert taken.sum().item() / among.sum().item() == pytest.approx(0.5, abs=0.02)
    assert masks.units(masks.maskable(clean)).shape[1] == {"element": 24, "column": 4, "block": 2}.get(kind, 6)


def test_what_may_be_taken() -> None:
    clean = clean_of(50, padded=True, known=0.2)
    free = ~clean.fixed
    assert torch.equal(masks_of("column").maskable(clean), free)
    assert torch.equal(masks_of("group").maskable(clean), free & (torch.arange(4) == 3))
    assert torch.equal(masks_of("tss").maskable(clean), free & (clean.cond["tss"] != 0)[..., None])
    columns = Masks(SPACE, "column", "motifs")
    assert torch.equal(columns.maskable(clean), free & (torch.arange(4) < 3))
    with pytest.raises(ValueError, match="tss"):
        masks_of("tss").maskable(Clean.of(torch.randn(2, 6, 4)))


@pytest.mark.parametrize("kind", KINDS)
def test_sums_and_shares_belong_to_units(kind: str) -> None:
    masks, values = masks_of(kind), torch.randn(3, 6, 4, dtype=torch.float64)
    numbers = unit_of(kind)
    expected = torch.stack([values[:, numbers == number].sum(1) for number in numbers.unique()], 1)
    torch.testing.assert_close(masks.sums(values), expected)
    whole = torch.ones(3, 6, 4, dtype=torch.bool)
    per_position = torch.rand(3, 6, 1)
    shares = masks.shares(per_position, whole)
    assert shares.shape == expected.shape
    assert torch.equal(masks.shares(per_position[:, :1], whole), per_position[:, :1, 0].expand(expected.shape))
    if kind in ("region", "group", "tss"):
        assert torch.equal(shares, per_position[..., 0])


@given(st.sampled_from(KINDS), st.booleans(), st.booleans(), st.integers(0, 99))
def test_nothing_to_take_is_safe(kind: str, exact: bool, gaussian: bool, seed: int) -> None:
    """Everything known, everything padded, or no start of transcription: no NaN anywhere, and nothing wanted."""
    torch.manual_seed(seed)
    group = "open" if kind == "group" else None
    clean = clean_of(3)
    cases = (
        Clean(clean.x0, clean.valid, torch.ones_like(clean.known), clean.cond),
        Clean(clean.x0, torch.zeros_like(clean.valid), clean.known, clean.cond),
        Clean(clean.x0, clean.valid, clean.known | (kind != "tss"), {"tss": torch.zeros(3, 6)}),
    )
    for case in cases:
        options = {"mask": kind, "group": group, "ratio": 0.5, "exact": exact}
        if gaussian:
            process = GaussianProcess(SPACE, TimestepSampling(LinearBeta().build()), **options)
        else:
            process = MaskedRegionProcess(SPACE, TimestepSampling(log_linear()), **(options | {"ratio": None}))
        noised = process.corrupt(case, torch.rand(3))
        assert not noised.target_mask.any()
        assert torch.equal(noised.state.x, case.x0)
        start, now, then = process.prior(case), noised.noise, process.schedule(torch.full((3,), 1e-3))
        later = process.step(start, process.read(torch.randn(3, 6, 4), start, now), now, then, case)
        assert torch.equal(later.x, case.x0)
        assert torch.equal(process.finish(later, process.read(torch.randn(3, 6, 4), later, then), case), case.x0)
