"""A search with Optuna; its journal is a file to which several processes and machines may append."""

from __future__ import annotations

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
from ..config.load_experiment import check_experiment, open_experiment
from ..config.plugins import unrecorded_plugins
from ..config.sweep import Search
from ..files.metrics_file import as_json, read_metrics
from ..runs.progress import say
from .directory import UNFINISHED, PointFolder, SweepDirectory
from .execution import Settings, run_sweep
from .point_process import EXHAUSTED
from .points import Point, make_point, sweep_of
from .scheduler import NOT_STARTED
from .search_space import Choice, Range, read_space

__all__ = ["Trials", "open_study", "require_optuna", "resume_search", "start_search"]

JOURNAL = "journal.log"
STATES = {"COMPLETE": "done", "PRUNED": "pruned", "FAIL": "failed"}
"""States of finished trials, and of their points."""
KINDS = ("train", "valid", "sample")
"""Kinds of lines in metrics.jsonl."""
MAX_REJECTED = 100
"""Consecutive invalid points before the search gives up."""


def require_optuna() -> Any:
    """Import optuna.

    Raises:
        Refused: It is not installed.
    """
    try:
        import optuna
    except ImportError:
        hint = "python -m pip install 'dither-engine[search]'"
        message = "a search requires optuna, which is not installed"
        raise Refused(Problem(message, ("sweep", "search"), help=hint, code="missing-dependency")) from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def open_study(path: Path, search: Search, begun: int) -> Any:
    """Open or create the study of a journal.

    Args:
        path: The journal.
        search: The `[sweep.search]` table.
        begun: Number of points so far; it varies the seed, so that processes do not repeat each other's points.

    Raises:
        Refused: The journal is damaged.
    """
    optuna = require_optuna()
    journal = optuna.storages.journal
    # The default lock is a link to the journal; with a relative path it is never taken over from a dead process.
    lock = journal.JournalFileOpenLock(str(path.resolve()))
    lock.acquire()
    try:
        _drop_partial_line(path)
    finally:
        lock.release()
    samplers = {"tpe": optuna.samplers.TPESampler, "random": optuna.samplers.RandomSampler}
    pruners = {"median": optuna.pruners.MedianPruner(search.warmup), "none": optuna.pruners.NopPruner()}
    with warnings.catch_warnings(action="ignore"):  # of experimental arguments
        sampler = samplers[search.sampler](seed=search.seed + begun)
    try:
        return optuna.create_study(
            storage=optuna.storages.JournalStorage(journal.JournalFileBackend(str(path.resolve()), lock)),
            study_name="search",
            direction=search.direction,
            sampler=sampler,
            pruner=pruners[search.pruner],
            load_if_exists=True,
        )
    except (ValueError, KeyError, TypeError) as error:
        hint = f"restore it, or remove {path} to resume the search without its history"
        raise Refused(Problem(f"{path} is damaged: {error}", help=hint, code="damaged-file")) from None


def _drop_partial_line(path: Path) -> None:
    """Truncate an incomplete last line, left by a kill or a full disk; the next line would be appended to it."""
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return
    if not text.endswith(b"\n"):
        os.truncate(path, text.rfind(b"\n") + 1)


def start_search(
    document: Document, plugins: Plugins, runs: Path, argv: Sequence[str], settings: Settings, console: Console
) -> int:
    """Check the ends of every range and every choice, then search; return the exit code as `start_sweep`.

    Raises:
        Refused: The search is invalid, or optuna is not installed.
    """
    require_optuna()
    if settings.executor != "processes":
        hint = "run the same search on several machines: dither sweep --resume DIR, on a shared file system"
        raise Refused(Problem("a search runs its points as local processes", help=hint, code="usage"))
    search, space = read_search(document, plugins)
    say(console, f"{search.trials} points, to {search.direction} {search.metric} over {len(space)} keys")
    if settings.dry_run:
        return 0
    sweep = SweepDirectory.create(runs, document, argv, search=search.model_dump())
    sweep.copy_base(document, plugins)
    sweep.record([])
    for line in unrecorded_plugins(plugins.files):
        say(console, line, "yellow")
    return run_sweep(sweep, Trials(sweep, document, plugins, console), settings, console, fresh=True)


