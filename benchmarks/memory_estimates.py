"""The estimate of memory that refuses what cannot fit, against the memory that runs really take.

    python benchmarks/memory_estimates.py [NAME ...]

Each case is a whole run on one thread in a process of its own, as `dither run` makes it: three steps, a checkpoint, an
evaluation, a drawing with its pictures. What is measured is the high-water mark of that process (VmHWM), Python and
torch included, which is what the message "training needs N GiB" speaks of. It stands beside the largest phase of the
estimate. NAME takes the cases in which it occurs.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console

from dither.engine.config.experiment import budgets
from dither.engine.config.load_experiment import load_experiment

EXPERIMENTS = Path(__file__).parent.parent / "experiments"
BUBBLE, TEXT, BLOCKS = "bubble_diagram/quick", "language_model/quick", "language_model/blocks"
REGIONS, CELLS, FAITHFUL, DHS = (f"get_region/{name}" for name in ("quick", "cells", "faithful", "dhs"))
SHORT = ("train.threads=1", "train.device=cpu", "train.steps=3")
FEW = ("evaluate.samples=16", "evaluate.batch_size=8", "sample.count=2")
CASES: dict[str, tuple[str, ...]] = {
    "diagrams, as they are": (BUBBLE,),
    "diagrams, 6 x 256": (BUBBLE, "model.width=256", "model.depth=6", *FEW),
    "diagrams, 4 x 128, batch 512": (BUBBLE, "model.width=128", "model.depth=4", "train.batch_size=512", *FEW),
    "diagrams, bfloat16, muon": (
        *(BUBBLE, "model.width=384", "model.depth=4", "train.batch_size=128"),
        *("train.precision=bfloat16", "train.optimizer=muon", *FEW),
    ),
    "diagrams, evaluation of 2,000 at once": (
        *(BUBBLE, "model.width=256", "model.depth=2", "train.batch_size=8"),
        *("evaluate.samples=2000", "evaluate.batch_size=2000", "sample.count=2"),
    ),
    "diagrams, 100,000 plans": (BUBBLE, "task.data.train=100000", *FEW),
    "regions, as they are": (REGIONS,),
    "regions, 4 x 256": (REGIONS, "model.width=256", "model.depth=4", *FEW),
    "regions, 4 x 768": (REGIONS, "model.width=768", "model.depth=4", "train.batch_size=4", *FEW),
    "regions, bfloat16, no dropout": (
        *(REGIONS, "model.width=384", "model.depth=4", "train.batch_size=16", "train.precision=bfloat16"),
        *("model.block.dropout=0.0", *FEW),
    ),
    "regions, accumulate 2, no average": (
        *(REGIONS, "model.width=384", "model.depth=4", "train.batch_size=16", "train.accumulate=2", "train.ema=0"),
        *("model.block.dropout=0.0", *FEW),
    ),
    "regions, hidden as a whole": (FAITHFUL, "model.width=256", "model.depth=4", "train.batch_size=16", *FEW),
    "regions, width 128, batch 16": (DHS, "train.batch_size=16", "evaluate.samples=16", "evaluate.batch_size=8"),
    "cells, drawing 192": (CELLS, "train.batch_size=4", "evaluate.samples=16", "sample.count=192"),
    "cells, 4 x 128, batch 32": (CELLS, "model.width=128", "model.depth=4", "train.batch_size=32", *FEW),
    "text, as it is": (TEXT,),
    "text, 8 x 512": (TEXT, "model.width=512", "model.depth=8", *FEW),
    "text, 8 x 512, bfloat16": (TEXT, "model.width=512", "model.depth=8", "train.precision=bfloat16", *FEW),
    "text, 8 x 512, muon": (TEXT, "model.width=512", "model.depth=8", "train.optimizer=muon", *FEW),
    "text, 8 x 512, accumulate 4": (TEXT, "model.width=512", "model.depth=8", "train.accumulate=4", *FEW),
    "text, 6 x 256, length 256": (
        TEXT,
        "task.length=256",
        "model.width=256",
        "model.depth=6",
        *FEW,
        "train.batch_size=16",
    ),
    "text, 6 x 256, length 256, bfloat16": (
        *(TEXT, "task.length=256", "model.width=256", "model.depth=6", "train.batch_size=16"),
        *("train.precision=bfloat16", *FEW),
    ),
    "text, 12 heads, length 256, bfloat16": (
        *(TEXT, "task.length=256", "model.width=384", "model.depth=4", "model.block.heads=12", "train.batch_size=16"),
        *("train.precision=bfloat16", *FEW),
    ),
    "text, 4 x 768": (TEXT, "model.width=768", "model.depth=4", "model.block.heads=8", "train.batch_size=16", *FEW),
    "text, LoRA on attention": (
        *(TEXT, "model.width=512", "model.depth=8", 'train.lora={rank=8,on=["attention"]}', *FEW),
    ),
    "text, block diffusion": (BLOCKS, "model.width=256", *FEW),
    "text, 50,257 ids": (TEXT, 'task.tokenizer="gpt2"', "model.width=256", "model.depth=4", "train.batch_size=8", *FEW),
}
"""Experiment file and what is set."""


def measure(name: str) -> None:
    """Run one case; print bytes of the estimate, its phase, and bytes of the peak."""
    file, *changes = CASES[name]
    loaded = load_experiment(EXPERIMENTS / f"{file}.toml", [*SHORT, *changes])
    experiment = loaded.experiment
    most = max(budgets(experiment, experiment.task.space()), key=lambda budget: budget.total)
    from dither.engine.runs.launch import run
    from dither.engine.training.device import peak_memory

    with tempfile.TemporaryDirectory() as folder:
        code = run(loaded, Path(folder), console=Console(quiet=True))
    if code:
        raise SystemExit(f"{name}: exit code {code}")
    print(most.total, peak_memory(), most.phase, sep="\t")


def main() -> None:
    """Measure one case in this process, or each in one of its own."""
    if sys.argv[1:2] == ["case"]:
        measure(sys.argv[2])
        return
    names = [name for name in CASES if not sys.argv[1:] or any(part in name for part in sys.argv[1:])]
    print(f"{'case':38} {'estimate':>9} {'peak':>9}   ratio   largest phase")
    ratios = []
    for name in names:
        done = subprocess.run([sys.executable, __file__, "case", name], capture_output=True, text=True, check=False)
        if done.returncode:
            print(f"{name:38} failed: {done.stderr.strip()[-400:]}")
            continue
        estimate, peak, phase = done.stdout.splitlines()[-1].split("\t")
        ratios.append(int(estimate) / int(peak))
        shown = f"{int(estimate) >> 20:6} MiB {int(peak) >> 20:5} MiB"
        print(f"{name:38} {shown}   {ratios[-1]:5.2f}   {phase}", flush=True)
    within = sum(0.9 <= ratio <= 1.1 for ratio in ratios)
    print(f"{within} of {len(names)} within 10 %, from {min(ratios):.2f} to {max(ratios):.2f}")


if __name__ == "__main__":
    main()
