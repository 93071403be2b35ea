"""Start a run, go on with one, or use what it made; and the exit codes.

0 done, 1 a plugin's hook failed, 2 refused (raised as `Refused`), 3 no intact checkpoint left, 4 loss or gradient no
number, 5 out of space or memory, 75 stopped by a signal with a checkpoint saved.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from pathlib import Path

import torch
from rich.console import Console

from dither.registry.problems import Refused
from dither.registry.reports import PluginError

from .checkpoint import Checkpoints, Damaged, load_weights, weights_of
from .constraining import load_constrained
from .drawing import make_drawing, unused_folder, write_drawing
from .environment import choose_device, manifest
from .evaluation import evaluate
from .experiment import Loaded, load_experiment
from .finite import NonFinite
from .log import Log
from .meeting import shortfall
from .progress import Screen, say
from .resuming import note_resumption, same_parts
from .rundir import RunDirectory, read_manifest, resolved_file
from .signals import Stop, stop_on_signals
from .summary import introduce, show_figures, summarise
from .system import Diffusion
from .trainer import Trainer
from .training import Run, resume_from

__all__ = [
    "DAMAGED",
    "DONE",
    "EXHAUSTED",
    "FAILED",
    "NON_FINITE",
    "STOPPED",
    "evaluate_run",
    "load_run",
    "run",
    "sample_run",
]

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
STOPPED = 75
"""Stopped by a signal, with a checkpoint saved."""
FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


def run(
    loaded: Loaded,
    runs: Path,
    argv: Sequence[str] = (),
    resume: Path | None = None,
    console: Console | None = None,
    accept_changes: bool = False,
) -> int:
    """Train, evaluate, draw and sum up what an experiment names; return the exit code.

    Args:
        loaded: The experiment.
        runs: The folder in which a run directory is made.
        argv: The command line, for the manifest.
        resume: The directory of a run to go on with, instead of a new one.
        console: Where it is shown.
        accept_changes: Go on although parts or their plugins are not what the run was started with.

    Raises:
        Refused: It cannot be run as it was given; nothing was overwritten.
    """
    errors = console or Screen(stderr=True)
    console = console or Screen()
    for warning in loaded.warnings:
        say(errors, warning, "yellow")
    loaded.plugins.warn = lambda line: say(errors, line, "yellow")
    loaded.plugins.observe()
    try:
        with stop_on_signals() as stop:
            if resume is not None:
                return _go_on(loaded, argv, resume, console, stop, accept_changes)
            return _begin(loaded, runs, argv, console, stop)
    except PluginError as error:
        say(errors, error.told)
        say(errors, _reason(error), "red")
        return FAILED
    except Damaged as error:
        say(errors, error, "red")
        return DAMAGED
    except NonFinite as error:
        say(errors, _reason(error), "red")
        return NON_FINITE
    except (MemoryError, RuntimeError, OSError) as error:
        if _exhausted(error):
            say(errors, _reason(error), "red")
            return EXHAUSTED
        if isinstance(error, OSError) and error.filename is not None:
            raise Refused(_reason(error)) from None
        raise


def _reason(error: BaseException) -> str:
    return "\n".join([f"stopped: {str(error) or 'out of memory'}", *getattr(error, "__notes__", ())])


def _exhausted(error: BaseException) -> bool:
    if isinstance(error, OSError):
        return error.errno in FULL
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or "allocate memory" in str(error)


def _build(loaded: Loaded) -> tuple[Diffusion, torch.device]:
    """Build an experiment on its device."""
    train = loaded.experiment.train
    if train.threads is not None:
        torch.set_num_threads(train.threads)
    device = choose_device(train.device)
    return Diffusion.build(loaded.experiment, loaded.plugins.catalog).to(device), device


def _begin(loaded: Loaded, runs: Path, argv: Sequence[str], console: Console, stop: Stop) -> int:
    system, device = _build(loaded)
    trainer = Trainer(system, loaded.experiment.train, loaded.experiment.seed)
    with RunDirectory.create(runs) as directory:
        counts = system.parameter_counts()
        directory.record(loaded, manifest(list(argv), loaded, device, counts))
        log = Log(directory.path, console, loaded.experiment.train.steps)
        return _train(_run(loaded, directory, trainer, log, stop), console)


def _go_on(loaded: Loaded, argv: Sequence[str], path: Path, console: Console, stop: Stop, accept_changes: bool) -> int:
    with RunDirectory.open(path) as directory:
        before = read_manifest(path)
        changes = directory.changes(loaded) + same_parts(before, loaded, path, accept_changes)
        system, device = _build(loaded)
        trainer = Trainer(system, loaded.experiment.train, loaded.experiment.seed)
        checkpoints = Checkpoints(path / "checkpoints", loaded.experiment.train.keep)
        newest, damaged = checkpoints.newest()
        for damage in damaged:
            say(console, damage, "yellow")
        offset = 0 if newest is None else resume_from(newest, trainer)
        steps = trainer.train.steps
        if trainer.step > steps:
            raise Refused(f"the run in {path} has done {trainer.step} steps, which is more than train.steps = {steps}")
        for change in changes:
            say(console, f"changed: {change}")
        checkpoints.clear(damaged)
        directory.accept(loaded)
        entry = {"argv": list(argv), "step": trainer.step, "changes": changes}
        note_resumption(directory, before, entry, loaded, device, console)
        log = Log(path, console, steps, trainer.step, offset)
        run = _run(loaded, directory, trainer, log, stop)
        run.saved = None if newest is None else trainer.step
        return _train(run, console)


def _run(loaded: Loaded, directory: RunDirectory, trainer: Trainer, log: Log, stop: Stop) -> Run:
    checkpoints = Checkpoints(directory.path / "checkpoints", loaded.experiment.train.keep)
    return Run(loaded.experiment, loaded.plugins, directory, trainer.system, trainer, checkpoints, log, stop)


def _train(run: Run, console: Console) -> int:
    """Train, and say how it went."""
    for line in introduce(run.experiment, run.system):
        say(console, line)
    device = f"{run.trainer.device}, {torch.get_num_threads()} threads"
    say(console, f"{device}; {run.directory.path}")
    try:
        run.call("before_run")
        run.log.display.start()
        finished = run.fit()
    except BaseException as error:
        kept = "no checkpoint was written yet" if run.saved is None else f"the checkpoint of step {run.saved} is kept"
        error.add_note(kept)
        try:
            run.call("on_run_error", error=error)
        except PluginError as another:
            error.add_note(str(another))
        raise
    finally:
        run.log.close()
    if not finished:
        say(console, f"stopped by {run.stop.requested} after step {run.trainer.step}, which is saved")
        say(console, f"go on with --resume {run.directory.path}")
        return STOPPED
    summary = summarise(run)
    run.directory.write_json("summary.json", summary)
    show_figures(console, summary)
    run.call("after_run", summary=summary)
    return DONE


def load_run(
    run_directory: Path, console: Console | None = None, constraints: Path | None = None
) -> tuple[Loaded, Diffusion, int]:
    """Return a run's experiment, its system with the weights of the newest intact checkpoint, and their step.

    Constraints from a file replace the run's own. Damaged checkpoints that are passed over are named on the console.

    Raises:
        Refused: It is no run directory; Damaged: it has no intact checkpoint.
    """
    path = resolved_file(run_directory)
    loaded = load_experiment(path) if constraints is None else load_constrained(path, constraints)
    newest, damaged = Checkpoints(run_directory / "checkpoints").newest()
    for damage in damaged:
        say(console or Screen(stderr=True), damage, "yellow")
    if newest is None:
        raise Damaged(f"{run_directory} has no checkpoint yet")
    system, _ = _build(loaded)
    load_weights(weights_of(newest), system.model)
    return loaded, system.eval(), int(newest.name.removeprefix("step-"))


def evaluate_run(run_directory: Path) -> dict[str, float]:
    """Measure the newest intact checkpoint of a run as the run itself does.

    Raises:
        Refused: It is no run directory; Damaged: it has no intact checkpoint.
    """
    loaded, system, _ = load_run(run_directory)
    settings = loaded.experiment.evaluate
    size = settings.batch_size or loaded.experiment.train.batch_size
    return evaluate(system, settings.samples, size, settings.repeats, loaded.experiment.seed) or {}


def sample_run(
    run_directory: Path,
    count: int,
    seed: int = 0,
    out: Path | None = None,
    console: Console | None = None,
    constraints: Path | None = None,
) -> int:
    """Draw samples from the newest intact checkpoint of a run into a folder, by default one inside the run.

    Raises:
        Refused: It is no run directory, or the folder has something in it; Damaged: it has no intact checkpoint.
    """
    errors, console = console, console or Screen()
    if out is not None and out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise Refused(f"{out} exists and is not an empty folder; nothing is overwritten")
    loaded, system, step = load_run(run_directory, errors, constraints)
    folder = out or unused_folder(run_directory / "samples" / f"step-{step:08d}-seed-{seed}-count-{count}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Refused(f"{folder} cannot be made: {error.strerror}") from None
    size, tries = loaded.experiment.sample.batch_size, loaded.experiment.sample.tries
    drawing = make_drawing(system, count, seed, size, tries=tries)
    assert drawing is not None
    for file in write_drawing(drawing, folder):
        say(console, file)
    show_figures(console, {"figures": {"sample": drawing.figures}, "baselines": {}})
    for line in shortfall(drawing.figures):
        say(console, line, "yellow")
    return DONE
