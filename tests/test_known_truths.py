"""Small models against known truths, and compiled runs against eager ones."""

import io
import random
import shutil
from collections import Counter
from pathlib import Path

import pytest
import torch
from rich.console import Console

from dither.engine.config.load_experiment import load_experiment
from dither.engine.files.metrics_file import read_metrics
from dither.engine.runs.run import DONE, run
from dither.engine.sampling.samples import make_samples
from dither.engine.training.diffusion import Diffusion
from dither.engine.training.evaluation import evaluate
from dither.engine.training.trainer import Trainer

MARKOV = Path(__file__).parents[1] / "experiments/language_model/markov.toml"
SMALL = [
    "task.length=6", "task.data.states=4", "task.data.length=100000", "task.data.held=24000", "model.width=32",
    "model.depth=2", "train.steps=300", "train.optimizer.lr=8e-3", "train.ema=0.98",
]  # fmt: skip
UNIFORM = [
    "process.use=uniform", "process.predict=posterior", "process.level=log-sigma", "loss=score-entropy",
    "process.schedule={use='geometric', sigma_min=1e-2, sigma_max=10}", "sampler=ancestral",
]  # fmt: skip


pytestmark = [
    pytest.mark.slow,
    # raised by torch while it compiles
    pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning"),
]


def train(experiment):
    """Return the task, and the system with averaged weights."""
    system = Diffusion.build(experiment)
    trainer = Trainer(system, experiment.train, experiment.seed)
    for _ in range(experiment.train.steps):
        trainer.advance()
    return system.task, system.with_model(trainer.average.module).eval()


@pytest.mark.parametrize(
    ("process", "above"), [([], 1.03), (UNIFORM, 1.08)], ids=["absorbing", "uniform"]
)
def test_the_bound_stands_just_above_the_entropy_of_the_source(process, above):
    """The bound never falls below the entropy."""
    task, system = train(load_experiment(MARKOV, [*SMALL, *process]).experiment)
    found = evaluate(system, 4000, 1000, repeats=4)
    known = task.baselines()
    entropy, interval = (
        known["nats_per_token/source-entropy"],
        found["nats_per_token_ci95"],
    )

    assert interval < 0.03 * entropy
    assert entropy - interval < found["nats_per_token"] < above * entropy + interval
    # of the very text, which moves with the sample as the bound does: less room for a bound that is too low
    assert 0.995 * known["nats_per_token/source"] < found["nats_per_token"]
    assert found["nats_per_token"] < 0.97 * known["nats_per_token/unigram"]


ENDED = [
    "task.end_of_text=true", "task.documents=ended", "task.length=4", "task.data.valid=0.05", "task.data.test=0.05",
    "model.width=32", "model.depth=2", "model.block_size=2", "model.block.rope=true", "train.steps=300",
    "train.batch_size=64", "train.optimizer.lr=5e-3", "train.ema=0.98",
    'sampler={use="blocks", size=2, inner="first-hitting", stop=true}',
]  # fmt: skip


def test_drawn_texts_are_as_long_as_documents_are(tmp_path, text_experiment):
    letters = random.Random(0)
    for number in range(500):
        text = "".join(letters.choices("abcdefgh", k=number % 3 + 1))
        (tmp_path / f"{number:03}.txt").write_text(text)
    (tmp_path / "e.toml").write_text(
        text_experiment(str(tmp_path / "*.txt"), tokenizer="chars")
    )
    task, system = train(load_experiment(tmp_path / "e.toml", ENDED).experiment)
    trained, end = task.batch("train", range(task.size("train"))).x0, task.tokenizer.end
    samples = make_samples(system, 600, seed=1).samples
    wanted, drawn = (
        Counter((ids == end).int().argmax(1).tolist()) for ids in (trained, samples)
    )
    assert (samples == end).any(1).float().mean() > 0.98
    for length in (1, 2, 3):
        assert abs(drawn[length] / 600 - wanted[length] / len(trained)) < 0.06


EXPERIMENTS = Path(__file__).parent.parent / "experiments"
COMPILED = (
    "model.width=16", "model.depth=1", "model.block.heads=2", "model.block.dropout=0.1",
    "train.batch_size=8", "train.accumulate=2", "train.log_every=1", "train.checkpoint_every=2", "train.device=cpu",
    "evaluate.every=2", "evaluate.samples=6", "evaluate.batch_size=4", "sample.count=0",
)  # fmt: skip
TASKS = {
    "bubble_diagram/quick.toml": (
        "task.data.train=64",
        "task.data.valid=16",
        "task.data.test=8",
    ),
    "get_region/quick.toml": ("task.rivals=false",),
    "language_model/markov.toml": (),
}
FILES = ("model.safetensors", "optimizer.safetensors", "state.json")


def run_compiled(file, runs, *changes, resume=None):
    """Train as in a new process, without compiled code; return the run directory."""
    torch.compiler.reset()
    loaded = load_experiment(file, changes)
    assert run(loaded, runs, console=Console(file=io.StringIO()), resume=resume) == DONE
    return next(runs.iterdir())


@pytest.mark.parametrize("name", list(TASKS)[:2])
def test_compiled_run_resumes_bit_exactly(name, tmp_path):
    """Without EMA a resumed run begins with the evaluation, whose shapes must not decide what is compiled."""
    file = tmp_path / "exp.toml"
    file.write_text(f'extends = "{EXPERIMENTS / name}"\n')
    changes = (
        *COMPILED,
        *TASKS[name],
        "train.compile=true",
        "train.ema=0.0",
        "train.steps=4",
    )
    whole = run_compiled(file, tmp_path / "runs", *changes)
    half = tmp_path / "killed" / whole.name
    shutil.copytree(whole, half)
    shutil.rmtree(half / "checkpoints" / "step-00000004")
    (half / "summary.json").unlink()
    run_compiled(half / "resolved.toml", half.parent, resume=half)
    for part in FILES:
        path = f"checkpoints/step-00000004/{part}"
        assert (half / path).read_bytes() == (whole / path).read_bytes(), part
    assert read_metrics(half / "metrics.jsonl") == read_metrics(whole / "metrics.jsonl")


def test_compiled_model_and_blocks_equal_eager(tmp_path):
    name = "bubble_diagram/quick.toml"
    losses = {}
    for compiled in ("false", "true", '"blocks"'):
        torch.compiler.reset()
        changes = (
            *COMPILED,
            *TASKS[name],
            f"train.compile={compiled}",
            "model.block.dropout=0.0",
        )
        experiment = load_experiment(EXPERIMENTS / name, changes).experiment
        trainer = Trainer(
            Diffusion.build(experiment), experiment.train, experiment.seed
        )
        losses[compiled] = [trainer.advance()["loss"].item() for _ in range(3)]
        frames = (
            torch._dynamo.utils.counters["stats"].get("unique_graphs", 0)
            if compiled != "false"
            else 0
        )
        assert bool(frames) == (compiled != "false")
        torch._dynamo.utils.counters.clear()
    for compiled, found in losses.items():
        assert found == pytest.approx(losses["false"], rel=1e-5), compiled
