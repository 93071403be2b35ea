import itertools

import pytest
import torch

from dither.engine.training.diffusion import Diffusion
from dither.engine.training.evaluation import evaluate
from dither.registry.flow.records import Measured


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
    monkeypatch.setattr(system.task, "batch", lambda split, rows: seen.append((split, *rows)) or batch(split, rows))
    monkeypatch.setattr(system.process, "corrupt", lambda clean, t: times.extend(t.tolist()) or corrupt(clean, t))
    evaluate(system, 100, 5)
    assert seen == [("valid", 0, 1, 2, 3, 4), ("valid", 5, 6, 7, 8, 9), ("valid", 10, 11, 12)]
    ordered = sorted(times)
    gaps = [b - a for a, b in itertools.pairwise(ordered)]
    assert max(gaps) == pytest.approx(1 / 13, rel=1e-3), "one time in each stratum of the whole set"
    falls = sum(b < a for a, b in itertools.pairwise(times))
    assert falls > 1, "shuffled"
    evaluate(system, 2, 5)
    assert seen[-1] == ("valid", 0, 1)


def test_noise_is_independent_of_other_draws(system, monkeypatch):
    states, corrupt = [], system.process.corrupt
    loss = system.loss

    def corrupted(clean, t):
        states.append(corrupt(clean, t))
        return states[-1]

    monkeypatch.setattr(system.process, "corrupt", corrupted)
    evaluate(system, 13, 4)
    monkeypatch.setattr(system, "loss", lambda *args: (torch.rand(7), loss(*args))[1])
    evaluate(system, 13, 4)
    assert len(states) == 8
    assert all(torch.equal(a.state.x, b.state.x) for a, b in zip(states[:4], states[4:], strict=True))


def test_loss_is_the_weighted_mean(system):
    large = Measured(torch.full((4, 6), 2.0), torch.ones(4, 6))
    values = {4: large, 1: Measured(torch.tensor([[8.0]]), torch.tensor([[3.0]]))}
    system.loss = lambda prediction, noised: values[len(noised.x0)]
    assert evaluate(system, 5, 4)["loss"] == pytest.approx((2 * 24 + 8 * 3) / 27)


def test_empty_split(system):
    system.task.sizes["valid"] = 0
    assert evaluate(system, 5, 4) == {}


def test_stopped_evaluation(system):
    answers = iter([False, True])
    assert evaluate(system, 13, 4, stopped=lambda: next(answers)) is None
    assert system.training


def test_timeless_process(system, monkeypatch):
    times, corrupt = [], system.process.corrupt
    monkeypatch.setattr(system.process, "corrupt", lambda clean, t: times.extend(t.tolist()) or corrupt(clean, t))
    monkeypatch.setattr(system.process, "fixed_time", 0.25, raising=False)
    evaluate(system, 7, 5)
    assert times == [0.25] * 7
    monkeypatch.setattr(system.process, "fixed_time", None)
    evaluate(system, 7, 5)
    assert len(set(times[7:])) == 7
