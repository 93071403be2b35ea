"""Count a motif in DNA samples of a requested activity, over training seeds.

    python -m experiments.activity
    python -m experiments.activity --seeds 2 --samples 100

The activity of a sequence is the number of times that `MOTIF` occurs in it. Each seed trains
`dna_sequence/quick` with the activity as the condition, on sequences of 0 to 3 motifs, and samples
are drawn at each activity. Printed are mean, smallest and largest of the seeds.
"""

from __future__ import annotations

import random
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import typer

import dither
from dither.engine.config.options import Guidance

FILE = Path(__file__).parent / "dna_sequence/quick.toml"
NUMBER = '{ use = "number", of = "activity", dropout = 0.1 }'
CHANGES = (
    f'model.condition.parts=["level", {NUMBER}]',
    'sample.guidance={ condition = "activity", weight = 1.0 }',
    "train.steps=600",
    "sample.count=0",
    "evaluate.samples=128",
)
MOTIF = "TGACTCA"
"""The consensus of AP-1; no two occurrences overlap in more than its last and first base."""
LENGTH = 40
COUNTS = range(4)
WEIGHTS = (1.0, 2.0)
"""Guidance weights; 1 is without guidance."""


def main(
    seeds: Annotated[int, typer.Option(help="Training seeds.")] = 5,
    samples: Annotated[int, typer.Option(help="Samples at each activity.")] = 100,
) -> None:
    """Train and sample; print a row per guidance weight."""
    results: dict[float, list[list[float]]] = {weight: [] for weight in WEIGHTS}
    correlations: dict[float, list[float]] = {weight: [] for weight in WEIGHTS}
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        table = Path(folder) / "activity.csv"
        write_table(table)
        for seed in range(seeds):
            system = dither.load(train(Path(folder) / str(seed), table, seed))
            for weight in WEIGHTS:
                system.guidance = Guidance(condition="activity", weight=weight)
                counts = motifs_of(system, samples)
                requested = np.repeat(COUNTS, samples)
                r = float(np.corrcoef(requested, counts.ravel())[0, 1])
                results[weight].append(counts.mean(1).tolist())
                correlations[weight].append(r)
                line = ", ".join(f"{mean:.2f}" for mean in counts.mean(1))
                typer.echo(f"seed {seed}, weight {weight:g}: r {r:.3f}, means {line}")

    for weight in WEIGHTS:
        typer.echo(f"weight {weight:g}: r {cell(correlations[weight])}")
        for count in COUNTS:
            means = [of_seed[count] for of_seed in results[weight]]
            typer.echo(f"  activity {count}: {cell(means)} motifs")


def write_table(path: Path, rows: int = 8000) -> None:
    """Write random sequences with up to three motifs at random places, and how often it occurs."""
    rng = random.Random(0)
    lines = ["sequence,activity"]
    for row in range(rows):
        count = row % len(COUNTS)
        # Gaps between motifs: a composition of the other bases.
        free = LENGTH - count * len(MOTIF)
        cuts = sorted(rng.randint(0, free) for _ in range(count))
        bases = rng.choices("ACGT", k=free)
        for cut in reversed(cuts):
            bases[cut:cut] = MOTIF
        text = "".join(bases)
        # Random bases may complete another motif.
        lines.append(f"{text},{text.count(MOTIF)}")
    path.write_text("\n".join(lines) + "\n")


def train(folder: Path, table: Path, seed: int) -> Path:
    """Train the experiment and return its run directory."""
    command = [sys.executable, "-m", "experiments.run", "run", str(FILE)]
    data = f'task.data={{ use = "sequence-file", path = "{table}", numbers = ["activity"] }}'
    command += ["--runs", str(folder), f"seed={seed}", data, *CHANGES]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return folder / "latest"


def motifs_of(system: dither.System, samples: int) -> np.ndarray:
    """Return the number of motifs in samples of each activity, one activity a row."""
    requested = np.repeat(COUNTS, samples).tolist()
    drawn = system.sample(len(requested), labels={"activity": requested})
    counts = [text.count(MOTIF) for text in system.decode(drawn)]
    return np.reshape(counts, (len(COUNTS), samples))


def cell(values: list[float]) -> str:
    """Return mean, smallest and largest value."""
    return f"{np.mean(values):.2f} ({min(values):.2f} to {max(values):.2f})"


if __name__ == "__main__":
    typer.run(main)
