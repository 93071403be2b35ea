import copy
import math

import pytest
import torch
from torch import nn

from dither.engine.config.options import Train
from dither.engine.optimizers.components import AdamW
from dither.engine.optimizers.lr_schedules import Constant
from dither.engine.sampling.session import draw
from dither.engine.training.batches import SampleOrder
from dither.engine.training.diffusion import Diffusion
from dither.engine.training.nan_guard import FiniteGuard, NonFinite
from dither.engine.training.randomness import Stream, seed_generators
from dither.engine.training.trainer import Trainer
from dither.registry.config.errors import Refused

CPU = torch.device("cpu")


def weights(trainer):
    return [p.detach().clone() for p in trainer.system.model.parameters()]


@pytest.mark.parametrize("accumulate", [1, 4])
def test_step_is_adamw_on_the_weighted_mean(make_trainer, accumulate):
    """Also with gradient accumulation over micro-batches of different weight."""
    trainer = make_trainer(
        f"train.accumulate={accumulate}", "train.lr_schedule=constant", "train.clip=1e9", "model.dropout=0.0"
    )
    model = copy.deepcopy(trainer.system.model)
    reference, optimizer = trainer.system.with_model(model), AdamW(lr=0.02).build(model)
    for step in range(3):
        metrics = trainer.advance()

        seed_generators(CPU, Stream.STEP, trainer.seed, step, 0)
        measured = reference(reference.task.batch("train", trainer.rows(step)))
        loss = measured.total() / measured.weights.sum()
        optimizer.zero_grad()
        loss.backward()
        norm = math.sqrt(sum(p.grad.square().sum().item() for p in model.parameters()))
        optimizer.step()

        assert metrics["loss"].item() == pytest.approx(loss.item(), rel=1e-6)
        assert metrics["grad_norm"].item() == pytest.approx(norm, rel=1e-5)
        for mine, expected in zip(weights(trainer), model.parameters(), strict=True):
            torch.testing.assert_close(mine, expected.detach(), rtol=1e-4, atol=1e-5)


def test_epoch_has_every_sample_once_with_new_noise(make_trainer, monkeypatch):
    trainer = make_trainer("train.accumulate=1")
    taken, times = [], []
    system = trainer.system
    batch, corrupt = system.task.batch, system.process.corrupt
    monkeypatch.setattr(system.task, "batch", lambda split, rows: taken.extend(rows) or batch(split, rows))
    monkeypatch.setattr(system.process, "corrupt", lambda clean, t: times.extend(t.tolist()) or corrupt(clean, t))
    for _ in range(5):
        trainer.advance()
    assert sorted(taken) == list(range(40))
    assert len(set(times)) == 40


def test_learning_rate_follows_the_schedule(make_trainer):
    trainer = make_trainer()
    seen = []
    for step in range(20):
        trainer.advance()
        seen.append(trainer.optimizer.param_groups[0]["lr"])
        assert trainer.optimizer.param_groups[-1]["lr"] == seen[-1]
        assert seen[-1] == pytest.approx(0.02 * trainer.factor(step))
    assert seen[0] == pytest.approx(0.02 / 3)
    assert max(seen) == 0.02


def test_step_is_independent_of_earlier_draws(make_trainer):
    one, other = make_trainer(), make_trainer()
    for trainer in (one, other):
        trainer.advance()
        if trainer is other:
            torch.randn(5)
            draw(trainer.system, trainer.system.task.like(2, 0), 0)
        trainer.advance()
    assert all(torch.equal(a, b) for a, b in zip(weights(one), weights(other), strict=True))
    third = make_trainer("seed=4")
    assert third.rows(0) != one.rows(0)


def test_pop_metrics_returns_means(make_trainer):
    trainer = make_trainer("train.accumulate=1")
    totals = []
    for _ in range(3):
        metrics = trainer.advance()
        totals.append((trainer.sums.tolist(), metrics["grad_norm"].item()))
    sums, _ = totals[-1]
    means = trainer.pop_metrics()
    assert means["loss"] == pytest.approx(sums[0] / sums[1])
    assert means["grad_norm"] == pytest.approx(sum(norm for _, norm in totals) / 3)
    metrics = trainer.advance()
    assert trainer.pop_metrics()["loss"] == pytest.approx(metrics["loss"].item(), rel=1e-6)


