"""Measure what a run made, and draw from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from inspect import signature
from pathlib import Path
from typing import Any, cast

from rich.console import Console

from dither.registry.config.errors import Refused
from dither.registry.flow.protocols import Split, Task

from ..config.load_experiment import load_experiment
from ..config.paths import reject_escaping_links
from ..sampling.rejection_sampling import missing_samples
from ..sampling.samples import check_forms, export_samples, make_samples, unused_folder, write_samples
from ..training.evaluation import evaluate
from .loading import Which, load_run
from .progress import Screen, say
from .run_directory import resolved_file
from .summary import show_figures

__all__ = ["evaluate_run", "evaluate_with_baselines", "sample_run"]


def evaluate_run(
    run_directory: Path, checkpoint: Which = "newest", split: Split = "valid", select: Sequence[str] | None = None
) -> dict[str, float]:
    """Measure a checkpoint of a run as the run itself does, or on another split.

    Raises:
        Refused: It is no run directory, or the split is empty; Damaged: it has no such checkpoint that is intact.
    """
    return evaluate_with_baselines(run_directory, checkpoint, split, select)[0]


def evaluate_with_baselines(
    run_directory: Path, checkpoint: Which = "newest", split: Split = "valid", select: Sequence[str] | None = None
) -> tuple[dict[str, float], dict[str, float]]:
    """Return the figures of `evaluate_run`, and those of baselines on the same split, by `figure/baseline`."""
    loaded, system, _ = load_run(run_directory, checkpoint=checkpoint, select=select)
    if not system.task.size(split):
        raise Refused(f'the split "{split}" of task "{loaded.experiment.task.name}" is empty')
    settings = loaded.experiment.evaluate
    size = settings.batch_size or loaded.experiment.train.batch_size
    figures = evaluate(system, settings.samples, size, settings.repeats, loaded.experiment.seed, split) or {}
    baselines = _baselines(system.task, split)
    return figures, {name: value for name, value in baselines.items() if name.partition("/")[0] in figures}


def _baselines(task: Task, split: Split) -> dict[str, float]:
    """Return the baselines of a split; those of a task that has them of the validation split alone are no others'."""
    if "split" in signature(task.baselines).parameters:
        return cast(Any, task).baselines(split=split)  # type: ignore[no-any-return]
    return task.baselines() if split == "valid" else {}


def _of_samples(task: Task, figures: Mapping[str, float]) -> dict[str, float]:
    """Return the baselines of figures of samples; where a task has some of these alone, only them."""
    baselines = task.baselines() if figures else {}
    own = {name: value for name, value in baselines.items() if name.startswith("sample ")}
    names = {said for name in figures for said in (name, f"sample {name}")}
    return {name: value for name, value in (own or baselines).items() if name.partition("/")[0] in names}


def sample_run(
    run_directory: Path,
    count: int,
    seed: int = 0,
    out: Path | None = None,
    console: Console | None = None,
    constraints: Path | None = None,
    forms: Sequence[str] = (),
    checkpoint: Which = "newest",
    changes: Sequence[str] = (),
    select: Sequence[str] | None = None,
) -> int:
    """Draw samples from a checkpoint of a run into a folder, by default one inside the run; return the exit code.

    In each of `forms`, which the task must offer, they are written for other programs as well. Changes, as after --set,
    say how else they are to be drawn.

    Raises:
        Refused: It is no run directory, or the folder has something in it, or the task has no such form; Damaged: it
            has no intact checkpoint.
    """
    errors, console = console, console or Screen()
    if out is None:
        reject_escaping_links(run_directory, "say --out FOLDER to draw into another")
    if forms:
        check_forms(load_experiment(resolved_file(run_directory), select=select).experiment.task, forms)
    if out is not None and out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise Refused(f"{out} exists and is not an empty folder; nothing is overwritten")
    loaded, system, step = load_run(run_directory, errors, constraints, checkpoint, changes, select=select)
    folder = out or unused_folder(run_directory / "samples" / f"step-{step:08d}-seed-{seed}-count-{count}")
    made = not folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Refused(f"{folder} cannot be made: {error.strerror}") from None
    size, tries = loaded.experiment.sample.batch_size, loaded.experiment.sample.tries
    try:
        with console.status(f"drawing {count} samples"):
            drawing = make_samples(system, count, seed, size, tries=tries)
    except BaseException:
        if made:
            with suppress(OSError):
                folder.rmdir()  # it was only to be known beforehand that it can be made
        raise
    assert drawing is not None
    for file in write_samples(drawing, folder):
        say(console, file)
    for line in export_samples(system, drawing, forms, folder):
        say(console, line)
    beside = _of_samples(system.task, drawing.figures)
    show_figures(console, {"figures": {"sample": drawing.figures}, "baselines": beside})
    for line in missing_samples(drawing.figures):
        say(console, line, "yellow")
    return 0
