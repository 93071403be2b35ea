"""Drawing ids and times: exact frequencies, nothing impossible, whatever the cut into chunks."""

import pytest
import torch
from torch import Tensor

from dither.processes.schedules.alpha import LogLinear
from dither.processes.schedules.sigma import Geometric
from dither.processes.timestep_sampling import TimestepSampling, even_times
from dither.processes.tokens.categorical import draw, draw_along, draw_log
from dither.registry.contracts.records import Clean
from dither.registry.contracts.spaces import Field, TokenSpace
from dither.registry.contracts.times import as_times


def test_frequencies(likely) -> None:
    weights = torch.tensor([0.0, 3.0, 0.5, 0.0, 1e-3, 7.0, 0.0])
    assert likely(draw(weights.expand(400_000, -1)), weights) > 1e-3


def test_rare_ids_are_not_lost(monkeypatch) -> None:
    """Each of 100 ids has less than float32 can add to 1; together they must still come."""
    weights = torch.tensor([1.0] + [4e-8] * 100)
    for k in (1, 50, 99):
        u = (1 + 4e-8 * (k - 0.5)) / (1 + 4e-6)
        monkeypatch.setattr(
            torch,
            "rand",
            lambda *shape, u=u, **kw: torch.full(shape, u, dtype=kw["dtype"]),
        )
        assert draw(weights).item() == k
        assert (
            draw_along(weights[None].cumsum(-1, dtype=torch.float64), 1, 1).item() == k
        )


@pytest.mark.parametrize("u", [0.0, 1 - 2**-53])
@pytest.mark.parametrize("scale", [1.0, 1 / 3, 1 + 2**-52, 1e-300, 1e300])
def test_an_id_of_weight_zero_never_comes(monkeypatch, u: float, scale: float) -> None:
    """Not at the ends of the random number either, where rounding u times the total reaches the total."""
    monkeypatch.setattr(
        torch, "rand", lambda *shape, **kw: torch.full(shape, u, dtype=kw["dtype"])
    )
    weights = scale * torch.tensor(
        [[0, 0, 1.1, 0.3, 0, 0], [0, 1, 0, 0, 0, 0], [0, 0, 0, 0, 0, 1]],
        dtype=torch.float64,
    )
    first, last = [2, 1, 5], [3, 1, 5]
    assert draw(weights).tolist() == (first if u == 0 else last)
    for row in range(3):
        table = weights[row : row + 1].cumsum(-1)
        assert draw_along(table, 1, 1).item() == (first if u == 0 else last)[row]


LONG = 50_257


