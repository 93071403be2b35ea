"""sample, evaluate: what a run directory is good for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from .root import Json, RunDirectory, app

__all__: list[str] = []


@app.command()
def sample(
    run_directory: RunDirectory,
    count: Annotated[int, typer.Option("--count", "-n", min=1, help="How many samples.")] = 16,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of the drawing.")] = 0,
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder for the samples; by default inside the run.")
    ] = None,
    constraints: Annotated[
        Path | None,
        typer.Option("--constraints", metavar="FILE", help="What samples must fulfil: TOML with [task.constraints]."),
    ] = None,
) -> int:
    """Draw samples from the newest intact checkpoint of a run."""
    from dither.engine.run import sample_run

    return sample_run(run_directory, count, seed, out, constraints=constraints)


@app.command()
def evaluate(run_directory: RunDirectory, as_json: Json = False) -> None:
    """Measure the newest intact checkpoint of a run on the validation split."""
    from dither.engine.run import evaluate_run

    figures = evaluate_run(run_directory)
    if as_json:
        typer.echo(json.dumps(figures, indent=2))
    else:
        for name, value in figures.items():
            typer.echo(f"{name:40} {value:.6g}")
