"""Start or resume a sweep; every point is validated before the first one starts."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import quote
from tempfile import TemporaryDirectory
from typing import Any

from rich.console import Console

from dither.registry.config.document import Document, Layer
from dither.registry.config.errors import Problem, Refused
from dither.registry.files.child_process import safe_path
from dither.registry.plugins.install_command import optional_import
from dither.registry.plugins.manager import Plugins

from ..config.load_experiment import Loaded, check_experiment, open_experiment
from ..files.resource_errors import shortage
from ..files.run_folders import require_folder
from ..runs.progress import Screen, say
from ..runs.run_directory import resolved
from ..runs.signals import STOPPED
from .directory import (
    MARK,
    RESUMABLE,
    PointFolder,
    SweepDirectory,
    rows_of,
    show_rows,
    write_json,
)
from .point_process import EXHAUSTED, run_job
from .points import Point, add_axes, read_points
from .scheduler import FAILED, PointList, run_points
from .search import Trials, read_search

__all__ = ["Settings", "check_points", "resume_sweep", "run_sweep", "start_sweep"]

EXECUTORS = ("processes", "slurm", "local")
"""Own processes, or executors of submitit."""
MAX_LISTED = 20
"""Points listed with a problem; the others are counted."""


@dataclass(frozen=True)
class Settings:
    """How to run the points: the options of `dither sweep`; what writes the page at the end, and prints the result."""

    jobs: int = 1
    keep_going: bool = True
    executor: str = "processes"
    options: tuple[str, ...] = ()
    select: tuple[str, ...] = ()
    dry_run: bool = False
    write_page: Callable[[SweepDirectory, list[dict[str, Any]]], object] | None = None
    show: Callable[[SweepDirectory, Console], object] | None = None

    def cluster(self, folder: Path) -> Any:
        """Return an executor of submitit with logs in `folder`, or None for our own processes."""
        if self.executor == "processes":
            if self.options:
                raise Refused("--job requires --executor slurm or local", code="usage")
            return None
        if self.executor not in EXECUTORS:
            hint = f"known: {', '.join(EXECUTORS)}"
            raise Refused(
                Problem(
                    f'unknown executor "{self.executor}"',
                    help=hint,
                    code="unknown-value",
                )
            )
        with optional_import("submitit is not installed", "dither-engine", "slurm"):
            import submitit
        options: dict[str, Any] = {}
        for text in self.options:
            options |= Layer.override(text).tree
        if self.executor == "slurm":
            options = {"slurm_array_parallelism": self.jobs} | options
        try:
            executor = submitit.AutoExecutor(folder=folder, cluster=self.executor)
            executor.update_parameters(**options)
            return executor
        except (
            RuntimeError,
            NameError,
            TypeError,
            ValueError,
            OSError,
            AssertionError,
        ) as error:
            raise Refused(
                f"submitit cannot submit to {self.executor}: {error}"
            ) from None


def check_points(
    base: Document, plugins: Plugins, points: Sequence[Point]
) -> list[tuple[Point, Loaded]]:
    """Return every point with its experiment.

    Raises:
        Refused: Names every problem once, with the points that have it.
    """
    problems: dict[str, tuple[Problem, list[Point]]] = {}
    valid = []
    for point in points:
        try:
            valid.append((point, check_experiment(point.document(base), plugins)))
        except Refused as refused:
            for problem in refused.problems:
                _, affected = problems.setdefault(str(problem), (problem, []))
                affected.append(point)
    if problems:
        count = len(points)
        raise Refused([_with_points(*entry, count) for entry in problems.values()])
    return valid


def _with_points(problem: Problem, affected: Sequence[Point], count: int) -> Problem:
    lines = [f"{len(affected)} of {count} points have this problem:"]
    for point in affected[:MAX_LISTED]:
        lines.append(f"  point {point.name.partition('-')[0]}: {point}")
    if len(affected) > MAX_LISTED:
        lines.append(f"  and {len(affected) - MAX_LISTED:,} more")
    if problem.help:
        lines.insert(0, problem.help)
    return replace(problem, help="\n".join(lines))


def start_sweep(
    path: Path,
    changes: Iterable[str],
    removals: Iterable[str],
    axes: Iterable[str],
    runs: Path,
    argv: Sequence[str],
    settings: Settings,
    console: Console | None = None,
) -> int:
    """Validate all points of a file, then run them in a new sweep directory inside `runs`.

    Arguments are as after `dither sweep`. Returns 0 if all are done, 1 if some failed, 5 without
    disk space for the sweep itself, 75 if it was stopped or another process runs some points.
    Nothing starts if any point is invalid.
    """
    console = console or Screen()
    with TemporaryDirectory() as folder:
        settings.cluster(Path(folder))
    document, plugins = open_experiment(
        path, changes, removals, settings.select or None
    )
    add_axes(document, axes)
    points: list[tuple[Point, Loaded]] = []
    facts: dict[str, Any] = {}
    if document.at(("sweep", "search")) is not None:
        if settings.executor != "processes":
            hint = "run the same search on several machines: dither sweep --resume DIR, on a shared file system"
            raise Refused(
                Problem(
                    "a search runs its points as local processes",
                    help=hint,
                    code="usage",
                )
            )
        search, _ = read_search(document, plugins)
        say(console, f"{search.trials} points, to {search.direction} {search.metric}")
        facts["search"] = search.model_dump()
    else:
        given = check_points(document, plugins, read_points(document))
        points = _without_repetitions(given)
        repeated = ""
        if len(points) < len(given):
            repeated = f"; {len(given) - len(points)} equal to another are left out"
        say(console, f"{len(points)} points, all valid{repeated}")
    if settings.dry_run:
        for point, _ in points:
            say(console, point.name)
        return 0
    sweep = SweepDirectory.create(runs, document, argv, **facts)
    if facts:
        sweep.copy_base(document, plugins)
    sweep.record(
        [sweep.add(point.name, point.by_key, loaded) for point, loaded in points]
    )
    return run_sweep(sweep, settings, console)


def _without_repetitions(
    points: Sequence[tuple[Point, Loaded]],
) -> list[tuple[Point, Loaded]]:
    """Return the points without those whose experiment, with every default, is that of another."""
    unique: dict[str, tuple[Point, Loaded]] = {}
    for point, loaded in points:
        key = json.dumps(resolved(loaded), sort_keys=True, default=str)
        unique.setdefault(key, (point, loaded))
    return list(unique.values())


def resume_sweep(path: Path, settings: Settings, console: Console | None = None) -> int:
    """Run the unfinished points of a sweep directory; return the exit code as `start_sweep`."""
    return run_sweep(SweepDirectory.open(path), settings, console or Screen())


def run_sweep(
    sweep: SweepDirectory,
    settings: Settings,
    console: Console,
) -> int:
    """Run the points of a sweep."""
    say(console, str(sweep.path))
    executor = settings.cluster(sweep.path / "jobs")
    if executor is not None:
        _submit(sweep, executor, settings.select, console)
        return 0

    try:
        code = _run_stages(sweep, settings, console)
    except OSError as error:
        require_folder(sweep.path, MARK, "sweep")
        lacking = shortage(error)
        if not lacking:
            raise
        say(console, f"stopped: {lacking}", "red")
        code = EXHAUSTED
    require_folder(sweep.path, MARK, "sweep")
    rows = rows_of(sweep)
    _write_summary(sweep, rows, settings, console)
    if settings.show is None:
        show_rows(console, rows)
    else:
        settings.show(sweep, console)
    return _exit_code(sweep, [row["state"] for row in rows], code, console)


def _run_stages(sweep: SweepDirectory, settings: Settings, console: Console) -> int:
    """Run the points that train, then those that measure the weights of others."""
    training: list[PointFolder] = []
    measuring: list[PointFolder] = []
    for folder in sweep.folders():
        stage = training if folder.weights_point() is None else measuring
        stage.append(folder)
    source = PointList(training)
    if sweep.facts.get("search"):
        source = Trials(sweep, console, settings.select)

    codes = []
    for points in (source, PointList(measuring)):
        code = run_points(
            points, settings.jobs, console, settings.select, settings.keep_going
        )
        if code == STOPPED or (code and not settings.keep_going):
            return code
        codes.append(code)
    return max(codes)


def _write_summary(
    sweep: SweepDirectory,
    rows: list[dict[str, Any]],
    settings: Settings,
    console: Console,
) -> None:
    try:
        write_json(sweep.path / "summary.json", rows)
        if settings.write_page is not None:
            settings.write_page(sweep, rows)
    except (OSError, Refused) as error:
        # This must not hide how the points ended.
        say(console, f"the summary cannot be written: {error}", "yellow")


def _exit_code(
    sweep: SweepDirectory, states: Sequence[str], code: int, console: Console
) -> int:
    """Return the exit code of a sweep, given that of its own points, and say how to go on."""
    command = "dither compare" if "compare" in sweep.facts else "dither sweep"
    running = states.count("running")
    if running:
        message = f"another process is running {running} points"
        say(console, f"{message}: dither sweep status {quote(str(sweep.path))}")
    # Processes that share a search share its trials, too.
    shared = running > 0 and not sweep.facts.get("search")
    if code or shared or set(states) & set(RESUMABLE):
        say(console, f"resume with: {command} --resume {quote(str(sweep.path))}")

    if code:
        return code
    if {"failed", "lost"} & set(states):
        return FAILED
    if shared or {"waiting", "stopped"} & set(states):
        return STOPPED
    return 0


def _submit(
    sweep: SweepDirectory,
    executor: Any,
    arguments: Sequence[str],
    console: Console,
) -> None:
    """Submit every unfinished point that no process is running.

    A job is one attempt and outlives this process.
    """
    points = [
        point for point in sweep.folders() if point.status()["state"] in RESUMABLE
    ]
    executor.update_parameters(name=str(sweep.facts["name"]))
    jobs = []
    try:
        # Implicit submissions: a sweep without an unfinished point is not an error.
        with safe_path(), executor.batch(allow_implicit_submissions=True):
            for point in points:
                jobs.append(
                    executor.submit(run_job, str(point.path.resolve()), list(arguments))
                )
    except (RuntimeError, OSError) as error:
        raise Refused(f"submitit cannot submit: {error}") from None
    for job in jobs:
        say(console, f"submitted job {job.job_id}")
    say(console, f"dither sweep status {quote(str(sweep.path))}")