@pytest.mark.slow
def test_a_long_row_has_its_law_down_to_the_tail(likely) -> None:
    """One likely id and 50,255 that have 2e-7 each, 1 % together: as often, and as evenly, as they should."""
    weights = torch.full((LONG,), 2e-7)
    weights[30_000] = 1.0
    weights[100] = 0.0
    for some in (
        draw(weights.expand(12_000, -1)),
        draw_log((weights.log() - 300).expand(12_000, -1)),
    ):
        tail = some[some != 30_000]
        assert (
            likely((some != 30_000).long(), torch.tensor([1.0, 2e-7 * (LONG - 2)]))
            > 1e-3
        )
        assert (
            likely(tail // 10_000, torch.bincount(torch.arange(LONG) // 10_000)) > 1e-3
        )
        assert not (some == 100).any()
        assert tail.max() < LONG


@pytest.mark.slow
def test_the_tail_is_not_cut(likely) -> None:
    """Ids of 2e-8 each: random numbers of float32 stand 6e-8 apart, so that a race of them draws a sixth as many."""
    weights = torch.full((LONG,), 2e-8)
    weights[30_000] = 1.0
    law = torch.tensor([1.0, 2e-8 * (LONG - 1)])
    assert likely((draw(weights.expand(25_000, -1)) != 30_000).long(), law) > 1e-2


@pytest.mark.parametrize("u", [0.0, 1 - 2**-53])
def test_a_long_row_ends_where_its_weights_end(monkeypatch, u: float) -> None:
    monkeypatch.setattr(
        torch, "rand", lambda *shape, **kw: torch.full(shape, u, dtype=kw["dtype"])
    )
    weights = torch.zeros(3, 5_000)
    weights[0, 300:400] = weights[1, 4_990] = weights[2, [0, 4_999]] = 1 / 3
    assert draw(weights).tolist() == (
        [300, 4_990, 0] if u == 0 else [399, 4_990, 4_999]
    )
    with pytest.raises(ValueError, match="cannot draw"):
        draw_log(torch.full((1, 5_000), -torch.inf))


@pytest.mark.parametrize(
    "row", [[0.0, 0.0], [1e-45, 0.0], [float("nan"), 1.0], [float("inf"), 1.0]]
)
def test_no_draw_from_nothing(row: list[float]) -> None:
    with pytest.raises(ValueError, match="cannot draw"):
        draw(torch.tensor([[1.0, 1.0], row]).double() * 1e-270)


def test_one_time_per_stratum() -> None:
    clock = TimestepSampling(LogLinear().build(), t_min=0.1)
    for n in (1, 7, 64):
        u = (clock.times(n).double() - 0.1) / 0.9 * n
        assert u.shape == (n,)
        assert torch.equal(u.clamp(1e-3, n - 1e-3).floor(), torch.arange(n).double())
    many = torch.cat([clock.times(4) for _ in range(4_000)])
    assert abs(many.mean().item() - 0.55) < 0.003
    assert many.min() >= 0.1
    assert many.max() <= 1


def test_levels() -> None:
    t = torch.tensor([0.0, 0.0004, 0.0015, 0.5, 1.0], dtype=torch.float64)

    def level(kind, schedule=None) -> Tensor:
        return TimestepSampling(schedule or LogLinear().build(), kind).level(t)

    assert torch.equal(level("t"), t)
    assert level("index").tolist() == [0, 0, 1, 500, 999]
    torch.testing.assert_close(level("sigma"), -torch.log1p(-0.999 * t))
    assert level("log-sigma").isfinite().all()  # sigma = 0 at t = 0
    torch.testing.assert_close(
        level("log-sigma", Geometric().build()), Geometric().build()(t).sigma.log()
    )
    assert TimestepSampling(LogLinear().build()).level(t.expand(2, -1)).shape == (2, 5)


def test_every_time_of_a_grid_has_its_own_index() -> None:
    timesteps = TimestepSampling(LogLinear().build(), "index")
    grids = [even_times(steps, 0.0, torch.device("cpu")) for steps in (1000, 500)]
    grids.append(torch.arange(1000, -1, -1) / 1000)
    for times in grids:
        steps = len(times) - 1
        expected = torch.arange(steps, -1, -1) * 1000 // steps
        assert torch.equal(timesteps.level(times).long(), expected.clamp(max=999))


SPACE = TokenSpace((Field("text", 4, 5),))
TOKENS = torch.randint(0, 5, (3, 4))


def noise_of(process, t):
    torch.manual_seed(0)
    return process.corrupt(Clean.of(TOKENS), t)


@pytest.mark.parametrize(
    "t", [0.3, torch.tensor(0.3), torch.tensor([0.3]), torch.full((3,), 0.3)]
)
@pytest.mark.parametrize("name", ["absorbing", "uniform"])
def test_a_single_time_is_that_of_all_samples(process_of, name, t):
    noised, expected = (
        noise_of(process_of(name, SPACE), times) for times in (t, torch.full((3,), 0.3))
    )
    assert torch.equal(noised.state.x, expected.state.x)
    assert torch.equal(noised.noise.sigma, expected.noise.sigma)


def test_integers_and_times_per_position():
    clean = Clean.of(TOKENS)
    assert torch.equal(as_times(1, clean), torch.ones(3))
    assert as_times(torch.rand(3, 4), clean).shape == (3, 4)
    assert as_times(torch.rand(3, dtype=torch.float64), clean).dtype == torch.float64


@pytest.mark.parametrize(
    "t",
    [
        torch.rand(2),
        torch.rand(4),
        torch.rand(3, 1),
        torch.tensor([0.1, torch.nan, 0.2]),
        1.5,
        -0.1,
    ],
)
def test_wrong_times(t):
    with pytest.raises(ValueError, match="^t must"):
        as_times(t, Clean.of(TOKENS))
