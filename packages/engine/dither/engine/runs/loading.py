"""Loading a trained system from a run directory or an export, and writing exports.

import dither
system = dither.load("runs/20260101T120000Z-abc123")
samples = dither.draw(system, system.task.like(4, seed=0), seed=0)
"""

from __future__ import annotations

import glob
import json
import os
import shutil
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Literal, cast

import tomlkit
import torch
from rich.console import Console

from dither.registry.config.document import Document
from dither.registry.config.errors import Problem, Refused
from dither.registry.config.validation import located, validate
from dither.registry.files.atomic import fsync, sha256_of
from dither.registry.flow.protocols import Task

from ..checkpoints.best_checkpoint import best_step
from ..checkpoints.checkpoint import Checkpoints, Damaged, load_weights, weights_of
from ..config.experiment import Experiment
from ..config.load_experiment import Loaded, check_experiment, load_experiment, load_for_sampling, open_experiment
from ..config.provenance import changed_plugin_files
from ..files.checksums import MANIFEST, verify, with_checksum
from ..training.device import choose_device, keep_freed_memory
from ..training.diffusion import Diffusion
from ..training.lora import load_merged, write_merged
from .bundle import AbsentTask, changes_within, pack, read_missing_data, space_as_json
from .progress import Screen, say
from .run_directory import read_manifest, resolved_file

__all__ = ["Which", "build", "export_run", "find_checkpoint", "load", "load_run"]

Which = Literal["newest", "best"] | int
"""A checkpoint: the newest intact one, that of the best evaluation, or one of a step."""
WEIGHTS, EXPERIMENT = "weights.safetensors", "experiment.toml"


def load(
    path: str | Path,
    checkpoint: Which = "newest",
    device: str = "auto",
    changes: Iterable[str] = (),
    plugins: Sequence[str] | None = None,
) -> Diffusion:
    """Return a trained system in evaluation mode.

    If the data of an export are missing, its task only knows the space of a sample.

    Args:
        path: A run directory, or a folder that `dither export` wrote.
        checkpoint: The checkpoint of a run.
        device: As in the experiment: auto, cpu, cuda.
        changes: `key=value` as after --set: options of sampling, and for an export also paths of its data.
        plugins: As after -p. A plugin file of a run or export from another machine only runs if it is named here.

    Raises:
        Refused: The path is neither a run nor an export. Damaged: Files do not match their checksums.
    """
    path = Path(path)
    if not (path / WEIGHTS).is_file():
        return load_run(path, checkpoint=checkpoint, changes=changes, device=device, select=plugins)[1]
    if reason := verify(path, {WEIGHTS, EXPERIMENT}):
        raise Damaged(f"{path} is damaged: {reason}")
    system = _unpacked(path, device, list(changes), plugins)
    load_weights(path / WEIGHTS, system.model)
    return system.eval()


def _unpacked(path: Path, device: str, changes: list[str], select: Sequence[str] | None) -> Diffusion:
    """Build the system of an export, with an `AbsentTask` if its data are missing."""
    data, space = read_missing_data(path)
    inner = changes_within(Document.load(path / EXPERIMENT).tree, path)
    document, plugins = open_experiment(path / EXPERIMENT, [*inner, *changes], select=select)
    overridden = {change.partition("=")[0].strip() for change in changes}
    missing = [entry for entry in data if entry.option not in overridden and not _exists(path, entry.name)]
    if not missing or space is None:
        checked = check_experiment(document, plugins)
        return build(_on_device(checked, device))[0]
    loaded = Loaded(validate(Experiment, document, plugins.catalog), document, plugins)
    task = cast(Task, AbsentTask(space, missing, path))
    return build(_on_device(loaded, device), task=task)[0]


def _exists(folder: Path, name: str) -> bool:
    return (folder / name).exists() or bool(glob.glob(name, root_dir=folder, recursive=True))


