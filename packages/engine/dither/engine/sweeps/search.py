"""The journal of a search: a file that several processes and machines append to, and that a kill may have cut off."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from dither.registry.config.document import Document
from dither.registry.config.errors import Problem, Refused, nearest
from dither.registry.config.validation import validate
from dither.registry.files.atomic import atomic_write
from dither.registry.plugins.manager import Plugins

from ..config.experiment import Experiment
from ..config.load_experiment import check_experiment
from ..config.plugins import unrecorded_plugins
from ..config.sweep import Search
from ..files.metrics_file import as_json, read_metrics
from ..runs.progress import say
from .directory import UNFINISHED, PointFolder, SweepDirectory
from .execution import Settings, run_sweep
from .point_process import EXHAUSTED
from .points import Point, make_point, sweep_of
from .scheduler import NOT_BEGUN
from .search_space import Choice, Range, read_space

__all__ = ["Trials", "open_study", "require_optuna", "resume_search", "start_search"]


def open_study(path: Path, search: Search, begun: int) -> Any:
    """Open the study of a journal, or begin one.

    Args:
        path: The journal.
        search: What is searched for, and how.
        begun: Points that were begun before: another process must not draw the same ones again.

    Raises:
        Refused: The journal is damaged.
    """
    optuna = require_optuna()
    journal = optuna.storages.journal
    # Optuna's usual lock is a link to the journal, and is never taken over from the dead where that leads nowhere
    lock = journal.JournalFileOpenLock(str(path.resolve()))
    lock.acquire()
    try:
        _drop_partial_line(path)
    finally:
        lock.release()
    samplers = {"tpe": optuna.samplers.TPESampler, "random": optuna.samplers.RandomSampler}
    with warnings.catch_warnings(action="ignore"):  # of options that may yet change
        sampler = samplers[search.sampler](seed=search.seed + begun)
    pruners = optuna.pruners
    median = search.pruner == "median"
    return optuna.create_study(
        storage=optuna.storages.JournalStorage(journal.JournalFileBackend(str(path.resolve()), lock)),
        study_name="search",
        direction=search.direction,
        sampler=sampler,
        pruner=pruners.MedianPruner(n_startup_trials=search.warmup) if median else pruners.NopPruner(),
        load_if_exists=True,
    )


def _drop_partial_line(path: Path) -> None:
    """Cut off a last line that has no end: what wrote it was killed, or found no space.

    Raises:
        Refused: Another line is damaged.
    """
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return
    *lines, rest = text.split(b"\n")
    for number, line in enumerate(lines, 1):
        try:
            whole = isinstance(json.loads(line), dict)
        except (ValueError, RecursionError):
            whole = False
        if not whole:
            hint = f"bring it back as it was, or remove {path}: the search then goes on without what it has learnt"
            raise Refused(Problem(f"{path} is damaged: line {number} cannot be read", help=hint))
    if rest:
        os.truncate(path, len(text) - len(rest))


def require_optuna() -> Any:
    """Return optuna.

    Raises:
        Refused: It is not installed.
    """
    try:
        import optuna
    except ImportError:
        hint = "python -m pip install 'dither-engine[search]'"
        raise Refused(
            Problem("a search needs optuna, which is not installed", ("sweep", "search"), help=hint)
        ) from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


JOURNAL = "journal.log"
ENDED = {"COMPLETE": "done", "PRUNED": "pruned", "FAIL": "failed"}
KINDS = ("train", "valid", "sample")
"""Kinds of lines in metrics.jsonl."""
TRIES = 100
"""Points that do not fit together and are drawn anew, before the search gives up."""


def start_search(
    document: Document,
    plugins: Plugins,
    runs: Path,
    argv: Sequence[str],
    settings: Settings,
    console: Console,
) -> int:
    """Check the ends of every range and every choice, then search; return the exit code as `start_sweep` does.

    Raises:
        Refused: The search is wrong, or optuna is not installed.
    """
    require_optuna()
    if settings.executor != "processes":
        hint = "start the same search on several machines: dither sweep --resume DIR, on a file system that they share"
        raise Refused(Problem("a search runs its points as local processes", help=hint))
    search, space = read_search(document, plugins)
    say(console, f"{search.trials} points, to {search.direction} {search.metric} over {len(space)} keys")
    if settings.dry_run:
        return 0
    sweep = SweepDirectory.create(runs, document, argv, search=search.model_dump())
    sweep.copy_base(document, plugins)
    sweep.record([])
    for line in unrecorded_plugins(plugins.files):
        say(console, line, "yellow")
    return _search(sweep, document, plugins, settings, console, fresh=True)


def resume_search(sweep: SweepDirectory, settings: Settings, console: Console) -> int:
    """Go on with a search, or help another process with it; return the exit code as `start_sweep` does."""
    require_optuna()
    from ..config.load_experiment import open_experiment

    document, plugins = open_experiment(sweep.path / "base" / "experiment.toml", select=settings.select or None)
    return _search(sweep, document, plugins, settings, console)


def read_search(document: Document, plugins: Plugins) -> tuple[Search, list[Choice | Range]]:
    """Return the search of a document and its space, checked.

    Raises:
        Refused: With everything that is wrong; a combination that does not fit together is no mistake.
    """
    space = read_space(document)
    problems: dict[str, Problem] = {}
    for index, key in enumerate(space):
        for value in key.ends():
            rest = [(k.path, k.ends()[0], k.place) for i, k in enumerate(space) if i != index]
            point = Point("", tuple(sorted(((key.path, value, key.place), *rest), key=lambda item: len(item[0]))))
            try:
                validate(Experiment, point.document(document), plugins.catalog)
            except Refused as refused:
                problems |= {str(problem): problem for problem in refused.problems}
    search = sweep_of(document).search
    assert search is not None, "its space was read"
    place = ("sweep", "search", "metric")
    kind, _, name = search.metric.partition("/")
    if kind not in KINDS:
        close = nearest(kind, KINDS)
        hint = f'did you mean "{close}/{name}"?' if close else f"there are {', '.join(KINDS)}"
        said = f'no line of metrics.jsonl is of kind "{kind}"'
        problems[""] = Problem(said, place, document.origin(place, value=True), hint)
    if problems:
        raise Refused(list(problems.values()))
    return search, space


def _search(
    sweep: SweepDirectory,
    document: Document,
    plugins: Plugins,
    settings: Settings,
    console: Console,
    *,
    fresh: bool = False,
) -> int:
    trials = Trials(sweep, document, plugins, console)
    if sweep.facts["search"] != trials.search.model_dump():  # it was changed in between
        sweep.facts["search"] = trials.search.model_dump()
        sweep.record([])
    return run_sweep(sweep, trials, settings, console, fresh=fresh)


class Trials:
    """The points of a search, as the scheduler takes them.

    Args:
        sweep: Its directory.
        base: The experiment that is varied.
        plugins: Loaded for it.
        console: Where it is said what was drawn in vain.
    """

    def __init__(self, sweep: SweepDirectory, base: Document, plugins: Plugins, console: Console) -> None:
        self.sweep, self.base, self.plugins, self.console = sweep, base, plugins, console
        self.search, self.space = read_search(base, plugins)
        self.study = open_study(sweep.path / JOURNAL, self.search, len(sweep.folders()))
        self._catch_up()
        self.left = [folder for folder in sweep.folders() if folder.status()["state"] in UNFINISHED]
        self.running: dict[str, Any] = {}
        self.seen: dict[str, int] = {}

    def _catch_up(self) -> None:
        """Tell the study of points that ended after the process that began them was gone, and the other way round."""
        trials = self.study.get_trials(deepcopy=False)
        for folder in self.sweep.folders():
            number, state = _number(folder), str(folder.status()["state"])
            if number is None or number >= len(trials) or folder.held():
                continue
            ended = trials[number].state
            if not ended.is_finished() and (state == "done" or _failed_for_good(folder)):
                self._tell(number, state, self._result(folder) if state == "done" else ())
            elif state == "lost" and ended.is_finished():  # its status.json is damaged
                folder.write_status(ENDED[ended.name], reason="as the journal has it")

    def take(self) -> PointFolder | None:
        """Return an unfinished point of an earlier process, or else a new one while there are trials left."""
        while self.left:
            folder = self.left.pop(0)
            number = _number(folder)
            if not folder.held() and number is not None and self._open(number):
                frozen = self.study.get_trials(deepcopy=False)[number]
                self.seen[folder.name] = max(frozen.intermediate_values, default=-1)
                self.running[folder.name] = require_optuna().trial.Trial(self.study, frozen._trial_id)
                return folder
        for _ in range(TRIES):
            if len(self.sweep.folders()) >= self.search.trials:  # those that failed count, or a search might never end
                return None
            drawn = self._draw()
            if drawn is not None:
                return drawn
        raise Refused(f"{TRIES} points in a row do not fit together; see the messages above")

    def _draw(self) -> PointFolder | None:
        """Draw a point and make its folder; None where its values do not fit together."""
        trial = self.study.ask()
        values = [(key.path, key.suggest(trial), None) for key in self.space]
        point = make_point(f"{trial.number:0{len(str(self.search.trials))}}", values)
        try:
            loaded = check_experiment(point.document(self.base), self.plugins)
        except Refused as refused:
            self.study.tell(trial, state=require_optuna().trial.TrialState.FAIL)
            say(self.console, f"does not fit {point.name}: {refused.problems[0].message}")
            return None
        folder = self.sweep.add(point.name, point.by_key, loaded)
        with atomic_write(folder.path / "point.json") as beside:
            beside.write_text(as_json({"trial": trial.number, "values": point.by_key}), encoding="utf-8")
        self.running[folder.name] = trial
        return folder

    def hopeless(self, point: PointFolder) -> bool:
        """Hand new evaluations on, and tell whether the point should be pruned."""
        trial = self.running[point.name]
        fresh = [line for line in self._values(point) if line[0] > self.seen.get(point.name, -1)]
        for step, value in fresh:
            trial.report(value, step)
            self.seen[point.name] = step
        return bool(fresh) and bool(trial.should_prune())

    def settle(self, point: PointFolder, state: str) -> str:
        """Tell the study how a point ended; what `--resume` can bring to its end stays open.

        Raises:
            Refused: Its run has figures, but none that is searched for.
        """
        trial = self.running.pop(point.name)
        if state == NOT_BEGUN:
            return "stopped"
        if state == "failed" and not _failed_for_good(point):
            return state
        values = self._result(point) if state == "done" else ()
        if state == "done" and not values:
            say(self.console, f"{point.name}: the run has no {self.search.metric}")
            state = "failed"
        self._tell(trial, state, values)
        return state

    def _tell(self, trial: Any, state: str, values: Sequence[tuple[int, float]]) -> None:
        """Tell the study how a trial ended, unless it knows from another process; one that was stopped stays open."""
        states = require_optuna().trial.TrialState
        if state == "done" and values:
            self.study.tell(trial, values[-1][1], skip_if_finished=True)
        elif state in ("done", "failed", "pruned"):
            ended = states.PRUNED if state == "pruned" else states.FAIL
            self.study.tell(trial, state=ended, skip_if_finished=True)

    def outcome(self) -> str | None:
        """Return which point is the best so far, as a line."""
        best = self.best()
        return best and f"best: {self.search.metric} = {best[1]:.6g} at {best[0]}"

    def best(self) -> tuple[str, float] | None:
        """Return name and value of the best point so far."""
        states = require_optuna().trial.TrialState
        done = [t for t in self.study.get_trials(deepcopy=False) if t.state == states.COMPLETE]
        if not done:
            return None
        names = {_number(folder): folder.name for folder in self.sweep.folders()}
        number = self.study.best_trial.number
        return names.get(number, str(number)), float(self.study.best_value)

    def _result(self, point: PointFolder) -> list[tuple[int, float]]:
        """Return the same for a point that is done.

        Raises:
            Refused: Its run has figures, but none that is searched for: a slip that every point would repeat.
        """
        values, metric = self._values(point), self.search.metric
        known = {f"{line.get('kind')}/{key}" for line in _lines(point) for key in line if key not in ("step", "kind")}
        if known and metric not in known:
            close = nearest(metric, known)
            hint = f'did you mean "{close}"? ' if close else f"there are {', '.join(sorted(known))}; "
            file = self.sweep.path / "base" / "experiment.toml"
            hint += f"put it right in {file}, then nothing is lost: dither sweep --resume {self.sweep.path}"
            raise Refused(Problem(f'{point.name} is done, and has no figure "{metric}"', help=hint))
        return values

    def _values(self, point: PointFolder) -> list[tuple[int, float]]:
        """Return step and value of the metric at every evaluation so far."""
        kind, _, name = self.search.metric.partition("/")
        found = ((line.get("step"), line.get(name)) for line in _lines(point) if line.get("kind") == kind)
        return [(int(s), float(v)) for s, v in found if isinstance(s, int) and isinstance(v, int | float)]

    def _open(self, number: int) -> bool:
        trials = self.study.get_trials(deepcopy=False)
        return number < len(trials) and not trials[number].state.is_finished()


def _lines(point: PointFolder) -> Sequence[Mapping[str, Any]]:
    """Return what the run of a point has measured so far."""
    run = point.run_directory()
    try:
        return read_metrics(run / "metrics.jsonl") if run is not None else ()
    except (OSError, ValueError):  # not there yet, or a line is being written
        return ()


def _failed_for_good(point: PointFolder) -> bool:
    """Tell whether a point has failed by itself; with more space or memory it may go on, as after it was killed."""
    status = point.status()
    return status["state"] == "failed" and status.get("exit_code") != EXHAUSTED


def _number(point: PointFolder) -> int | None:
    head = point.name.partition("-")[0]
    return int(head) if head.isdigit() else None
