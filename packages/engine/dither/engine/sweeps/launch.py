"""Start or resume a sweep; every point is validated before the first one starts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from dither.registry.config.document import Document
from dither.registry.config.errors import Problem, Refused
from dither.registry.plugins.manager import Plugins

from ..config.load_experiment import Loaded, check_experiment, open_experiment
from ..config.plugins import unrecorded_plugins
from ..runs.progress import Screen, say
from .directory import SweepDirectory
from .execution import Settings, run_sweep
from .points import Point, expand, read_axes, with_sweeps
from .scheduler import PointList

__all__ = ["check_points", "load_sweep", "open_sweep", "resume_sweep", "start_sweep"]

MAX_LISTED = 20
"""Points listed with a problem; the others are counted."""


def load_sweep(
    path: Path,
    changes: Iterable[str] = (),
    removals: Iterable[str] = (),
    select: Sequence[str] | None = None,
    sweeps: Iterable[str] = (),
) -> list[tuple[Point, Loaded]]:
    """Read a file with a sweep and validate all of its points.

    Args:
        path: The TOML file.
        changes: `key=value` as after --set.
        removals: Keys as after --unset.
        select: Plugins as after -p.
        sweeps: `key=[values]` as after --sweep.

    Raises:
        Refused: With every problem of the sweep or of any point.
    """
    document, plugins = open_sweep(path, changes, removals, select, sweeps)
    return check_points(document, plugins, expand(read_axes(document)))


def open_sweep(
    path: Path, changes: Iterable[str], removals: Iterable[str], select: Sequence[str] | None, sweeps: Iterable[str]
) -> tuple[Document, Plugins]:
    """Read a file with a sweep; arguments as for `load_sweep`."""
    document, plugins = open_experiment(path, changes, removals, select)
    with_sweeps(document, list(sweeps))
    return document, plugins


def check_points(base: Document, plugins: Plugins, points: Sequence[Point]) -> list[tuple[Point, Loaded]]:
    """Validate every point and return it with its experiment.

    Raises:
        Refused: With every problem once, and the points that have it.
    """
    problems: dict[str, tuple[Problem, list[Point]]] = {}
    valid = []
    for point in points:
        try:
            valid.append((point, check_experiment(point.document(base), plugins)))
        except Refused as refused:
            for problem in refused.problems:
                problems.setdefault(str(problem), (problem, []))[1].append(point)
    if problems:
        raise Refused([_with_points(problem, affected, len(points)) for problem, affected in problems.values()])
    return valid


def _with_points(problem: Problem, affected: Sequence[Point], count: int) -> Problem:
    listed = [f"  point {point.name.partition('-')[0]}: {point}" for point in affected[:MAX_LISTED]]
    rest = [f"  and {len(affected) - MAX_LISTED:,} more"] if len(affected) > MAX_LISTED else []
    lines = "\n".join([f"{len(affected)} of {count} points have this problem:", *listed, *rest])
    return replace(problem, help=f"{problem.help}\n{lines}" if problem.help else lines)


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
    """Validate all points of a file, then run them; return the exit code.

    0 all done, 1 some failed, 5 no disk space for the sweep itself, 75 stopped or some run by another process.

    Args:
        path: The experiment file.
        changes: `key=value` as after --set.
        removals: Keys as after --unset.
        sweeps: `key=[values]` as after --sweep.
        runs: Parent folder of the sweep directory.
        argv: The command line, for the record.
        settings: How to run the points.
        console: For progress messages.

    Raises:
        Refused: The sweep or any point is invalid; nothing was started.
    """
    console = console or Screen()
    settings.check()
    document, plugins = open_sweep(path, changes, removals, settings.select or None, sweeps)
    if document.at(("sweep", "search")) is not None:
        from .search import start_search

        return start_search(document, plugins, runs, argv, settings, console)
    points = check_points(document, plugins, expand(read_axes(document)))
    say(console, f"{len(points)} points, all valid")
    for line in unrecorded_plugins(plugins.files):
        say(console, line, "yellow")
    if settings.dry_run:
        for point, _ in points:
            say(console, point.name)
        return 0
    sweep = SweepDirectory.create(runs, document, argv)
    sweep.record([sweep.add(point.name, point.by_key, loaded) for point, loaded in points])
    return run_sweep(sweep, PointList(sweep.folders()), settings, console, fresh=True)


def resume_sweep(path: Path, settings: Settings, console: Console | None = None) -> int:
    """Run the unfinished points of a sweep directory; return the exit code as `start_sweep`.

    Raises:
        Refused: It is not a sweep directory.
    """
    console = console or Screen()
    settings.check()
    sweep = SweepDirectory.open(path)
    if sweep.facts.get("search"):
        from .search import resume_search

        return resume_search(sweep, settings, console)
    source = PointList(sweep.folders())
    say(console, f"{source.total} of {len(sweep.folders())} points are unfinished")
    return run_sweep(sweep, source, settings, console)