BAD = 3
"""The step that meets the poisoned sample."""
ROW = SampleOrder(40, 3).rows(8 * BAD + 5, 1)[0]


@pytest.mark.parametrize("accumulate", [1, 2])
def test_nan_stops_before_the_update_and_names_the_sample(make_trainer, accumulate):
    trainer = make_trainer(f"task.poison={ROW}", f"train.accumulate={accumulate}")
    for _ in range(BAD):
        trainer.advance()
    before, average = weights(trainer), copy.deepcopy(trainer.average.state_dict())
    with pytest.raises(NonFinite) as caught:
        trainer.advance()
    assert all(torch.equal(a, b) for a, b in zip(before, weights(trainer), strict=True))
    assert all(torch.equal(average[key], value) for key, value in trainer.average.state_dict().items())
    assert trainer.step == BAD
    assert (caught.value.step, caught.value.rows, caught.value.certain) == (BAD, [ROW], True)
    assert f"step {BAD + 1}: loss is nan" in str(caught.value)
    assert str(caught.value).endswith(f"faulty training samples: {ROW}")


def test_infinite_gradient_stops(make_trainer):
    trainer = make_trainer()
    trainer.system.model.head.weight.register_hook(lambda gradient: gradient * math.inf)
    before = weights(trainer)
    with pytest.raises(NonFinite) as caught:
        trainer.advance()
    assert all(torch.equal(a, b) for a, b in zip(before, weights(trainer), strict=True))
    assert caught.value.rows == trainer.rows(0)
    assert not caught.value.certain
    assert math.isfinite(caught.value.loss)


def test_deferred_guard_cancels_updates(make_trainer):
    """As on a GPU: the host checks occasionally and finds the weights from before the bad step."""
    trainer = make_trainer(f"task.poison={ROW}")
    trainer.advance()
    trainer.guard = FiniteGuard(trainer.optimizer, CPU, deferred=True)
    trainer.guard.start(1)
    for _ in range(BAD - 1):
        trainer.advance()
    trainer.check()
    before = weights(trainer)
    for _ in range(3):
        trainer.advance()
    assert all(torch.equal(a, b) for a, b in zip(before, weights(trainer), strict=True))
    with pytest.raises(NonFinite) as caught:
        trainer.pop_metrics()
    assert (caught.value.step, caught.value.rows) == (BAD, [ROW])


def test_deferred_guard_does_not_change_finite_steps(make_trainer):
    plain, deferred = make_trainer(), make_trainer()
    deferred.guard = FiniteGuard(deferred.optimizer, CPU, deferred=True)
    for trainer in (plain, deferred):
        for _ in range(4):
            trainer.advance()
    assert all(torch.equal(a, b) for a, b in zip(weights(plain), weights(deferred), strict=True))
    assert plain.pop_metrics() == pytest.approx(deferred.pop_metrics()), "one sums on the host in float64"


def test_guard_synchronizes_without_found_inf():
    net = nn.Linear(2, 2)
    assert not FiniteGuard(torch.optim.SGD(net.parameters(), 0.1), torch.device("meta")).deferred
    assert FiniteGuard(AdamW().build(net), torch.device("meta")).deferred
    assert not FiniteGuard(AdamW().build(net), CPU).deferred


def test_no_training_samples(make_trainer):
    with pytest.raises(Refused) as refused:
        make_trainer("task.size=0")
    assert refused.value.codes == ["no-samples"]


def test_training_learns(load):
    experiment = load("model.dropout=0.0", "model.width=32").experiment
    system = Diffusion.build(experiment)
    train = Train(steps=150, batch_size=32, optimizer=AdamW(lr=0.02), lr_schedule=Constant(), ema=0.0)
    trainer = Trainer(system, train, 0)
    for _ in range(10):
        trainer.advance()
    early = trainer.pop_metrics()["loss"]
    for _ in range(140):
        trainer.advance()
    assert trainer.average is None
    assert trainer.pop_metrics()["loss"] < 0.9 * early
