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
from ..progress import Screen, say
from ..trust import not_kept
from .axes import read_axes
from .checking import check_points, open_sweep
from .cluster import Executor, submit_points
from .directory import SweepDirectory
from .point import TRUSTED
from .points import expand
from .scheduler import Listed, Source, run_points
from .summary import show_rows, write_summary

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
    """Check all points of a file, then run them; return the exit code: 0 all done, 1 some failed, 75 stopped.

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
        jobs = submit_points(sweep, settings.executor, select, _options(settings), settings.jobs)
        for job in jobs:
            say(console, f"submitted job {job.job_id}")
        say(console, f"dither sweep status {sweep.path}")
        return 0
    code = run_points(source, settings.jobs, console, select, settings.keep_going)
    show_rows(console, write_summary(sweep))
    if code:
        say(console, f"go on with what is unfinished: dither sweep --resume {sweep.path}")
    return code


def _known(settings: Settings) -> None:
    names = get_args(Executor)
    if settings.executor not in names:
        close = nearest(settings.executor, names)
        hint = f'did you mean "{close}"?' if close else f"there are {', '.join(names)}"
        raise Refused(Problem(f'--executor "{settings.executor}" is unknown', help=hint))
    if settings.executor == "processes" and settings.options:
        raise Refused("--job is for --executor slurm, local or debug")
    _options(settings)


def _options(settings: Settings) -> dict[str, Any]:
    """Return what submitit is told.

    Raises:
        Refused: One is no `key=value`.
    """
    try:
        return {key: value for option in settings.options for key, value in Layer.change(option).tree.items()}
    except Refused as refused:
        raise Refused(str(refused.problems[0].message).replace("--set", "--job")) from None
