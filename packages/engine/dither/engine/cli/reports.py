"""report: runs as a page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .root import app

__all__: list[str] = []


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
    from dither.engine.report.writing import write_report

    typer.echo(write_report(runs, out))
