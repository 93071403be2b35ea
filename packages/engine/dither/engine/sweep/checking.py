"""Every point of a sweep is checked before the first one starts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from dither.registry.document import Document
from dither.registry.plugins import Plugins
from dither.registry.problems import Problem, Refused
from dither.registry.reports import PluginError

from ..experiment import Experiment, Loaded, check_experiment, open_experiment
from .axes import read_axes, with_sweeps
from .points import Point, expand

__all__ = ["UNREAD", "check_points", "load_sweep", "open_sweep"]

UNREAD: dict[str, Any] = {
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

    Whether it fits together is asked once for all points that differ in nothing but `UNREAD`: to work out what a model
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
        key = repr(experiment.model_dump(exclude=UNREAD))
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
