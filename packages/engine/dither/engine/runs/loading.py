"""Weights and the experiment that made them, read back: from a run directory, or from a folder that `export` wrote.

Three lines are enough:

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
from ..config.component_fingerprints import changed_files
from ..config.constrained_sampling import load_for_sampling
from ..config.experiment import Experiment
from ..config.load_experiment import Loaded, check_experiment, load_experiment, open_experiment
from ..config.paths import external_files
from ..files.checksums import MANIFEST, verify, with_checksum
from ..training.device import choose_device, keep_freed_memory
from ..training.diffusion import Diffusion
from ..training.lora import load_merged, write_merged
from .bundle import AbsentTask, changes_within, pack, read_missing_data, space_as_json
from .progress import Screen, say
from .run_directory import read_manifest, resolved_file

__all__ = ["Which", "build", "export_run", "find_checkpoint", "load", "load_run"]

Which = Literal["newest", "best"] | int
"""A checkpoint: the newest intact one, that of the best evaluation, or that of a step."""
WEIGHTS, EXPERIMENT = "weights.safetensors", "experiment.toml"


def load(
    path: str | Path,
    checkpoint: Which = "newest",
    device: str = "auto",
    changes: Iterable[str] = (),
    plugins: Sequence[str] | None = None,
) -> Diffusion:
    """Return a trained system, ready to denoise and to draw from.

    Where data that an export speaks of are not here, its task knows no more than what a sample looks like.

    Args:
        path: A run directory, or a folder that `dither export` wrote.
        checkpoint: Which of a run.
        device: As in the experiment: auto, cpu, cuda.
        changes: `key=value` as after --set: of a run how samples are drawn, of an export also where its data are.
        plugins: As after -p; a plugin file of another's run or export is code, and named here where you trust it.

    Raises:
        Refused: It is neither of them; Damaged: what is there is not what was written.
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
    """Build what an export holds, without a task of its own where its data are missing."""
    data, space = read_missing_data(path)
    inner = changes_within(Document.load(path / EXPERIMENT).tree, path)
    document, plugins = open_experiment(path / EXPERIMENT, [*inner, *changes], select=select)
    told = {change.partition("=")[0].strip() for change in changes}
    missing = [one for one in data if one.option not in told and not _there(path, one.name)]
    if not missing or space is None:
        whole = check_experiment(document, plugins)
        _tell_outside(whole, Screen(stderr=True))
        return build(_elsewhere(whole, device))[0]
    loaded = Loaded(validate(Experiment, document, plugins.catalog), document, plugins)
    task = cast(Task, AbsentTask(space, missing, path))
    return build(_elsewhere(loaded, device), task=task)[0]


def _there(folder: Path, name: str) -> bool:
    return (folder / name).exists() or bool(glob.glob(name, root_dir=folder, recursive=True))


