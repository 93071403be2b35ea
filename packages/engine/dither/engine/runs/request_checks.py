"""Checks of the options of a command on a trained model, before torch and the weights are loaded; no torch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal

from dither.registry.config.errors import Problem, Refused, did_you_mean
from dither.registry.config.validation import validate
from dither.registry.contracts.commands import RunOptions, SampleRequest
from dither.registry.contracts.pictures import check_figure_formats
from dither.registry.files.lookup import exists, is_file, is_folder
from dither.registry.files.safe_path import safe_name
from dither.registry.files.write_errors import unwritable
from dither.registry.kinds import TaskSpec

from ..config.experiment import Experiment
from ..config.load_experiment import (
    SAMPLING_TABLES,
    load_for_sampling,
    open_for_sampling,
)
from ..files.checksums import verify
from ..files.installed_models import EXPERIMENT, WEIGHTS, model_folder
from .run_directory import resolved_file

__all__ = [
    "DEFAULTS",
    "EVALUATION",
    "POINT_TABLES",
    "Which",
    "check_evaluation",
    "check_forms",
    "check_options",
    "check_sampling",
    "experiment_file",
    "is_export",
    "new_folder",
    "parse_checkpoint",
    "require_absent",
    "require_empty",
    "require_newest",
]

EVALUATION = ("evaluate",)
"""Tables of options that overrides may change for an evaluation."""
POINT_TABLES = (*EVALUATION, *SAMPLING_TABLES)
"""Likewise for samples that are compared over options."""
MAX_STEP_DIGITS = 12
RUNS = Path("runs")
"""Folder of the results of exports, which are not written into."""

DEFAULTS = RunOptions()

Which = Literal["newest", "best"] | int
"""A checkpoint: the newest intact one, that of the best evaluation, or one of a step."""


def check_sampling(run: Path, options: RunOptions, request: SampleRequest) -> None:
    """Refuse a request for samples that a trained model cannot meet."""
    require_empty(request.out)
    check_figure_formats(request.figures)
    if request.figures and not request.pictures:
        message = "--figures: no effect with --no-pictures"
        raise Refused(message, code="no-effect")
    experiment = check_options(run, options, constraints=request.constraints)
    if experiment is not None:
        check_forms(experiment.task, request.formats)


def check_evaluation(
    run: Path, options: RunOptions, tight: int | None, likelihood: str | None
) -> None:
    """Refuse an evaluation with a likelihood that the loss of a trained model does not give."""
    experiment = check_options(run, options, EVALUATION)
    if experiment is None:
        return
    loss = experiment.loss
    message = None
    fix = None
    if tight and not loss.bound:
        message = f'loss "{loss.name}" is not part of a bound on the likelihood'
    elif likelihood == "bound" and not (loss.bound or loss.denoises):
        message = f'loss "{loss.name}" gives no bound on the likelihood'
    elif likelihood == "ode" and not loss.denoises:
        message = f'loss "{loss.name}" gives no probability flow'
        fix = 'use method "bound"'
    if message is not None:
        raise Refused(Problem(message, ("loss",), help=fix, code="misfit"))


def check_options(
    run: Path,
    options: RunOptions,
    tables: Sequence[str] = SAMPLING_TABLES,
    constraints: Path | None = None,
) -> Experiment | None:
    """Refuse options of a command that a run, an export or an installed model does not have.

    Returns:
        The experiment with the overrides; None if that of an export is damaged, which its loading
        reports.
    """
    checkpoint = parse_checkpoint(options.checkpoint)
    folder = model_folder(run)
    if not is_export(folder):
        return load_for_sampling(
            resolved_file(folder), constraints, options.changes, options.plugins, tables
        ).experiment
    require_newest(folder, checkpoint)
    try:
        # Not checked against the data, which an export may lack.
        document, plugins = open_for_sampling(
            folder / EXPERIMENT,
            constraints,
            options.changes,
            options.plugins,
            (*tables, "task"),
        )
        return validate(Experiment, document, plugins.catalog)
    except Refused:
        if verify(folder, {WEIGHTS, EXPERIMENT}):
            return None
        raise


def parse_checkpoint(word: str) -> Which:
    """Return "newest", "best" or the number of a step, or raise `Refused`."""
    if word == "newest":
        return "newest"
    if word == "best":
        return "best"
    # isdigit alone accepts superscripts, which int refuses.
    if word.isascii() and word.isdigit() and len(word) <= MAX_STEP_DIGITS:
        return int(word)
    raise Refused(
        f'checkpoint: expected newest, best or a step, got "{word}"', code="usage"
    )


def is_export(path: Path) -> bool:
    """Return whether a path names an export or an installed model, not a run."""
    return is_file(model_folder(path) / WEIGHTS)


def experiment_file(path: Path) -> Path:
    """Return the file with the experiment of a run, an export or an installed model."""
    if is_export(path):
        return model_folder(path) / EXPERIMENT
    return resolved_file(path)


def require_newest(export: Path, checkpoint: Which) -> None:
    """Refuse a checkpoint of an export other than the only one."""
    if checkpoint != "newest":
        message = f"{export} is an export: it has the weights of one step"
        raise Refused(Problem(message, help="omit --checkpoint", code="usage"))


def require_empty(out: Path | None) -> None:
    """Refuse a folder for new files that is a file or not empty."""
    if out is not None and exists(out) and (not is_folder(out) or any(out.iterdir())):
        message = f"{out} exists and is not an empty folder; nothing is overwritten"
        raise Refused(message, code="file-exists")


def require_absent(folder: Path) -> None:
    """Refuse a new folder that exists."""
    if exists(folder):
        raise Refused(f"{folder} exists; nothing is overwritten", code="file-exists")


def check_forms(task: TaskSpec, forms: Sequence[str]) -> None:
    """Raise Refused for export formats that the task does not have, or whose library is missing."""
    offered = ", ".join(task.exports) or "none"
    problems = []
    for form in dict.fromkeys(forms):
        if form in task.exports:
            for misfit in task.check_export(form):
                problem = Problem(misfit.message, help=misfit.help, code=misfit.code)
                problems.append(problem)
            continue
        message = f'task "{task.name}" does not export "{form}"; its forms: {offered}'
        fix = did_you_mean(form, task.exports)
        problems.append(Problem(message, help=fix, code="unknown-format"))
    if problems:
        raise Refused(problems)


@contextmanager
def new_folder(
    run: Path, default: Sequence[str], out: Path | None = None
) -> Iterator[Path]:
    """Create a folder: `out`, or a new one inside the run; remove it if it remains empty.

    Results of an export or an installed model are written into runs/NAME. The names of `default`
    may come from data.
    """
    require_empty(out)
    parent = RUNS / run.name if is_export(run) else run
    folder = out or _free_folder(parent.joinpath(*map(safe_name, default)))
    made = [path for path in (folder, *folder.parents) if not exists(path)]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        raise unwritable(folder, error) from None
    try:
        yield folder
    finally:
        # A folder with files stays; an empty one that was given goes, too.
        for path in made or [folder]:
            with suppress(OSError):
                path.rmdir()


def _free_folder(path: Path) -> Path:
    """Return a path that does not exist: this one, or with the first free number."""
    number = 1
    free = path
    while exists(free):
        number += 1
        free = path.with_name(f"{path.name}-{number}")
    return free
