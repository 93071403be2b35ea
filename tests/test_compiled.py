"""Compiled runs: resumed bit-exactly for every task, with the losses of eager runs."""

import io
import shutil
from pathlib import Path

import pytest
import torch
from rich.console import Console

from dither.engine.config.load_experiment import load_experiment
from dither.engine.runs.launch import DONE, run
from dither.engine.training.diffusion import Diffusion
from dither.engine.training.trainer import Trainer

EXPERIMENTS = Path(__file__).parent.parent / "experiments"
SMALL = (
    "model.width=16", "model.depth=1", "model.block.heads=2", "model.block.dropout=0.1",
    "train.batch_size=8", "train.accumulate=2", "train.log_every=1", "train.checkpoint_every=2", "train.device=cpu",
    "evaluate.every=2", "evaluate.samples=6", "evaluate.batch_size=4", "sample.count=0",
)  # fmt: skip
TASKS = {
    "bubble_diagram/quick.toml": ("task.data.train=64", "task.data.valid=16", "task.data.test=8"),
    "get_region/quick.toml": (),
    "language_model/markov.toml": (),
}
pytestmark = [
    pytest.mark.slow,  # raised by torch while it compiles
    pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning"),
]
FILES = ("model.safetensors", "optimizer.safetensors", "state.json")


def trained(file, runs, *changes, resume=None):
    """Train as in a new process, without compiled code; return the run directory."""
    torch.compiler.reset()
    loaded = load_experiment(file, changes)
    assert run(loaded, runs, console=Console(file=io.StringIO()), resume=resume) == DONE
    return next(runs.iterdir())


@pytest.mark.parametrize("name", TASKS)
def test_compiled_run_resumes_bit_exactly(name, tmp_path):
    """Without EMA a resumed run begins with the evaluation, whose shapes must not decide what is compiled."""
    file = tmp_path / "exp.toml"
    file.write_text(f'extends = "{EXPERIMENTS / name}"\n')
    changes = (*SMALL, *TASKS[name], "train.compile=true", "train.ema=0.0", "train.steps=4")
    whole = trained(file, tmp_path / "runs", *changes)
    half = tmp_path / "killed" / whole.name
    shutil.copytree(whole, half)
    shutil.rmtree(half / "checkpoints" / "step-00000004")
    (half / "summary.json").unlink()
    trained(half / "resolved.toml", half.parent, resume=half)
    for part in FILES:
        path = f"checkpoints/step-00000004/{part}"
        assert (half / path).read_bytes() == (whole / path).read_bytes(), part
    assert (half / "metrics.jsonl").read_bytes() == (whole / "metrics.jsonl").read_bytes()


def test_compiled_model_and_blocks_equal_eager(tmp_path):
    name = "bubble_diagram/quick.toml"
    losses = {}
    for compiled in ("false", "true", '"blocks"'):
        torch.compiler.reset()
        changes = (*SMALL, *TASKS[name], f"train.compile={compiled}", "model.block.dropout=0.0")
        experiment = load_experiment(EXPERIMENTS / name, changes).experiment
        trainer = Trainer(Diffusion.build(experiment), experiment.train, experiment.seed)
        losses[compiled] = [trainer.advance()["loss"].item() for _ in range(3)]
        frames = torch._dynamo.utils.counters["stats"].get("unique_graphs", 0) if compiled != "false" else 0
        assert bool(frames) == (compiled != "false")
        torch._dynamo.utils.counters.clear()
    for compiled, found in losses.items():
        assert found == pytest.approx(losses["false"], rel=1e-5), compiled
