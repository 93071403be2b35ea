"""`dither predict`, `attribute` and `embed`: a trained model on regions of any source."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from dither.registry.config.errors import Refused
from dither.registry.contracts.commands import Engine, RunOptions
from dither.registry.contracts.pictures import check_figure_formats

from ..command_options import (
    Checkpoint,
    ExportFormats,
    Figures,
    Json,
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
ChromSizes = Annotated[
    Path | None,
    typer.Option(
        "--chrom-sizes",
        metavar="FILE",
        help="Lengths of the chromosomes of bigWig (hg38.chrom.sizes, or a .fai file).",
    ),
]


Color = Annotated[
    str | None,
    typer.Option(
        "--color",
        metavar="NAME",
        help="Colours of the UMAP: cell, chromosome, a column such as 'K562 open', or a motif.",
        show_default=False,
    ),
]


def add_commands(app: typer.Typer, engine: Engine) -> None:
    """Add the commands of this task."""

    @app.command(
        epilog="Example: dither predict runs/RUN my.zarr --cell K562 --export csv"
    )
    def predict(
        run: RunDirectory,
        words: Words = None,
        split: Split = None,
        cell: Cell = None,
        export: ExportFormats = None,
        chrom_sizes: ChromSizes = None,
        out: Out = None,
        checkpoint: Checkpoint = "newest",
        overrides: Overrides = None,
        plugins: PluginNames = None,
        as_json: Json = False,
    ) -> None:
        """Predict the unknown columns of regions: of another split, cell type or source."""
        from .export import PREDICTIONS, check_forms

        check_forms(export or (), PREDICTIONS)
        data, settings = split_words(words)
        _apply(
            engine=engine,
            method="predict",
            run=run,
            options=run_options(checkpoint, plugins, overrides, settings),
            out=out,
            as_json=as_json,
            data=data,
            split=split,
            cell=cell,
            formats=export or (),
            chrom_sizes=chrom_sizes,
        )

    @app.command(epilog="Example: dither embed runs/RUN --split test")
    def embed(
        run: RunDirectory,
        words: Words = None,
        split: Split = None,
        cell: Cell = None,
        export: ExportFormats = None,
        color: Color = None,
        figures: Figures = None,
        out: Out = None,
        checkpoint: Checkpoint = "newest",
        overrides: Overrides = None,
        plugins: PluginNames = None,
        as_json: Json = False,
    ) -> None:
        """Write embeddings of regions and of cell types."""
        from .export import EMBEDDINGS, check_forms

        check_forms(export or (), EMBEDDINGS)
        check_figure_formats(figures or ())
        data, settings = split_words(words)
        _apply(
            engine=engine,
            method="embed",
            run=run,
            options=run_options(checkpoint, plugins, overrides, settings),
            out=out,
            as_json=as_json,
            data=data,
            split=split,
            cell=cell,
            formats=export or (),
            figures=figures or (),
            color=color,
        )

    @app.command(epilog="Example: dither attribute runs/RUN --split test")
    def attribute(
        run: RunDirectory,
        words: Words = None,
        split: Split = None,
        cell: Cell = None,
        figures: Figures = None,
        out: Out = None,
        checkpoint: Checkpoint = "newest",
        overrides: Overrides = None,
        plugins: PluginNames = None,
        as_json: Json = False,
    ) -> None:
        """Attribute predictions of regions to motifs: gradient x input, and knock-out."""
        check_figure_formats(figures or ())
        data, settings = split_words(words)
        _apply(
            engine=engine,
            method="attribute",
            run=run,
            options=run_options(checkpoint, plugins, overrides, settings),
            out=out,
            as_json=as_json,
            data=data,
            split=split,
            cell=cell,
            figures=figures or (),
        )


def _apply(
    engine: Engine,
    method: Literal["predict", "embed", "attribute"],
    run: Path,
    options: RunOptions,
    out: Path | None,
    as_json: bool,
    data: list[Path],
    split: Part | None,
    cell: str | None,
    **formats: Any,
) -> None:
    """Apply a function to the model of a run, and print the files that it writes."""
    # Data of the user have no training regions to leave out.
    part = split or ("all" if data else "valid")
    # Requests of other regions or cell types get other folders.
    names = [part, cell, data[0].stem if data else None]
    default = (method, "-".join(filter(None, names)))
    # A folder that stays empty, as if the model cannot be loaded, is removed.
    with engine.new_folder(run, default, out) as folder:
        model = engine.load(run, options)
        # These import torch, for which neither help nor a refusal waits.
        from .attributions import attribute
        from .predict import embed, predict
        from .source_windows import DataRequest
        from .task import RegionWindows

        methods: dict[str, Callable[..., Sequence[Path]]] = {
            "predict": predict,
            "embed": embed,
            "attribute": attribute,
        }
        if not isinstance(model.task, RegionWindows):
            message = "the task of the run is not about regions"
            raise Refused(message, ("task",), code="misfit")
        request = DataRequest(folder, data, part, cell, **formats)
        files = [str(file) for file in methods[method](model.task, model, request)]
    record = {"files": files, "notes": list(request.notes)}
    if engine.echo_json(as_json, record):
        return
    typer.echo("\n".join(files))
    for note in request.notes:
        typer.echo(f"note: {note}", err=True)
