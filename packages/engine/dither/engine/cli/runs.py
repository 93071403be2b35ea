"""sample, evaluate: what a run directory is good for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Literal

import typer

from .completion import complete_form
from .root import Json, RunDirectory, Selected, Which, app, which

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
        typer.Option("--constraints", metavar="FILE", help="What samples must fulfil: TOML with \\[task.constraints]."),
    ] = None,
    export: Annotated[
        list[str] | None,
        typer.Option(
            "--export",
            metavar="FORM",
            help="Also write the samples for other programs, into a folder FORM (repeat). "
            "The forms of a task: dither describe task NAME.",
            autocompletion=complete_form,
        ),
    ] = None,
    checkpoint: Which = "newest",
    changes: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Draw in another way: sample.guidance.weight=3, sample.cond.cell=K562, sampler.steps=50 (repeat).",
        ),
    ] = None,
    selected: Selected = None,
) -> int:
    """Draw samples from a checkpoint of a run."""
    from dither.engine.reuse import sample_run

    given = {"constraints": constraints, "forms": export or (), "checkpoint": which(checkpoint), "select": selected}
    return sample_run(run_directory, count, seed, out, changes=changes or (), **given)


@app.command()
def evaluate(
    run_directory: RunDirectory,
    checkpoint: Which = "newest",
    split: Annotated[
        Literal["train", "valid", "test"], typer.Option("--split", help="What it is measured on.")
    ] = "valid",
    selected: Selected = None,
    as_json: Json = False,
) -> None:
    """Measure a checkpoint of a run on the validation split, or on another, with baselines beside it."""
    from dither.engine.figure_names import belongs, with_interval
    from dither.engine.progress import Screen
    from dither.engine.reuse import evaluate_beside
    from dither.engine.summary import baselines_beside

    with Screen(stderr=True).status(f"measuring the {split} split"):
        figures, baselines = evaluate_beside(run_directory, which(checkpoint), split, selected)
    if as_json:
        typer.echo(json.dumps(figures | baselines, indent=2))
    else:
        for name in [name for name in figures if not belongs(name, figures)]:
            beside = ", ".join(f"{of} {number:.4g}" for of, number in baselines_beside(name, baselines).items())
            typer.echo(f"{name:40} {with_interval(name, figures, 6):24} {beside}".rstrip())
