"""`dither compare`: arms of an experiment with several seeds, or finished runs."""

from __future__ import annotations

import sys
from collections.abc import Mapping
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
    from dither.registry.config.errors import Refused
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

    if (resume is None) == (not targets):
        raise Refused("give an experiment file, runs, or --resume DIR", code="usage")
    settings = Settings(
        jobs=jobs,
        ranks=ranks,
        executor=executor,
        options=tuple(job_options or ()),
        select=tuple(plugins or ()),
        dry_run=dry_run,
        write_page=write_comparison_page,
    )
    output = {"--json": as_json, "--out": out}

    if targets and len(targets) == 1 and not is_folder(targets[0]):
        _refuse_flags(output, "only with finished runs or a comparison")
        given = {"seeds": seeds, "against": against, "metric": metric}
        request = Request(
            path=find_experiment(targets[0]),
            changes=overrides or (),
            removals=removals or (),
            layers=arm_layers(over or (), arms or ()),
            options={key: value for key, value in given.items() if value is not None},
            runs=runs,
            argv=["dither", *sys.argv[1:]],
        )
        sweep = prepare_comparison(request, settings, Screen())
        return 0 if sweep is None else start_comparison(sweep, settings)

    of_arms = {"--over": over, "--arm": arms, "--seeds": seeds}
    changes = {"--set": overrides, "--unset": removals}
    _refuse_flags({**of_arms, **changes}, "only with an experiment file")
    if resume is not None:
        of_table = {"--metric": metric, "--against": against, **output}
        reason = f"not with --resume: dither compare {quote(str(resume))} --metric NAME"
        _refuse_flags(of_table, reason)
        return start_comparison(open_comparison(resume), settings)
    assert targets
    _show(targets, metric, against, out, as_json)
    return 0


def _refuse_flags(flags: Mapping[str, object], reason: str) -> None:
    """Refuse flags that are given where they have no effect."""
    from dither.registry.config.errors import Refused

    given = [flag for flag, value in flags.items() if value]
    if given:
        raise Refused(f"{', '.join(given)}: {reason}", code="usage")


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
