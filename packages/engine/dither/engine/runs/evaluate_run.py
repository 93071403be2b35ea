"""Evaluate and sample from a checkpoint of a run."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from inspect import signature
from pathlib import Path
from typing import Any, cast

from rich.console import Console

from dither.registry.config.errors import Refused
from dither.registry.flow.protocols import DataWarnings, Split

from ..config.load_experiment import load_experiment
from ..config.paths import reject_escaping_links
from ..sampling.samples import check_forms, export_samples, make_samples, missing_samples, write_samples
from ..training.evaluation import evaluate
from .loading import Which, load_run
from .progress import Screen, say, show_metrics
from .run_directory import resolved_file

__all__ = ["evaluate_run", "sample_run"]


def evaluate_run(
    run_directory: Path, checkpoint: Which = "newest", split: Split = "valid", select: Sequence[str] | None = None
) -> tuple[dict[str, float], dict[str, float]]:
    """Return the metrics of a checkpoint, as during the run, and baselines by `metric/baseline`; Refused if empty."""
    loaded, system, _ = load_run(run_directory, checkpoint=checkpoint, select=select)
    task = system.task
    if not task.size(split):
        message = f'the split "{split}" of task "{loaded.experiment.task.name}" is empty'
        raise Refused(message, code="no-samples")
    settings = loaded.experiment.evaluate
    size = settings.batch_size or loaded.experiment.train.batch_size
    metrics = evaluate(system, settings.samples, size, settings.repeats, loaded.experiment.seed, split) or {}
    if "split" in signature(task.baselines).parameters:
        baselines = cast(Any, task).baselines(split=split)
    else:  # this task only has those of the validation split
        baselines = task.baselines() if split == "valid" else {}
    return metrics, {name: value for name, value in baselines.items() if name.partition("/")[0] in metrics}


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
    *,
    metrics: bool = True,
    pictures: bool = True,
) -> int:
    """Write samples of a checkpoint into a new or empty folder, by default inside the run; return the exit code.

    `forms` are export formats of the task in which samples are also written. `changes`, as after --set, override
    options of sampling. Without `metrics` only those of drawing are shown.
    Refused for a folder that is not empty or an unknown format.
    """
    errors, console = console, console or Screen()
    if out is None:
        reject_escaping_links(run_directory, "use --out FOLDER")
    elif out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise Refused(f"{out} exists and is not an empty folder; nothing is overwritten", code="file-exists")
    if forms:
        check_forms(load_experiment(resolved_file(run_directory), select=select).experiment.task, forms)
    loaded, system, step = load_run(run_directory, errors, constraints, checkpoint, changes, select=select)
    name = f"step-{step:08d}-seed-{seed}-count-{count}"
    paths = (run_directory / "samples" / (name + end) for end in ("", *(f"-{number}" for number in range(2, 10_000))))
    folder = out or next(path for path in paths if not path.exists())
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Refused(f"{folder} cannot be created: {error.strerror}", code="unreadable-file") from None
    try:
        with console.status(f"sampling {count} samples"):
            settings = loaded.experiment.sample
            samples = make_samples(
                system, count, seed, settings.batch_size, tries=settings.tries, metrics=metrics, pictures=pictures
            )
    except BaseException:
        with suppress(OSError):
            folder.rmdir()  # it is empty
        raise
    assert samples is not None
    for line in (*write_samples(samples, folder), *export_samples(system, samples, forms, folder)):
        say(console, line)
    baselines = system.task.baselines() if metrics and samples.figures else {}
    of_samples = {key: value for key, value in baselines.items() if key.startswith("sample ")} or baselines
    own = {
        key: of_samples[key] for key in of_samples if key.removeprefix("sample ").partition("/")[0] in samples.figures
    }
    show_metrics(console, {"figures": {"sample": samples.figures}, "baselines": own})
    warnings = system.task.data_warnings() if isinstance(system.task, DataWarnings) else ()
    for line in (*warnings, *missing_samples(samples.figures)):
        say(console, line, "yellow")
    return 0
