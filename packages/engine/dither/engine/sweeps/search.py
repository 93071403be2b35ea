"""A search with Optuna; its journal is a file to which several processes and machines may append."""

from __future__ import annotations

import itertools
import json
import math
import os
import random
import secrets
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path as FilePath
from typing import Any

from filelock import FileLock
from pydantic import ValidationError
from rich.console import Console

from dither.registry.config.document import Document
from dither.registry.config.errors import Problem, Refused, dotted
from dither.registry.config.validation import validate
from dither.registry.files.limits import TABLE_BYTES, read_bytes
from dither.registry.files.lookup import exists
from dither.registry.plugins.install_command import optional_import
from dither.registry.plugins.manager import Plugins
from dither.registry.spec.misfit import Path

from ..config.experiment import Experiment
from ..config.load_experiment import check_experiment, open_experiment
from ..config.options import Range, Search
from ..files.metrics_file import read_metrics, rounded
from ..runs.progress import say
from .directory import (
    RESUMABLE,
    PointFolder,
    SweepDirectory,
    require_metric,
    row_of,
    write_json,
)
from .point_process import EXHAUSTED
from .points import MAX_TRIED, Point, iter_keys, key_error, make_point, sweep_of
from .scheduler import PointList

__all__ = ["Trials", "open_study", "read_search", "search_problems"]

JOURNAL = "journal.log"
MAX_REJECTED = 100
"""Invalid points for each trial before the search gives up."""


MAX_VALUES = 10_000
"""Points of a space up to which a search takes one that is new in place of a known one."""


@dataclass(frozen=True)
class Key:
    """A key to vary, the path of its values in the document, and a range or a list of choices."""

    path: Path
    place: Path
    values: Range | list[Any]

    def ends(self) -> list[Any]:
        """Return the smallest and the largest value, or all choices."""
        if isinstance(self.values, list):
            return self.values
        return [self.values.low, self.values.high]

    def all(self) -> Sequence[Any] | None:
        """Return every value, as the study stores it; None if there are more than `MAX_VALUES`."""
        values = self.values
        count = math.inf
        if isinstance(values, list):
            return range(len(values))
        if values.low == values.high:
            return [values.low]
        if values.integral or values.step:
            step = values.step or 1
            # Rounding of a decimal step must not lose the last value.
            count = math.floor((values.high - values.low) / step + 1e-9) + 1
        if count > MAX_VALUES:
            return None
        return [values.low + number * step for number in range(int(count))]

    def value_of(self, stored: Any) -> Any:
        """Return the value that the study stores as `stored`."""
        return self.values[stored] if isinstance(self.values, list) else stored

    def suggest(self, trial: Any) -> Any:
        """Choose a value; the study stores the index of a choice, since it may be a table."""
        name = dotted(self.path)
        values = self.values
        if isinstance(values, list):
            index = trial.suggest_categorical(name, list(range(len(values))))
            return self.value_of(index)
        bounds = {"low": values.low, "high": values.high, "log": values.log}
        if values.integral:
            return trial.suggest_int(name, step=values.step or 1, **bounds)
        return trial.suggest_float(name, step=values.step, **bounds)


def _optuna() -> Any:
    with optional_import(
        "optuna is not installed", "dither-engine", "search", ("sweep", "search")
    ):
        import optuna
    # Otherwise it logs every trial.
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def open_study(path: FilePath, search: Search, begun: int) -> Any:
    """Open or create the study of a journal; the number of points so far, `begun`, varies the seed."""
    optuna = _optuna()
    journal = optuna.storages.journal
    # The default lock is a link to the journal; with a relative path it is never taken over from a
    # dead process.
    file = str(path.resolve())
    lock = journal.JournalFileOpenLock(file)
    _end_last_line(path, lock)
    samplers = {
        "tpe": optuna.samplers.TPESampler,
        "random": optuna.samplers.RandomSampler,
    }
    pruner = optuna.pruners.NopPruner()
    if search.pruner == "median":
        pruner = optuna.pruners.MedianPruner(search.warmup)
    try:
        # Warnings of experimental arguments.
        with warnings.catch_warnings(action="ignore"):
            return optuna.create_study(
                storage=optuna.storages.JournalStorage(
                    journal.JournalFileBackend(file, lock)
                ),
                study_name="search",
                direction=search.direction,
                sampler=samplers[search.sampler](seed=search.seed + begun),
                pruner=pruner,
                load_if_exists=True,
            )
    except (ValueError, KeyError, TypeError) as error:
        hint = f"restore it, or remove {path} to resume the search without its history"
        message = f"{path} is damaged: {error}"
        raise Refused(Problem(message, help=hint, code="damaged-file")) from None


