"""Masks, masked features and Gaussian noise on part of a sample: units, shares, leaks, conditional samples."""

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from dither.processes.features.gaussian import GaussianProcess
from dither.processes.features.masked_features import MaskedRegionProcess
from dither.processes.features.masks import Masks
from dither.processes.schedules.alpha import LogLinear
from dither.processes.schedules.betas import LinearBeta
from dither.processes.timestep_sampling import TimestepSampling
from dither.registry.config.errors import Refused
from dither.registry.contracts.records import Clean, State
from dither.registry.contracts.spaces import Condition, FeatureSpace, Group

SPACE = FeatureSpace(
    6, 4, (Group("motifs", 0, 3), Group("open", 3, 4)), (Condition("tss"),)
)
KINDS = ["region", "block", "column", "element", "group", "tss"]


def clean_of(rows: int, padded: bool = False, known: float = 0.0) -> Clean:
    valid = (
        torch.arange(6) < torch.randint(1, 7, (rows, 1))
        if padded
        else torch.ones(rows, 6, dtype=torch.bool)
    )
    starts = (torch.rand(rows, 6) < 0.5).float()
    return Clean.of(
        torch.randn(rows, 6, 4), valid, torch.rand(rows, 6, 4) < known, tss=starts
    )


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
        some, every = (
            (taken & inside).flatten(1).any(1),
            ((~among | taken) | ~inside).flatten(1).all(1),
        )
        assert (~some | every).all(), "a unit is taken in part"


@pytest.mark.parametrize("kind", KINDS)
def test_share_of_the_units(kind: str) -> None:
    clean = clean_of(4_000)
    for exact in (False, True):
        masks = masks_of(kind, exact)
        among = masks.units(masks.maskable(clean))
        taken = masks.units(
            masks.pick(masks.maskable(clean), torch.full((4_000, 1, 1), 0.5))
        )
        if exact:
            assert torch.equal(taken.sum(1), (0.5 * among.sum(1)).round().long())
        else:
            assert taken.sum().item() / among.sum().item() == pytest.approx(
                0.5, abs=0.02
            )
    assert masks.units(masks.maskable(clean)).shape[1] == {
        "element": 24,
        "column": 4,
        "block": 2,
    }.get(kind, 6)


def test_what_may_be_taken() -> None:
    clean = clean_of(50, padded=True, known=0.2)
    free = ~clean.fixed
    assert torch.equal(masks_of("column").maskable(clean), free)
    assert torch.equal(masks_of("group").maskable(clean), free & (torch.arange(4) == 3))
    assert torch.equal(
        masks_of("tss").maskable(clean), free & (clean.cond["tss"] != 0)[..., None]
    )
    columns = Masks(SPACE, "column", "motifs")
    assert torch.equal(columns.maskable(clean), free & (torch.arange(4) < 3))
    with pytest.raises(Refused, match="tss"):
        masks_of("tss").maskable(Clean.of(torch.randn(2, 6, 4)))


@given(st.sampled_from(KINDS), st.booleans(), st.booleans(), st.integers(0, 99))
def test_nothing_to_take_is_safe(
    kind: str, exact: bool, gaussian: bool, seed: int
) -> None:
    """Everything known, everything padded, or no start of transcription: no NaN anywhere, and nothing wanted."""
    torch.manual_seed(seed)
    group = "open" if kind == "group" else None
    clean = clean_of(3)
    cases = (
        Clean(clean.x0, clean.valid, torch.ones_like(clean.known), clean.cond),
        Clean(clean.x0, torch.zeros_like(clean.valid), clean.known, clean.cond),
        Clean(
            clean.x0,
            clean.valid,
            clean.known | (kind != "tss"),
            {"tss": torch.zeros(3, 6)},
        ),
    )
    for case in cases:
        options = {"mask": kind, "group": group, "ratio": 0.5, "exact": exact}
        if gaussian:
            process = GaussianProcess(
                SPACE, TimestepSampling(LinearBeta().build()), **options
            )
        else:
            process = MaskedRegionProcess(
                SPACE,
                TimestepSampling(LogLinear().build()),
                **(options | {"ratio": None}),
            )
        noised = process.corrupt(case, torch.rand(3))
        assert not noised.target_mask.any()
        assert torch.equal(noised.state.x, case.x0)
        start, now, then = (
            process.prior(case),
            noised.noise,
            process.schedule(torch.full((3,), 1e-3)),
        )
        later = process.step(
            start, process.read(torch.randn(3, 6, 4), start, now), now, then, case
        )
        assert torch.equal(later.x, case.x0)
        assert torch.equal(
            process.finish(
                later, process.read(torch.randn(3, 6, 4), later, then), case
            ),
            case.x0,
        )


