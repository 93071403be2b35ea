"""`dither predict`, `attribute` and `embed`: a trained model on regions of any source."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import typer

from dither.registry.config.errors import Refused
from dither.registry.contracts.commands import Engine, RunOptions

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
    Part | None,
    typer.Option("--split", help="By default valid; all with data of yours."),
]
Cell = Annotated[
    str | None,
    typer.Option(
        "--cell",
        metavar="NAME",
        help="Cell type; by default all that the model was trained on.",
    ),
]


def add_commands(app: typer.Typer, engine: Engine) -> None:
    """Add the commands of this task."""

    def add(verb: str, summary: str, example: str) -> None:
        @app.command(verb, help=summary, epilog=f"Example: dither {verb} {example}")
        def command(
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
            from . import predict

            data, settings = split_words(words)
            options = run_options(checkpoint, plugins, overrides, settings)
            regions = _Regions(data, split, cell, export)
            method = {"predict": predict.predict, "embed": predict.embed}[verb]
            _apply(
                engine=engine,
                method=method,
                run=run,
                options=options,
                out=out,
                regions=regions,
            )

    add(
        "predict",
        "Predict the unknown columns of regions: of another split, cell type or source.",
        "runs/RUN my.zarr --cell K562 --export csv",
    )
    add(
        "embed",
        "Write embeddings of regions and of cell types.",
        "runs/RUN --split test",
    )

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
        from .attributions import attribute

        data, settings = split_words(words)
        options = run_options(checkpoint, plugins, overrides, settings)
        _apply(
            engine=engine,
            method=attribute,
            run=run,
            options=options,
            out=out,
            regions=_Regions(data, split, cell),
        )


class _Regions(NamedTuple):
    """The regions to which a model is applied, and the formats of the files."""

    data: list[Path]
    split: Part | None
    cell: str | None
    formats: list[str] | None = None


def _apply(
    engine: Engine,
    method: Callable[..., Sequence[Path]],
    run: Path,
    options: RunOptions,
    out: Path | None,
    regions: _Regions,
) -> None:
    """Apply a method of `predict.py` to the model of a run, and print the files that it writes."""
    from .source_windows import DataRequest
    from .task import RegionWindows

    data, split, cell, formats = regions
    # Data of the user have no training regions to leave out.
    split = split or ("all" if data else "valid")
    names = [split, cell, data[0].stem if data else None]
    default = (method.__name__, "-".join(filter(None, names)))
    with engine.new_folder(run, default, out) as folder:
        model = engine.load(run, options)
        if not isinstance(model.task, RegionWindows):
            message = "the task of the run is not about regions"
            raise Refused(message, ("task",), code="misfit")
        request = DataRequest(
            folder=folder,
            data=data,
            split=split,
            cell=cell,
            formats=formats or (),
        )
        for file in method(model.task, model, request):
            typer.echo(file)