def _end_last_line(path: FilePath, lock: Any) -> None:
    """Remove a line that a kill or a full disk has cut off: the next would be appended to it."""
    lock.acquire()
    try:
        if exists(path):
            text = read_bytes(path, TABLE_BYTES)
            if not text.endswith(b"\n"):
                os.truncate(path, text.rfind(b"\n") + 1)
    finally:
        lock.release()


def read_search(document: Document, plugins: Plugins) -> tuple[Search, list[Key]]:
    """Read a search, and refuse it if it is invalid (`search_problems`), or Optuna is missing."""
    _optuna()
    if problems := search_problems(document, plugins):
        raise Refused(problems)
    search = sweep_of(document).search
    # The problems are those of a file without one, too.
    assert search is not None
    return search, _read_space(document)[0]


def search_problems(document: Document, plugins: Plugins) -> list[Problem]:
    """Return the problems of a search: of its options, and of both ends of each range and all choices."""
    problems: dict[str, Problem] = {}
    space, of_space = _read_space(document)
    problems |= {str(problem): problem for problem in of_space}
    try:
        sweep_of(document)
    except Refused as refused:
        problems |= {str(problem): problem for problem in refused.problems}
    # One key at a time, with the others at their first value: all combinations would be too many.
    for key in space:
        others = [other for other in space if other is not key]
        rest = [(other.path, other.ends()[0], other.place) for other in others]
        for value in key.ends():
            point = make_point("", ((key.path, value, key.place), *rest))
            try:
                validate(Experiment, point.document(document), plugins.catalog)
            except Refused as refused:
                problems |= {str(problem): problem for problem in refused.problems}
    return list(problems.values()) or _all_invalid(space, document, plugins)


def _all_invalid(
    space: Sequence[Key], document: Document, plugins: Plugins
) -> list[Problem]:
    """Return a problem if all points of a space of at most `MAX_TRIED` are invalid; some may be."""
    points = [point for _, point in _every_point(space, MAX_TRIED)]
    message = ""
    for point in points:
        try:
            check_experiment(point.document(document), plugins)
        except Refused as refused:
            message = f"{point}: {refused.problems[0].message}"
        else:
            return []
    if not points:
        return []
    at: Path = ("sweep", "search", "space")
    message = f"all {len(points)} points of the search are invalid, such as {message}"
    return [Problem(message, at, document.origin(at), code="misfit")]


def _read_space(document: Document) -> tuple[list[Key], list[Problem]]:
    """Return the valid keys of a search, and the problems of the others."""
    at: Path = ("sweep", "search", "space")
    problems = []
    if document.at(("sweep", "grid")) or document.at(("sweep", "zip")):
        message = "a sweep has either a grid or a search, not both"
        problems.append(
            Problem(message, at[:2], document.origin(at[:2]), code="misfit")
        )
    table = document.at(at)
    if not isinstance(table, dict) or not table:
        example = '"train.optimizer.lr" = { low = 1e-4, high = 1e-2, log = true }'
        hint = f"such as {example}, or = [1e-4, 1e-3]"
        message = "a search requires keys to vary"
        problem = Problem(message, at, document.origin(at), hint, code="missing-key")
        return [], [*problems, problem]

    space = []
    for path, (place, value) in iter_keys(table, at):
        try:
            space.append(Key(path, place, _read_values(path, value)))
        except ValidationError as error:
            details = [[*map(str, d["loc"][:1]), d["msg"]] for d in error.errors()]
            message = "; ".join(map(": ".join, details)).removeprefix("Value error, ")
            problems.append(Problem(message, place, document.origin(place)))
        except ValueError as error:
            problems.append(Problem(str(error), place, document.origin(place)))
    return space, problems