MASKS = ({"mask": "region"}, {"mask": "element"}, {"mask": "group", "group": "motifs"})


def region_of(**options) -> MaskedRegionProcess:
    return MaskedRegionProcess(SPACE, TimestepSampling(LogLinear().build()), **options)


@given(
    st.sampled_from(MASKS),
    st.floats(0.05, 1),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.integers(0, 99),
)
def test_nothing_fixed_is_hidden_and_nothing_hidden_leaks(
    options, ratio, scheduled, exact, per_position, seed
) -> None:
    torch.manual_seed(seed)
    process = region_of(ratio=None if scheduled else ratio, exact=exact, **options)
    clean = Clean.of(
        torch.randn(3, 6, 4), torch.rand(3, 6) < 0.7, torch.rand(3, 6, 4) < 0.3
    )
    t = torch.rand(3, 6) if per_position else torch.rand(3)
    noised = process.corrupt(clean, t)
    for state in (noised.state, process.prior(clean)):
        assert not (state.masked & clean.fixed).any()
        assert (state.x[state.masked] == 0).all()
        assert torch.equal(state.x[~state.masked], clean.x0[~state.masked])
        pred = process.read(torch.randn(3, 6, 4), state, noised.noise)
        later = process.step(
            state, pred, noised.noise, process.schedule(0.5 * t), clean
        )
        assert not (later.masked & ~state.masked).any()
        assert (later.x[later.masked] == 0).all()
        last = process.finish(later, pred, clean)
        assert torch.equal(last[~state.masked], clean.x0[~state.masked])
        assert torch.equal(last[state.masked], pred.x0[state.masked])
    other = Clean(
        torch.where(noised.state.masked, 1e9, clean.x0), clean.valid, clean.known
    )
    assert torch.equal(other.x0.masked_fill(noised.state.masked, 0), noised.state.x)


@pytest.mark.parametrize("options", MASKS)
def test_small_exact_steps_hide_as_many_as_training_does(options) -> None:
    """Rounding a part of what is hidden now would never let a small step fill in anything."""
    process, steps = region_of(exact=True, **options), 64
    clean = Clean.of(torch.randn(2, 6, 4))
    state = process.prior(clean)
    times = torch.linspace(1, 0, steps + 1)
    for t, s in itertools.pairwise(times):
        now, then = process.schedule(t.expand(2)), process.schedule(s.expand(2))
        state = process.step(
            state, process.read(torch.randn(2, 6, 4), state, now), now, then, clean
        )
        trained = process.corrupt(clean, s.expand(2)).state.masked
        assert torch.equal(state.masked.flatten(1).sum(1), trained.flatten(1).sum(1))


@pytest.mark.parametrize(
    ("ratio", "moment"), [(0.5, 0.5), (0.15, 0.15), (1.0, 1.0), (1e-6, 1e-3)]
)
def test_a_fixed_ratio_has_one_moment(ratio: float, moment: float, part) -> None:
    """When as much would be hidden, within the times of training; samples are filled in there, by one call."""
    process = region_of(ratio=ratio)
    assert process.fixed_time == pytest.approx(moment, abs=2e-3)
    assert region_of().fixed_time is None
    like, told = Clean.of(torch.zeros(3, 6, 4)), []

    def session(state: State, t: Tensor):
        told.append(t)
        return process.read(torch.full_like(state.x, 7.0), state, process.schedule(t))

    (x,) = part("sampler", "ancestral", steps=9).build()(process, session, like)
    assert (x == 7).all()
    (t,) = told
    torch.testing.assert_close(t, torch.full((3,), process.fixed_time))


