"""Evaluation: deterministic noise, weighted means, 95 % intervals that cover the true value, warnings about data."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from dither.engine.runs.summary import data_warnings
from dither.engine.training.diffusion import Diffusion
from dither.engine.training.evaluation import (
    NORMAL_95,
    Intervals,
    evaluate,
    half_width,
    has_targets,
    mean_half_width,
    student_quantiles,
)
from dither.registry.contracts.protocols import Metrics
from dither.registry.contracts.records import Measured


@pytest.fixture
def system(load):
    return Diffusion.build(load("model.dropout=0.5").experiment)


def test_evaluation_is_deterministic(system):
    torch.manual_seed(1)
    first = evaluate(system, 13, 4)
    torch.manual_seed(2)
    assert evaluate(system, 13, 4) == first
    assert set(first) == {"loss", "accuracy"}
    assert evaluate(system, 13, 4, seed=1) != first
    assert evaluate(system, 13, 4, repeats=2) != first
    assert system.training, "the mode is restored"
    assert evaluate(system.eval(), 13, 4) == first, "dropout is off in any mode"
    with torch.no_grad():
        system.model.head.bias[0] += 1
    assert evaluate(system, 13, 4) != first


def test_samples_once_and_stratified_times(system, monkeypatch):
    seen, times = [], []
    batch, corrupt = system.task.batch, system.process.corrupt
    monkeypatch.setattr(
        system.task,
        "batch",
        lambda split, rows: seen.append((split, *rows)) or batch(split, rows),
    )
    monkeypatch.setattr(
        system.process,
        "corrupt",
        lambda clean, t: times.extend(t.tolist()) or corrupt(clean, t),
    )
    evaluate(system, 100, 5)
    assert seen == [
        ("valid", 0, 1, 2, 3, 4),
        ("valid", 5, 6, 7, 8, 9),
        ("valid", 10, 11, 12),
    ]
    ordered = sorted(times)
    gaps = [b - a for a, b in itertools.pairwise(ordered)]
    assert max(gaps) == pytest.approx(1 / 13, rel=1e-3), (
        "one time in each stratum of the whole set"
    )
    falls = sum(b < a for a, b in itertools.pairwise(times))
    assert falls > 1, "shuffled"
    evaluate(system, 2, 5)
    assert seen[-1] == ("valid", 0, 1)


def test_loss_is_the_weighted_mean(system):
    large = Measured(torch.full((4, 6), 2.0), torch.ones(4, 6))
    values = {4: large, 1: Measured(torch.tensor([[8.0]]), torch.tensor([[3.0]]))}
    system.loss = lambda prediction, noised: values[len(noised.x0)]
    assert evaluate(system, 5, 4)["loss"] == pytest.approx((2 * 24 + 8 * 3) / 27)


def test_stopped_evaluation(system):
    answers = iter([False, True])
    assert evaluate(system, 13, 4, stopped=lambda: next(answers)) is None
    assert system.training


def test_timeless_process(system, monkeypatch):
    times, corrupt = [], system.process.corrupt
    monkeypatch.setattr(
        system.process,
        "corrupt",
        lambda clean, t: times.extend(t.tolist()) or corrupt(clean, t),
    )
    monkeypatch.setattr(system.process, "fixed_time", 0.25, raising=False)
    evaluate(system, 7, 5)
    assert times == [0.25] * 7
    monkeypatch.setattr(system.process, "fixed_time", None)
    evaluate(system, 7, 5)
    assert len(set(times[7:])) == 7


def population(rng, samples):
    """Totals correlated with weights: longer samples cost more per token. The true ratio is 2.6."""
    weights = rng.integers(1, 6, samples).astype(float)  # mean 3, mean square 11
    return weights * (
        1.5 + 0.3 * weights + rng.exponential(1.0, samples) - 1.0
    ), weights


TRUE = 1.5 + 0.3 * 11 / 3


def test_coverage():
    rng, repetitions, samples = np.random.default_rng(5), 2000, 200
    inside = 0
    for _ in range(repetitions):
        above, below = map(torch.from_numpy, population(rng, samples))
        inside += abs(float(above.sum() / below.sum()) - TRUE) <= half_width(
            above, below
        )
    # binomial standard deviation 0.5 %; few samples of a skewed distribution cover slightly less
    assert 0.935 <= inside / repetitions <= 0.965


def test_equal_weights_give_the_interval_of_a_mean():
    values = torch.randn(
        300, generator=torch.Generator().manual_seed(0), dtype=torch.float64
    )
    expected = NORMAL_95 * float(values.std()) / math.sqrt(300)
    weights = torch.full((300,), 4.0, dtype=torch.float64)
    assert half_width(values * 4, weights) == pytest.approx(expected, rel=0.1)
    # What stratified times explain is no part of the interval.
    trend = torch.linspace(0, 50, 300, dtype=torch.float64)
    found = half_width((values + trend) * 4, weights)
    assert found == pytest.approx(half_width(values * 4, weights), rel=0.1)


def test_the_interval_of_a_mean_holds_for_sorted_samples():
    values = torch.linspace(0, 1, 300, dtype=torch.float64)
    expected = NORMAL_95 * float(values.std()) / math.sqrt(300)
    assert mean_half_width(values) == pytest.approx(expected, rel=0.01)
    assert math.isnan(mean_half_width(values[:1]))


def test_intervals_of_sorted_samples_at_a_fixed_time():
    """The variance among neighbours of a sorted data set would be nearly 0."""
    values = torch.linspace(0, 1, 300, dtype=torch.float64)
    intervals = Intervals(300)
    intervals.add_times(range(300), torch.full((300,), 0.5))
    intervals.sums["nats"] = torch.stack([values, torch.ones_like(values)])
    expected = mean_half_width(values)
    assert intervals.compute()["nats_ci95"] == pytest.approx(expected, rel=0.15)


def test_quantiles_of_student():
    """From tables."""
    freedom = torch.tensor([1, 2, 3, 5, 30]).double()
    expected = torch.tensor([12.706, 4.303, 3.182, 2.571, 2.042]).double()
    assert torch.allclose(student_quantiles(freedom), expected, rtol=0.02)


def test_zero_weights_and_single_samples():
    above, below = torch.tensor([1.0, 2.0, 4.0]).double(), torch.ones(3).double()
    padded = [torch.cat([x, torch.zeros(9).double()]) for x in (above, below)]
    assert half_width(*padded) == half_width(above, below)
    assert math.isnan(half_width(above[:1], below[:1]))
    assert math.isnan(half_width(torch.zeros(3).double(), torch.zeros(3).double()))


class Words(Metrics):
    """Mean loss with sums per sample."""

    def __init__(self):
        self.sums = torch.zeros(2, dtype=torch.float64)

    def update(self, clean, noised, pred, measured):
        self.sums += torch.stack(
            [measured.total().double(), measured.weights.sum().double()]
        )

    def per_sample(self, clean, measured):
        return {
            "nats": (
                (measured.values * measured.weights).sum(1),
                measured.weights.sum(1),
            )
        }

    def compute(self):
        return {"nats": float(self.sums[0] / self.sums[1])}


@pytest.fixture
def sample_system(load, monkeypatch):
    """A system whose loss depends on the sample alone."""
    system = Diffusion.build(load().experiment)
    weights = torch.arange(1.0, 7.0)

    def loss(prediction, noised):
        values = noised.x0.double().square() + 1
        return Measured(values, weights.double().expand(values.shape))

    system.loss = loss
    monkeypatch.setattr(system.task, "metrics", Words)
    return system


@pytest.mark.parametrize("repeats", [1, 3])
def test_interval_does_not_depend_on_the_batch_size(
    sample_system, repeats, monkeypatch
):
    # Samples are in order of their times.
    monkeypatch.setattr(torch, "randperm", lambda n, **_: torch.arange(n))
    sample_system.process.times = lambda n: torch.linspace(0.1, 1, n)
    found = [evaluate(sample_system, 13, size, repeats) for size in (1, 4, 5, 13)]
    x0 = sample_system.task.batch("valid", range(13)).x0.double()
    nats = ((x0.square() + 1) * torch.arange(1.0, 7.0)).sum(1)
    expected = half_width(nats, torch.full((13,), 21.0, dtype=torch.float64))
    assert expected > 0
    for figures in found:
        assert figures["nats"] == pytest.approx(float(nats.sum() / 21 / 13))
        assert figures["nats_ci95"] == pytest.approx(expected)


@pytest.fixture
def blind(monkeypatch):
    """Let the process take nothing away from the samples of some splits, from the first or from a later one on."""

    def blinded(experiment, *splits, but=None):
        task, process = (
            type(experiment.task.build()),
            type(experiment.process.build(experiment.task.space())),
        )
        batch, corrupt, now = task.batch, process.corrupt, []

        def watched(self, split, rows):
            now[:] = [split in splits and (but is None or but not in rows)]
            return batch(self, split, rows)

        def hidden(self, clean, t):
            noised = corrupt(self, clean, t)
            return (
                replace(noised, target_mask=torch.zeros_like(noised.target_mask))
                if now == [True]
                else noised
            )

        monkeypatch.setattr(task, "batch", watched)
        monkeypatch.setattr(process, "corrupt", hidden)
        return experiment

    return blinded


@pytest.mark.parametrize("splits", [(), ("train",), ("valid",), ("train", "valid")])
def test_each_split_is_reported(load, blind, splits):
    experiment = blind(load().experiment, *splits)
    lines = list(data_warnings(experiment, Diffusion.build(experiment)))
    assert [
        split
        for line in lines
        for split in ("train", "valid")
        if f"samples of the {split} split" in line
    ] == [*splits]


def test_has_targets_covers_all_samples(load, blind):
    system = Diffusion.build(blind(load().experiment, "valid", but=12))
    assert has_targets(system, 13, 4)
    assert not has_targets(system, 12, 4), "the last one is out of reach"
    assert has_targets(system, 12, 4, split="train")
