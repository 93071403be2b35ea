"""A step as a CUDA graph, without CUDA: its operations are recorded on the simulated GPU and repeated literally."""

import sys
from pathlib import Path

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from dither.engine.config.load_experiment import load_experiment
from dither.engine.training.cuda_graph import WARMUP, StepGraph
from dither.engine.training.diffusion import Diffusion
from dither.engine.training.simulated_gpu import DeviceTrace
from dither.engine.training.trainer import Trainer
from dither.registry.config.errors import Refused
from dither.registry.contracts.records import Clean

ROOT = Path(__file__).parents[3]


class Recorder(TorchDispatchMode):
    """Records operations with their arguments; `replay` repeats them into the same results, as a CUDA graph does."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        self.calls.append((func, args, kwargs or {}, out))
        return out

    @torch.no_grad()
    def replay(self):
        for func, args, kwargs, out in self.calls:
            if not func.is_view:
                for old, new in zip(
                    tree_leaves(out), tree_leaves(func(*args, **kwargs)), strict=True
                ):
                    if isinstance(old, torch.Tensor) and old is not new:
                        old.value.copy_(new.value)


class RecordedGraph(StepGraph):
    """Recording makes the step, so the first replay does nothing."""

    replays = 0
    warm_up = property(lambda self: self.step)

    def capture(self, clean):
        with Recorder() as recorder:
            metrics = self.step(clean)

        def replay():
            if self.replays:
                recorder.replay()
            self.replays += 1

        return metrics, replay


def resumed(trainer, system):
    """Return a trainer that continues with the weights and the state of another."""
    new = Trainer(system, trainer.train, 0)
    new.capture(RecordedGraph(new.update))
    for own, weights in zip(new.parameters, trainer.parameters, strict=True):
        own.value.copy_(weights.value)
    new.load_state(*trainer.state())
    return new


def addresses(trainer):
    state = [value for entry in trainer.optimizer.state.values() for value in entry.values()]
    tensors = [
        *trainer.parameters,
        *(p.grad for p in trainer.parameters),
        *state,
        trainer.guard.alive,
        trainer.sums,
    ]
    return [tensor.value.data_ptr() for tensor in tensors if tensor is not None]


@pytest.mark.parametrize(
    "name", ["get_region/quick", "bubble_diagram/quick", "language_model/quick"]
)
def test_a_captured_step_equals_an_eager_one(name, monkeypatch):
    """Bit by bit, with other batches, noise, dropout and learning rates in each step, and after resuming."""
    monkeypatch.setattr(
        sys.modules["torch.optim.adam"], "_get_capturable_supported_devices", lambda *_: ["meta"]
    )
    changes = [
        "train.batch_size=4",
        "train.precision=float32",
        "train.device=cpu",
        "train.buckets=false",
    ]
    changes += ["task.data.train=8"] if "bubble" in name else []
    experiment = load_experiment(ROOT / f"experiments/{name}.toml", changes).experiment
    half, runs = WARMUP + 2, []
    for captured in (False, True):
        metrics, places = [], []
        with DeviceTrace() as trace:
            trainer = Trainer(trace.move(Diffusion.build(experiment).train()), experiment.train, 0)
            trainer.capture(RecordedGraph(trainer.update) if captured else trainer.update)
            for step in range(2 * half):
                if captured and step == half:
                    trainer = resumed(trainer, trace.move(Diffusion.build(experiment).train()))
                trace.reset()
                metrics.append(
                    {key: value.value.item() for key, value in trainer.advance().items()}
                )
                places.append(addresses(trainer))
                assert step in (0, half) or not trace.syncs
            metrics.append(trainer.pop_metrics())
        runs.append(metrics)
    shapes = trainer.graph._seen  # with and without padding
    assert trainer.graph.replays == sum(max(seen - WARMUP, 0) for seen in shapes.values())
    assert (trainer.graph.replays == 2 and places[-2] == places[-1]) or len(shapes) > 1
    assert runs[0] == runs[1]


def test_conditions_with_strides_of_0_are_copied():
    class Repeated(RecordedGraph):
        def capture(self, clean):
            metrics = self.step(clean)
            return metrics, lambda: metrics["sum"].copy_(self.step(clean)["sum"])

    graph = Repeated(lambda clean: {"sum": clean.cond["a"].sum()})
    batches = [
        Clean.of(torch.zeros(2, 3), a=torch.tensor(float(n)).expand(2)) for n in range(WARMUP + 3)
    ]
    assert [graph(clean)["sum"].item() for clean in batches] == [2 * n for n in range(WARMUP + 3)]
    graph(Clean.of(torch.zeros(2, 3), known=torch.ones(2, 3).bool(), a=torch.zeros(()).expand(2)))
    assert len(graph._seen) == 2, "values are known, so that another graph is captured"


@pytest.mark.parametrize(
    ("change", "what"),
    [("train.optimizer=muon", "Muon"), ("model.checkpointing=true", "checkpointing")],
)
def test_steps_that_cannot_be_captured_are_refused(change, what):
    file = ROOT / "experiments/language_model/quick.toml"
    experiment = load_experiment(file, ["train.device=cpu", change]).experiment
    with DeviceTrace() as trace:
        trainer = Trainer(trace.move(Diffusion.build(experiment)), experiment.train, 0)
        with pytest.raises(Refused, match=what) as refused:
            trainer.capture(StepGraph(trainer.update))
    assert [problem.code for problem in refused.value.problems] == ["misfit"]
