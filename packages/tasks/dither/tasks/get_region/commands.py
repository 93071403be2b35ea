"""`dither predict`, `attribute` and `embed`: a trained model on regions of any source."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from dither.registry.config.errors import Problem, Refused
from dither.registry.contracts.commands import Engine

from ..command_options import (
    Checkpoint,
    ExportFormats,
    Out,
    Overrides,
    PluginNames,
    RunDirectory,
    run_options,
    split_words,
)

if TYPE_CHECKING:
    from dither.registry.contracts.protocols import TrainedModel

    from .task import RegionWindows

__all__ = ["add_commands"]

Part = Literal["all", "train", "valid", "test"]
Words = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="DATA|KEY=VALUE",
        help="Data of yours, by default those of the run; overrides.",
        show_default=False,
    ),
]
Split = Annotated[
    Part | None, typer.Option("--split", help="By default valid; all with data of yours.")
]
Cell = Annotated[
    str | None,
    typer.Option(
        "--cell", metavar="NAME", help="Cell type; by default all that the model was trained on."
    ),
]


def add_commands(app: typer.Typer, engine: Engine) -> None:
    """Add the commands of this task."""

    @app.command(epilog="Example: dither predict runs/RUN my.zarr --cell K562 --export csv")
    def predict(
        run: RunDirectory,
        words: Words = None,
        split: Split = None,
        cell: Cell = None,
        export: ExportFormats = None,
        out: Out = None,
        checkpoint: Checkpoint = "newest",
        overrides: Overrides = None,
        plugins: PluginNames = None,
    ) -> None:
        """Predict the unknown columns of regions: of another split, cell type or source."""
        from .predict import DataRequest, predict

        data, settings = split_words(words)
        options = run_options(checkpoint, plugins, overrides, settings)
        split = split or ("all" if data else "valid")
        with engine.new_folder(run, ("predict", _folder_name(split, cell, data)), out) as folder:
            model = engine.load(run, options)
            request = DataRequest(folder, data, split, cell, export or ())
            _echo(predict(_regions(model), model, request))

    @app.command(epilog="Example: dither attribute runs/RUN --split test")
    def attribute(
        run: RunDirectory,
        words: Words = None,
        split: Split = None,
        cell: Cell = None,
        out: Out = None,
        checkpoint: Checkpoint = "newest",
        overrides: Overrides = None,
        plugins: PluginNames = None,
    ) -> None:
        """Attribute predictions of regions to motifs: gradient x input, and knock-out."""
        from .predict import DataRequest, attribute

        data, settings = split_words(words)
        options = run_options(checkpoint, plugins, overrides, settings)
        split = split or ("all" if data else "valid")
        with engine.new_folder(run, ("attribute", _folder_name(split, cell, data)), out) as folder:
            model = engine.load(run, options)
            request = DataRequest(folder, data, split, cell)
            _echo(attribute(_regions(model), model, request))

    @app.command(epilog="Example: dither embed runs/RUN --split test")
    def embed(
        run: RunDirectory,
        words: Words = None,
        split: Split = None,
        cell: Cell = None,
        export: ExportFormats = None,
        out: Out = None,
        checkpoint: Checkpoint = "newest",
        overrides: Overrides = None,
        plugins: PluginNames = None,
    ) -> None:
        """Write embeddings of regions and of cell types."""
        from .predict import DataRequest, embed

        data, settings = split_words(words)
        options = run_options(checkpoint, plugins, overrides, settings)
        split = split or ("all" if data else "valid")
        with engine.new_folder(run, ("embed", _folder_name(split, cell, data)), out) as folder:
            model = engine.load(run, options)
            request = DataRequest(folder, data, split, cell, export or ())
            _echo(embed(_regions(model), model, request))


def _folder_name(split: str, cell: str | None, data: Sequence[Path]) -> str:
    names = [split]
    if cell is not None:
        names.append(cell)
    if data:
        names.append(data[0].stem)
    return "-".join(names)


def _regions(model: TrainedModel) -> RegionWindows:
    from .task import RegionWindows

    if not isinstance(model.task, RegionWindows):
        message = "the task of the run is not about regions"
        raise Refused(Problem(message, ("task",), code="misfit"))
    return model.task


def _echo(files: Sequence[Path]) -> None:
    for file in files:
        typer.echo(file)
