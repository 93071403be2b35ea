"""bench: where the time of a step goes."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from .root import Changes, Experiment, Json, Removals, Selected, app

__all__: list[str] = []


@app.command()
def bench(
    experiment: Experiment,
    changes: Changes = None,
    removals: Removals = None,
    selected: Selected = None,
    steps: Annotated[int, typer.Option("--steps", "-n", min=1, help="Steps in a repeat.")] = 20,
    repeats: Annotated[int, typer.Option("--repeats", min=1, help="Repeats, of which the median counts.")] = 3,
    warmup: Annotated[int, typer.Option("--warmup", min=0, help="Steps before.")] = 3,
    as_json: Json = False,
) -> None:
    """Measure the training step: data, forward, backward, optimizer, logging; memory, rate, share of the peak."""
    from dither.engine.anchoring import outside
    from dither.engine.experiment import load_experiment
    from dither.engine.progress import Screen, say

    loaded = load_experiment(experiment, changes or (), removals or (), selected)
    for line in outside(loaded):
        say(Screen(stderr=True), line, "yellow")
    from rich.console import Console

    from dither.engine.bench.measure import bench as measure
    from dither.engine.bench.measure import show_bench

    result = measure(loaded, steps, repeats, warmup)
    if as_json:
        typer.echo(json.dumps(result, indent=2))
    else:
        show_bench(Console(), result)
