"""Steps whose loss or gradient is no number are passed over, where that is asked for: nothing of them stays."""

import copy
import io
import json
import math

import pytest
import torch
from rich.console import Console

from dither.engine.files.metrics_file import read_metrics
from dither.engine.runs.launch import DONE, NON_FINITE, run
from dither.engine.training.batches import SampleOrder
from dither.engine.training.diffusion import Diffusion
from dither.engine.training.nan_guard import NonFinite, NonFiniteWeights
from dither.engine.training.trainer import Trainer

BAD = 3
"""The step, from 0, that meets the poisoned sample first; with 40 samples in batches of 8 it comes in every fifth."""
ROW = SampleOrder(40, 3).rows(8 * BAD + 5, 1)[0]
SKIP = (f"task.poison={ROW}", "train.non_finite=skip")


@pytest.fixture
def make(load):
    def made(*changes):
        experiment = load(*changes).experiment
        return Trainer(Diffusion.build(experiment), experiment.train, experiment.seed)

    return made


@pytest.fixture
def start(load, tmp_path):
    def started(*changes, resume=None):
        console = Console(record=True, width=200, file=io.StringIO())
        path = None if resume is None else resume / "resolved.toml"
        code = run(load(*changes, path=path), tmp_path / "runs", console=console, resume=resume)
        newest = resume or max((tmp_path / "runs").iterdir(), key=lambda path: path.stat().st_ctime_ns)
        return code, newest, console.export_text()

    return started


def bad_steps(steps):
    return [step for step in range(steps) if ROW in SampleOrder(40, 3).rows(8 * step, 8)]


@pytest.mark.parametrize("parts", [1, 2])
def test_a_skipped_step_leaves_weights_average_and_optimizer_and_the_next_is_as_ever(make, parts):
    """The trainer that skips equals one that is put past the step by hand; rate and order follow from the step."""
    trainer, other = (make(*SKIP, f"train.accumulate={parts}") for _ in range(2))
    told = []
    trainer.skips.on_skip = told.append
    for _ in range(BAD):
        trainer.advance()
        other.advance()
    before = copy.deepcopy((trainer.system.model.state_dict(), trainer.average.module.state_dict()))
    assert trainer.advance()["loss"].isnan()
    after = trainer.system.model.state_dict(), trainer.average.module.state_dict()
    assert all(torch.equal(old[key], new[key]) for old, new in zip(before, after, strict=True) for key in old)
    assert (trainer.step, trainer.average.updates) == (BAD + 1, BAD)
    assert told == [f"{told[0].partition(';')[0]}; the weights were not changed by it; the training samples at fault "
                    f"are {ROW}; it is skipped, 1 in a row of at most 10"]  # fmt: skip
    other.step += 1
    for one in (trainer, other):
        one.advance()
        assert one.optimizer.param_groups[0]["lr"] == 0.02 * one.factor(BAD + 1)
    for mine, theirs in zip(trainer.parameters, other.parameters, strict=True):
        assert torch.equal(mine, theirs)
    read = trainer.pop_metrics()
    assert read["skipped"] == 1
    assert read == pytest.approx(other.pop_metrics() | {"skipped": 1})
    assert trainer.pop_metrics()["skipped"] == 0


def test_too_many_in_a_row_stop_the_run(make):
    trainer = make("train.non_finite=skip", "train.skip_limit=2")
    handle = trainer.system.model.head.weight.register_hook(lambda gradient: gradient * torch.inf)
    trainer.advance()
    trainer.advance()
    handle.remove()
    trainer.advance()
    trainer.system.model.head.weight.register_hook(lambda gradient: gradient * torch.inf)
    trainer.advance()
    trainer.advance()
    with pytest.raises(NonFinite) as caught:
        trainer.advance()
    assert caught.value.step == trainer.step == 5
    assert caught.value.__notes__ == ["it is the last of 3 such steps in a row; train.skip_limit = 2"]
    assert trainer.pop_metrics()["skipped"] == 4


@pytest.mark.parametrize("updates", [0, 2])
def test_weights_that_an_update_destroyed_are_not_skipped(make, updates):
    """Every step after it would be; the one that made it is named, though others were skipped since."""
    trainer = make("train.non_finite=skip")
    for _ in range(updates):
        trainer.advance()
    handle = trainer.system.model.head.weight.register_hook(lambda gradient: gradient * torch.inf)
    trainer.advance()
    handle.remove()
    with torch.no_grad():
        trainer.parameters[0].fill_(torch.inf)
    with pytest.raises(NonFiniteWeights, match=f"step {updates}: its update" if updates else "began with") as caught:
        trainer.advance()
    assert caught.value.step == updates - 1
    assert trainer.skips.counted == 1


def test_a_whole_interval_that_was_skipped_has_no_loss(make):
    trainer = make("train.non_finite=skip")
    trainer.system.model.head.weight.register_hook(lambda gradient: gradient * torch.nan)
    trainer.advance()
    read = trainer.pop_metrics()
    assert read["skipped"] == 1
    assert math.isnan(read["loss"])
    assert math.isnan(read["grad_norm"])


def test_a_run_says_how_many_were_skipped_and_ends_the_same_however_often_it_is_resumed(start):
    small = ("train.checkpoint_every=4", "train.log_every=2", "evaluate.every=99", "sample.count=0",
             "train.lr_schedule=constant")  # fmt: skip
    code, whole, text = start(*SKIP, *small, "train.steps=12")
    assert code == DONE
    lines = [line for line in read_metrics(whole / "metrics.jsonl") if line["kind"] == "train"]
    assert len(bad_steps(12)) >= 2
    assert sum(line["skipped"] for line in lines) == len(bad_steps(12)) == text.count("it is skipped")
    assert all(line["loss"] is not None for line in lines)

    code, half, _ = start(*SKIP, *small, "train.steps=4")
    for steps in (5, 12):
        code, *_ = start(f"train.steps={steps}", resume=half)
        assert code == DONE
    for name in ("model", "average", "optimizer"):
        file = f"checkpoints/step-00000012/{name}.safetensors"
        assert (half / file).read_bytes() == (whole / file).read_bytes(), name


def test_a_run_that_stopped_goes_on_where_skipping_is_asked_for(start):
    code, path, _ = start(f"task.poison={ROW}", "train.steps=6", "sample.count=0", "train.checkpoint_every=1")
    assert code == NON_FINITE
    code, *_ = start("train.non_finite=skip", resume=path)
    assert code == DONE
    assert json.loads((path / "summary.json").read_text())["step"] == 6
