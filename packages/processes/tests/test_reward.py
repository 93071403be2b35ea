"""Samplers of high reward against their exact distributions."""

import itertools
from typing import Any

import pytest
import torch

from dither.processes.samplers.blocks import Blocks
from dither.processes.samplers.constraint_smc import ParticleCalls
from dither.processes.samplers.first_hitting import FirstHitting
from dither.processes.samplers.reward import BestOfN, RewardSMC
from dither.processes.samplers.semi_autoregressive import SemiAutoregressive
from dither.processes.tokens.specs import Absorbing
from dither.registry import FeatureSpace
from dither.registry.contracts.records import Clean
from dither.registry.contracts.spaces import Field, TokenSpace
from dither.registry.kinds import ModelFacts, RewardSpec

P = torch.tensor([0.1, 0.3, 0.4, 0.2], dtype=torch.float64)
VALUES = torch.tensor([2.0, 0.5, -1.0, 0.5], dtype=torch.float64)
"""The reward of each id; that of two is the same."""


class Worth(RewardSpec):
    """The sum of the values of ids, or of features."""

    name = "worth"
    impossible: bool = False
    """Whether the first id is impossible."""

    def build(self, space: Any) -> Any:
        values = VALUES.clone()
        if self.impossible:
            values[0] = -torch.inf

        def reward(x, like):
            rewards = values[x] if x.dtype == torch.long else x[..., 0]
            return rewards.sum(1)

        return reward


def drawn(process_of, oracle, kind: str, sampler: Any, n: int) -> torch.Tensor:
    """Samples of one position, of which any sampler with an exact model has the distribution `P`."""
    process = process_of(kind, TokenSpace((Field("text", 1, 4),)))
    like = Clean.of(torch.zeros(n, 1).long())
    *_, x = sampler.build()(process, oracle(process, P), like)
    return x[:, 0]


@pytest.mark.parametrize("impossible", [False, True])
def test_best_of_three(process_of, oracle, likely, impossible: bool) -> None:
    """The best has the probability that all are at most as good, less that all are worse; equal ones share it."""
    reward = Worth(impossible=impossible)
    sampler = BestOfN(reward=reward, candidates=3, inner=FirstHitting())
    x = drawn(process_of, oracle, "absorbing", sampler, 10_000)
    law = torch.zeros(4, dtype=torch.float64)
    values = reward.build(None)(torch.arange(4)[:, None], None)
    for trio in itertools.product(range(4), repeat=3):
        best = max(trio, key=lambda v: values[v])
        law[best] += P[list(trio)].prod()
    assert likely(x, law) > 1e-4
    kl = float((law.xlogy(law) - law.xlogy(P)).sum())
    assert 0.1 < kl < torch.tensor(3.0).log() - 2 / 3


@pytest.mark.parametrize("kind", ["absorbing", "uniform", "hybrid"])
def test_two_particles_are_importance_resampling(
    process_of, oracle, likely, kind: str
) -> None:
    """Two are never resampled before the end, where one of them is drawn in proportion to exp(scale reward)."""
    sampler = RewardSMC(reward=Worth(), scale=0.7, particles=2, steps=5)
    x = drawn(process_of, oracle, kind, sampler, 20_000)
    weights = (0.7 * VALUES).exp()
    law = torch.zeros(4, dtype=torch.float64)
    for a, b in itertools.product(range(4), repeat=2):
        share = weights[a] / (weights[a] + weights[b])
        law[a] += P[a] * P[b] * share
        law[b] += P[a] * P[b] * (1 - share)
    assert likely(x, law) > 1e-4
    assert likely(x, P) < 1e-6


@pytest.mark.slow
def test_many_particles_have_the_tilted_distribution(process_of, oracle) -> None:
    """The distance to p exp(scale reward) falls from .71 with one particle over .33 with 8 to .04 with 128."""
    law = P * (2 * VALUES).exp()
    distances = []
    for particles in (1, 8, 128):
        # So uneven weights are resampled on the way.
        sampler = RewardSMC(reward=Worth(), scale=2.0, particles=particles, steps=6)
        x = drawn(process_of, oracle, "uniform", sampler, 400)
        share = torch.bincount(x, minlength=4).double() / len(x)
        distances.append(float((share - law / law.sum()).abs().sum() / 2))
    assert distances[0] > 0.6
    assert 0.2 < distances[1] < 0.5
    assert distances[2] < 0.12


def test_particles_of_high_reward_are_copied(process_of, oracle) -> None:
    """The first particle takes states of better ones: id 0 in 28 % of samples, where the model has 10 %."""
    process = process_of("absorbing", TokenSpace((Field("text", 1, 4),)))
    like = Clean.of(torch.zeros(1000, 1).long())
    sampler = RewardSMC(reward=Worth(), scale=5.0, particles=8, steps=6)
    *_, last_state, _ = sampler.build()(process, oracle(process, P), like)
    assert (last_state == 0).double().mean() > 0.2


