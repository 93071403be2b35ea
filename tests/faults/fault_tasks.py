"""The experiments that are broken: one of each task, as small as they can be, with everything on that has a state."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TOY = ROOT / "packages/engine/tests/toy_plugin.py"
TASKS = {
    "toy": """
plugins = ["toy_plugin.py"]
seed = 3
task = { use = "toy-words", size = 48 }
process = "toy-mask"
model = "toy-net"
loss = "toy-ce"
sampler = "toy-walk"
train = { ema = 0.9, optimizer = { use = "adamw", lr = 0.02 }, lr_schedule = { use = "cosine", warmup = 3 } }
sample = { every = 7 }
""",
    "bubble": f"""
extends = "{ROOT}/experiments/bubble_diagram/quick.toml"
task = {{ use = "bubble-diagram", data = {{ use = "procedural-plans", train = 48, valid = 8, test = 8 }} }}
model = {{ width = 16, depth = 1, block = {{ heads = 2, dropout = 0.1 }} }}
train = {{ ema = 0.9, lr_schedule = {{ warmup = 3 }} }}
""",
    "region": f"""
extends = "{ROOT}/experiments/get_region/quick.toml"
task = {{ regions = 8, stride = 1, data = {{ use = "region-file", path = "regions.csv" }} }}
model = {{ width = 16, depth = 1, block = {{ heads = 2 }} }}
train = {{ ema = 0.9, lr_schedule = {{ warmup = 3 }} }}
sample = {{ every = 7 }}
""",
    "language": f"""
extends = "{ROOT}/experiments/language_model/markov.toml"
[task]
data = {{ use = "markov-chain", states = 8, concentration = 0.3, length = 768, held = 256 }}
ngrams = 2
[model]
width = 16
depth = 1
block = {{ heads = 2, dropout = 0.1 }}
[train]
ema = 0.9
lr_schedule = {{ warmup = 3 }}
[sample]
every = 7
""",
}
STEPS = 12
SETTINGS = [
    f"train.steps={STEPS}", "train.batch_size=8", "train.accumulate=2", "train.log_every=2",
    "train.checkpoint_every=2", "train.threads=1", "train.device=cpu", "evaluate.every=5", "evaluate.samples=16",
    "evaluate.batch_size=8", "sample.count=1",
]  # fmt: skip
"""What every run is given; 48 samples are six batches, so an epoch ends in the middle of a run."""


def write_experiment(folder: Path, task: str = "toy") -> Path:
    """Write the experiment of a task, and what it reads."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{task}.toml"
    path.write_text(TASKS[task], encoding="utf-8")
    if task == "toy":
        shutil.copy(TOY, folder)
    if task == "region":
        _write_regions(folder / "regions.csv")
    return path


def _write_regions(path: Path) -> None:
    """Write a table of 55 regions to learn from, and so many held out that they make two windows."""
    dice = random.Random(0)
    lines = ["chromosome,start,end,open:K562," + ",".join(f"MOTIF{number}" for number in range(6))]
    for chromosome, count in (("chr1", 16), ("chr2", 16), ("chr3", 55)):
        for place in range(count):
            motifs = ",".join(f"{dice.uniform(0, 9):.2f}" for _ in range(6))
            lines.append(f"{chromosome},{place * 1000},{place * 1000 + 500},{dice.randrange(2)},{motifs}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def arguments(experiment: Path, runs: Path, *more: str) -> list[str]:
    """Return the command line that starts a run."""
    sets = [word for change in (*SETTINGS, *more) for word in ("--set", change)]
    return ["run", str(experiment), "--runs", str(runs), *sets]
