"""Start a sweep, or go on with one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from rich.console import Console

from dither.registry.layers import Layer
from dither.registry.problems import Problem, Refused, nearest

from ..anchoring import outside
from ..disk import shortage
from ..progress import Screen, say
from ..trust import not_kept
from .axes import read_axes
from .checking import check_points, open_sweep
from .cluster import Executor, check_executor, submit_points
from .directory import UNFINISHED, SweepDirectory
from .point import EXHAUSTED, TRUSTED
from .points import expand
from .scheduler import FAILED, STOPPED, Listed, Source, run_points
from .summary import rows_of, show_rows, write_summary

__all__ = ["Settings", "resume_sweep", "start_sweep"]


@dataclass(frozen=True)
class Settings:
    """How points are run.

    Attributes:
        jobs: Runs at a time.
        keep_going: Whether the others go on when a point fails.
        executor: processes, or one of submitit's: slurm, local, debug.
        options: `key=value` for submitit.
        select: Plugins as after -p.
        dry_run: Only check and name the points.
    """

    jobs: int = 1
    keep_going: bool = True
    executor: str = "processes"
    options: tuple[str, ...] = ()
    select: tuple[str, ...] = ()
    dry_run: bool = False


def start_sweep(
    path: Path,
    changes: Iterable[str],
    removals: Iterable[str],
    sweeps: Iterable[str],
    runs: Path,
    argv: Sequence[str],
    settings: Settings,
    console: Console | None = None,
) -> int:
    """Check all points of a file, then run them; return the exit code.

    0 all done, 1 some failed, 5 no space for the sweep itself, 75 stopped, or points of a grid are another's.

    Args:
        path: The experiment file.
        changes: `key=value` as after --set.
        removals: Keys as after --unset.
        sweeps: `key=[values]` as after --sweep.
        runs: The folder in which the sweep directory is made.
        argv: The command line, which is written down.
        settings: How points are run.
        console: Where it is shown.

    Raises:
        Refused: The sweep or any of its points is wrong; nothing was started.
    """
    console = console or Screen()
    _known(settings)
    document, plugins = open_sweep(path, changes, removals, settings.select or None, sweeps)
    table: Any = document.at(("sweep", "search"))
    if table is not None:
        from .search import start_search

        return start_search(document, plugins, runs, argv, settings, console)
    points = check_points(document, plugins, expand(read_axes(document)))
    say(console, f"{len(points)} points, all valid")
    # what other points read elsewhere, they say in their output.txt
    for line in (*outside(points[0][1]), *not_kept(plugins.files)):
        say(console, line, "yellow")
    if settings.dry_run:
        for point, _ in points:
            say(console, point.name)
        return 0
    sweep = SweepDirectory.create(runs, document, argv)
    sweep.record([sweep.add(point.name, point.by_key, loaded) for point, loaded in points])
    return carry_out(sweep, Listed(sweep.folders()), settings, console, fresh=True)


def resume_sweep(path: Path, settings: Settings, console: Console | None = None) -> int:
    """Go on with what is unfinished in a sweep directory; return the exit code as `start_sweep` does.

    Raises:
        Refused: It is no sweep directory.
    """
    console = console or Screen()
    _known(settings)
    sweep = SweepDirectory.open(path)
    if sweep.facts.get("search"):
        from .search import resume_search

        return resume_search(sweep, settings, console)
    source = Listed(sweep.folders())
    say(console, f"{source.total} of {len(sweep.folders())} points are unfinished")
    return carry_out(sweep, source, settings, console)


def carry_out(
    sweep: SweepDirectory, source: Source, settings: Settings, console: Console, *, fresh: bool = False
) -> int:
    """Run the points of a source, and sum up; those of a fresh sweep hold copies of the plugin files that ran here."""
    say(console, str(sweep.path))
    select = (*settings.select, *((TRUSTED,) if fresh else ()))
    if settings.executor != "processes":
        for job in submit_points(sweep, settings.executor, select, _options(settings), settings.jobs):
            say(console, f"submitted job {job.job_id}")
        if settings.executor != "debug":
            say(console, f"dither sweep status {sweep.path}")
            return 0
        return _sum_up(sweep, source, 0, console)
    try:
        code = run_points(source, settings.jobs, console, select, settings.keep_going)
    except OSError as error:
        lacking = shortage(error)
        if lacking is None:
            raise
        say(console, f"stopped: {lacking}", "red")
        code = EXHAUSTED
    return _sum_up(sweep, source, code, console)


def _sum_up(sweep: SweepDirectory, source: Source, code: int, console: Console) -> int:
    """Show how all points stand, whoever has run them, and what can be done; return the exit code."""
    try:
        rows = write_summary(sweep)
    except (OSError, Refused) as error:  # which must not hide how the points ended
        rows = rows_of(sweep)
        say(console, f"the summary is not written: {error}", "yellow")
    show_rows(console, rows)
    if outcome := source.outcome():
        say(console, outcome)
    return _next(sweep, code, console)


def _next(sweep: SweepDirectory, code: int, console: Console) -> int:
    """Say what can be done about points that are not done; return the exit code."""
    every = [point.status() for point in sweep.folders()]
    states = {status["state"] for status in every}
    others = {"running"} if sweep.facts.get("search") else set()  # searches share the trials out among processes
    code = code or (FAILED if states & {"failed", "lost"} else STOPPED if states & set(UNFINISHED) - others else 0)
    running = sum(status["state"] == "running" for status in every)
    if running:
        say(console, f"another process still works on {running} of them: dither sweep status {sweep.path}")
    short = any(status["state"] == "failed" and status.get("exit_code") == EXHAUSTED for status in every)
    if short or code == EXHAUSTED:
        say(console, f"there was too little space or memory for {sweep.path}", "red")
    again = states & {"waiting", "stopped", "lost"} or short or ("failed" in states and not sweep.facts.get("search"))
    if again or code in (STOPPED, EXHAUSTED):
        first = "make room, then " if short or code == EXHAUSTED else ""
        say(console, f"{first}go on with what is unfinished: dither sweep --resume {sweep.path}")
    return code


def _known(settings: Settings) -> None:
    names = get_args(Executor)
    if settings.executor not in names:
        close = nearest(settings.executor, names)
        hint = f'did you mean "{close}"?' if close else f"there are {', '.join(names)}"
        raise Refused(Problem(f'--executor "{settings.executor}" is unknown', help=hint))
    if settings.executor == "processes" and settings.options:
        raise Refused("--job is for --executor slurm, local or debug")
    options = _options(settings)
    if settings.executor != "processes":
        check_executor(settings.executor, options)


def _options(settings: Settings) -> dict[str, Any]:
    """Return what submitit is told.

    Raises:
        Refused: One is no `key=value`.
    """
    try:
        return {key: value for option in settings.options for key, value in Layer.change(option).tree.items()}
    except Refused as refused:
        raise Refused(str(refused.problems[0].message).replace("--set", "--job")) from None
