"""`dither bench`: phases and rates."""

import json
import time

import pytest
import torch

from dither.engine.cli import benchmark
from dither.engine.cli.benchmark import timed_phases
from dither.engine.training.diffusion import Diffusion
from dither.engine.training.trainer import Trainer


@pytest.fixture
def trainer(load):
    experiment = load().experiment
    return Trainer(Diffusion.build(experiment), experiment.train, experiment.seed)


def slow(work, seconds):
    def slowed(*arguments, **named):
        time.sleep(seconds)
        return work(*arguments, **named)

    return slowed


def test_time_is_attributed_to_its_phase(trainer, monkeypatch):
    """Slow each phase down by a different amount."""
    task = trainer.system.task
    monkeypatch.setattr(task, "batch", slow(task.batch, 0.02))
    trainer.system.loss = slow(trainer.system.loss, 0.02)
    trainer.parameters[0].register_hook(lambda gradient: time.sleep(0.03))
    trainer.optimizer.step = slow(trainer.optimizer.step, 0.05)
    with timed_phases(trainer) as step:
        parts = [step() for _ in range(3)]
    least = {phase: min(part[phase] for part in parts) for phase in parts[0]}
    assert set(least) == {
        "data",
        "forward",
        "backward",
        "optimizer",
    }  # accumulate = 2: forward and backward twice
    for phase, seconds in {
        "data": 0.02,
        "forward": 0.04,
        "backward": 0.06,
        "optimizer": 0.05,
    }.items():
        assert seconds <= least[phase] < seconds + 0.02, phase


@pytest.mark.parametrize(("rate", "size"), [(1e8, 256), (1e12, 1024)])
def test_peak_is_measured_by_products_that_take_a_moment(monkeypatch, rate, size):
    """float16 is emulated on many CPUs, at a thousandth of the rate."""
    sizes = []

    def timed(work, device):
        sizes.append(len(work()))
        return 2 * sizes[-1] ** 3 / rate

    monkeypatch.setattr(benchmark, "timed", timed)
    device = torch.device("cpu")
    assert benchmark.peak_flops(device, "float32") == pytest.approx(rate)
    assert max(sizes) == size


def test_bench_is_consistent(experiment_file, cli, monkeypatch, console):
    monkeypatch.setenv("DITHER_PLUGINS", "engine")
    options = [
        "--steps",
        "4",
        "--repeats",
        "2",
        "--set",
        "train.accumulate=1",
        "--json",
    ]
    result = json.loads(cli("bench", str(experiment_file), *options).out)
    assert (
        result["step_seconds_least"]
        <= result["step_seconds"]
        <= result["step_seconds_most"]
    )
    assert result["samples_per_second"] == pytest.approx(8 / result["step_seconds"])
    assert result["positions_per_second"] == pytest.approx(48 / result["step_seconds"])
    assert set(result["phases"]) == {"data", "forward", "backward", "optimizer"}
    assert all(seconds > 0 for seconds in result["phases"].values())
    assert result["memory"]["weights"] == 285 * 4 == result["memory"]["average"]
    assert result["memory"]["peak_rss"] > 1e7
    assert (
        0
        < result["mfu"]
        == result["flops_per_step"] / result["step_seconds"] / result["peak_flops"]
        < 1
    )
    benchmark.show_bench(console, result)
    text = console.export_text()
    assert "valid positions/s" in text
    phases = dict.fromkeys(result["phases"], 1.0) | {"optimizer": 2.0}
    result |= {"phases": phases, "shares": benchmark.shares(phases), "mfu": 0.1}
    assert len(list(benchmark.advice(result))) == 3