def _on_device(loaded: Loaded, device: str) -> Loaded:
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
        console: For warnings about damaged checkpoints and external files.
        constraints: A file of constraints in place of those of the run.
        checkpoint: The checkpoint.
        changes: `key=value` as after --set: options of sampling.
        device: A device in place of that of the run.
        select: Plugins as after -p.

    Raises:
        Refused: Not a run directory, or a plugin file changed. Damaged: There is no such intact checkpoint.
    """
    path = resolved_file(run_directory)
    loaded = load_for_sampling(path, constraints, changes, select)
    if loaded.plugins.files and (changed := changed_plugin_files(read_manifest(run_directory), loaded)):
        fix = "restore the file; or, if the change is intended: --resume RUN --accept-changes"
        message = f"the run in {run_directory} was made with another plugin: "
        raise Refused([Problem(message + change, help=fix, code="changed-components") for change in changed])
    found = find_checkpoint(run_directory, checkpoint, console)
    system, _ = build(loaded if device is None else _on_device(loaded, device))
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
    step = best_step(run_directory) if which == "best" else which
    folders = dict(checkpoints.steps())
    if step not in folders:
        steps = ", ".join(map(str, sorted(folders))) or "none"
        hint = "train.keep_best = true keeps the best checkpoint" if which == "best" else None
        message = f"{run_directory} has no checkpoint of step {step}; its steps are: {steps}"
        raise Refused(Problem(message, help=hint, code="missing-checkpoint"))
    if reason := verify(folders[step]):
        raise Damaged(f"checkpoint {folders[step]} is damaged: {reason}")
    return folders[step]


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


def export_run(
    run_directory: Path,
    to: Path,
    checkpoint: Which = "newest",
    select: Sequence[str] | None = None,
    console: Console | None = None,
) -> list[Path]:
    """Write a new folder with everything needed to use the weights of a run elsewhere.

    Data are not copied; the manifest lists them under `data`, with the space of a sample. To know the space, plugin
    files of the run are executed only if they ran on this machine before or are named in `select`, as after -p;
    otherwise the console shows a warning.

    Returns:
        The files: weights, the resolved experiment, plugin files, small files that it names such as a tokenizer, and
        a manifest with checksums.

    Raises:
        Refused: Not a run directory, or the folder exists. Damaged: There is no such intact checkpoint.
    """
    experiment = resolved_file(run_directory)
    found = find_checkpoint(run_directory, checkpoint)
    if to.exists():
        raise Refused(f"{to} exists; nothing is overwritten", code="file-exists")
    bundle = pack(tomllib.loads(experiment.read_text(encoding="utf-8")))
    temporary = to.with_name(f".{to.name}-{os.getpid()}")
    try:
        temporary.mkdir(parents=True)
        write_merged(weights_of(found), temporary / WEIGHTS)
        (temporary / EXPERIMENT).write_text(tomlkit.dumps(bundle.tree), encoding="utf-8")
        for name, file in bundle.files.items():
            (temporary / name).parent.mkdir(exist_ok=True)
            shutil.copyfile(file, temporary / name)
        if (plugins := run_directory / "plugins").is_dir():
            shutil.copytree(plugins, temporary / "plugins", ignore=shutil.ignore_patterns("__pycache__"))
        files = sorted(path for path in temporary.rglob("*") if path.is_file())
        for path in files:
            fsync(path)
        entries = ((path, {"size": path.stat().st_size, "sha256": sha256_of(path)}) for path in files)
        listed = {path.relative_to(temporary).as_posix(): entry for path, entry in entries}
        manifest = {"format": 1, "step": int(found.name.removeprefix("step-")), "files": listed}
        manifest |= {"data": [asdict(entry) for entry in bundle.data], "space": None}
        if bundle.data:
            manifest["space"] = _space(experiment, select, console or Screen(stderr=True))
        (temporary / MANIFEST).write_text(json.dumps(with_checksum(manifest), indent=2), encoding="utf-8")
        fsync(temporary / MANIFEST)
        temporary.rename(to)
    except OSError as error:
        raise Refused(f"{to} cannot be written: {error.strerror}", code="unreadable-file") from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return [to / path.relative_to(temporary) for path in [*files, temporary / MANIFEST]]


def _space(experiment: Path, select: Sequence[str] | None, console: Console) -> dict[str, Any] | None:
    """Return the space of a sample of a run, or None with a warning if it is unknown without the data."""
    try:
        return space_as_json(load_experiment(experiment, select=select).experiment.task.space())
    except Refused as refused:
        problem = refused.problems[0]
        reason = "; ".join(filter(None, (problem.message, problem.help)))
        say(console, f"the space of a sample is unknown, so the export only loads with its data: {reason}", "yellow")
        return None
