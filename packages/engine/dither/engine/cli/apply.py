"""`dither predict`, `embed`, and `explain` of a run: a trained model applied to data."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from .app import CheckpointOption, PluginOption, RunDirectory, Words, app, parse_checkpoint

__all__ = ["apply"]

Paths = list[Path] | None
Data = Annotated[Paths, typer.Argument(help="Data of yours; by default those of the run.", show_default=False)]
Part = Literal["all", "train", "valid", "test"] | None
SplitOption = Annotated[Part, typer.Option("--split", help="By default valid; all with data of yours.")]
CellOption = Annotated[
    str | None, typer.Option("--cell", metavar="NAME", help="Cell type; by default all that the model was trained on.")
]
ExportOption = Annotated[Words, typer.Option("--export", metavar="FORMAT", help="Format (repeatable).")]
OutOption = Annotated[Path | None, typer.Option("--out", help="New folder; by default inside the run.")]


def apply(
    verb: Literal["predict", "explain", "embed"], run: Path, data: Paths, split: Any, cell: str | None,
    forms: Words, out: Path | None, checkpoint: str, selected: Words,
) -> None:  # fmt: skip
    """Apply the model of a run, and print the files."""
    from dither.registry.flow.protocols import DataRequest

    from ..runs.apply_run import apply_run

    split, data = split or ("all" if data else "valid"), data or []
    labels = {} if cell is None else {"cell": cell}
    names = [verb, split, *labels.values(), *(path.stem for path in data[:1])]
    paths = (run / verb / "-".join([*names[1:], *number]) for number in ([], *([str(n)] for n in range(2, 10_000))))
    folder = out or next(path for path in paths if not path.exists())
    request = DataRequest(folder, tuple(data), split, labels, tuple(dict.fromkeys(forms or ())))
    for path in apply_run(verb, run, request, parse_checkpoint(checkpoint), selected):
        typer.echo(path)


@app.command()
def predict(
    run_directory: RunDirectory, data: Data = None, split: SplitOption = None, cell: CellOption = None,
    export: ExportOption = None, out: OutOption = None, checkpoint: CheckpointOption = "newest",
    selected: PluginOption = None,
) -> None:  # fmt: skip
    """Predict unknown values of data: another split, your own data, another cell type."""
    apply("predict", run_directory, data, split, cell, export, out, checkpoint, selected)


@app.command()
def embed(
    run_directory: RunDirectory, data: Data = None, split: SplitOption = None, cell: CellOption = None,
    export: ExportOption = None, out: OutOption = None, checkpoint: CheckpointOption = "newest",
    selected: PluginOption = None,
) -> None:  # fmt: skip
    """Write embeddings of the samples of a run or of your data."""
    apply("embed", run_directory, data, split, cell, export, out, checkpoint, selected)
