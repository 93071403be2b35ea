"""runs, export: what there is, whether it is whole, and what is given to others."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from .root import Json, RunDirectory, Which, app

__all__: list[str] = []

DAMAGED = 3
runs = typer.Typer(name="runs", help="List runs, and verify them.", no_args_is_help=True)
app.add_typer(runs, name="runs")


@runs.command("list")
def list_(
    folder: Annotated[Path, typer.Argument(help="The folder of run directories.")] = Path("runs"),
    figure: Annotated[str, typer.Option("--figure", metavar="KIND/NAME", help="The figure to show.")] = "valid/loss",
    as_json: Json = False,
) -> None:
    """List the runs of a folder: how far each is, and how it did."""
    from rich.table import Table

    from dither.engine.listing import list_runs
    from dither.engine.machine import size
    from dither.engine.progress import Screen

    found = list(list_runs(folder))
    if as_json:
        typer.echo(json.dumps([{**asdict(run), "path": str(run.path)} for run in found], indent=2))
        return
    if not found:
        typer.echo(f"no run in {folder}")
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("run", "name", "state", "step", figure, "size"):
        table.add_column(column, justify="right" if column in ("step", figure, "size") else "left", overflow="fold")
    for run in found:
        value = run.figures.get(figure)
        done = f"{'-' if run.step is None else run.step} of {'-' if run.steps is None else run.steps}"
        shown = "" if value is None else f"{value:.4g}"
        table.add_row(run.path.name, run.name, run.state, done, shown, size(run.size))
    Screen().print(table)


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
) -> None:
    """Write the weights of a run, and the experiment that builds their model, into a folder for others.

    In Python, dither.engine.load(FOLDER) gives the trained system.
    """
    from dither.engine.loading import export_run

    from .root import which

    for path in export_run(run_directory, to, which(checkpoint)):
        typer.echo(path)