def _read_values(path: Path, value: Any) -> Range | list[Any]:
    """Return the choices or the range of a key; ValueError if they are neither."""
    error = key_error(path)
    if error is not None:
        raise ValueError(error)
    if isinstance(value, list) and value:
        return value
    if not isinstance(value, dict):
        raise ValueError(
            "expected a list of choices, or a range such as { low = 1, high = 8 }"
        )
    return Range.model_validate(value)


def _key_of(values: Mapping[str, Any]) -> str:
    """Return a text that is the same for equal values; floats may differ in their last digits."""
    plain = {key: rounded(value) for key, value in values.items()}
    return json.dumps(plain, sort_keys=True, default=str)


def _every_point(
    space: Sequence[Key], limit: int
) -> Iterator[tuple[dict[str, Any], Point]]:
    """Yield the points of a space with their parameters in the study; none if they are more than `limit`."""
    axes = [key.all() or () for key in space]
    if math.prod(map(len, axes)) > limit:
        return
    names = [dotted(key.path) for key in space]
    for combination in itertools.product(*axes):
        values = []
        for key, stored in zip(space, combination, strict=True):
            values.append((key.path, key.value_of(stored), None))
        parameters = dict(zip(names, combination, strict=True))
        yield parameters, make_point("", values)


def _all_points(space: Sequence[Key]) -> dict[str, dict[str, Any]]:
    """Return the parameters of all points of a space by `_key_of`; none if they are too many."""
    return {
        _key_of(point.by_key): parameters
        for parameters, point in _every_point(space, MAX_VALUES)
    }


def _nearly_all_invalid() -> Refused:
    message = "nearly all points are invalid; see the messages above"
    return Refused(message, code="misfit")


