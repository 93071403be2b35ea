"""Memory counted before a run, and recognising a full disk and exhausted memory, also as the cause of another error."""

import errno

import pytest
import torch

from dither.engine.config import machine_memory
from dither.engine.config.machine_memory import total_memory
from dither.engine.files.resource_errors import shortage
from dither.engine.training import model_summary
from dither.engine.training.diffusion import Diffusion
from dither.engine.training.model_summary import (
    build_on_meta,
    memory_needs,
    require_memory,
)
from dither.engine.training.trainer import Trainer

CHANGES = {
    "adamw": (),
    "muon": ("train.optimizer=muon",),
    "adamw-8bit": ("train.optimizer=adamw-8bit",),
    "no EMA": ("train.ema=0",),
    "freeze": ("train.freeze=['table.*']",),
    "lora": ("train.lora={rank=2, on=['body'], whole=['head.*']}",),
}


@pytest.mark.parametrize("changes", CHANGES.values(), ids=CHANGES)
def test_needs_equal_the_tensors_of_a_trainer_after_a_step(load, changes):
    experiment = load(*changes).experiment
    trainer = Trainer(Diffusion.build(experiment), experiment.train, 0)
    trainer.advance()
    model = trainer.system.model
    tensors = {
        "weights": [*model.parameters(), *model.buffers()],
        "gradients": [p.grad for p in model.parameters() if p.grad is not None],
        "optimizer state": [
            value
            for part in getattr(trainer.optimizer, "parts", (trainer.optimizer,))
            for state in part.state.values()
            for value in state.values()
            if isinstance(value, torch.Tensor)
        ],
    }
    needs = memory_needs(experiment, build_on_meta(experiment))
    assert {
        name: sum(t.nbytes for t in held) for name, held in tensors.items()
    }.items() <= needs.items()
    assert needs.get("EMA", 0) == (0 if experiment.train.ema == 0 else needs["weights"])


def test_a_model_that_exceeds_the_memory_is_refused(load, refusal):
    experiment = load().experiment
    needs = sum(memory_needs(experiment, build_on_meta(experiment)).values())
    require_memory(experiment, room=needs)
    require_memory(experiment, shards=2, room=needs // 2)
    info = refusal(require_memory, experiment, room=needs - 1)
    assert [(p.code, p.path) for p in info.problems] == [("out-of-memory", ("model",))]


@pytest.mark.parametrize(
    "limit", [("room", 100), ("tensors", 1)], ids=lambda limit: limit[0]
)
def test_building_stops_at_the_limit(load, monkeypatch, limit, refused):
    if limit[0] == "tensors":
        monkeypatch.setattr(model_summary, "MAX_TENSORS", limit[1])
    with refused("out-of-memory"):
        build_on_meta(load().experiment, limit[1] if limit[0] == "room" else None)


def test_the_memory_limit_of_a_container_counts(tmp_path, monkeypatch):
    files = {
        "proc/self/cgroup": "0::/job\n",
        "sys/job/memory.max": "4096",
        "sys/memory.max": "max",
    }
    for name, value in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(value)
    monkeypatch.setattr(machine_memory, "CONTROL", tmp_path / "sys")
    monkeypatch.setattr(machine_memory, "PROCESSES", tmp_path / "proc")
    total_memory.cache_clear()
    try:
        assert total_memory() == 4096
    finally:
        total_memory.cache_clear()


FULL = OSError(errno.ENOSPC, "No space left on device", "a.csv")
OOM = "out of memory: DefaultCPUAllocator: can't allocate memory\n  help: lower train.batch_size"


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (FULL, str(FULL)),
        (MemoryError(), "out of memory"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), OOM),
        (OSError(errno.EMFILE, "Too many open files"), None),
        (ValueError("x"), None),
    ],
)
def test_shortage(error, message):
    outer = RuntimeError("a component failed")
    outer.__cause__ = ValueError("inner")
    outer.__cause__.__cause__ = error
    for each in (error, outer):
        found = shortage(each)
        assert found is None if message is None else found.startswith(message)
