"""`dither compare`: arms of an experiment with several seeds, or finished runs."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

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
    joined,
    quoted,
    refuse_unused,
)
from .output import echo, echo_json, wants_json

if TYPE_CHECKING:
    from ..sweeps.compare import Request
    from ..sweeps.comparison import Comparison
    from ..sweeps.directory import SweepDirectory
    from ..sweeps.launch import Settings

__all__: list[str] = []


@app.command()
def compare(
    context: typer.Context,
    words: Annotated[
        Words,
        typer.Argument(
            metavar="FILE [KEY=VALUE...] or RUN...",
            help="An experiment file, or with --over a trained model, and overrides; or finished "
            "runs and models; or the directory of a comparison.",
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
    split: Annotated[
        Literal["valid", "test"] | None,
        typer.Option("--split", help="Split of the evaluation; by default valid."),
    ] = None,
    equal: Annotated[
        Literal["steps", "samples", "flops", "seconds"] | None,
        typer.Option("--equal", help="Train all arms as much as the first one."),
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
    from dither.registry.config.errors import Refused

    from ..reports.comparison_page import write_comparison_page
    from ..sweeps.arms import arm_layers
    from ..sweeps.compare import Request, open_comparison
    from ..sweeps.launch import Settings

    targets, assignments = _split(words or ())
    overrides = [*assignments, *joined(overrides)]
    if (resume is None) == (not targets):
        raise Refused("give an experiment file, runs, or --resume DIR", code="usage")
    as_json = wants_json(as_json)
    settings = Settings(
        jobs=jobs,
        ranks=ranks,
        executor=executor,
        options=tuple(joined(job_options)),
        select=tuple(joined(plugins)),
        dry_run=dry_run,
        write_page=write_comparison_page,
    )
    of_arms = {
        "--over": over,
        "--arm": arms,
        "--seeds": seeds,
        "--equal": equal,
        "--set": overrides,
        "--unset": removals,
    }
    of_table = {"metric": metric, "against": against, "split": split}
    if targets and _is_experiment(targets, bool(over or arms)):
        _refuse_flags({"--out": out}, "only with finished runs or a comparison")
        options = {"seeds": seeds, "equal": equal, **of_table}
        request = Request(
            target=targets[0],
            changes=overrides,
            removals=joined(removals),
            layers=arm_layers(joined(over), joined(arms)),
            options={key: value for key, value in options.items() if value is not None},
            runs=runs,
            argv=["dither", *sys.argv[1:]],
        )
        return _start(request, settings, as_json)

    _refuse_flags(of_arms, "only with an experiment file, or one trained model")
    if resume is not None:
        flags = {f"--{name}": value for name, value in of_table.items()}
        command = quoted("compare", resume)
        reason = f"not with --resume: {command} --metric NAME"
        _refuse_flags({**flags, "--out": out}, reason)
        refuse_unused(context, "with --resume", "runs", "dry_run")
        return _run(open_comparison(resume), settings, as_json)
    of_points = ("plugins", "jobs", "ranks", "executor", "job_options", "dry_run")
    refuse_unused(context, "as these runs have finished", *of_points)
    _show(targets, of_table, runs, out, as_json)
    return 0


def _split(words: Sequence[str]) -> tuple[list[Path], list[str]]:
    """Return the targets and the overrides `key=value` among words."""
    from dither.registry.files.lookup import exists

    assignments = [word for word in words if "=" in word and not exists(Path(word))]
    return [Path(word) for word in words if word not in assignments], assignments


def _is_experiment(targets: list[Path], has_arms: bool) -> bool:
    """Return whether the targets are one experiment, or one trained model with arms of sampling."""
    from dither.registry.files.lookup import is_folder

    from ..sweeps.compare import is_trained

    if len(targets) > 1:
        return False
    return has_arms if is_trained(targets[0]) else not is_folder(targets[0])


def _refuse_flags(flags: Mapping[str, object], reason: str) -> None:
    """Refuse flags that are given where they have no effect."""
    from dither.registry.config.errors import Refused

    given = [flag for flag, value in flags.items() if value]
    if given:
        raise Refused(f"{', '.join(given)}: {reason}", code="usage")


def _start(request: Request, settings: Settings, as_json: bool) -> int:
    from ..runs.progress import Screen
    from ..sweeps.compare import prepare_comparison

    names: list[str] = []
    settings = replace(settings, checked=names.extend)
    sweep = prepare_comparison(request, settings, Screen(stderr=as_json))
    if sweep is None:
        echo_json(as_json, [{"arm": name} for name in names])
        return 0
    return _run(sweep, settings, as_json)


def _run(sweep: SweepDirectory, settings: Settings, as_json: bool) -> int:
    """Run the unfinished points; print the table, or as JSON the arms as far as they are finished."""
    from ..runs.progress import Screen
    from ..sweeps.compare import start_comparison
    from ..sweeps.comparison import show_comparison

    # With --json, stdout has a single value.
    screen = Screen(stderr=as_json)
    records: list[dict[str, Any]] = []

    def show(comparison: Comparison) -> None:
        records.extend(comparison.records())
        if not as_json:
            show_comparison(screen, comparison)

    code = start_comparison(sweep, settings, screen, show)
    echo_json(as_json, records)
    return code


def _show(
    targets: list[Path],
    of_table: Mapping[str, Any],
    runs: Path,
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
        comparison = read_comparison(open_comparison(targets[0]), **of_table)
    else:
        comparison = compare_runs(targets, **of_table, folder=runs)
    if not echo_json(as_json, comparison.records()):
        show_comparison(Screen(), comparison)
    if out is not None:
        echo(write_page_of(comparison, out), err=True)