def gaussian_of(predict: str = "x0", **options) -> GaussianProcess:
    return GaussianProcess(
        SPACE, TimestepSampling(LinearBeta().build()), predict, **options
    )


@pytest.mark.parametrize("mask", ["region", "element", "column", "block"])
def test_only_what_is_picked_has_noise(mask: str) -> None:
    process, n = gaussian_of(mask=mask, ratio=0.5, block=2), 4_000
    clean = Clean.of(torch.randn(n, 6, 4), known=torch.rand(n, 6, 4) < 0.2)
    noised = process.corrupt(clean, torch.full((n,), 0.4))
    state = noised.state
    assert torch.equal(noised.target_mask, state.noisy)
    assert not state.masked.any()
    assert torch.equal(state.x[~state.noisy], clean.x0[~state.noisy])
    assert (state.x[state.noisy] != clean.x0[state.noisy]).all()
    assert not (state.noisy & clean.fixed).any()
    assert (noised.eps[~state.noisy] == 0).all()
    free = ~clean.fixed
    assert state.noisy[free].float().mean().item() == pytest.approx(0.5, abs=0.02)
    alpha = noised.noise.alpha(clean.x0)
    mixed = (alpha.sqrt() * clean.x0 + (1 - alpha).sqrt() * noised.eps)[state.noisy]
    torch.testing.assert_close(state.x[state.noisy], mixed)


def test_a_ratio_is_drawn_for_each_sample() -> None:
    noised = gaussian_of(mask="element").corrupt(
        Clean.of(torch.randn(3_000, 6, 4)), torch.rand(3_000)
    )
    shares = noised.target_mask.flatten(1).double().mean(1)
    assert shares.mean().item() == pytest.approx(0.5, abs=0.02)
    assert shares.var().item() == pytest.approx(
        1 / 12 + 1 / 6 / 24, rel=0.05
    )  # of an even ratio, and of 24 draws


@pytest.mark.parametrize("predict", ["x0", "eps", "velocity"])
def test_a_walk_draws_what_may_be_picked_given_the_rest(part, predict: str) -> None:
    """Columns that go together with a correlation of 0.8: the last, drawn given the others, has their conditional law.

    The exact denoiser: x_3 = 0.8 x_0 + 0.6 e, where e is standard normal: its mean is 0.8 x_0, its variance 0.36.
    """
    process = gaussian_of(predict, mask="group", group="open")
    n = 2_000
    like = Clean.of(torch.randn(n, 6, 4))

    def session(state: State, t: Tensor):
        assert torch.equal(
            state.noisy, torch.tensor([False, False, False, True]).expand(n, 6, 4)
        )
        noise = process.schedule(t)
        a, b = noise.alpha(state.x).sqrt(), noise.one_minus_alpha(state.x).sqrt()
        mean = 0.8 * state.x[..., :1]
        x0 = mean + 0.36 * a / (0.36 * a**2 + b**2) * (state.x - a * mean)
        eps = (state.x - a * x0) / b
        return process.read(
            {"x0": x0, "eps": eps, "velocity": a * eps - b * x0}[predict], state, noise
        )

    for sampler in (
        {"use": "ddim", "steps": 200, "eta": 1.0, "spacing": "log-snr"},
        {"use": "dpm-solver", "steps": 50, "spacing": "log-snr"},
    ):
        options = dict(sampler)
        *_, x = part("sampler", options.pop("use"), **options).build()(
            process, session, like
        )
        assert torch.equal(x[..., :3], like.x0[..., :3])
        rest = x[..., 3] - 0.8 * x[..., 0]
        assert rest.mean().item() == pytest.approx(0, abs=0.025)
        assert rest.std().item() == pytest.approx(0.6, rel=0.03), sampler["use"]
        assert (
            torch.corrcoef(torch.stack([rest.flatten(), x[..., 0].flatten()]))[
                0, 1
            ].abs()
            < 0.03
        )
