"""Unmasking the surest first: how many, when, which, and what law comes out."""

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

from dither.processes.samplers.confidence import Ordered
from dither.processes.timestep_sampling import time_of
from dither.processes.tokens.prediction import CategoricalPrediction
from dither.processes.tokens.process import TokenProcess
from dither.registry.flow.records import Clean, State
from dither.registry.flow.spaces import Field, TokenSpace
from dither.registry.kinds import ModelFacts

ORDERS = ("confidence", "drawn", "margin", "entropy", "random")


def build(part: Any, length: int, ids: int, **options: Any) -> TokenProcess:
    process: TokenProcess = part("process", "absorbing", **options).build(TokenSpace((Field("text", length, ids),)))
    return process


class Fixed:
    """A session whose model always says the same logits, and that keeps what it was asked."""

    def __init__(self, process: TokenProcess, logits: Tensor) -> None:
        self.process, self.logits = process, logits
        self.states: list[Tensor] = []
        self.times: list[Tensor] = []

    def __call__(self, state: State, t: Tensor) -> CategoricalPrediction:
        self.states.append(state.x)
        self.times.append(t)
        return self.process.read(self.logits.expand(len(state.x), -1, -1), state, self.process.schedule(t))


@pytest.mark.parametrize("by", ORDERS)
@pytest.mark.parametrize("schedule", ["log-linear", "cosine", "geometric"])
def test_counts_and_times_match(part, by: str, schedule: str) -> None:
    """After each step round(N (1 - alpha)) are masked; the model gets the time at which that share is expected."""
    length, steps = 36, 10
    process = build(part, length, 3, schedule=schedule)
    session = Fixed(process, torch.randn(1, length, 4))
    known = torch.zeros(5, length, dtype=torch.bool)
    known[1, :7] = known[2, :] = True
    like = Clean.of(torch.zeros(5, length).long(), known=known)
    states = list(Ordered(by=by, steps=steps).build()(process, session, like))
    total = (~known).sum(1)
    lost = -(-process.schedule(torch.linspace(1, 0, steps + 1).double()).sigma).expm1()
    lost[-1] = 0
    expected = (total[:, None] * lost).round().long()
    masked = torch.stack([(x == 3).sum(1) for x in states], 1)
    shown = [step for step in range(1, steps + 1) if (expected[:, step] < expected[:, :step].amin(1)).any()]
    assert masked.tolist() == expected[:, shown].tolist()
    assert masked[:, -1].tolist() == [0] * 5
    for x, t in zip(session.states, session.times, strict=True):
        share = (x == 3).sum(1) / total.clamp_min(1)
        torch.testing.assert_close(t.double(), time_of(process.schedule, share.double()), atol=1e-6, rtol=1e-6)
        assert torch.equal(x[known], like.x0[known])  # in sight of the very first call
    for before, after in itertools.pairwise(states):
        assert torch.equal(after[before != 3], before[before != 3])  # what is shown stays


LAWS = torch.tensor([[0.5, 0.25, 0.25], [0.45, 0.45, 0.10], [0.42, 0.29, 0.29]])
"""The first is the likeliest and furthest ahead, the second has the least entropy."""


@pytest.mark.parametrize(("by", "order"), [("confidence", [0, 1, 2]), ("margin", [0, 2, 1]), ("entropy", [1, 0, 2])])
def test_which_comes_first(part, by: str, order: list[int]) -> None:
    process = build(part, 3, 3)
    logits = torch.cat([LAWS.log(), torch.zeros(3, 1)], 1)[None]
    found = [Clean.of(torch.zeros(8, 3).long())]
    states = [torch.full((8, 3), 3), *Ordered(by=by, steps=3).build()(process, Fixed(process, logits), found[0])]
    for before, after, place in zip(states, states[1:], order, strict=False):
        assert ((before != after).nonzero()[:, 1] == place).all()


