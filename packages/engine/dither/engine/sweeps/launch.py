"""Start or resume a sweep; every point is validated before the first one starts."""

from __future__ import annotations

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
from ..runs.progress import Screen, say
from ..runs.signals import STOPPED
from .directory import RESUMABLE, SweepDirectory, rows_of, show_rows, write_json
from .point_process import EXHAUSTED, run_job
from .points import Point, add_axes, read_points
from .scheduler import FAILED, PointList, run_points
from .search import Trials, read_search

__all__ = ["Settings", "check_points", "resume_sweep", "start_sweep"]

EXECUTORS = ("processes", "slurm", "local")
"""Own processes, or executors of submitit."""
MAX_LISTED = 20
"""Points listed with a problem; the others are counted."""


@dataclass(frozen=True)
class Settings:
    """How to run the points: the options of `dither sweep`, and what writes the report page at the end."""

    jobs: int = 1
    keep_going: bool = True
    executor: str = "processes"
    options: tuple[str, ...] = ()
    select: tuple[str, ...] = ()
    dry_run: bool = False
    write_page: Callable[[SweepDirectory, list[dict[str, Any]]], object] | None = None

    def cluster(self, folder: Path) -> Any:
        """Return an executor of submitit with logs in `folder`, or None for our own processes."""
        if self.executor == "processes":
            if self.options:
                raise Refused("--job requires --executor slurm or local", code="usage")
            return None
        if self.executor not in EXECUTORS:
            hint = f"known: {', '.join(EXECUTORS)}"
            raise Refused(
                Problem(f'unknown executor "{self.executor}"', help=hint, code="unknown-value")
            )
        with optional_import("submitit is not installed", "dither-engine", "slurm"):
            import submitit
        options = {
            key: value for text in self.options for key, value in Layer.override(text).tree.items()
        }
        if self.executor == "slurm":
            options = {"slurm_array_parallelism": self.jobs} | options
        try:
            executor = submitit.AutoExecutor(folder=folder, cluster=self.executor)
            executor.update_parameters(**options)
            return executor
        except (RuntimeError, NameError, TypeError, ValueError, OSError, AssertionError) as error:
            raise Refused(f"submitit cannot submit to {self.executor}: {error}") from None


def check_points(
    base: Document, plugins: Plugins, points: Sequence[Point]
) -> list[tuple[Point, Loaded]]:
    """Return every point with its experiment, or refuse with every problem and the points that have it."""
    problems: dict[str, tuple[Problem, list[Point]]] = {}
    valid = []
    for point in points:
        try:
            valid.append((point, check_experiment(point.document(base), plugins)))
        except Refused as refused:
            for problem in refused.problems:
                problems.setdefault(str(problem), (problem, []))[1].append(point)
    if problems:
        raise Refused(
            [
                _with_points(problem, affected, len(points))
                for problem, affected in problems.values()
            ]
        )
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
    document, plugins = open_experiment(path, changes, removals, settings.select or None)
    add_axes(document, axes)
    points: list[tuple[Point, Loaded]] = []
    facts: dict[str, Any] = {}
    if document.at(("sweep", "search")) is not None:
        if settings.executor != "processes":
            hint = "run the same search on several machines: dither sweep --resume DIR, on a shared file system"
            raise Refused(
                Problem("a search runs its points as local processes", help=hint, code="usage")
            )
        search, _ = read_search(document, plugins)
        say(console, f"{search.trials} points, to {search.direction} {search.metric}")
        facts["search"] = search.model_dump()
    else:
        points = check_points(document, plugins, read_points(document))
        say(console, f"{len(points)} points, all valid")
    if settings.dry_run:
        for point, _ in points:
            say(console, point.name)
        return 0
    sweep = SweepDirectory.create(runs, document, argv, **facts)
    if facts:
        sweep.copy_base(document, plugins)
    sweep.record([sweep.add(point.name, point.by_key, loaded) for point, loaded in points])
    return _run_sweep(sweep, settings, console)


def resume_sweep(path: Path, settings: Settings, console: Console | None = None) -> int:
    """Run the unfinished points of a sweep directory; return the exit code as `start_sweep`."""
    return _run_sweep(SweepDirectory.open(path), settings, console or Screen())


def _run_sweep(
    sweep: SweepDirectory,
    settings: Settings,
    console: Console,
) -> int:
    """Run the points of a sweep."""
    say(console, str(sweep.path))
    if executor := settings.cluster(sweep.path / "jobs"):
        _submit(sweep, executor, settings.select, console)
        return 0
    if sweep.facts.get("search"):
        source: PointList = Trials(sweep, console, settings.select)
    else:
        source = PointList(sweep.folders())
    try:
        code = run_points(source, settings.jobs, console, settings.select, settings.keep_going)
    except OSError as error:
        if not (lacking := shortage(error)):
            raise
        say(console, f"stopped: {lacking}", "red")
        code = EXHAUSTED
    rows = rows_of(sweep)
    try:
        write_json(sweep.path / "summary.json", rows)
        if settings.write_page is not None:
            settings.write_page(sweep, rows)
    except (OSError, Refused) as error:  # must not hide how the points ended
        say(console, f"the summary cannot be written: {error}", "yellow")
    show_rows(console, rows)
    states = [row["state"] for row in rows]
    if running := states.count("running"):
        say(
            console,
            f"another process is running {running} points: dither sweep status {quote(str(sweep.path))}",
        )
    shared = bool(running) and not sweep.facts.get(
        "search"
    )  # processes that share a search share its trials, too
    if code or shared or set(states) & set(RESUMABLE):
        say(console, f"resume with: dither sweep --resume {quote(str(sweep.path))}")
    failed = {"failed", "lost"} & set(states)
    return code or (
        FAILED if failed else STOPPED if shared or {"waiting", "stopped"} & set(states) else 0
    )


def _submit(
    sweep: SweepDirectory,
    executor: Any,
    arguments: Sequence[str],
    console: Console,
) -> None:
    """Submit every unfinished point that no process is running; a job is one attempt and outlives this process."""
    points = [point for point in sweep.folders() if point.status()["state"] in RESUMABLE]
    executor.update_parameters(name=str(sweep.facts["name"]))
    try:
        with (
            safe_path(),
            executor.batch(allow_implicit_submissions=True),
        ):  # no point is not an error
            jobs = [
                executor.submit(run_job, str(point.path.resolve()), list(arguments))
                for point in points
            ]
    except (RuntimeError, OSError) as error:
        raise Refused(f"submitit cannot submit: {error}") from None
    for job in jobs:
        say(console, f"submitted job {job.job_id}")
    say(console, f"dither sweep status {quote(str(sweep.path))}")