def test_impossible_samples_are_not_drawn(process_of, oracle) -> None:
    """An early guess of reward -inf ends no particle, a sample of reward -inf does, unless all have it."""
    reward = Worth(impossible=True)
    sampler = RewardSMC(reward=reward, particles=8, steps=6)
    x = drawn(process_of, oracle, "absorbing", sampler, 1000)
    # All of eight with probability 1e-8
    assert (x > 0).all()
    law = P * VALUES.exp() * torch.tensor([0, 1, 1, 1])
    share = torch.bincount(x, minlength=4).double() / len(x)
    assert (share - law / law.sum()).abs().sum() / 2 < 0.12


def test_without_a_scale_samples_are_those_of_the_model(
    process_of, oracle, likely
) -> None:
    """Also where the reward is -inf, of which a negative scale would make an infinite weight."""
    reward = Worth(impossible=True)
    sampler = RewardSMC(reward=reward, particles=3, steps=4, scale=0.0)
    assert likely(drawn(process_of, oracle, "absorbing", sampler, 5000), P) > 1e-4
    sampler = RewardSMC(reward=reward, particles=3, steps=4, scale=-1.0)
    with pytest.raises(ValueError, match="reward"):
        drawn(process_of, oracle, "absorbing", sampler, 100)


@pytest.mark.parametrize("sampler", [BestOfN, RewardSMC])
def test_a_reward_of_nan_is_an_error(process_of, oracle, monkeypatch, sampler) -> None:
    monkeypatch.setattr(Worth, "build", lambda *_: lambda x, like: x.sum(1) * torch.nan)
    with pytest.raises(ValueError, match="reward"):
        drawn(process_of, oracle, "absorbing", sampler(reward=Worth()), 2)


def test_normal_values_move_by_their_variance(part, normal) -> None:
    """Under the reward c x a normal distribution has its mean moved by c times its variance."""
    process = part("process", "gaussian").build(FeatureSpace(1, 1))
    like = Clean.of(torch.zeros(1200, 1, 1, dtype=torch.float64))

    def samples(sampler: Any) -> torch.Tensor:
        *_, x = sampler.build()(process, normal(process), like)
        return x.flatten()

    options = {"reward": Worth(), "steps": 15}
    plain = samples(RewardSMC(particles=1, **options))
    moved = samples(RewardSMC(particles=40, scale=2.0, **options))
    # Four standard errors of two means and a variance are 4 (.012 + .014).
    assert abs(moved.mean() - plain.mean() - 2 * plain.var()) < 0.1
    # The larger of two is 1 / sqrt(pi) standard deviations above the mean.
    inner = part("sampler", "ancestral", steps=15)
    best = samples(BestOfN(reward=Worth(), candidates=2, inner=inner))
    assert abs(best.mean() - plain.mean() - plain.std() / torch.pi**0.5) < 0.08


@pytest.mark.parametrize(
    ("sampler", "options", "paths"),
    [
        ("best-of-n", {"inner": "blocks"}, [("inner",)]),
        ("best-of-n", {"inner": "ddim"}, [("inner",)]),
        ("reward-smc", {"temperature": 0.5}, []),
    ],
)
def test_what_fits(part, sampler: str, options: dict, paths: list) -> None:
    facts = part("process", "uniform").facts(TokenSpace((Field("text", 20, 5),)))
    spec = part("sampler", sampler, reward=Worth(), **options)
    assert [m.path for m in spec.check(facts, ModelFacts(16))] == paths


def test_particles_carry_their_previous_predictions() -> None:
    """Also after resampling, each sample for itself."""

    class Memory:
        previous = None

        def __call__(self, state: Any, t: Any) -> Any:
            before = self.previous
            self.previous = state[:, None, None]
            return before

    calls = ParticleCalls(Memory())
    first = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    assert calls(first, None) == [None, None]
    calls.select(torch.tensor([[1, 0], [1, 1]]))
    carried = torch.stack(calls(first, None))
    assert carried[..., 0, 0].tolist() == [[3.0, 2.0], [3.0, 4.0]]


def test_candidates_start_without_a_previous_prediction(process_of, oracle) -> None:
    process = process_of("absorbing", TokenSpace((Field("text", 2, 4),)))
    model = oracle(process, P)
    model.previous = torch.ones(1)
    seen = []

    def inner(process: Any, model: Any, like: Clean) -> Any:
        seen.append(model.previous)
        model.previous = torch.ones(1)
        yield like.x0

    sampler = BestOfN(reward=Worth(), candidates=3)
    like = Clean.of(torch.zeros(1, 2).long())
    build_reward = sampler.reward.build
    list(sampler.sample(process, model, like, inner=inner, build_reward=build_reward))
    assert seen == [None] * 3


@pytest.mark.parametrize("outer", [Blocks, SemiAutoregressive])
@pytest.mark.parametrize("inner", [BestOfN, RewardSMC])
def test_a_reward_of_a_block_is_refused(outer: Any, inner: Any) -> None:
    """It would see a block, or MASK in place of later ones."""
    space = TokenSpace((Field("text", 8, 4),)).with_mask()
    process = Absorbing().facts(space)
    model = ModelFacts(block_size=4 if outer is Blocks else None)
    sampler = outer(size=4, inner=inner(reward=Worth()))
    assert [misfit.path for misfit in sampler.check(process, model)] == [("inner",)]
    assert not [*outer(size=4).check(process, model)]
