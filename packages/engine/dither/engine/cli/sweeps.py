"""`dither sweep`: many runs from one file."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .app import (
    Assignments,
    DryRun,
    Executor,
    Group,
    JobOptions,
    Jobs,
    Json,
    OptionalExperiment,
    Overrides,
    PluginNames,
    Ranks,
    Removals,
    Runs,
    Words,
    app,
    joined,
    refuse_unused,
)
from .output import echo, echo_json, wants_json

if TYPE_CHECKING:
    from ..sweeps.directory import SweepDirectory

__all__: list[str] = []


class _Sweep(Group):
    """`dither sweep FILE` means `dither sweep start FILE`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        # An experiment called like a subcommand can be given by its path: ./status.toml.
        if args and args[0] not in {*self.commands, "-h", "--help"}:
            args = ["start", *args]
        return super().parse_args(ctx, args)


sweeps = typer.Typer(
    name="sweep",
    cls=_Sweep,
    help="Run every point of a sweep: sweep FILE; sweep --resume DIR; sweep status DIR.\n\n"
    "Options: sweep start --help.",
    no_args_is_help=True,
)
app.add_typer(sweeps, name="sweep")


@sweeps.command(
    epilog="Example: dither sweep bubble_diagram/quick --sweep 'seed=[1, 2, 3]' --jobs 2"
)
def start(
    context: typer.Context,
    experiment: OptionalExperiment = None,
    words: Assignments = None,
    values: Annotated[
        Words,
        typer.Option(
            "--sweep", metavar="KEY=[VALUES]", help="Add an axis (repeatable)."
        ),
    ] = None,
    overrides: Overrides = None,
    removals: Removals = None,
    plugins: PluginNames = None,
    runs: Runs = Path("runs"),
    resume: Annotated[
        Path | None,
        typer.Option("--resume", metavar="SWEEP", help="Run unfinished points."),
    ] = None,
    jobs: Jobs = 1,
    keep_going: Annotated[
        bool,
        typer.Option("--keep-going/--stop", help="Continue or stop if a point fails."),
    ] = True,
    ranks: Ranks = 1,
    executor: Executor = "processes",
    options: JobOptions = None,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> int:
    """Validate every point of a sweep, then run them all; "start" may be omitted."""
    from dither.registry.config.document import find_experiment
    from dither.registry.config.errors import Refused

    from ..reports.pages import write_sweep_page
    from ..runs.progress import Screen
    from ..sweeps.directory import rows_of
    from ..sweeps.launch import Settings, resume_sweep, start_sweep

    screen = Screen(stderr=wants_json(as_json))
    sweeps: list[SweepDirectory] = []
    names: list[str] = []
    if (experiment is None) == (resume is None):
        raise Refused("give either an experiment file or --resume SWEEP", code="usage")
    changes = joined(overrides, words)
    settings = Settings(
        jobs=jobs,
        ranks=ranks,
        keep_going=keep_going,
        executor=executor,
        options=tuple(joined(options)),
        select=tuple(joined(plugins)),
        dry_run=dry_run,
        write_page=write_sweep_page,
        # Both verbs return an exit code; these receive what they open and check.
        opened=sweeps.append,
        checked=names.extend,
    )
    if resume is not None:
        # The directory of the sweep has fixed its points.
        if values or changes or removals:
            raise Refused(
                "--sweep, --set and --unset cannot be used with --resume", code="usage"
            )
        refuse_unused(context, "with --resume", "runs", "dry_run")
        code = resume_sweep(resume, settings, screen)
    else:
        assert experiment is not None
        code = start_sweep(
            find_experiment(experiment),
            changes,
            removals=joined(removals),
            axes=joined(values),
            runs=runs,
            argv=["dither", *sys.argv[1:]],
            settings=settings,
            console=screen,
        )
    # A dry run makes no directory.
    record: dict[str, Any] = {"sweep": None, "points": [{"name": n} for n in names]}
    if sweeps:
        record = {"sweep": str(sweeps[0].path), "points": rows_of(sweeps[0])}
    echo_json(as_json, record)
    return code


@sweeps.command(epilog="Example: dither sweep status runs/SWEEP")
def status(
    directory: Annotated[
        Path, typer.Argument(help="A sweep directory.", show_default=False)
    ],
    sort: Annotated[
        str | None,
        typer.Option("--sort", metavar="METRIC", help="A metric or a swept key."),
    ] = None,
    descending: Annotated[
        bool | None,
        typer.Option(
            "--most/--least", help="Whether larger or smaller values come first."
        ),
    ] = None,
    as_json: Json = False,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="FILE",
            help="Also write a page, with the rows in this order.",
        ),
    ] = None,
) -> None:
    """Show every point of a sweep with its newest metrics, best first."""
    from rich.console import Console

    from ..sweeps.directory import SweepDirectory, rows_of, show_rows

    sweep = SweepDirectory.open(directory)
    rows = rows_of(sweep, sort, descending)
    if not echo_json(as_json, rows):
        show_rows(Console(), rows, sort)
    if out is not None:
        from ..reports.pages import write_sweep_page

        echo(write_sweep_page(sweep, rows, out), err=True)
