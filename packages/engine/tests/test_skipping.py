"""Steps and weights with NaN or inf: skipped on request, otherwise the run stops, and nothing of them is kept."""

import copy
import io
import json
import math

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file

from dither.engine.files.metrics_file import read_metrics
from dither.engine.runs.launch import DONE, NON_FINITE, run
from dither.engine.training.batches import SampleOrder
from dither.engine.training.nan_guard import NonFinite, all_finite

BAD = 3
"""The first step, from 0, that reads the poisoned sample; with 40 samples in batches of 8 every fifth step does."""
ROW = SampleOrder(40, 3).rows(8 * BAD + 5, 1)[0]
SKIP = (f"task.poison={ROW}", "train.non_finite=skip")


@pytest.fixture
def start(load, tmp_path):
    def started(*changes, resume=None):
        console = Console(record=True, width=200, file=io.StringIO())
        path = None if resume is None else resume / "resolved.toml"
        code = run(load(*changes, path=path), tmp_path / "runs", console=console, resume=resume)
        newest = resume or max((tmp_path / "runs").iterdir(), key=lambda path: path.stat().st_ctime_ns)
        return code, newest, console.export_text()

    return started


def overflow(trainer):
    """Make all gradients of the head infinite; returns the handle of the hook."""
    return trainer.system.model.head.weight.register_hook(lambda gradient: gradient * torch.inf)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_skipped_step_changes_nothing(make_trainer, accumulate):
    """A trainer that skips a step equals one whose step counter is advanced by hand."""
    trainer, other = (make_trainer(*SKIP, f"train.accumulate={accumulate}") for _ in range(2))
    messages = []
    trainer.skips.on_skip = messages.append
    for _ in range(BAD):
        trainer.advance()
        other.advance()
    before = copy.deepcopy((trainer.system.model.state_dict(), trainer.average.module.state_dict()))
    assert trainer.advance()["loss"].isnan()
    after = trainer.system.model.state_dict(), trainer.average.module.state_dict()
    assert all(torch.equal(old[key], new[key]) for old, new in zip(before, after, strict=True) for key in old)
    assert (trainer.step, trainer.average.updates) == (BAD + 1, BAD)
    (message,) = messages
    assert message.endswith(f"faulty training samples: {ROW}; skipped (1 in a row, at most 10)")
    other.step += 1
    for one in (trainer, other):
        one.advance()
        assert one.optimizer.param_groups[0]["lr"] == 0.02 * one.factor(BAD + 1)
    for mine, theirs in zip(trainer.parameters, other.parameters, strict=True):
        assert torch.equal(mine, theirs)
    metrics = trainer.pop_metrics()
    assert metrics["skipped"] == 1
    assert metrics == pytest.approx(other.pop_metrics() | {"skipped": 1})
    assert trainer.pop_metrics()["skipped"] == 0


def test_skip_limit_in_a_row(make_trainer):
    trainer = make_trainer("train.non_finite=skip", "train.skip_limit=2")
    hook = overflow(trainer)
    trainer.advance()
    trainer.advance()
    hook.remove()
    trainer.advance()
    overflow(trainer)
    trainer.advance()
    trainer.advance()
    with pytest.raises(NonFinite) as caught:
        trainer.advance()
    assert caught.value.step == trainer.step == 5
    assert "train.skip_limit = 2" in caught.value.__notes__[0]
    assert trainer.pop_metrics()["skipped"] == 4


@pytest.mark.parametrize("updates", [0, 2])
def test_nonfinite_weights_are_not_skipped(make_trainer, updates):
    """All later steps would be skipped; the error names the last update, not the steps skipped since."""
    trainer = make_trainer("train.non_finite=skip")
    for _ in range(updates):
        trainer.advance()
    hook = overflow(trainer)
    trainer.advance()
    hook.remove()
    with torch.no_grad():
        trainer.parameters[0].fill_(torch.inf)
    with pytest.raises(NonFinite, match=f"step {updates}: the update" if updates else "initial weights") as caught:
        trainer.advance()
    assert caught.value.weights
    assert caught.value.step == updates - 1
    assert trainer.skips.counted == 1


def test_metrics_of_skipped_steps_only_are_nan(make_trainer):
    trainer = make_trainer("train.non_finite=skip")
    overflow(trainer)
    trainer.advance()
    metrics = trainer.pop_metrics()
    assert metrics["skipped"] == 1
    assert math.isnan(metrics["loss"])
    assert math.isnan(metrics["grad_norm"])


def test_resumed_run_with_skipped_steps_equals_an_uninterrupted_one(start):
    small = ("train.checkpoint_every=4", "train.log_every=2", "evaluate.every=99", "sample.count=0",
             "train.lr_schedule=constant")  # fmt: skip
    code, whole, text = start(*SKIP, *small, "train.steps=12")
    assert code == DONE
    bad = [step for step in range(12) if ROW in SampleOrder(40, 3).rows(8 * step, 8)]
    lines = [line for line in read_metrics(whole / "metrics.jsonl") if line["kind"] == "train"]
    assert sum(line["skipped"] for line in lines) == len(bad) == text.count("; skipped (")
    assert len(bad) >= 2
    assert all(line["loss"] is not None for line in lines)

    code, half, _ = start(*SKIP, *small, "train.steps=4")
    for steps in (5, 12):
        code, *_ = start(f"train.steps={steps}", resume=half)
        assert code == DONE
    for name in ("model", "average", "optimizer"):
        file = f"checkpoints/step-00000012/{name}.safetensors"
        assert (half / file).read_bytes() == (whole / file).read_bytes(), name


def test_stopped_run_resumes_with_skipping(start):
    code, path, _ = start(f"task.poison={ROW}", "train.steps=6", "sample.count=0", "train.checkpoint_every=1")
    assert code == NON_FINITE
    code, *_ = start("train.non_finite=skip", resume=path)
    assert code == DONE
    assert json.loads((path / "summary.json").read_text())["step"] == 6


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_all_finite(bad):
    tensors = [torch.full((3, 2), 3e38), torch.zeros(0), torch.full((5,), -3e38), torch.tensor(1.0)]
    assert all_finite(tensors)
    assert all_finite([])
    for at, tensor in enumerate(tensors):
        if tensor.numel():
            changed = tensor.flatten().index_fill(0, torch.tensor([0]), bad)
            assert not all_finite([*tensors[:at], changed, *tensors[at:]])


@pytest.mark.parametrize(
    ("lr", "message"),
    [
        ("1e39", "step 1: the update made weights NaN or inf"),
        ("1e20", "step 2: loss is nan, gradient norm is nan; the weights were not updated; training samples of the"),
    ],
)
def test_too_large_a_learning_rate_is_not_blamed_on_samples(start, lr, message):
    """After the update the loss of every sample is NaN."""
    code, path, text = start(f"train.optimizer.lr={lr}", "train.lr_schedule=constant", "train.checkpoint_every=1")
    assert code == NON_FINITE
    assert message in text
    assert "faulty" not in text
    if lr == "1e39":
        assert not list(path.glob("checkpoints/step-*"))


def test_saved_checkpoints_are_finite(start):
    code, path, _ = start("train.optimizer.lr=1e37", "train.checkpoint_every=1", "train.keep=9", "train.clip=0")
    assert code == NON_FINITE
    for weights in path.glob("checkpoints/*/model.safetensors"):
        assert all_finite(load_file(weights).values())
