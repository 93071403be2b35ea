"""Evaluate a checkpoint of a run, sample from it, and apply it to data: `predict`, `explain` and `embed` of a task."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal

from rich.console import Console

from dither.registry.config.errors import Problem, Refused
from dither.registry.contracts.protocols import (
    CorpusTask,
    DataRequest,
    DataWarnings,
    EditableTask,
    Embeds,
    Explains,
    OutlinedTask,
    Predicts,
    Split,
    TextTask,
)
from dither.registry.contracts.records import Clean

from ..config.load_experiment import Loaded, load_experiment
from ..sampling.samples import (
    SampleSet,
    check_forms,
    export_samples,
    make_samples,
    missing_samples,
    write_samples,
)
from ..training.diffusion import Diffusion
from ..training.evaluation import evaluate, task_baselines
from .loading import Which, load_run
from .progress import Screen, say, show_metrics
from .run_directory import resolved_file
from .system import SystemModel

__all__ = [
    "apply_run",
    "evaluate_run",
    "free_folder",
    "sample_run",
    "text_task",
]

EVALUATION = ("evaluate",)
"""Tables of options that --set may change for an evaluation."""


def evaluate_run(
    run_directory: Path,
    checkpoint: Which = "newest",
    split: Split = "valid",
    select: Sequence[str] | None = None,
    changes: Sequence[str] = (),
    texts: Sequence[Path] = (),
    data: Path | None = None,
) -> tuple[dict[str, float], dict[str, float]]:
    """Return the metrics of a checkpoint, as during the run, and baselines by `metric/baseline`; Refused if empty.

    `changes`, as after --set, override options of evaluation. With `texts` all of these files is
    evaluated instead of a split, each as one document (zero-shot); with `data`, the split of that
    folder of prepared documents.
    """
    loaded, system, _ = load_run(
        run_directory, None, None, checkpoint, changes, select=select, tables=EVALUATION
    )
    settings = loaded.experiment.evaluate
    name = loaded.experiment.task.name
    samples = settings.samples
    if texts or data is not None:
        task = system.task
        if not isinstance(task, CorpusTask):
            raise Refused(Problem(f'task "{name}" is not about text', ("task",), code="misfit"))
        system.task = (
            task.over_texts([*map(_read, texts)]) if data is None else task.over_store(data, split)
        )
        split = "valid"
        samples = system.task.size("valid")
    if not system.task.size(split):
        raise Refused(f'the split "{split}" of task "{name}" is empty', code="no-samples")
    size = settings.batch_size or loaded.experiment.train.batch_size
    metrics = evaluate(system, samples, size, settings.repeats, loaded.experiment.seed, split) or {}
    baselines = task_baselines(system.task, split, samples)
    return metrics, {
        name: value for name, value in baselines.items() if name.partition("/")[0] in metrics
    }


def text_task(system: Diffusion, name: str) -> TextTask:
    """Return the task of a system, or raise Refused if its samples are not text."""
    if not isinstance(system.task, TextTask):
        raise Refused(Problem(f'task "{name}" is not about text', ("task",), code="misfit"))
    return system.task


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise Refused(f"{path} cannot be read as UTF-8: {error}", code="unreadable-file") from None


def _templates(
    system: Diffusion,
    loaded: Loaded,
    infill: str | None,
    edit: tuple[Path, Sequence[int] | None, int | None] | None,
    outline: Path | None,
    count: int,
    seed: int,
) -> Clean | None:
    """Return the templates of samples that complete a text, edit another sample or fill an outline, or else None."""
    task = system.task
    name = loaded.experiment.task.name
    like = None
    if edit is not None:
        if not isinstance(task, EditableTask):
            raise Refused(Problem(f'task "{name}" cannot edit samples', ("task",), code="misfit"))
        like = task.edit(*edit, count, seed)
    if outline is not None:
        if not isinstance(task, OutlinedTask):
            raise Refused(
                Problem(f'samples of task "{name}" have no outline', ("task",), code="misfit")
            )
        return task.within(outline, count, seed, like)
    if like is not None:
        return like
    return None if infill is None else text_task(system, name).infill(infill, count, seed)


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
    infill: str | None = None,
    source: Path | None = None,
    keep: Sequence[int] | None = None,
    redraw: int | None = None,
    outline: Path | None = None,
) -> int:
    """Write samples of a checkpoint into a new or empty folder, by default inside the run; return the exit code.

    `forms` are export formats of the task in which samples are also written. `changes`, as after
    --set, override options of sampling. `infill` is a text in which `[MASK:K]` stands for K tokens
    to draw. Without `metrics` only those of drawing are shown. Refused for a folder that is not
    empty or an unknown format. `source`, `keep` and `redraw` edit a sample, see `EditableTask`;
    `outline` is a file, see `OutlinedTask`.
    """
    errors = console
    console = console or Screen()
    _check_out(out)
    if forms:
        check_forms(
            load_experiment(resolved_file(run_directory), select=select).experiment.task, forms
        )
    loaded, system, step = load_run(
        run_directory, errors, constraints, checkpoint, changes, select=select
    )
    edit = None if source is None else (source, keep, redraw)
    like = _templates(system, loaded, infill, edit, outline, count, seed)
    if infill is not None:
        for misfit in loaded.experiment.warn_known():
            say(console, f"{misfit.message}; {misfit.help}", "yellow")
    folder = out or free_folder(
        run_directory / "samples", f"step-{step:08d}-seed-{seed}-count-{count}"
    )
    with _new_folder(folder):
        with console.status(f"sampling {count} samples"):
            settings = loaded.experiment.sample
            samples = make_samples(
                system,
                count,
                seed,
                settings.batch_size,
                tries=settings.tries,
                metrics=metrics,
                pictures=pictures,
                like=like,
            )
        assert samples is not None
        for line in (
            *write_samples(samples, folder),
            *export_samples(system, samples, forms, folder),
        ):
            say(console, line)
    _show_metrics(console, system, samples, metrics)
    return 0


def _check_out(out: Path | None) -> None:
    if out is not None and out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise Refused(
            f"{out} exists and is not an empty folder; nothing is overwritten", code="file-exists"
        )


@contextmanager
def _new_folder(folder: Path) -> Iterator[None]:
    """Make a folder, and remove it at the end if it is empty."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Refused(
            f"{folder} cannot be created: {error.strerror}", code="unreadable-file"
        ) from None
    try:
        yield
    finally:
        with suppress(OSError):
            folder.rmdir()


