"""`dither compare`: arms of an experiment with several seeds, or finished runs."""

from __future__ import annotations

import sys
from pathlib import Path
from shlex import quote
from typing import Annotated

import typer

from .app import (
    DryRun,
    Executor,
    JobOptions,
    Jobs,
    Json,
    Overrides,
    PluginNames,
    Ranks,
    Removals,
    Runs,
    Words,
    app,
)
from .output import echo, echo_json

__all__: list[str] = []


@app.command()
def compare(
    targets: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="FILE or RUN...",
            help="An experiment file; or finished runs, or the directory of a comparison.",
            show_default=False,
        ),
    ] = None,
    over: Annotated[
        Words,
        typer.Option(
            "--over",
            metavar="KEY=A,B",
            help="An axis of arms (repeatable); * is every compatible component.",
        ),
    ] = None,
    arms: Annotated[
        Words,
        typer.Option(
            "--arm", metavar="'NAME: KEY=VALUE ...'", help="An arm (repeatable)."
        ),
    ] = None,
    seeds: Annotated[
        int | None, typer.Option("--seeds", min=1, max=1000, help="Runs of each arm.")
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(
            "--against", metavar="ARM", help="Reference; the default is the first arm."
        ),
    ] = None,
    metric: Annotated[
        str | None,
        typer.Option(
            "--metric",
            metavar="KIND/NAME",
            help="By default the first headline of the task.",
        ),
    ] = None,
    overrides: Overrides = None,
    removals: Removals = None,
    plugins: PluginNames = None,
    runs: Runs = Path("runs"),
    resume: Annotated[
        Path | None,
        typer.Option("--resume", metavar="COMPARISON", help="Run unfinished points."),
    ] = None,
    jobs: Jobs = 1,
    ranks: Ranks = 1,
    executor: Executor = "processes",
    job_options: JobOptions = None,
    dry_run: DryRun = False,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="Write the page of finished runs."),
    ] = None,
    as_json: Json = False,
) -> int:
    """Compare arms over seeds: difference, 95 % interval, verdict.

    The difference of an arm to the reference is better or worse if its p-value over seeds and
    samples, after Holm's correction, is at most 5 %.
    """
    from dither.registry.config.document import find_experiment
    from dither.registry.config.errors import Problem, Refused
    from dither.registry.files.lookup import is_folder

    from ..reports.comparison_page import write_comparison_page
    from ..runs.progress import Screen
    from ..sweeps.arms import arm_layers
    from ..sweeps.compare import (
        Request,
        open_comparison,
        prepare_comparison,
        start_comparison,
    )
    from ..sweeps.launch import Settings

    settings = Settings(
        jobs=jobs,
        ranks=ranks,
        executor=executor,
        options=tuple(job_options or ()),
        select=tuple(plugins or ()),
        dry_run=dry_run,
        write_page=write_comparison_page,
    )
    given = {"seeds": seeds, "against": against, "metric": metric}
    options = {key: value for key, value in given.items() if value is not None}
    if (resume is None) == (not targets):
        raise Refused("give an experiment file, runs, or --resume DIR", code="usage")
    if targets and len(targets) == 1 and not is_folder(targets[0]):
        if as_json or out is not None:
            message = "--json and --out require finished runs or a comparison"
            raise Refused(message, code="usage")
        request = Request(
            path=find_experiment(targets[0]),
            changes=overrides or (),
            removals=removals or (),
            layers=arm_layers(over or (), arms or ()),
            options=options,
            runs=runs,
            argv=["dither", *sys.argv[1:]],
        )
        sweep = prepare_comparison(request, settings, Screen())
        return 0 if sweep is None else start_comparison(sweep, settings)

    # Options of new runs have no effect on finished ones.
    if any((over, arms, overrides, removals, seeds)):
        message = "--over, --arm, --seeds, --set and --unset require an experiment file"
        raise Refused(message, code="usage")
    if resume is not None:
        if as_json or any((metric, against, out)):
            message = "--metric, --against, --json and --out have no effect on --resume"
            hint = f"dither compare {quote(str(resume))} --metric NAME"
            raise Refused(Problem(message, help=hint, code="usage"))
        return start_comparison(open_comparison(resume), settings)
    assert targets
    _show(targets, metric, against, out, as_json)
    return 0


def _show(
    targets: list[Path],
    metric: str | None,
    against: str | None,
    out: Path | None,
    as_json: bool,
) -> None:
    """Print the table of finished runs, or of the directory of a comparison."""
    from ..reports.comparison_page import write_page_of
    from ..runs.progress import Screen
    from ..sweeps.compare import (
        compare_runs,
        is_comparison,
        open_comparison,
        read_comparison,
    )
    from ..sweeps.comparison import show_comparison

    if len(targets) == 1 and is_comparison(targets[0]):
        comparison = read_comparison(open_comparison(targets[0]), metric, against)
    else:
        comparison = compare_runs(targets, metric, against)
    if not echo_json(as_json, comparison.records()):
        show_comparison(Screen(), comparison)
    if out is not None:
        echo(write_page_of(comparison, out), err=True)
