"""`dither infill`, `perplexity`, `frontier` and `lm-eval`: commands on runs about text."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from dither.registry.config.errors import Refused
from dither.registry.contracts.commands import DrawnSamples, Engine, SampleRequest
from dither.registry.contracts.pictures import check_figure_formats

from ..command_options import (
    Checkpoint,
    Count,
    ExportFormats,
    Figures,
    Json,
    Out,
    Overrides,
    Pictures,
    PluginNames,
    RunDirectory,
    SampleMetrics,
    Seed,
    Settings,
    run_options,
    split_words,
)
from ..missing_library import require_extra

if TYPE_CHECKING:
    from dither.registry.contracts.records import Clean

__all__ = ["add_commands", "write_frontier"]

AXIS = re.compile(r"(?P<option>[a-z_.]+)=(?P<values>[0-9.e-]+(?:,[0-9.e-]+)*)")
"""An option of the sampler with numbers, such as temperature=0.8,1."""


def add_commands(app: typer.Typer, engine: Engine) -> None:
    """Add the commands of this task."""
    _add_sampling(app, engine)
    _add_evaluation(app, engine)


def _add_sampling(app: typer.Typer, engine: Engine) -> None:
    @app.command(
        epilog="Example: dither infill runs/RUN 'The [MASK:3] sat on the mat.'"
    )
    def infill(
        run: RunDirectory,
        text: Annotated[
            str,
            typer.Argument(
                help="Text with gaps: \\[MASK:K] stands for K tokens or bases to draw.",
                show_default=False,
            ),
        ],
        settings: Settings = None,
        count: Count = 16,
        seed: Seed = 0,
        out: Out = None,
        export: ExportFormats = None,
        metrics: SampleMetrics = True,
        pictures: Pictures = True,
        figures: Figures = None,
        checkpoint: Checkpoint = "newest",
        overrides: Overrides = None,
        plugins: PluginNames = None,
        as_json: Json = False,
    ) -> None:
        """Complete a text or DNA with gaps: sample given its known tokens."""

        def templates(task: Any, n: int, seed: int) -> Clean:
            # Options are refused before torch is imported.
            from ..infilling import require_infilling

            return require_infilling(task).infill(text, n, seed)

        request = SampleRequest(
            count=count,
            seed=seed,
            out=out,
            formats=export or (),
            metrics=metrics,
            pictures=pictures,
            figures=figures or (),
        )
        engine.sample(
            run,
            run_options(checkpoint, plugins, overrides, settings),
            request,
            templates,
            as_json,
        )

    @app.command(epilog="Example: dither frontier runs/RUN --over temperature=0.8,1")
    def frontier(
        run: RunDirectory,
        settings: Settings = None,
        over: Annotated[
            list[str] | None,
            typer.Option(
                "--over",
                metavar="OPTION=V,V",
                help="Values of a sampler option (repeatable).",
            ),
        ] = None,
        figures: Figures = None,
        out: Out = None,
        checkpoint: Checkpoint = "newest",
        overrides: Overrides = None,
        plugins: PluginNames = None,
        as_json: Json = False,
    ) -> None:
        """Compare samples with real text over options of the sampler: quality and diversity.

        Every combination of the values is sampled, evaluate.samples texts of each.
        """
        # Before the model is sampled, which takes long.
        require_extra("frontier", "dither frontier")
        check_figure_formats(figures or ())
        options = run_options(checkpoint, plugins, overrides, settings)
        grid = _parse_axes(over or [])
        points = [
            dict(zip(grid, values, strict=True)) for values in product(*grid.values())
        ]
        changes = []
        for point in points:
            changes.append([f"sampler.{key}={value}" for key, value in point.items()])
        with engine.new_folder(run, ("frontier",), out) as folder:
            task, count, draws = engine.draw(run, options, changes)
            # Real text is the first row, and the reference of the others.
            rows, files = write_frontier(
                task=task,
                count=count,
                points=points,
                draws=draws,
                folder=folder,
                figures=figures or (),
            )
        if engine.echo_json(as_json, rows):
            return
        # The first row, real text, has no options of the sampler.
        for name in rows[-1]:
            cells = [
                f"{row[name]:>9.4g}" if name in row else "     real" for row in rows
            ]
            typer.echo(f"{name:24}" + " ".join(cells))
        typer.echo("\n".join(map(str, files)))


def _add_evaluation(app: typer.Typer, engine: Engine) -> None:
    @app.command(epilog="Example: dither perplexity runs/RUN book.txt")
    def perplexity(
        run: RunDirectory,
        words: Annotated[
            list[str] | None,
            typer.Argument(
                metavar="FILE|KEY=VALUE",
                help="Text files, each one document, also at addresses, and overrides of "
                "evaluate.*.",
                show_default=False,
            ),
        ] = None,
        data: Annotated[
            Path | None,
            typer.Option(
                "--data",
                metavar="FOLDER",
                help="Text of `dither prepare text` instead of files.",
            ),
        ] = None,
        split: Annotated[
            Literal["train", "valid", "test"] | None,
            typer.Option("--split", help="Split of --data; by default valid."),
        ] = None,
        checkpoint: Checkpoint = "newest",
        overrides: Overrides = None,
        plugins: PluginNames = None,
        as_json: Json = False,
    ) -> None:
        """Evaluate a run on other text: zero-shot perplexity, next to baselines."""
        files, settings = split_words(words)
        if (data is None) == (not files):
            raise typer.BadParameter("give either text files or --data FOLDER")
        if split is not None and data is None:
            message = "--split: no effect without --data"
            raise Refused(message, code="no-effect")

        def other_text(task: Any) -> Any:
            from .data.text_files import find_plain, read_text_file
            from .task import LanguageModelling

            if not isinstance(task, LanguageModelling):
                message = "the task of the run is not about text"
                raise Refused(message, ("task",), code="misfit")
            if data is not None:
                return task.over_store(str(data), split or "valid")
            paths = chain.from_iterable(find_plain(str(file)) for file in files)
            return task.over_texts([read_text_file(path) for path in paths])

        engine.evaluate(
            run,
            run_options(checkpoint, plugins, overrides, settings),
            other_text,
            as_json,
        )

    @app.command(
        "lm-eval", epilog="Example: dither lm-eval runs/RUN --tasks lambada_openai"
    )
    def lm_eval(
        run: Annotated[
            Path,
            typer.Argument(help="A run directory or an export.", show_default=False),
        ],
        tasks: Annotated[
            str,
            typer.Option(
                "--tasks",
                metavar="NAMES",
                help="Tasks or task files of lm-evaluation-harness, separated by commas.",
                show_default=False,
            ),
        ],
        settings: Settings = None,
        limit: Annotated[
            int | None, typer.Option("--limit", min=1, help="Examples of each task.")
        ] = None,
        samples: Annotated[
            int, typer.Option("--draws", min=1, help="Draws of noise per request.")
        ] = 32,
        checkpoint: Checkpoint = "newest",
        overrides: Overrides = None,
        plugins: PluginNames = None,
        as_json: Json = False,
    ) -> None:
        """Evaluate a run on tasks of lm-evaluation-harness, and print the results as JSON."""
        # Before the checkpoint is read.
        require_extra("lm-eval", "dither lm-eval")
        from .lm_eval import evaluate_tasks, find_tasks

        found = find_tasks(tasks.split(","))
        model = engine.load(run, run_options(checkpoint, plugins, overrides, settings))
        results = evaluate_tasks(model, found, limit, samples)
        # The results are always JSON.
        engine.echo_json(True, results)


def write_frontier(
    task: Any,
    count: int,
    points: list[dict[str, str]],
    draws: Iterator[DrawnSamples],
    folder: Path,
    figures: Sequence[str] = (),
) -> tuple[list[dict[str, float]], list[Path]]:
    """Write metrics of real text and of the samples of each point, and a picture.

    Returns:
        The metrics, and the files of the picture.
    """
    from dither.registry.files.atomic import atomic_write

    from .task import LanguageModelling

    if not isinstance(task, LanguageModelling):
        message = "the task of the run has no frontier of samples"
        raise Refused(message, ("task",), code="misfit")

    def with_options() -> Iterator[
        tuple[Mapping[str, float], Any, Any, Mapping[str, float]]
    ]:
        # A generator: the samples of one point are in memory at a time.
        for point, drawn in zip(points, draws, strict=True):
            yield {key: float(value) for key, value in point.items()}, *drawn

    rows, picture = task.frontier(with_options(), count)
    with atomic_write(folder / "frontier.json") as file:
        file.write_text(json.dumps(rows, indent=2), "utf-8")
    return rows, picture.write(folder, figures)


def _parse_axes(texts: list[str]) -> dict[str, list[str]]:
    """Parse `option=number,number`."""
    grid = {}
    for text in texts:
        match = AXIS.fullmatch(text)
        if match is None:
            message = (
                f'expected OPTION=NUMBER,NUMBER such as temperature=0.8,1, got "{text}"'
            )
            raise typer.BadParameter(message, param_hint="--over")
        grid[match["option"]] = match["values"].split(",")
    if not grid:
        raise typer.BadParameter("at least one is required", param_hint="--over")
    return grid