class Trials(PointList):
    """The points of a search; other processes may run some of them. `shared`: with one point each."""

    def __init__(
        self,
        sweep: SweepDirectory,
        console: Console,
        select: Sequence[str] = (),
        shared: bool = False,
    ) -> None:
        super().__init__(sweep.folders())
        self.sweep = sweep
        self.console = console
        base = sweep.path / "base" / "experiment.toml"
        self.base, self.plugins = open_experiment(base, select=select or None)
        self.search, self.space = read_search(self.base, self.plugins)
        # base/experiment.toml may have been edited.
        if sweep.facts["search"] != self.search.model_dump():
            sweep.facts["search"] = self.search.model_dump()
            sweep.record()
        begun = len(self.folders)
        if shared:
            # Jobs that start together would suggest the same.
            begun = secrets.randbits(30)
        self.study = open_study(sweep.path / JOURNAL, self.search, begun)
        self.trials: dict[str, Any] = {}
        # Every point that was suggested, those with invalid values included.
        self.suggested: set[str] = set()
        self.all = _all_points(self.space)
        # Some may have ended after their search was killed.
        for folder in self.folders:
            if self._open_trial(folder):
                self.finish(folder, str(folder.status()["state"]))

    def _open_trial(self, folder: PointFolder) -> bool:
        """Return whether the journal has an unfinished trial of this point of an earlier process."""
        trials = self.study.get_trials(deepcopy=False)
        number = int(folder.name.partition("-")[0])
        if number >= len(trials) or trials[number].state.is_finished():
            return False
        # Optuna has no public way to continue a trial of another process.
        self.trials[folder.name] = _optuna().trial.Trial(
            self.study, trials[number]._trial_id
        )
        return True

    def points(self) -> Iterator[PointFolder]:
        """Yield the unfinished points of an earlier process, then new ones while trials are left."""
        for folder in self.folders:
            if folder.status()["state"] in RESUMABLE and self._open_trial(folder):
                yield folder
        for _ in range(MAX_REJECTED * self.search.trials):
            # Two processes at the same time would choose the same point, or one too many.
            with FileLock(self.sweep.path / "search.lock", thread_local=False):
                if self._is_complete():
                    return
                new = self._suggest()
            if new:
                yield new
        raise _nearly_all_invalid()

    def _is_complete(self) -> bool:
        """Return whether no point is left; failures count, or a search might never end."""
        folders = self.sweep.folders()
        if len(folders) >= self.search.trials:
            return True
        self.suggested.update(_key_of(folder.values) for folder in folders)
        if self.all and len(self.suggested) >= len(self.all):
            if not folders:
                raise _nearly_all_invalid()
            say(self.console, f"all {len(self.all)} points of the space are known")
            return True
        return False

    def _suggest(self) -> PointFolder | None:
        """Make the folder of a new point; return None if it is known, or its values incompatible."""
        trial = self.study.ask()
        values = [(key.path, key.suggest(trial), None) for key in self.space]
        point = make_point(f"{trial.number:0{len(str(self.search.trials))}}", values)
        key = _key_of(point.by_key)
        self.suggested.add(key)
        for folder in self.sweep.folders():
            if _key_of(folder.values) == key:
                self._tell_known(trial, folder)
                return None
        try:
            loaded = check_experiment(point.document(self.base), self.plugins)
        except Refused as refused:
            # The sampler learns nothing from it, and suggests another.
            self.study.tell(trial, state=_optuna().trial.TrialState.FAIL)
            say(
                self.console,
                f"invalid      {point.name}: {refused.problems[0].message}",
            )
            return None
        folder = self.sweep.add(point.name, point.by_key, loaded)
        write_json(
            folder.path / "point.json", {"trial": trial.number, "values": point.by_key}
        )
        self.trials[folder.name] = trial
        return folder

    def _tell_known(self, trial: Any, folder: PointFolder) -> None:
        """Report the known result of a point that was suggested again, and suggest a new one."""
        values = self._values(folder) if folder.status()["state"] == "done" else []
        # Optuna counts NaN as a failure.
        if values:
            self.study.tell(trial, values[-1][1])
        else:
            self.study.tell(trial, state=_optuna().trial.TrialState.FAIL)
        # A sampler may suggest the best of few points again and again.
        new = [point for key, point in self.all.items() if key not in self.suggested]
        if new:
            # A function of the seed, so that a search can be repeated.
            choice = random.Random(self.search.seed + trial.number).choice(new)
            self.study.enqueue_trial(choice)

    def should_prune(self, point: PointFolder) -> bool:
        """Report new evaluations to the study, and return whether it prunes the point."""
        trial = self.trials[point.name]
        # An earlier process may have reported some.
        reported = self.study.get_trials(deepcopy=False)[
            trial.number
        ].intermediate_values
        # Of NaN alone the pruner warns; a run that must end with it does so itself.
        new = [
            (step, value)
            for step, value in self._values(point)
            if step not in reported and math.isfinite(value)
        ]
        for step, value in new:
            trial.report(value, step)
        return bool(new) and bool(trial.should_prune())

    def finish(self, point: PointFolder, state: str) -> str:
        """Report the end of a point to the study, unless another process did.

        One that can be resumed stays open. A run with metrics but not the one of the search is refused:
        a misspelling, which every point would repeat.
        """
        values = self._values(point) if state == "done" else []
        if state == "done" and not values:
            file = self.sweep.path / "base" / "experiment.toml"
            metrics = row_of(point)["metrics"]
            require_metric(self.search.metric, [metrics], f"{file}, after {point.name}")
            say(self.console, f"{point.name}: the run has no {self.search.metric}")
            state = "failed"
        if values and not math.isfinite(values[-1][1]):
            say(self.console, f"{point.name}: {self.search.metric} is NaN or inf")
            values = []
            state = "failed"

        trial = self.trials[point.name]
        states = _optuna().trial.TrialState
        if values:
            self.study.tell(trial, values[-1][1], skip_if_finished=True)
        elif state == "pruned":
            self.study.tell(trial, state=states.PRUNED, skip_if_finished=True)
        # A point without disk or memory is run again, and says nothing about its values.
        elif state == "failed" and point.status().get("exit_code") != EXHAUSTED:
            self.study.tell(trial, state=states.FAIL, skip_if_finished=True)
        return state

    def _values(self, point: PointFolder) -> list[tuple[int, float]]:
        """Return step and value of the metric at every evaluation so far; NaN also for inf."""
        kind, _, name = self.search.metric.partition("/")
        folder = point.run_directory() or point.path
        try:
            lines = list(read_metrics(folder / "metrics.jsonl"))
        except (OSError, ValueError):
            # Missing, or a line is being written.
            return []
        values = []
        for line in lines:
            step = line.get("step")
            value = line.get(name, "")
            # That of NaN or inf.
            if value is None:
                value = math.nan
            if (
                line.get("kind") == kind
                and isinstance(step, int)
                and isinstance(value, int | float)
            ):
                values.append((step, float(value)))
        return values
