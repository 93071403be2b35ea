"""runs, export: what there is, whether it is whole, and what is given to others."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from .app import CheckpointOption, Json, PluginOption, RunDirectory, app, parse_checkpoint
from .components import complete_form

__all__: list[str] = []

DAMAGED = 3
LOSS = "valid/loss"
WIDE = 1000
"""Columns of a table that no terminal shows: nothing is folded for the program that reads it."""
runs = typer.Typer(name="runs", help="List runs, and verify them.", no_args_is_help=True)
app.add_typer(runs, name="runs")


@runs.command("list")
def list_(
    folder: Annotated[Path, typer.Argument(help="The folder of run directories, or a sweep.")] = Path("runs"),
    figure: Annotated[str, typer.Option("--figure", metavar="KIND/NAME", help="The figure to show.")] = LOSS,
    as_json: Json = False,
) -> None:
    """List the runs of a folder, or of a sweep: how far each is, and how it did."""
    from ..runs.list_runs import list_runs
    from ..runs.progress import Screen, say
    from ..sweeps.summary import require_metric

    found = list(list_runs(folder))
    if figure != LOSS:
        require_metric(figure, (run.figures for run in found), "--figure")
    if as_json:
        typer.echo(json.dumps([{**asdict(run), "path": str(run.path)} for run in found], indent=2))
        return
    console = Screen()
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = WIDE
    if found:
        console.print(_table(folder, figure, found))
    else:
        say(console, f"no run in {folder}")
    for line in _sweeps(folder):
        say(console, line)


def _table(folder: Path, figure: str, found: list[Any]) -> Any:
    from rich.table import Table
    from rich.text import Text

    from ..config.machine_memory import size

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("run", "name", "state", "step", figure, "size"):
        table.add_column(column, justify="right" if column in ("step", figure, "size") else "left", overflow="fold")
    for run in found:
        value = run.figures.get(figure)
        done = f"{'-' if run.step is None else run.step} of {'-' if run.steps is None else run.steps}"
        shown = "" if value is None else f"{value:.4g}"
        cells = (str(run.path.relative_to(folder)), run.name, run.state, done, shown, size(run.size))
        table.add_row(*map(Text, cells))
    return table


def _sweeps(folder: Path) -> Iterator[str]:
    """Yield a line for each sweep of a folder: the runs of its points are not in the list."""
    from dither.registry.config.errors import Refused

    from ..sweeps.directory import MARK, SweepDirectory

    for path in sorted(mark.parent for mark in folder.glob(f"*/{MARK}")):
        try:
            sweep = SweepDirectory.open(path)
        except Refused as refused:
            yield f"{path.name}  {refused}"
            continue
        states = [point.status()["state"] for point in sweep.folders()]
        counts = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states)) or "no point yet"
        yield f"{path.name}  sweep {sweep.facts.get('name', '')}: {counts}"


@runs.command()
def verify(run_directory: RunDirectory, as_json: Json = False) -> int:
    """Compare every file that a run would be resumed from with what was written; exit code 3 if one is damaged."""
    from ..runs.list_runs import verify_run

    found = verify_run(run_directory)
    if as_json:
        typer.echo(json.dumps([asdict(one) for one in found], indent=2))
    else:
        for one in found:
            typer.echo(f"{one.what:32} {one.reason or 'as it was written'}")
    return DAMAGED if any(one.reason for one in found) else 0


@app.command()
def export(
    run_directory: RunDirectory,
    to: Annotated[Path, typer.Option("--to", help="The folder to make.", show_default=False)],
    checkpoint: CheckpointOption = "newest",
    selected: PluginOption = None,
) -> None:
    """Write the weights of a run, and the experiment that builds their model, into a folder for others.

    In Python, dither.load(FOLDER) gives the trained system, on any machine. Data do not go along; they are named.
    """
    from ..runs.bundle import read_missing_data
    from ..runs.loading import export_run
    from .app import parse_checkpoint

    for path in export_run(run_directory, to, parse_checkpoint(checkpoint), selected):
        typer.echo(path)
    for need in read_missing_data(to)[0]:
        typer.echo(f"data that do not go along: {need}")


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
    checkpoint: CheckpointOption = "newest",
    changes: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Draw in another way: sample.guidance.weight=3, sample.cond.cell=K562, sampler.steps=50 (repeat).",
        ),
    ] = None,
    selected: PluginOption = None,
) -> int:
    """Draw samples from a checkpoint of a run."""
    from ..runs.evaluate_run import sample_run

    given = {
        "constraints": constraints,
        "forms": export or (),
        "checkpoint": parse_checkpoint(checkpoint),
        "select": selected,
    }
    return sample_run(run_directory, count, seed, out, changes=changes or (), **given)


@app.command()
def evaluate(
    run_directory: RunDirectory,
    checkpoint: CheckpointOption = "newest",
    split: Annotated[
        Literal["train", "valid", "test"], typer.Option("--split", help="What it is measured on.")
    ] = "valid",
    selected: PluginOption = None,
    as_json: Json = False,
) -> None:
    """Measure a checkpoint of a run on the validation split, or on another, with baselines beside it."""
    from ..files.metrics_file import is_companion_metric, with_interval
    from ..runs.evaluate_run import evaluate_with_baselines
    from ..runs.progress import Screen
    from ..runs.summary import baselines_beside

    with Screen(stderr=True).status(f"measuring the {split} split"):
        figures, baselines = evaluate_with_baselines(run_directory, parse_checkpoint(checkpoint), split, selected)
    if as_json:
        typer.echo(json.dumps(figures | baselines, indent=2))
    else:
        for name in [name for name in figures if not is_companion_metric(name, figures)]:
            beside = ", ".join(f"{of} {number:.4g}" for of, number in baselines_beside(name, baselines).items())
            typer.echo(f"{name:40} {with_interval(name, figures, 6):24} {beside}".rstrip())


@app.command()
def report(
    runs: Annotated[
        list[Path], typer.Argument(help="Run directories; several are compared. Or a sweep.", show_default=False)
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", metavar="FILE", help="The page; by default report.html in the run or sweep, or comparison.html."
        ),
    ] = None,
) -> None:
    """Write one self-contained HTML page of a run or a sweep, or one that compares several runs. Imports no torch."""
    from ..reports.write import write_report

    typer.echo(write_report(runs, out))
