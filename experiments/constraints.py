"""Measure samplers under the constraints of a published table, over training seeds.

    python -m experiments.constraints
    python -m experiments.constraints --seeds 2 --samples 100

Each seed trains `bubble_diagram/quick`; each sampler draws from it with
docs/examples/published_constraints.toml. Printed are mean, smallest and largest of the seeds.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

FILE = Path(__file__).parent / "bubble_diagram/quick.toml"
CONSTRAINTS = Path(__file__).parents[1] / "docs/examples/published_constraints.toml"
SAMPLERS = {
    "first-hitting": 'sampler="first-hitting"',
    "guided, 1 particle": 'sampler={ use = "guided", particles = 1 }',
    "guided, 4 particles": 'sampler={ use = "guided", particles = 4 }',
}
METRICS = ("satisfied", "model_calls_per_sample", "undelivered")


def main(
    seeds: Annotated[int, typer.Option(help="Training seeds.")] = 5,
    samples: Annotated[int, typer.Option(help="Samples of each.")] = 300,
) -> None:
    """Train and sample; print a row per sampler."""
    values: dict[tuple[str, str], list[float]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(seeds):
            run = train(Path(folder) / str(seed), seed)
            for name, override in SAMPLERS.items():
                metrics = sample(run, override, samples)
                line = [f"{key} {metrics[key]:.4g}" for key in METRICS]
                typer.echo(f"seed {seed}, {name}: {', '.join(line)}")
                for key in METRICS:
                    values[name, key].append(metrics[key])

    typer.echo(f"\n| sampler | {' | '.join(METRICS)} |\n|---|---|---|---|")
    for name in SAMPLERS:
        cells = [cell(values[name, key]) for key in METRICS]
        typer.echo(f"| {name} | {' | '.join(cells)} |")


def train(folder: Path, seed: int) -> Path:
    """Train the quick experiment and return its run directory."""
    command = [sys.executable, "-m", "experiments.run", "run", str(FILE)]
    command += ["--runs", str(folder), f"seed={seed}", "sample.count=0"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return folder / "latest"


def sample(run: Path, override: str, count: int) -> dict[str, float]:
    """Return the metrics of samples under the constraints."""
    command = [sys.executable, "-m", "experiments.run", "sample", str(run)]
    command += ["--count", str(count), "--constraints", str(CONSTRAINTS)]
    command += ["--set", override, "--no-pictures", "--json"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    metrics: dict[str, float] = json.loads(done.stdout)["metrics"]
    return metrics


def cell(values: list[float]) -> str:
    """Return mean, smallest and largest value."""
    return f"{np.mean(values):.3g} ({min(values):.3g} to {max(values):.3g})"


if __name__ == "__main__":
    typer.run(main)