def _elsewhere(loaded: Loaded, device: str) -> Loaded:
    """Return an experiment for another machine than it was trained on."""
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

    Constraints from a file replace the run's own, and changes say how else samples are to be drawn. Damaged checkpoints
    that are passed over, and files that are read from elsewhere, are named on the console. A device is another one than
    the run's, and `select` is as after -p.

    Raises:
        Refused: It is no run directory; Damaged: it has no such checkpoint that is intact.
    """
    path = resolved_file(run_directory)
    loaded = load_for_sampling(path, constraints, changes, select)
    _tell_outside(loaded, console or Screen(stderr=True))
    if loaded.plugins.files and (others := changed_files(read_manifest(run_directory), loaded)):
        fix = "bring the file back as it was; or, if you meant the change: --resume RUN --accept-changes"
        raise Refused(
            [Problem(f"the run in {run_directory} is not what it was: {other}", help=fix) for other in others]
        )
    found = find_checkpoint(run_directory, checkpoint, console)
    system, _ = build(loaded if device is None else _elsewhere(loaded, device))
    load_merged(weights_of(found), system.model)
    return loaded, system.eval(), int(found.name.removeprefix("step-"))


def _tell_outside(loaded: Loaded, console: Console) -> None:
    for line in external_files(loaded, training=False):
        say(console, line, "yellow")


def find_checkpoint(run_directory: Path, which: Which = "newest", console: Console | None = None) -> Path:
    """Return a checkpoint of a run; damaged ones that are passed over are named on the console.

    Raises:
        Refused: There is none of this step; Damaged: there is none that is intact.
    """
    checkpoints = Checkpoints(run_directory / "checkpoints")
    if which == "newest":
        newest, damaged = checkpoints.newest()
        for damage in damaged:
            say(console or Screen(stderr=True), damage, "yellow")
        if newest is None:
            raise Damaged(f"{run_directory} has no checkpoint yet")
        return newest
    step = best_step(run_directory) if which == "best" else which
    there = dict(checkpoints.steps())
    if step not in there:
        kept = ", ".join(map(str, sorted(there))) or "none"
        hint = "; train.keep_best keeps that of the best evaluation" if which == "best" else ""
        raise Refused(f"{run_directory} has no checkpoint of step {step}; there is: {kept}{hint}")
    if reason := verify(there[step]):
        raise Damaged(f"checkpoint {there[step]} is damaged: {reason}")
    return there[step]


def build(loaded: Loaded, training: bool = False, task: Task | None = None) -> tuple[Diffusion, torch.device]:
    """Build an experiment on its device; for training on a CPU, freed memory stays with the process from then on.

    Threads, and the precision of matrix products, are those of the experiment for the whole process. A task that is
    given stands in for that of the experiment.
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
    """Write what others need to use the weights of a run, and nothing else, into a new folder.

    Of data only the names go along, and how large they are; the manifest has them under `data`.
    Only then the plugin files of the run are read, and only those that ran here before or are named in `select`, as
    after -p: they tell what a sample looks like. Where that cannot be told, the console has a line.

    Returns:
        The files: the weights as safetensors, the experiment with every default, one-file plugins, small files that it
        names such as a tokenizer, and their hashes.

    Raises:
        Refused: It is no run directory, or the folder exists; Damaged: there is no such checkpoint that is intact.
    """
    experiment = resolved_file(run_directory)
    found = find_checkpoint(run_directory, checkpoint)
    if to.exists():
        raise Refused(f"{to} exists; nothing is overwritten")
    parcel = pack(tomllib.loads(experiment.read_text(encoding="utf-8")))
    aside = to.with_name(f".{to.name}-{os.getpid()}")
    try:
        aside.mkdir(parents=True)
        write_merged(weights_of(found), aside / WEIGHTS)
        (aside / EXPERIMENT).write_text(tomlkit.dumps(parcel.tree), encoding="utf-8")
        for name, file in parcel.files.items():
            (aside / name).parent.mkdir(exist_ok=True)
            shutil.copyfile(file, aside / name)
        if (plugins := run_directory / "plugins").is_dir():
            shutil.copytree(plugins, aside / "plugins", ignore=shutil.ignore_patterns("__pycache__"))
        files = sorted(path for path in aside.rglob("*") if path.is_file())
        for path in files:
            fsync(path)
        entries = ((path, {"size": path.stat().st_size, "sha256": sha256_of(path)}) for path in files)
        listed = {path.relative_to(aside).as_posix(): entry for path, entry in entries}
        manifest = {"format": 1, "step": int(found.name.removeprefix("step-")), "files": listed}
        manifest |= {"data": [asdict(one) for one in parcel.data], "space": None}
        if parcel.data:
            manifest["space"] = _space(experiment, select, console or Screen(stderr=True))
        (aside / MANIFEST).write_text(json.dumps(with_checksum(manifest), indent=2), encoding="utf-8")
        fsync(aside / MANIFEST)
        aside.rename(to)
    except OSError as error:
        raise Refused(f"{to} cannot be written: {error.strerror}") from None
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return [to / path.relative_to(aside) for path in [*files, aside / MANIFEST]]


def _space(experiment: Path, select: Sequence[str] | None, console: Console) -> dict[str, Any] | None:
    """Return what a sample of a run looks like, where its data are here to tell it."""
    try:
        return space_as_json(load_experiment(experiment, select=select).experiment.task.space())
    except Refused as refused:
        problem = refused.problems[0]
        reason = "; ".join(filter(None, (problem.message, problem.help)))
        say(console, f"what a sample looks like is not told, so it loads only where its data are: {reason}", "yellow")
        return None
