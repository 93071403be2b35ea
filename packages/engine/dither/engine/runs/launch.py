"""Start or resume a run.

Exit codes: 0 done, 1 a plugin hook failed, 2 refused (raised as `Refused`), 3 no intact checkpoint, 4 loss or gradient
NaN or inf, 5 disk or memory exhausted, 75 stopped by a signal with a checkpoint saved.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from rich.console import Console

from dither.registry.config.errors import Refused
from dither.registry.plugins.status import PluginError

from ..checkpoints.async_checkpoint import Saver
from ..checkpoints.best_checkpoint import Scores
from ..checkpoints.checkpoint import Checkpoints, Damaged
from ..config.component_errors import annotate_build_errors
from ..config.load_experiment import Loaded
from ..config.paths import reject_escaping_links
from ..config.plugins import unrecorded_plugins
from ..distributed.ranks import Ranks, join_ranks
from ..files.metrics_file import BEGINNING
from ..files.resource_errors import shortage
from ..training.diffusion import Diffusion
from ..training.model_summary import require_memory
from ..training.nan_guard import NonFinite, describe_data
from ..training.trainer import Trainer
from .loading import build
from .log import Log
from .loop import Run, resume_from
from .progress import Screen, say
from .resume import (
    check_unchanged,
    find_launched_run,
    find_newest,
    lost_metrics,
    manifest,
    note_resumption,
    require_never_saved,
)
from .run_directory import RunDirectory, read_manifest, resolved
from .signals import STOPPED, Stop, stop_on_signals
from .summary import data_warnings, introduce, show_metrics, summarise
from .warm_start import start_from

__all__ = ["DAMAGED", "DONE", "EXHAUSTED", "FAILED", "NON_FINITE", "run"]

DONE = 0
"""The run finished."""
FAILED = 1
"""A hook of a plugin raised an exception."""
DAMAGED = 3
"""No intact checkpoint exists."""
NON_FINITE = 4
"""A loss or gradient norm was NaN or inf; the optimizer step was not taken."""
EXHAUSTED = 5
"""Disk or memory exhausted."""


def run(
    loaded: Loaded,
    runs: Path,
    argv: Sequence[str] = (),
    resume: Path | None = None,
    console: Console | None = None,
    accept_changes: bool = False,
    profile: bool = False,
) -> int:
    """Train, evaluate, sample and summarise an experiment; return the exit code.

    Args:
        loaded: The experiment.
        runs: The folder for run directories.
        argv: The command line, for the manifest.
        resume: A run directory to resume instead of starting a new run.
        console: The terminal.
        accept_changes: Resume even if components, plugins or data changed.
        profile: Write a profiler trace of a few steps into the run directory.

    Raises:
        Refused: The experiment cannot be run; nothing was overwritten.
    """
    errors = console or Screen(stderr=True)
    console = console or Screen()
    try:
        with stop_on_signals() as stop, join_ranks(loaded.experiment.train.device) as ranks:
            if ranks.is_main:
                for line in (*loaded.warnings, *unrecorded_plugins(loaded.plugins.files)):
                    say(errors, line, "yellow")
                loaded.plugins.warn = lambda line: say(errors, line, "yellow")
                loaded.plugins.observe()
            else:
                console.quiet = True
            if ranks.restarts and resume is None:
                resume = find_launched_run(runs, ranks)
            start = Start(loaded, list(argv), console, stop, ranks, profile)
            return _begin(start, runs) if resume is None else _resume(start, resume, accept_changes)
    except PluginError as error:
        say(errors, error.detail)
        say(errors, _reason(error), "red")
        return FAILED
    except Damaged as error:
        say(errors, error, "red")
        return DAMAGED
    except NonFinite as error:
        say(errors, _reason(error), "red")
        return NON_FINITE
    except (MemoryError, RuntimeError, OSError, ImportError) as error:
        if lacking := shortage(error):
            say(errors, _reason(error, lacking), "red")
            return EXHAUSTED
        if isinstance(error, OSError) and error.filename is not None:
            raise Refused(_reason(error)) from None
        raise


def _reason(error: BaseException, message: str = "") -> str:
    return "\n".join([f"stopped: {message or error}", *getattr(error, "__notes__", ())])


@dataclass(frozen=True)
class Start:
    """The arguments of a run."""

    loaded: Loaded
    argv: list[str]
    console: Console
    stop: Stop
    ranks: Ranks
    profile: bool


def _begin(start: Start, runs: Path) -> int:
    loaded, ranks = start.loaded, start.ranks
    _require_memory(start)
    system, device = build(loaded, training=True)
    notes = _first_weights(loaded, system)
    counts = system.parameter_counts()
    trainer = Trainer(system, loaded.experiment.train, loaded.experiment.seed, ranks)
    with RunDirectory.create(runs) if ranks.is_main else RunDirectory.elsewhere() as directory:
        if ranks.is_main:
            record = manifest(start.argv, loaded, device, counts, trainer.optimizer, ranks)
            directory.record(loaded, record | {"launch": ranks.launch})
        for note in notes:
            say(start.console, note, "yellow")
        return _train(_run(start, directory, trainer, _log(start, directory)), start.console)


def _resume(start: Start, path: Path, accept_changes: bool) -> int:
    loaded, ranks, console = start.loaded, start.ranks, start.console
    if not accept_changes:
        reject_escaping_links(path, "add --accept-changes to write there")
    with RunDirectory.open(path) if ranks.is_main else RunDirectory.elsewhere() as directory:
        before = read_manifest(path)
        changed, now = check_unchanged(before, loaded, path, accept_changes)
        changes = directory.changes(loaded, moved=accept_changes) + changed if ranks.is_main else []
        _require_memory(start)
        system, _ = build(loaded, training=True)
        newest, damaged = find_newest(path, ranks)
        if newest is None:
            if ranks.is_main and not accept_changes:
                require_never_saved(path, before)
            _first_weights(loaded, system)
        trainer = Trainer(system, loaded.experiment.train, loaded.experiment.seed, ranks)
        position, scores = (BEGINNING, None) if newest is None else resume_from(newest, trainer)
        steps = trainer.train.steps
        if trainer.step > steps:
            message = f"the run in {path} has finished {trainer.step} steps, more than train.steps = {steps}"
            raise Refused(message, code="run-finished")
        if ranks.is_main:
            for warning in (*damaged, *lost_metrics(path, position)):
                say(console, warning, "yellow")
            for change in changes:
                say(console, f"changed: {change}")
            Checkpoints(path / "checkpoints").clear(damaged)
            directory.clear(restarts=newest is None)
            directory.accept(loaded)
            entry = {"argv": start.argv, "step": trainer.step, "changes": changes, "launch": ranks.launch}
            note_resumption(directory, before, entry, now, trainer, console)
        run = _run(start, directory, trainer, _log(start, directory, trainer.step, position.bytes), scores)
        run.saver.newest = None if newest is None else trainer.step
        return _train(run, console)


def _require_memory(start: Start) -> None:
    sharded = start.loaded.experiment.train.strategy == "fsdp"
    require_memory(start.loaded.experiment, start.ranks.size if sharded else 1)


def _first_weights(loaded: Loaded, system: Diffusion) -> list[str]:
    """Load the weights of `train.start_from`; return warnings about those that do not match."""
    train, model = loaded.experiment.train, loaded.experiment.model
    if train.start_from is None:
        return []
    rename = None if train.start_layout is None else partial(model.rename, train.start_layout)
    return start_from(system.model, Path(train.start_from), train.start_partial, rename)


def _log(start: Start, directory: RunDirectory, step: int = 0, offset: int | None = None) -> Log:
    """Return the log of a run; that of a rank other than the main one has no destinations."""
    loaded, train = start.loaded, start.loaded.experiment.train
    if not start.ranks.is_main:
        return Log(None, start.console, train.steps, step)
    with annotate_build_errors(loaded.plugins.catalog):
        trackers = {spec.name: spec.build() for spec in train.trackers}
    return Log(directory.path, start.console, train.steps, step, offset, trackers, resolved(loaded))


def _run(
    start: Start,
    directory: RunDirectory,
    trainer: Trainer,
    log: Log,
    before: Mapping[str, object] | None = None,
) -> Run:
    loaded, is_main = start.loaded, start.ranks.is_main
    train, settings = loaded.experiment.train, loaded.experiment.evaluate
    checkpoints = Checkpoints(directory.path / "checkpoints", train.keep, train.keep_every)
    scores = Scores(directory.path if is_main else None, settings.best, settings.better, trainer.step, before)
    scores.values = {int(step): value for step, value in start.ranks.broadcast(list(scores.values.items()))}
    checkpoints.protected_step = scores.best if train.keep_best else None
    saver = Saver(checkpoints, train.async_save)
    run = Run(loaded.experiment, loaded.plugins, directory, trainer.system, trainer, saver, scores, log, start.stop)
    run.traces = directory.path / "profile" if start.profile and is_main else None
    return run


def _introduce(run: Run, console: Console) -> None:
    """Print the experiment, the device, and warnings."""
    for line in introduce(run.experiment, run.system):
        say(console, line)
    ranks, strategy = run.ranks, run.experiment.train.strategy
    many = f"{ranks.size} ranks ({strategy}), " if ranks.size > 1 else ""
    say(console, f"{many}{run.trainer.device}, {torch.get_num_threads()} threads; {run.directory.path}")
    if strategy == "fsdp" and ranks.size == 1:
        say(console, 'train.strategy = "fsdp" has no effect with one process; start the run with torchrun', "yellow")
    for line in data_warnings(run.experiment, run.system):
        say(console, line, "yellow")


def _train(run: Run, console: Console) -> int:
    """Train and print the results."""
    ranks = run.ranks
    failure: BaseException | None = None
    if ranks.is_main:
        _introduce(run, console)
    try:
        run.call("before_run")
        run.log.display.start()
        finished = run.fit()
    except BaseException as error:
        failure = error
        if isinstance(error, NonFinite):
            error.add_note(f"the data: {describe_data(run.experiment)}")
        saved = run.saver.newest
        error.add_note("no checkpoint was written" if saved is None else f"the last checkpoint is that of step {saved}")
        try:
            run.call("on_run_error", error=error)
        except PluginError as another:
            error.add_note(str(another))
        raise
    finally:
        run.saver.close()
        run.log.close(failure)
    if not finished:
        say(
            console,
            f"stopped by {run.stop.requested or 'another rank'} after step {run.trainer.step}; checkpoint saved",
        )
        say(console, f"resume with --resume {run.directory.path}")
        return STOPPED
    if not ranks.is_main:
        return DONE
    if run.trainer.step < run.experiment.train.steps:
        scores = run.scores
        say(console, f"early stopping: {scores.since} evaluations without improvement since step {scores.best}")
    summary = summarise(run)
    run.directory.write_json("summary.json", summary)
    show_metrics(console, summary)
    run.call("after_run", summary=summary)
    return DONE