def resume_search(sweep: SweepDirectory, settings: Settings, console: Console) -> int:
    """Resume a search, or join one that another process runs; return the exit code as `start_sweep`."""
    require_optuna()
    document, plugins = open_experiment(sweep.path / "base" / "experiment.toml", select=settings.select or None)
    trials = Trials(sweep, document, plugins, console)
    if sweep.facts["search"] != trials.search.model_dump():  # base/experiment.toml was edited
        sweep.facts["search"] = trials.search.model_dump()
        sweep.record([])
    return run_sweep(sweep, trials, settings, console)


def read_search(document: Document, plugins: Plugins) -> tuple[Search, list[Choice | Range]]:
    """Read and check the search of a document.

    Raises:
        Refused: With every problem; an incompatible combination of values is not one.
    """
    space = read_space(document)
    problems: dict[str, Problem] = {}
    for index, key in enumerate(space):
        rest = [(other.path, other.ends()[0], other.place) for i, other in enumerate(space) if i != index]
        for value in key.ends():
            values = sorted(((key.path, value, key.place), *rest), key=lambda item: len(item[0]))
            try:
                validate(Experiment, Point("", tuple(values)).document(document), plugins.catalog)
            except Refused as refused:
                problems |= {str(problem): problem for problem in refused.problems}
    search = sweep_of(document).search
    assert search is not None
    kind, _, name = search.metric.partition("/")
    if kind not in KINDS:
        place = ("sweep", "search", "metric")
        close = nearest(kind, KINDS)
        hint = f'did you mean "{close}/{name}"?' if close else f"known kinds: {', '.join(KINDS)}"
        origin = document.origin(place, value=True)
        problems[""] = Problem(f'unknown kind of metric "{kind}"', place, origin, hint, code="unknown-metric")
    if problems:
        raise Refused(list(problems.values()))
    return search, space


