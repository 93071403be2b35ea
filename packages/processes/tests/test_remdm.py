"""Remasking: the two-branch posterior, the share of tokens shown, and the law of the samples."""

import itertools
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from dither.processes.samplers.remdm import ReMDM, max_remask_prob, unmasking_prob
from dither.processes.tokens.process import TokenProcess
from dither.registry.contracts.records import Clean


def test_the_posterior_keeps_the_marginal_in_closed_form() -> None:
    """alpha_t (1 - sigma) + (1 - alpha_t) P(unmask) = alpha_s for every sigma up to the largest, and none above."""
    for shown, later in itertools.combinations(torch.linspace(0, 1, 21).tolist(), 2):
        most = max_remask_prob(shown, later)
        assert 0 <= most <= 1
        for sigma in (0.0, 0.3 * most, most):
            chance = unmasking_prob(shown, later, sigma)
            assert shown * (1 - sigma) + (1 - shown) * chance == pytest.approx(
                later, abs=1e-12
            )
            assert 0 <= chance <= 1
        if most < 1:
            above = min(1.0, most + 0.05)
            assert (
                shown * (1 - above) + (1 - shown) * unmasking_prob(shown, later, above)
                < later - 1e-9
            )


@pytest.fixture
def shares(text_process, recorder):
    return partial(shares_of, text_process, recorder)


def shares_of(
    text_process, recorder, rows: int, length: int, **options: Any
) -> tuple[Tensor, Any, TokenProcess]:
    """Share of tokens shown after each step, over many rows."""
    process = text_process("absorbing", length, 3)
    session = recorder(process, torch.randn(1, length, 4))
    states = list(
        ReMDM(**options).build()(
            process, session, Clean.of(torch.zeros(rows, length).long())
        )
    )
    return torch.stack([(x != 3).double().mean() for x in states]), session, process


@pytest.mark.parametrize(
    ("strategy", "eta"),
    [
        ("cap", 0.3),
        ("rescale", 0.5),
        ("rescale", 1.0),
        ("conf-compensated", 1.0),
        ("conf-compensated", 0.4),
    ],
)
def test_the_share_shown_is_that_of_the_schedule(
    shares, strategy: str, eta: float
) -> None:
    rows, length, steps = 3_000, 12, 12
    found, session, _ = shares(rows, length, strategy=strategy, eta=eta, steps=steps)
    assert len(found) == steps + 1 == len(session.times)
    alpha = 1 - (
        torch.linspace(1, 1e-3, steps + 1).double()
    )  # log-linear, as if alpha(1) were 0
    torch.testing.assert_close(
        found[:-1], alpha[1:], rtol=0, atol=5 * 0.5 / (rows * length) ** 0.5
    )
    assert found[-1] == 1
    remasked = (
        sum(
            ((a != 3) & (b == 3)).sum().item()
            for a, b in itertools.pairwise(session.states)
        )
        / rows
    )
    assert remasked > 0.3  # it really does


@pytest.mark.parametrize(
    ("strategy", "converges"), [("rescale", True), ("conf", False)]
)
@pytest.mark.slow
def test_the_law_at_every_time(
    text_process, oracle, strategy: str, converges: bool
) -> None:
    """Total variation from q_t, by enumeration, with the exact model: with `eta_steps` it vanishes as steps grow."""
    process, rows = text_process("absorbing", 2, 3), 20_000
    joint = torch.tensor(
        [[0.45, 0.02, 0.03], [0.05, 0.2, 0.0], [0.0, 0.05, 0.2]], dtype=torch.float64
    )

    def law(alpha: float) -> Tensor:
        move = torch.cat(
            [alpha * torch.eye(3), torch.full((3, 1), 1 - alpha)], 1
        ).double()
        return torch.einsum("ab,ax,by->xy", joint, move, move).flatten()

    def worst(steps: int) -> float:
        sampler = ReMDM(strategy=strategy, eta=0.5, eta_steps=16, steps=steps).build()
        states = sampler(
            process, oracle(process, joint), Clean.of(torch.zeros(rows, 2).long())
        )
        times = torch.linspace(1, 1e-3, steps + 1)[1:].tolist()
        found = [
            torch.bincount(4 * x[:, 0] + x[:, 1], minlength=16) / rows for x in states
        ]
        return max(
            float((part - law(1 - t)).abs().sum() / 2)
            for part, t in zip(found, [*times, 0.0], strict=True)
        )

    floor = 0.016  # the noise of this many rows, at most
    assert worst(12) > 3 * floor
    assert (worst(128) < 1.5 * floor) == converges


def test_conf_remembers_how_sure_a_token_was_when_it_was_drawn(
    text_process, recorder
) -> None:
    """Once shown, a token is certain to the model; what it was drawn with decides: odds exp(0.95 - 0.35) here."""
    process = text_process("absorbing", 2, 3)
    laws = torch.tensor([[0.95, 0.03, 0.02, 1.0], [0.35, 0.33, 0.32, 1.0]])
    session = recorder(process, laws.log()[None])
    list(
        ReMDM(strategy="conf-compensated", steps=10).build()(
            process, session, Clean.of(torch.zeros(20_000, 2).long())
        )
    )
    back = [
        ((a != 3).all(1, keepdim=True) & (b == 3)).sum(0)
        for a, b in itertools.pairwise(session.states)
    ]
    sure, unsure = torch.stack(back).sum(0).double()
    mean = (
        0.95**2 + 0.03**2 + 0.02**2,
        0.35**2 + 0.33**2 + 0.32**2,
    )  # of the chance of the id that was drawn
    assert float(unsure / sure) == pytest.approx(
        float(torch.tensor(mean[0] - mean[1]).exp()), rel=0.1
    )


def test_loop_rests_at_alpha_on(shares) -> None:
    """Alpha reaches alpha_on at t_on, stays there during remasking, then goes to 1; the model gets this level."""
    rows, length, steps = 2_000, 12, 40
    found, session, process = shares(
        rows, length, strategy="loop", steps=steps, eta=0.05
    )
    u = torch.linspace(1, 1e-3, steps + 1).double()
    expected = torch.where(
        u > 0.55, 0.9 * (1 - u) / 0.45, torch.where(u > 0.05, 0.9, 1 - 0.1 * u / 0.05)
    )
    torch.testing.assert_close(
        found[:-1], expected[1:], rtol=0, atol=5 * 0.5 / (rows * length) ** 0.5
    )
    alpha = (
        -process.schedule(torch.stack([t[0] for t in session.times]).double()).sigma
    ).exp()
    torch.testing.assert_close(
        alpha, expected, rtol=0, atol=1.1e-3
    )  # to eps, the signal left at t = 1
    back = [
        ((a != 3) & (b == 3)).double().mean().item()
        for a, b in itertools.pairwise(session.states)
    ]
    assert all(
        (change > 0) == (u[i + 1] >= 0.05 and u[i] <= 0.55)
        for i, change in enumerate(back)
    )
