"""`dither edit` changes a floor plan or fills an outline; `dither layout` lays out a bubble diagram."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast, get_args

import typer

from dither.registry.config.errors import Problem, Refused, did_you_mean
from dither.registry.contracts.commands import Engine, SampleRequest

from ..command_options import (
    Checkpoint,
    Count,
    ExportFormats,
    Json,
    Out,
    Overrides,
    Pictures,
    PluginNames,
    RunDirectory,
    SampleMetrics,
    Seed,
    run_options,
    split_words,
)
from ..missing_library import MODULES, missing_libraries, require_extra
from .vocabulary import Export

if TYPE_CHECKING:
    from dither.registry.contracts.records import Clean

    from .task import BubbleDiagrams

__all__ = ["add_commands"]

# At most four digits, so that no range is long.
RANGE = re.compile(r"\s*(?P<first>\d{1,4})(?:-(?P<last>\d{1,4}))?\s*")


def add_commands(app: typer.Typer, engine: Engine) -> None:
    """Add the commands of this task."""

    @app.command(epilog="Example: dither edit runs/RUN plan.json --keep 0-3 --redraw 2")
    def edit(
        run: RunDirectory,
        words: Annotated[
            list[str] | None,
            typer.Argument(
                metavar="PLAN|KEY=VALUE",
                help="File of a plan of which to keep some rooms; overrides.",
                show_default=False,
            ),
        ] = None,
        keep: Annotated[
            str | None,
            typer.Option(
                "--keep",
                metavar="ROOMS",
                help="Rooms to keep, such as 0-3,5; by default all.",
            ),
        ] = None,
        redraw: Annotated[
            str,
            typer.Option(
                "--redraw",
                metavar="NUMBER",
                help="Other rooms to draw: rest, or a number.",
            ),
        ] = "rest",
        outline: Annotated[
            Path | None,
            typer.Option(
                "--outline",
                metavar="FILE",
                help="Outline to fill: JSON, GeoJSON or an SVG path.",
            ),
        ] = None,
        count: Count = 16,
        seed: Seed = 0,
        out: Out = None,
        export: ExportFormats = None,
        constraints: Annotated[
            Path | None,
            typer.Option(
                "--constraints",
                metavar="FILE",
                help="TOML file with \\[task.constraints].",
            ),
        ] = None,
        metrics: SampleMetrics = True,
        pictures: Pictures = True,
        checkpoint: Checkpoint = "newest",
        overrides: Overrides = None,
        plugins: PluginNames = None,
        as_json: Json = False,
    ) -> None:
        """Edit a floor plan: keep some of its rooms, draw others; or fill an outline."""
        plans, settings = split_words(words)
        changes_rooms = keep is not None or redraw != "rest"
        _check_edit(len(plans), outline, changes_rooms=changes_rooms)
        rooms = None if keep is None else _parse_rooms(keep)
        number = _parse_number(redraw)

        def templates(task: Any, n: int, seed: int) -> Clean:
            diagrams = _require_plans(task)
            like = None
            if plans:
                like = diagrams.edit(plans[0], rooms, number, n, seed)
            if outline is not None:
                like = diagrams.within(outline, n, seed, like)
            # `_check_edit` requires a plan or an outline.
            assert like is not None
            return like

        request = SampleRequest(
            count=count,
            seed=seed,
            out=out,
            formats=export or (),
            constraints=constraints,
            metrics=metrics,
            pictures=pictures,
        )
        options = run_options(checkpoint, plugins, overrides, settings)
        engine.sample(run, options, request, templates, as_json)

    @app.command(epilog="Example: dither layout flat.toml -n 6 --export dxf")
    def layout(
        diagram: Annotated[
            Path,
            typer.Argument(
                metavar="DIAGRAM",
                help="Bubble diagram: TOML, JSON, or JSON of HouseGAN++.",
                show_default=False,
            ),
        ],
        count: Annotated[
            int,
            typer.Option(
                "--count", "-n", metavar="NUMBER", min=1, help="Number of plans."
            ),
        ] = 6,
        seed: Seed = 0,
        seconds: Annotated[
            float,
            typer.Option(
                "--seconds",
                metavar="NUMBER",
                min=0,
                help="Time after which the best plans so far are written.",
            ),
        ] = 60.0,
        out: Annotated[
            Path | None,
            typer.Option("--out", help="New folder; by default layouts/NAME."),
        ] = None,
        export: ExportFormats = None,
        pictures: Pictures = True,
        as_json: Json = False,
    ) -> None:
        """Lay out a bubble diagram as floor plans, without a model."""
        # The next imports would fail without naming the extra.
        require_extra("plans", "dither layout")
        from .layout import layout as lay_out
        from .layout import write_plans

        # The search takes long.
        formats = _check_formats(export or ())
        plans = lay_out(diagram, count, seed, seconds)
        # After the search: a diagram without plans leaves no folder.
        with engine.new_folder(Path("layouts"), (diagram.stem,), out) as folder:
            lines = list(write_plans(plans, folder, formats, pictures=pictures))
        record = {"folder": str(folder), "plans": len(plans), "notes": lines}
        if engine.echo_json(as_json, record):
            return
        if len(plans) < count:
            lines.append(
                f"{len(plans)} of {count} plans: raise --seconds, or try --seed"
            )
        typer.echo("\n".join(lines))


def _check_edit(plans: int, outline: Path | None, *, changes_rooms: bool) -> None:
    """Raise BadParameter without anything to edit, or with several plans."""
    if plans > 1 or (not plans and outline is None):
        raise typer.BadParameter("give a file of a plan, an --outline FILE, or both")
    if not plans and changes_rooms:
        raise typer.BadParameter("--keep and --redraw require a file of a plan")


def _check_formats(names: Sequence[str]) -> list[Export]:
    """Return export formats, or raise `Refused` if one does not exist or lacks its library."""
    known = get_args(Export)
    problems = []
    for name in names:
        if name not in known:
            hint = did_you_mean(name, known) or f"formats: {', '.join(known)}"
            message = f'unknown export format "{name}"'
            problems.append(Problem(message, help=hint, code="unknown-format"))
        elif name in MODULES:
            # The extra of a format has its name.
            problems += missing_libraries(name, name.upper())
    if problems:
        raise Refused(problems)
    return cast(list[Export], list(names))


def _require_plans(task: Any) -> BubbleDiagrams:
    """Return a task, or raise `Refused` if its samples are not floor plans."""
    from .task import BubbleDiagrams

    if not isinstance(task, BubbleDiagrams):
        message = "the task of the run is not about floor plans"
        raise Refused(message, ("task",), code="misfit")
    return task


def _parse_number(text: str) -> int | None:
    """Parse a number of rooms; None for the rest of the plan."""
    if text == "rest":
        return None
    if not text.isdecimal():
        raise typer.BadParameter(
            f'expected rest or a number, got "{text}"', param_hint="--redraw"
        )
    return int(text)


def _parse_rooms(text: str) -> list[int]:
    """Parse numbers and ranges such as 0-3,5."""
    rooms: list[int] = []
    for part in text.split(","):
        match = RANGE.fullmatch(part)
        # Without a match the range is empty, and refused like one that runs backwards.
        first = int(match["first"]) if match else 0
        last = int(match["last"] or first) if match else -1
        if last < first:
            message = f'expected numbers such as 0-3,5, got "{text}"'
            raise typer.BadParameter(message, param_hint="--keep")
        rooms += range(first, last + 1)
    return rooms
