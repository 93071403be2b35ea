"""runs, export: what there is, whether it is whole, and what is given to others."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from .root import Json, RunDirectory, Selected, Which, app

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
    from dither.engine.listing import list_runs
    from dither.engine.progress import Screen, say
    from dither.engine.sweep.summary import known_figure

    found = list(list_runs(folder))
    if figure != LOSS:
        known_figure(figure, (run.figures for run in found), "--figure")
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

    from dither.engine.machine import size

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
    from dither.engine.sweep.directory import MARK, SweepDirectory
    from dither.registry.problems import Refused

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
    from dither.engine.listing import verify_run

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
    checkpoint: Which = "newest",
    selected: Selected = None,
) -> None:
    """Write the weights of a run, and the experiment that builds their model, into a folder for others.

    In Python, dither.load(FOLDER) gives the trained system, on any machine. Data do not go along; they are named.
    """
    from dither.engine.loading import export_run
    from dither.engine.parcel import read_needs

    from .root import which

    for path in export_run(run_directory, to, which(checkpoint), selected):
        typer.echo(path)
    for need in read_needs(to)[0]:
        typer.echo(f"data that do not go along: {need}")
