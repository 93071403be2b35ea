"""The sampler of the seed: its loop, its law by enumeration, what its warning says; and what sigma_max = 1 costs."""

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dither.processes.samplers.specs import SeedSampler
from dither.processes.schedules.curves import geometric
from dither.processes.seed_004 import SeedWalk
from dither.processes.tokens.prior_kl import mean_prior_kl, prior_kl
from dither.registry.flow.records import Clean
from dither.registry.flow.spaces import FeatureSpace, Field, TokenSpace
from dither.registry.kinds import ModelFacts, ProcessFacts

PAIRS = torch.tensor([[0.5, 0.0], [0.0, 0.5]])
"""Two tokens that are always the same."""


def text(ids, length=1):
    return TokenSpace((Field("text", length, ids),))


class Watching:
    """A session that notes the times, and says the same scores everywhere."""

    def __init__(self, process, raw):
        self.process, self.raw, self.times = process, raw, []

    def __call__(self, state, t):
        self.times.append(t[0].item())
        return self.process.read(self.raw.expand(*state.x.shape, -1), state, self.process.schedule(t))


def test_the_loop_is_that_of_the_document(process_of, likely):
    """`for t in linspace(1, 0, num_steps)`, and the last state is the sample: a draw from softmax(l), with 0 at x."""
    process = process_of("uniform", text(3, 1), "score")
    raw = torch.tensor([0.3, -0.4, 0.9])
    session, n = Watching(process, raw), 4000
    states = list(SeedWalk(5)(process, session, Clean.of(torch.zeros(n, 1, dtype=torch.long))))
    assert session.times == torch.linspace(1, 0, 5).tolist()
    assert len(states) == 5
    for before, after in itertools.pairwise(states):
        for x in range(3):
            drawn = after[before == x]
            assert likely(drawn, raw.scatter(0, torch.tensor(x), 0.0).softmax(0).double()) > 1e-4
    assert len(list(SeedWalk(1)(process, session, Clean.of(torch.zeros(2, 1, dtype=torch.long))))) == 1


def test_known_tokens_stay(process_of):
    process = process_of("uniform", text(4, 3), "score")
    known = torch.tensor([[True, False, False]]).expand(50, -1)
    like = Clean.of(torch.full((50, 3), 2), known=known)
    for x in SeedWalk(4)(process, Watching(process, torch.zeros(4)), like):
        assert (x[:, 0] == 2).all()
    assert (x[:, 1:] != 2).any()


def test_told_the_truth_it_mixes_up_pairs(process_of, oracle):
    """Of two tokens that are always the same, the seed's samples differ half of the time; ancestral ones never."""
    process = process_of("uniform", text(2, 2), "score", geometric(1e-4, 20))
    like = Clean.of(torch.zeros(2000, 2, dtype=torch.long))
    *_, x = SeedWalk(33)(process, oracle(process, PAIRS), like)
    share = (x[:, 0] != x[:, 1]).double().mean().item()
    assert abs(share - 0.5) < 4 * math.sqrt(0.25 / 2000)


def test_it_warns_and_stands_only_where_the_seed_has_it():
    facts, model = ProcessFacts("uniform", text(9), "score", "uniform"), ModelFacts()
    assert not list(SeedSampler().check(facts, model))
    (warning,) = SeedSampler().warn(facts, model)
    assert "another law" in warning.message
    assert "ancestral" in warning.help
    for wrong in (
        ProcessFacts("uniform", text(9), "plug-in", "uniform"),
        ProcessFacts("absorbing", text(9), "score", "mask"),
        ProcessFacts("gaussian", FeatureSpace(2, 3), "x0", "gaussian"),
    ):
        assert any(misfit.related == ("process",) for misfit in SeedSampler().check(wrong, model))
    with pytest.raises(ValueError, match="at least 1 step"):
        SeedWalk(0)


def kl(ids, sigma):
    """The definition, from the transition matrix of the chain."""
    rates = torch.full((ids, ids), 1 / ids, dtype=torch.float64) - torch.eye(ids, dtype=torch.float64)
    row = torch.linalg.matrix_exp(sigma * rates)[0]
    return (row * (row * ids).log()).sum().item()


@given(st.integers(2, 12), st.floats(1e-3, 15))
def test_the_cost_of_what_is_left_is_a_divergence(ids, sigma):
    assert prior_kl(ids, sigma) == pytest.approx(kl(ids, sigma), rel=1e-6, abs=1e-12)
    assert prior_kl(ids, sigma) >= prior_kl(ids, sigma + 0.1) >= 0


@pytest.mark.parametrize(("sigma", "nats"), [(1, 3.32), (2, 1.07), (5, 0.033), (10, 3.2e-5)])
def test_the_cost_is_that_of_the_reference(sigma, nats):
    assert prior_kl(50_257, sigma) == pytest.approx(nats, rel=0.05)


def test_fields_count_by_their_tokens_and_by_their_clean_ids():
    space = TokenSpace((Field("a", 3, 6, mask=4, pad=5), Field("b", 1, 2)))
    assert mean_prior_kl(space, 0.5) == pytest.approx((3 * prior_kl(4, 0.5) + prior_kl(2, 0.5)) / 4)


def test_the_warning_says_what_it_costs(part):
    short = part("process", "uniform", schedule={"use": "geometric", "sigma_min": 1e-3, "sigma_max": 1.0})
    (warning,) = short.warn(text(50_257, 1024))
    assert "37 % of the tokens" in warning.message
    assert "3.32 nats per token" in warning.message
    assert "sigma_max = 20" in warning.help
    assert not list(short.check(text(50_257, 1024)))
    default = part("process", "uniform")
    assert not list(default.warn(text(50_257, 1024)))
    assert (default.schedule.sigma_min, default.schedule.sigma_max) == (1e-4, 20.0)
    assert prior_kl(50_257, default.schedule.sigma_end()) < 1e-8
