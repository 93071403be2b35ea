"""Building the system of an experiment, and loading it with the weights of a run."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

import torch
from rich.console import Console

from dither.registry.config.errors import Problem, Refused
from dither.registry.config.validation import located
from dither.registry.flow.protocols import Task

from ..checkpoints.best_checkpoint import Scores
from ..checkpoints.checkpoint import Checkpoints, Damaged, weights_of
from ..config.load_experiment import Loaded, load_for_sampling
from ..config.provenance import changed_plugin_files
from ..files.checksums import verify
from ..training.device import choose_device, keep_freed_memory
from ..training.diffusion import Diffusion
from ..training.lora import load_merged
from .progress import Screen, say
from .run_directory import read_manifest, resolved_file

__all__ = ["Which", "build", "find_checkpoint", "load_run", "on_device"]

Which = Literal["newest", "best"] | int
"""A checkpoint: the newest intact one, that of the best evaluation, or one of a step."""


def build(loaded: Loaded, training: bool = False, task: Task | None = None) -> tuple[Diffusion, torch.device]:
    """Return the system of an experiment on its device, and the device.

    Sets the number of threads and the precision of matrix products of the process, and for training on a CPU keeps
    freed memory in the process. `task` replaces that of the experiment.
    """
    train = loaded.experiment.train
    if train.threads is not None:
        torch.set_num_threads(train.threads)
    torch.set_float32_matmul_precision("high" if train.precision == "tf32" else "highest")
    device = choose_device(train.device)
    if training and train.keep_memory and device.type == "cpu":
        keep_freed_memory()
    try:
        system = Diffusion.build(loaded.experiment, loaded.plugins.catalog, task)
    except Refused as refused:
        raise located(refused, loaded.document) from None
    return system.to(device), device


def on_device(loaded: Loaded, device: str) -> Loaded:
    """Return an experiment with another device and the default number of threads."""
    train = loaded.experiment.train.model_copy(update={"device": device, "threads": None})
    return replace(loaded, experiment=loaded.experiment.model_copy(update={"train": train}))


def load_run(
    run_directory: Path,
    console: Console | None = None,
    constraints: Path | None = None,
    checkpoint: Which = "newest",
    changes: Iterable[str] = (),
    device: str | None = None,
    select: Sequence[str] | None = None,
) -> tuple[Loaded, Diffusion, int]:
    """Return a run's experiment, its system with the weights of a checkpoint, and their step.

    Args:
        run_directory: The run directory.
        console: For warnings about damaged checkpoints.
        constraints: A file of constraints in place of those of the run.
        checkpoint: The checkpoint.
        changes: `key=value` as after --set: options of sampling.
        device: A device in place of that of the run.
        select: Plugins as after -p.

    Raises:
        Refused: Not a run directory, or a plugin file changed. Damaged: There is no such intact checkpoint.
    """
    loaded = load_for_sampling(resolved_file(run_directory), constraints, changes, select)
    if loaded.plugins.files and (changed := changed_plugin_files(read_manifest(run_directory), loaded)):
        fix = "restore the file; or, if the change is intended: --resume RUN --accept-changes"
        message = f"the run in {run_directory} was made with another plugin: "
        raise Refused([Problem(message + change, help=fix, code="changed-components") for change in changed])
    found = find_checkpoint(run_directory, checkpoint, console)
    system, _ = build(loaded if device is None else on_device(loaded, device))
    load_merged(weights_of(found), system.model)
    return loaded, system.eval(), int(found.name.removeprefix("step-"))


def find_checkpoint(run_directory: Path, which: Which = "newest", console: Console | None = None) -> Path:
    """Return the folder of a checkpoint; damaged ones that are skipped are printed on the console.

    Raises:
        Refused: There is no checkpoint of this step. Damaged: There is no intact one.
    """
    checkpoints = Checkpoints(run_directory / "checkpoints")
    if which == "newest":
        newest, damaged = checkpoints.newest()
        for damage in damaged:
            say(console or Screen(stderr=True), damage, "yellow")
        if newest is None:
            raise Damaged(f"{run_directory} has no checkpoint yet", code="missing-checkpoint")
        return newest
    step = _best_step(run_directory) if which == "best" else which
    folders = dict(checkpoints.steps())
    if step not in folders:
        steps = ", ".join(map(str, sorted(folders))) or "none"
        hint = "train.keep_best = true keeps the best checkpoint" if which == "best" else None
        message = f"{run_directory} has no checkpoint of step {step}; its steps are: {steps}"
        raise Refused(Problem(message, help=hint, code="missing-checkpoint"))
    if reason := verify(folders[step]):
        raise Damaged(f"checkpoint {folders[step]} is damaged: {reason}")
    return folders[step]


def _best_step(run_directory: Path) -> int:
    settings = tomllib.loads(resolved_file(run_directory).read_text(encoding="utf-8"))["evaluate"]
    best = Scores.read(run_directory, settings.get("best", "loss"), settings.get("better", "lower")).best
    if best is None:
        raise Refused(f"{run_directory} has no best checkpoint: no evaluation", code="missing-checkpoint")
    return best