def test_equal_scores_are_settled_by_lot(part, likely) -> None:
    """An untrained model is not read from left to right."""
    process = build(part, 4, 3)
    first, *_ = Ordered(by="margin", steps=4).build()(
        process, Fixed(process, torch.zeros(1, 4, 4)), Clean.of(torch.zeros(6000, 4).long())
    )
    assert likely((first != 3).nonzero()[:, 1], torch.ones(4) / 4) > 1e-3


def test_drawn_prefers_what_is_likely_by_a_known_amount(part, likely) -> None:
    """Of two tokens with law p, 1 - p the surer draw is shown first: the likely id unless both came out unlikely."""
    p, n = 0.7, 20_000
    process = build(part, 2, 2)
    logits = torch.tensor([p, 1 - p, 1.0]).log().expand(1, 2, 3)
    first, last = Ordered(by="drawn", steps=2).build()(
        process, Fixed(process, logits), Clean.of(torch.zeros(n, 2).long())
    )
    shown = first[first != 2]
    assert likely(shown, torch.tensor([1 - (1 - p) ** 2, (1 - p) ** 2])) > 1e-3
    assert likely(last[first == 2], torch.tensor([p, 1 - p])) > 1e-3


def test_noise_is_gumbel_and_falls_with_the_share_masked(part, likely) -> None:
    """Scores log p with Gumbel noise of scale c choose among positions with odds p^(1/c): Plackett and Luce."""
    process, n, scale = build(part, 3, 3), 20_000, 2.0
    logits = torch.cat([LAWS.log(), torch.zeros(3, 1)], 1)[None]
    first, second, _ = Ordered(by="confidence", steps=3, noise=scale).build()(
        process, Fixed(process, logits), Clean.of(torch.zeros(n, 3).long())
    )
    strength = LAWS.amax(1).double()
    odds = strength ** (1 / scale)
    assert likely((first != 3).nonzero()[:, 1], odds / odds.sum()) > 1e-3
    assert likely((first != 3).nonzero()[:, 1], torch.ones(3) / 3) < 1e-3
    rows = (first != 3)[:, 0]  # the first position came first: of the others, at two thirds of the scale
    odds = strength[1:] ** (1.5 / scale)
    assert likely(((second != 3) & (first == 3))[rows][:, 1:].nonzero()[:, 1], odds / odds.sum()) > 1e-3


@pytest.mark.parametrize("by", [order for order in ORDERS if order != "drawn"])
def test_one_at_a_time_any_law_is_kept(part, likely, oracle, by: str) -> None:
    torch.manual_seed(3)
    joint, n = torch.rand(3, 3, 3).double() ** 2 + 0.02, 8_000
    process = build(part, 3, 3)
    many, few = (
        list(Ordered(by=by, steps=steps).build()(process, oracle(process, joint), Clean.of(torch.zeros(n, 3).long())))[
            -1
        ]
        for steps in (3, 1)
    )
    code = torch.tensor([9, 3, 1])
    assert likely((many * code).sum(1), joint.flatten() / joint.sum()) > 1e-3
    assert likely((few * code).sum(1), joint.flatten() / joint.sum()) < 1e-3


def test_other_processes_are_refused(part) -> None:
    space = TokenSpace((Field("text", 2, 3),))
    facts = part("process", "uniform").facts(space)
    for sampler in ("ordered", "remdm", "first-hitting"):
        (misfit,) = part("sampler", sampler).check(facts, ModelFacts())
        assert (misfit.code, misfit.related) == ("process-mismatch", ("process",))
    (misfit,) = part("sampler", "ordered", by="random", noise=1.0).check(
        part("process", "absorbing").facts(space), ModelFacts()
    )
    assert (misfit.code, misfit.path) == ("no-effect", ("noise",))
    with pytest.raises(TypeError, match="absorbing"):
        next(Ordered().build()(part("process", "uniform").build(space), None, Clean.of(torch.zeros(1, 2).long())))
