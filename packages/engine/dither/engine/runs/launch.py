"""Start a run, or go on with one; and the exit codes.

0 done, 1 a plugin's hook failed, 2 refused (raised as `Refused`), 3 no intact checkpoint left, 4 loss or gradient no
number, 5 out of space or memory, 75 stopped by a signal with a checkpoint saved.
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
from ..config.load_experiment import Loaded
from ..config.paths import external_files, reject_escaping_links
from ..config.plugins import unrecorded_plugins
from ..distributed.ranks import Ranks, join_ranks
from ..files.metrics_file import BEGINNING
from ..files.resource_errors import shortage
from ..training.diffusion import Diffusion
from ..training.memory_check import require_memory
from ..training.nan_guard import NonFinite, describe_data
from ..training.trainer import Trainer
from .loading import build
from .log import Log, SilentLog
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
from .run_directory import RunDirectory, flat, read_manifest
from .signals import STOPPED, Stop, stop_on_signals
from .summary import data_warnings, introduce, show_figures, summarise
from .warm_start import start_from

__all__ = ["DAMAGED", "DONE", "EXHAUSTED", "FAILED", "NON_FINITE", "run"]

DONE = 0
"""The run came to its end."""
FAILED = 1
"""A run hook of a plugin failed."""
DAMAGED = 3
"""No intact checkpoint is left."""
NON_FINITE = 4
"""A loss or a gradient was no number; the update was not made."""
EXHAUSTED = 5
"""Out of space or memory."""


def run(
    loaded: Loaded,
    runs: Path,
    argv: Sequence[str] = (),
    resume: Path | None = None,
    console: Console | None = None,
    accept_changes: bool = False,
    profile: bool = False,
) -> int:
    """Train, evaluate, draw and sum up what an experiment names; return the exit code.

    Args:
        loaded: The experiment.
        runs: The folder in which a run directory is made.
        argv: The command line, for the manifest.
        resume: The directory of a run to go on with, instead of a new one.
        console: Where it is shown.
        accept_changes: Go on although parts or their plugins are not what the run was started with.
        profile: Write a trace of a few steps into the run directory.

    Raises:
        Refused: It cannot be run as it was given; nothing was overwritten.
    """
    errors = console or Screen(stderr=True)
    console = console or Screen()
    try:
        with stop_on_signals() as stop, join_ranks(loaded.experiment.train.device) as ranks:
            if ranks.is_main:
                for line in (*loaded.warnings, *external_files(loaded), *unrecorded_plugins(loaded.plugins.files)):
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


def _reason(error: BaseException, said: str = "") -> str:
    return "\n".join([f"stopped: {said or error}", *getattr(error, "__notes__", ())])


@dataclass(frozen=True)
class Start:
    """What a run is begun with."""

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
            made = manifest(start.argv, loaded, device, counts, trainer.optimizer, ranks)
            directory.record(loaded, made | {"launch": ranks.launch})
        for note in notes:
            say(start.console, note, "yellow")
        log = Log(directory.path, start.console, loaded.experiment.train.steps) if ranks.is_main else SilentLog()
        return _train(_run(start, directory, trainer, log), start.console)


def _resume(start: Start, path: Path, accept_changes: bool) -> int:
    loaded, ranks, console = start.loaded, start.ranks, start.console
    if not accept_changes:
        reject_escaping_links(path, "say --accept-changes to go on with it and write there")
    with RunDirectory.open(path) if ranks.is_main else RunDirectory.elsewhere() as directory:
        before = read_manifest(path)
        changes, data = check_unchanged(before, loaded, path, accept_changes)
        changes = directory.changes(loaded, moved=accept_changes) + changes if ranks.is_main else []
        _require_memory(start)
        system, _ = build(loaded, training=True)
        newest, damaged = find_newest(path, ranks)
        if newest is None:
            if ranks.is_main and not accept_changes:
                require_never_saved(path, before)
            _first_weights(loaded, system)
        trainer = Trainer(system, loaded.experiment.train, loaded.experiment.seed, ranks)
        place, scores = (BEGINNING, None) if newest is None else resume_from(newest, trainer)
        steps = trainer.train.steps
        if trainer.step > steps:
            raise Refused(f"the run in {path} has done {trainer.step} steps, which is more than train.steps = {steps}")
        log: Log | SilentLog = SilentLog()
        if ranks.is_main:
            for warning in (*damaged, *lost_metrics(path, place)):
                say(console, warning, "yellow")
            for change in changes:
                say(console, f"changed: {change}")
            Checkpoints(path / "checkpoints").clear(damaged)
            directory.clear(begins=newest is None)
            directory.accept(loaded)
            entry = {"argv": start.argv, "step": trainer.step, "changes": changes, "launch": ranks.launch}
            note_resumption(directory, before, entry, data, loaded, trainer, console)
            log = Log(path, console, steps, trainer.step, place.bytes)
        run = _run(start, directory, trainer, log, scores)
        run.saver.newest = None if newest is None else trainer.step
        return _train(run, console)


def _require_memory(start: Start) -> None:
    sharded = start.loaded.experiment.train.strategy == "fsdp"
    require_memory(start.loaded.experiment, start.ranks.size if sharded else 1)


def _first_weights(loaded: Loaded, system: Diffusion) -> list[str]:
    """Put in the weights that the run is to start from; return what of them did not fit."""
    train, model = loaded.experiment.train, loaded.experiment.model
    if train.start_from is None:
        return []
    rename = None if train.start_layout is None else partial(model.rename, train.start_layout)
    return start_from(system.model, Path(train.start_from), train.start_partial, rename)


def _run(
    start: Start,
    directory: RunDirectory,
    trainer: Trainer,
    log: Log | SilentLog,
    before: Mapping[str, object] | None = None,
) -> Run:
    loaded, chief = start.loaded, start.ranks.is_main
    train, settings = loaded.experiment.train, loaded.experiment.evaluate
    checkpoints = Checkpoints(directory.path / "checkpoints", train.keep, train.keep_every)
    scores = Scores(directory.path if chief else None, settings.best, settings.better, trainer.step, before)
    scores.values = {int(step): value for step, value in start.ranks.broadcast(list(scores.values.items()))}
    checkpoints.spared = scores.best if train.keep_best else None
    saver = Saver(checkpoints, train.async_save)
    run = Run(loaded.experiment, loaded.plugins, directory, trainer.system, trainer, saver, scores, log, start.stop)
    run.traces = directory.path / "profile" if start.profile and chief else None
    return run


def _introduce(run: Run, console: Console) -> None:
    """Say what is about to be run, on what, and what should be known beforehand."""
    for line in introduce(run.experiment, run.system):
        say(console, line)
    ranks, strategy = run.ranks, run.experiment.train.strategy
    many = f"{ranks.size} ranks ({strategy}), " if ranks.size > 1 else ""
    say(console, f"{many}{run.trainer.device}, {torch.get_num_threads()} threads; {run.directory.path}")
    if strategy == "fsdp" and ranks.size == 1:
        say(console, 'train.strategy = "fsdp" cuts nothing up: this is one process; start it with torchrun', "yellow")
    for line in data_warnings(run.experiment, run.system):
        say(console, line, "yellow")


def _train(run: Run, console: Console) -> int:
    """Train, and say how it went."""
    ranks = run.ranks
    if ranks.is_main:
        _introduce(run, console)
    try:
        run.call("before_run")
        run.log.display.start()
        finished = run.fit()
        if finished:
            run.log.outcome(flat(run.experiment.model_dump(mode="json")), run.figures)
    except BaseException as error:
        if isinstance(error, NonFinite):
            error.add_note(f"the data: {describe_data(run.experiment)}")
        saved = run.saver.newest
        kept = "no checkpoint was written yet" if saved is None else f"the checkpoint of step {saved} is kept"
        error.add_note(kept)
        try:
            run.call("on_run_error", error=error)
        except PluginError as another:
            error.add_note(str(another))
        raise
    finally:
        run.saver.close()
        run.log.close()
    if not finished:
        say(console, f"stopped by {run.stop.requested or 'another rank'} after step {run.trainer.step}, which is saved")
        say(console, f"go on with --resume {run.directory.path}")
        return STOPPED
    if not ranks.is_main:
        return DONE
    if run.trainer.step < run.experiment.train.steps:
        scores = run.scores
        say(console, f"ended early: {scores.since} evaluations in a row no better than that of step {scores.best}")
    summary = summarise(run)
    run.directory.write_json("summary.json", summary)
    show_figures(console, summary)
    run.call("after_run", summary=summary)
    return DONE
