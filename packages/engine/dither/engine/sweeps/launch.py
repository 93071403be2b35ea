"""Start or resume a sweep; every point is validated before the first one starts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from dither.registry.config.document import Document, Layer
from dither.registry.config.errors import Problem, Refused
from dither.registry.config.validation import problems_of, validate
from dither.registry.contracts.jobs import Cluster, Command, Executor
from dither.registry.files.lookup import command_line
from dither.registry.kinds import ExecutorSpec
from dither.registry.plugins.manager import Plugins
from dither.registry.spec.base import Options, Slot
from dither.registry.spec.misfit import below

from ..config.load_experiment import Loaded, check_experiment, open_experiment
from ..files.resource_errors import shortage
from ..files.run_folders import require_folder
from ..runs.progress import Screen, say
from ..runs.run_directory import experiment_key
from ..signals import STOPPED
from .arms import check_comparison
from .directory import (
    MARK,
    RESUMABLE,
    PointFolder,
    SweepDirectory,
    rows_of,
    show_rows,
    write_json,
)
from .point_process import EXHAUSTED, POINT_MODULE, point_arguments
from .points import (
    Point,
    add_axes,
    points_with_each_value,
    read_groups,
    read_points,
)
from .scheduler import FAILED, PointList, Pool
from .search import Trials, read_search, search_problems
from .trial_process import TRIAL_MODULE

__all__ = [
    "Settings",
    "check_file",
    "check_points",
    "resume_sweep",
    "run_sweep",
    "start_sweep",
]

MAX_LISTED = 20
"""Points listed with a problem; the others are counted."""


@dataclass(frozen=True)
class Settings:
    """How to run the points: the options of `dither sweep`, and callbacks.

    `write_page` writes the page at the end, `show` prints the result; `opened` receives the sweep
    before its points run, `checked` the names of all points under `dry_run`.
    """

    jobs: int = 1
    ranks: int = 1
    keep_going: bool = True
    executor: str = "processes"
    options: tuple[str, ...] = ()
    select: tuple[str, ...] = ()
    dry_run: bool = False
    write_page: Callable[[SweepDirectory, list[dict[str, Any]]], object] | None = None
    show: Callable[[SweepDirectory, Console], object] | None = None
    opened: Callable[[SweepDirectory], object] = lambda sweep: None
    checked: Callable[[list[str]], object] = lambda names: None

    def build_executor(self, plugins: Plugins) -> Executor | Cluster:
        """Return the executor; Refused if it is unknown, or cannot be used here."""
        document = Document()
        name = f"--executor {self.executor}"
        document.merge(Layer(name, {"executor": {"use": self.executor}}))
        for text in self.options:
            options = Layer.override(text).tree
            document.merge(Layer(f"--job {text}", {"executor": options}))
        spec = validate(_Place, document, plugins.catalog).executor
        if misfits := list(below("executor", spec.check())):
            raise Refused(problems_of(misfits, document))
        executor = spec.build()
        # All jobs are queued at once.
        if isinstance(executor, Cluster) and not self.keep_going:
            message = f"--stop: no effect with --executor {self.executor}"
            raise Refused(message, code="no-effect")
        return executor


class _Place(Options):
    """The place of an executor, which no experiment file names: it belongs to a machine."""

    executor: Slot[ExecutorSpec]


def check_file(document: Document, plugins: Plugins) -> Loaded:
    """Check an experiment, the values of its `[sweep]` and the arms of its `[compare]`.

    Of a large grid each value is checked, but not each combination.

    Raises:
        Refused: With every problem of all three.
    """
    problems: dict[tuple[object, ...], Problem] = {}

    def collect(found: Iterable[Problem]) -> None:
        # The problems of the experiment are those of every point, too.
        for problem in found:
            key = (problem.path, problem.origin, problem.message)
            problems.setdefault(key, problem)

    loaded = None
    try:
        loaded = check_experiment(document, plugins)
    except Refused as refused:
        collect(refused.problems)
    collect(_sweep_problems(document, plugins))
    if document.at(("compare", "over")) or document.at(("compare", "arms")):
        try:
            check_comparison(document, plugins)
        except Refused as refused:
            collect(refused.problems)
    if problems or loaded is None:
        raise Refused(list(problems.values()))
    return loaded


def _sweep_problems(document: Document, plugins: Plugins) -> list[Problem]:
    """Return the problems of a grid, lists and a search; of a large grid each value is checked."""
    if document.at(("sweep", "search")) is not None:
        return search_problems(document, plugins)
    groups, problems = read_groups(document)
    try:
        check_points(document, plugins, points_with_each_value(groups))
    except Refused as refused:
        problems += refused.problems
    return problems


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
    document, plugins = open_experiment(
        path, changes, removals, settings.select or None
    )
    # An executor that cannot be used is refused before all points are checked.
    settings.build_executor(plugins)
    add_axes(document, axes)
    points: list[tuple[Point, Loaded]] = []
    facts: dict[str, Any] = {}
    if document.at(("sweep", "search")) is not None:
        search, _ = read_search(document, plugins)
        say(console, f"{search.trials} points, to {search.direction} {search.metric}")
        facts["search"] = search.model_dump()
    else:
        if read_groups(document)[1]:
            # Those of valid lists besides those of invalid ones.
            raise Refused(_sweep_problems(document, plugins))
        given = check_points(document, plugins, read_points(document))
        points = _without_repetitions(given)
        repeated = ""
        if len(points) < len(given):
            repeated = f"; {len(given) - len(points)} equal to another are left out"
        say(console, f"{len(points)} points, all valid{repeated}")
    if settings.dry_run:
        for point, _ in points:
            say(console, point.name)
        settings.checked([point.name for point, _ in points])
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
        unique.setdefault(experiment_key(loaded), (point, loaded))
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
    settings.opened(sweep)
    executor = settings.build_executor(_plugins_of(sweep, settings))
    if isinstance(executor, Cluster):
        _submit(sweep, executor, settings, console)
        return 0

    try:
        code = _run_stages(sweep, executor, settings, console)
    except OSError as error:
        # The error may be that the sweep directory is gone.
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


def _plugins_of(sweep: SweepDirectory, settings: Settings) -> Plugins:
    """Return the plugins of a sweep, any of which may have the executor."""
    base = sweep.path / "base"
    if not sweep.facts.get("search"):
        # Only a search copies its base; all points of a grid name the same plugins.
        base = next((folder.path for folder in sweep.folders()), sweep.path)
    return open_experiment(base / "experiment.toml", select=settings.select or None)[1]


def _run_stages(
    sweep: SweepDirectory, executor: Executor, settings: Settings, console: Console
) -> int:
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
        pool = Pool(
            points,
            executor,
            console,
            jobs=settings.jobs,
            ranks=settings.ranks,
            arguments=point_arguments(settings.select, settings.ranks),
            keep_going=settings.keep_going,
        )
        code = pool.run()
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
    verb = "compare" if "compare" in sweep.facts else "sweep"
    running = states.count("running")
    if running:
        message = f"another process is running {running} points"
        say(console, f"{message}: {command_line('sweep', 'status', sweep.path)}")
    # Processes that share a search share its trials, too.
    shared = running > 0 and not sweep.facts.get("search")
    if code or shared or set(states) & set(RESUMABLE):
        say(console, f"resume with: {command_line(verb, '--resume', sweep.path)}")

    if code:
        return code
    if {"failed", "lost"} & set(states):
        return FAILED
    if shared or {"waiting", "stopped"} & set(states):
        return STOPPED
    return 0


def _submit(
    sweep: SweepDirectory, cluster: Cluster, settings: Settings, console: Console
) -> None:
    """Queue every unfinished point that no process is running."""
    module = TRIAL_MODULE if sweep.facts.get("search") else POINT_MODULE
    commands = []
    for folders in _queued_folders(sweep):
        paths = [str(folder.resolve()) for folder in folders]
        command = Command(
            module=module,
            arguments=(*paths, *point_arguments(settings.select, settings.ranks)),
            name=str(sweep.facts["name"]),
            output=folders[0] / "output.txt",
            ranks=settings.ranks,
            parallel=settings.jobs,
        )
        commands.append(command)
    for number in cluster.submit(commands, sweep.path / "jobs"):
        say(console, f"submitted job {number}")
    say(console, command_line("sweep", "status", sweep.path))


def _queued_folders(sweep: SweepDirectory) -> list[list[Path]]:
    """Return the folders of each job: a point, and those that measure its weights; or the search."""
    folders = sweep.folders()
    if search := sweep.facts.get("search"):
        missing = search["trials"] - sum(map(_needs_no_job, folders))
        # Each job takes the next trial of the search.
        return [[sweep.path]] * max(0, missing)

    measuring: dict[str, list[Path]] = {}
    for folder in folders:
        source = folder.weights_point()
        if source is not None and folder.status()["state"] in RESUMABLE:
            measuring.setdefault(source.name, []).append(folder.path)
    queued = []
    for folder in folders:
        if folder.weights_point() is not None:
            continue
        paths = measuring.get(folder.name, [])
        if folder.status()["state"] in RESUMABLE:
            # The weights first, then what measures them.
            paths = [folder.path, *paths]
        if paths:
            queued.append(paths)
    return queued


def _needs_no_job(trial: PointFolder) -> bool:
    """Return whether a trial of a search is running or done, or failed for good."""
    status = trial.status()
    if status["state"] == "failed":
        # A trial that lacked disk space or memory is run again.
        return bool(status["exit_code"] != EXHAUSTED)
    return status["state"] not in RESUMABLE