class Trials:
    """The points of a search, as a `PointSource`.

    Args:
        sweep: Its directory.
        base: The experiment that is varied.
        plugins: Its plugins.
        console: For messages on rejected points.
    """

    def __init__(self, sweep: SweepDirectory, base: Document, plugins: Plugins, console: Console) -> None:
        self.sweep, self.base, self.plugins, self.console = sweep, base, plugins, console
        self.search, self.space = read_search(base, plugins)
        self.study = open_study(sweep.path / JOURNAL, self.search, len(sweep.folders()))
        self._reconcile()
        self.unfinished = [folder for folder in sweep.folders() if folder.status()["state"] in UNFINISHED]
        self.running: dict[str, Any] = {}
        self.reported: dict[str, int] = {}

    def _reconcile(self) -> None:
        """Report points to the study that ended after their search was killed, and restore damaged statuses from it."""
        trials = self.study.get_trials(deepcopy=False)
        for folder in self.sweep.folders():
            number, state = folder.number, str(folder.status()["state"])
            if number is None or number >= len(trials) or folder.held():
                continue
            trial_state = trials[number].state
            if not trial_state.is_finished() and (state == "done" or _failed_for_good(folder)):
                self._tell(number, state, self._final_values(folder) if state == "done" else ())
            elif state == "lost" and trial_state.is_finished():
                folder.write_status(STATES[trial_state.name], reason="from the journal")

    def next_point(self) -> PointFolder | None:
        """Return an unfinished point of an earlier process, or a new one while trials are left."""
        while self.unfinished:
            folder = self.unfinished.pop(0)
            trials, number = self.study.get_trials(deepcopy=False), folder.number
            if number is None or number >= len(trials) or trials[number].state.is_finished() or folder.held():
                continue
            self.reported[folder.name] = max(trials[number].intermediate_values, default=-1)
            self.running[folder.name] = require_optuna().trial.Trial(self.study, trials[number]._trial_id)
            return folder
        for _ in range(MAX_REJECTED):
            if len(self.sweep.folders()) >= self.search.trials:  # failures count, or a search might never end
                return None
            if new := self._suggest():
                return new
        raise Refused(f"{MAX_REJECTED} consecutive points are invalid; see the messages above", code="misfit")

    def _suggest(self) -> PointFolder | None:
        """Make the folder of a new point; return None if its values are incompatible."""
        trial = self.study.ask()
        values = [(key.path, key.suggest(trial), None) for key in self.space]
        point = make_point(f"{trial.number:0{len(str(self.search.trials))}}", values)
        try:
            loaded = check_experiment(point.document(self.base), self.plugins)
        except Refused as refused:
            self.study.tell(trial, state=require_optuna().trial.TrialState.FAIL)
            say(self.console, f"invalid      {point.name}: {refused.problems[0].message}")
            return None
        folder = self.sweep.add(point.name, point.by_key, loaded)
        with atomic_write(folder.path / "point.json") as temporary:
            temporary.write_text(as_json({"trial": trial.number, "values": point.by_key}), encoding="utf-8")
        self.running[folder.name] = trial
        return folder

    def should_prune(self, point: PointFolder) -> bool:
        """Report new evaluations to the study, and return whether it prunes the point."""
        trial = self.running[point.name]
        new = [item for item in self._values(point) if item[0] > self.reported.get(point.name, -1)]
        for step, value in new:
            trial.report(value, step)
            self.reported[point.name] = step
        return bool(new) and bool(trial.should_prune())

    def finish(self, point: PointFolder, state: str) -> str:
        """Report the end of a point to the study; a point that can be resumed stays open.

        Raises:
            Refused: Its run has metrics, but not the one of the search.
        """
        trial = self.running.pop(point.name)
        if state == NOT_STARTED:
            return "stopped"
        if state == "failed" and not _failed_for_good(point):
            return state
        values = self._final_values(point) if state == "done" else ()
        if state == "done" and not values:
            say(self.console, f"{point.name}: the run has no {self.search.metric}")
            state = "failed"
        self._tell(trial, state, values)
        return state

    def _tell(self, trial: Any, state: str, values: Sequence[tuple[int, float]]) -> None:
        """Pass a final state on, unless another process did; a stopped trial stays open."""
        states = require_optuna().trial.TrialState
        if state == "done" and values:
            self.study.tell(trial, values[-1][1], skip_if_finished=True)
        elif state in ("done", "failed", "pruned"):
            final = states.PRUNED if state == "pruned" else states.FAIL
            self.study.tell(trial, state=final, skip_if_finished=True)

    def best_line(self) -> str | None:
        """Return a line on the best point so far."""
        best = self.best()
        return best and f"best: {self.search.metric} = {best[1]:.6g} at {best[0]}"

    def best(self) -> tuple[str, float] | None:
        """Return name and value of the best point so far."""
        if not any(trial.state.name == "COMPLETE" for trial in self.study.get_trials(deepcopy=False)):
            return None
        names = {folder.number: folder.name for folder in self.sweep.folders()}
        number = self.study.best_trial.number
        return names.get(number, str(number)), float(self.study.best_value)

    def _final_values(self, point: PointFolder) -> list[tuple[int, float]]:
        """Return step and value of the metric at every evaluation of a point that is done.

        Raises:
            Refused: It has metrics, but not this one: a misspelling, which every point would repeat.
        """
        metric = self.search.metric
        known = {f"{line.get('kind')}/{key}" for line in _lines(point) for key in line if key not in ("step", "kind")}
        if known and metric not in known:
            close = nearest(metric, known)
            hint = f'did you mean "{close}"? ' if close else f"known: {', '.join(sorted(known))}; "
            file = self.sweep.path / "base" / "experiment.toml"
            hint += f"correct it in {file}, then resume with: dither sweep --resume {self.sweep.path}"
            raise Refused(Problem(f'{point.name} has no metric "{metric}"', help=hint, code="unknown-metric"))
        return self._values(point)

    def _values(self, point: PointFolder) -> list[tuple[int, float]]:
        """Return step and value of the metric at every evaluation so far."""
        kind, _, name = self.search.metric.partition("/")
        pairs = ((line.get("step"), line.get(name)) for line in _lines(point) if line.get("kind") == kind)
        return [(int(s), float(v)) for s, v in pairs if isinstance(s, int) and isinstance(v, int | float)]


def _lines(point: PointFolder) -> Sequence[Mapping[str, Any]]:
    """Return the lines of metrics.jsonl so far."""
    run = point.run_directory()
    try:
        return read_metrics(run / "metrics.jsonl") if run is not None else ()
    except (OSError, ValueError):  # missing, or a line is being written
        return ()


def _failed_for_good(point: PointFolder) -> bool:
    """Return whether a point failed for a reason other than too little disk space or memory."""
    status = point.status()
    return status["state"] == "failed" and status.get("exit_code") != EXHAUSTED