def free_folder(parent: Path, name: str) -> Path:
    """Return a folder that does not exist: of this name, or with the first free number."""
    paths = (parent / (name + end) for end in ("", *(f"-{number}" for number in range(2, 10_000))))
    return next(path for path in paths if not path.exists())


def _show_metrics(
    console: Console,
    system: Diffusion,
    samples: SampleSet,
    metrics: bool,
) -> None:
    """Print metrics of samples next to those of real ones, and warnings."""
    baselines = system.task.baselines() if metrics and samples.figures else {}
    of_samples = {
        key: value for key, value in baselines.items() if key.startswith("sample ")
    } or baselines
    measured = samples.figures.keys()
    own = {
        k: v
        for k, v in of_samples.items()
        if k.removeprefix("sample ").partition("/")[0] in measured
    }
    show_metrics(console, {"figures": {"sample": samples.figures}, "baselines": own})
    warnings = system.task.data_warnings() if isinstance(system.task, DataWarnings) else ()
    for line in (*warnings, *missing_samples(samples.figures)):
        say(console, line, "yellow")


Verb = Literal["predict", "explain", "embed"]
PROTOCOLS: dict[Verb, Any] = {"predict": Predicts, "explain": Explains, "embed": Embeds}


def apply_run(
    verb: Verb,
    run_directory: Path,
    request: DataRequest,
    checkpoint: Which = "newest",
    select: Sequence[str] | None = None,
) -> list[Path]:
    """Apply the model of a run; return the files. Refused if its task has no such verb, or `folder` is not empty."""
    folder = request.folder
    _check_out(folder)
    loaded, system, _ = load_run(run_directory, checkpoint=checkpoint, select=select)
    if not isinstance(system.task, PROTOCOLS[verb]):
        offered = (
            ", ".join(name for name, kind in PROTOCOLS.items() if isinstance(system.task, kind))
            or "none"
        )
        message = f'task "{loaded.experiment.task.name}" does not implement {verb}'
        raise Refused(Problem(message, help=f"of these verbs it has: {offered}", code="usage"))
    with _new_folder(folder):
        return list(
            getattr(system.task, verb)(SystemModel(system, loaded.experiment.seed), request)
        )
