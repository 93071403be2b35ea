"""Every point of a sweep is checked before the first one starts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

from pydantic import ValidationError
from rich.console import Console

from dither.registry.config.document import Document
from dither.registry.config.errors import Problem, Refused, nearest
from dither.registry.plugins.manager import Plugins
from dither.registry.plugins.status import PluginError

from ..config.experiment import Experiment
from ..config.load_experiment import Loaded, check_experiment, open_experiment
from ..config.paths import external_files
from ..config.plugins import unrecorded_plugins
from ..runs.progress import Screen, say
from .directory import SweepDirectory
from .execution import Executor, Settings, _options, check_executor, run_sweep
from .points import Point, expand, read_axes, with_sweeps
from .scheduler import PointList

__all__ = ["UNCHECKED", "check_points", "load_sweep", "open_sweep", "resume_sweep", "start_sweep"]

UNCHECKED: dict[str, Any] = {
    **dict.fromkeys(("name", "seed", "plugins", "sweep"), True),
    "train": {"steps", "lr_schedule", "clip", "non_finite", "skip_limit", "log_every", "keep", "keep_best", "threads"},
    "evaluate": {"every", "repeats", "best", "better", "patience"},
}
"""What `Experiment.check` does not look at."""
NAMED = 20
"""Points that are named with a mistake; the others are counted."""


def load_sweep(
    path: Path,
    changes: Iterable[str] = (),
    removals: Iterable[str] = (),
    select: Sequence[str] | None = None,
    sweeps: Iterable[str] = (),
) -> list[tuple[Point, Loaded]]:
    """Read a file with a sweep, and check all of its points.

    Args:
        path: The TOML file.
        changes: `key=value` as after --set.
        removals: Keys as after --unset.
        select: Plugins as after -p.
        sweeps: `key=[values]` as after --sweep.

    Raises:
        Refused: Everything that is wrong with the sweep or with any of its points.
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
    """Return every point with its experiment.

    A point that is in order takes a fraction of a millisecond: origins are worked out for the others only.

    Raises:
        Refused: With every problem once, and the points that have it.
    """
    check = _QuickCheck(base, plugins)
    found: dict[str, tuple[Problem, list[Point]]] = {}
    good = []
    for point in points:
        loaded = check(point)
        if loaded is not None:
            good.append((point, loaded))
            continue
        try:
            good.append((point, check_experiment(point.document(base), plugins)))
        except Refused as refused:
            for problem in refused.problems:
                found.setdefault(str(problem), (problem, []))[1].append(point)
    if found:
        raise Refused([_with_points(problem, wrong, len(points)) for problem, wrong in found.values()])
    return good


class _QuickCheck:
    """Tells whether a point is in order, without saying what is wrong with it.

    Compatibility is checked once for all points that differ in nothing but `UNCHECKED`: to work out what a model
    takes is most of the work.
    """

    def __init__(self, base: Document, plugins: Plugins) -> None:
        self.tree = {key: value for key, value in base.tree.items() if key != "sweep"}
        self.document, self.plugins = base, plugins
        self.fits: dict[str, bool] = {}

    def __call__(self, point: Point) -> Loaded | None:
        tree = point.tree(self.tree)
        try:
            experiment = Experiment.model_validate(tree, context={"catalog": self.plugins.catalog})
        except ValidationError:
            return None
        key = repr(experiment.model_dump(exclude=UNCHECKED))
        if key not in self.fits:
            self.fits[key] = self._fit(experiment)
        if not self.fits[key] or any(self._objections(experiment)):
            return None
        return Loaded(experiment, Document(tree, list(self.document.files)), self.plugins)

    def _fit(self, experiment: Experiment) -> bool:
        try:
            return not any(True for _ in experiment.check())
        except Refused:
            return False

    def _objections(self, experiment: Experiment) -> Iterable[bool]:
        try:
            for _, found in self.plugins.called("check_experiment", experiment=experiment):
                yield bool(found)
        except (PluginError, Refused):  # the whole check tells
            yield True


def _with_points(problem: Problem, wrong: Sequence[Point], count: int) -> Problem:
    named = [f"  point {point.name.partition('-')[0]}: {point.shown}" for point in wrong[:NAMED]]
    rest = [f"  and {len(wrong) - NAMED:,} more"] if len(wrong) > NAMED else []
    lines = "\n".join([f"{len(wrong)} of {count} points are wrong in this way:", *named, *rest])
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
    _check_settings(settings)
    document, plugins = open_sweep(path, changes, removals, settings.select or None, sweeps)
    table: Any = document.at(("sweep", "search"))
    if table is not None:
        from .search import start_search

        return start_search(document, plugins, runs, argv, settings, console)
    points = check_points(document, plugins, expand(read_axes(document)))
    say(console, f"{len(points)} points, all valid")
    # what other points read elsewhere, they say in their output.txt
    for line in (*external_files(points[0][1]), *unrecorded_plugins(plugins.files)):
        say(console, line, "yellow")
    if settings.dry_run:
        for point, _ in points:
            say(console, point.name)
        return 0
    sweep = SweepDirectory.create(runs, document, argv)
    sweep.record([sweep.add(point.name, point.by_key, loaded) for point, loaded in points])
    return run_sweep(sweep, PointList(sweep.folders()), settings, console, fresh=True)


def resume_sweep(path: Path, settings: Settings, console: Console | None = None) -> int:
    """Go on with what is unfinished in a sweep directory; return the exit code as `start_sweep` does.

    Raises:
        Refused: It is no sweep directory.
    """
    console = console or Screen()
    _check_settings(settings)
    sweep = SweepDirectory.open(path)
    if sweep.facts.get("search"):
        from .search import resume_search

        return resume_search(sweep, settings, console)
    source = PointList(sweep.folders())
    say(console, f"{source.total} of {len(sweep.folders())} points are unfinished")
    return run_sweep(sweep, source, settings, console)


def _check_settings(settings: Settings) -> None:
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
