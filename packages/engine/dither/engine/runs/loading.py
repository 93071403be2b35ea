"""Building the system of an experiment, with weights of a run or initial ones from elsewhere."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from rich.console import Console
from torch import Tensor, nn

from dither.registry.config.errors import Problem, Refused
from dither.registry.config.validation import located
from dither.registry.contracts.commands import RunOptions
from dither.registry.contracts.protocols import Task
from dither.registry.files.limits import read_text
from dither.registry.files.lookup import is_file, is_folder
from dither.registry.files.weight_files import read_weights

from ..checkpoints.checkpoint import Checkpoints, Damaged, Scores, weights_of
from ..checkpoints.sharded_checkpoint import read_tensors
from ..config.experiment import Experiment
from ..config.load_experiment import SAMPLING_TABLES, Loaded, load_for_sampling
from ..config.options import Train
from ..config.provenance import changed_plugin_files
from ..files.checksums import MANIFEST, verify
from ..files.installed_models import WEIGHTS, model_folder
from ..training.device import (
    choose_device,
    choose_threads,
    keep_freed_memory,
    set_threads,
)
from ..training.diffusion import Diffusion
from ..training.lora import load_merged, merged
from ..training.nan_guard import all_finite
from .progress import Screen, say
from .request_checks import DEFAULTS, Which, parse_checkpoint
from .run_directory import read_manifest, resolved_file
from .system import System

__all__ = [
    "build",
    "find_checkpoint",
    "find_weights",
    "load_run",
    "load_start",
    "on_device",
    "start_from",
    "step_size",
]


def build(
    loaded: Loaded, training: bool = False, task: Task | None = None
) -> tuple[System, torch.device]:
    """Return the system of an experiment on its device, and the device.

    Sets the number of threads and the precision of matrix products of the process, and for training
    on a CPU keeps freed memory in the process. `task` replaces that of the experiment.
    """
    train = loaded.experiment.train
    device = choose_device(train.device)
    if training and train.keep_memory and device.type == "cpu":
        keep_freed_memory()
    with located(loaded.document):
        system = System.build(loaded.experiment, loaded.plugins.catalog, task)
    # "high" is TensorFloat-32. The setting is one of the process.
    torch.set_float32_matmul_precision(
        "high" if system.precision == "tf32" else "highest"
    )
    # Other code of a process that loads a model may need all threads.
    threads = train.threads
    if training:
        threads = choose_threads(train.threads, step_size(system, train), device)
    set_threads(train.threads, threads)
    system.catalog = loaded.plugins.catalog
    system.plugin_files = tuple(loaded.plugins.files)
    return system.to(device), device


def step_size(system: Diffusion, train: Train) -> int:
    """Return the positions of a micro-batch times the weights of the model."""
    weights = sum(parameter.numel() for parameter in system.model.parameters())
    rows = train.batch_size // train.accumulate
    return rows * system.task.space.length * weights


def on_device(loaded: Loaded, device: str) -> Loaded:
    """Return an experiment with another device and the default number of threads."""
    return loaded.with_options("train", device=device, threads=None)


def load_run(
    run_directory: Path,
    options: RunOptions = DEFAULTS,
    console: Console | None = None,
    constraints: Path | None = None,
    device: str | None = None,
    tables: Sequence[str] = SAMPLING_TABLES,
) -> tuple[Loaded, System, int]:
    """Return a run's experiment, its system with the weights of a checkpoint, and their step.

    `console` shows damaged checkpoints. A file of `constraints` and a `device` replace those of the
    run; overrides are of `tables`, those of sampling. Refused if a plugin file changed; Damaged if
    there is no such intact checkpoint.
    """
    checkpoint = parse_checkpoint(options.checkpoint)
    loaded = load_for_sampling(
        resolved_file(run_directory),
        constraints,
        options.changes,
        options.plugins,
        tables,
    )
    if loaded.plugins.files and (
        changed := changed_plugin_files(read_manifest(run_directory), loaded)
    ):
        fix = "restore the file; or, if the change is intended: --resume RUN --accept-changes"
        message = f"the run in {run_directory} was made with another plugin: "
        raise Refused(
            [
                Problem(message + change, help=fix, code="changed-components")
                for change in changed
            ]
        )
    weights, step = find_weights(run_directory, checkpoint, console)
    system, _ = build(loaded if device is None else on_device(loaded, device))
    load_merged(weights, system.model)
    return loaded, system.eval(), step


def find_weights(
    source: Path, which: Which = "newest", console: Console | None = None
) -> tuple[Path, int]:
    """Return the file or folder of weights of a run or export, and their step.

    A run that measures the weights of another one has those.
    """
    if is_file(source / WEIGHTS):
        if reason := verify(source, {WEIGHTS}):
            raise Damaged(f"{source} is damaged: {reason}")
        return source / WEIGHTS, int(json.loads(read_text(source / MANIFEST))["step"])
    if not is_folder(source / "checkpoints") and is_file(source / "manifest.json"):
        measured = read_manifest(source).get("weights_of")
        if measured is not None:
            return find_weights(source / measured, which, console)
    found = find_checkpoint(source, which, console)
    return weights_of(found), int(found.name.removeprefix("step-"))


def find_checkpoint(
    run_directory: Path, which: Which = "newest", console: Console | None = None
) -> Path:
    """Return the folder of a checkpoint; `console` shows skipped ones. Damaged if none is intact."""
    checkpoints = Checkpoints(run_directory / "checkpoints")
    if which == "newest":
        newest, damaged = checkpoints.newest()
        for damage in damaged.values():
            say(console or Screen(stderr=True), damage, "yellow")
        if newest is None:
            message = f"{run_directory} has no checkpoint yet"
            raise Damaged(message, code="missing-checkpoint")
        return newest

    step = _best_step(run_directory) if which == "best" else which
    folders = dict(checkpoints.steps())
    if step not in folders:
        steps = ", ".join(map(str, sorted(folders))) or "none"
        hint = None
        if which == "best":
            hint = "train.keep_best = true keeps the best checkpoint"
        message = (
            f"{run_directory} has no checkpoint of step {step}; its steps are: {steps}"
        )
        raise Refused(Problem(message, help=hint, code="missing-checkpoint"))
    if reason := verify(folders[step]):
        raise Damaged(f"checkpoint {folders[step]} is damaged: {reason}")
    return folders[step]


def _best_step(run_directory: Path) -> int:
    """Return the step of the best evaluation of a run, by the metric of its experiment."""
    settings = tomllib.loads(read_text(resolved_file(run_directory)))["evaluate"]
    metric = settings.get("best", "loss")
    step = Scores.read(run_directory, metric, settings.get("better", "lower")).best
    if step is None:
        message = f"{run_directory} has no best checkpoint: no evaluation has a finite {metric}"
        raise Refused(message, code="missing-checkpoint")
    return step


SHOWN = 12
"""Names that are listed before "and N more"."""
FROM = ("train", "start_from")


def load_start(experiment: Experiment, model: nn.Module) -> list[str]:
    """Load the weights of `train.start_from`, if any; return a line for each reason why some were skipped."""
    train = experiment.train
    if train.start_from is None:
        return []
    rename = None
    if train.start_layout is not None:
        rename = partial(experiment.model.rename, train.start_layout)
    return start_from(model, Path(train.start_from), train.start_partial, rename)


@torch.no_grad()
def start_from(
    model: nn.Module,
    source: Path,
    partial: bool = False,
    rename: Callable[[Mapping[str, Tensor]], Mapping[str, Tensor]] | None = None,
) -> list[str]:
    """Copy weights into a model by name; return a line for each reason why weights were skipped.

    `source` is a run directory (its newest intact checkpoint), an export, an installed model, or a
    .safetensors file; with `rename`, which maps names, a .safetensors or torch file of another project. With
    `partial`, weights that only one side has or whose shapes differ are skipped. Refused if others
    do not match or contain NaN or inf; Damaged by checksums.
    """
    try:
        path, stored = _read(source, foreign=rename is not None)
        loaded = merged(stored) if rename is None else rename(stored)
        own = model.state_dict()
    except Refused as refused:
        refused.problems = tuple(
            replace(problem, path=problem.path or FROM) for problem in refused.problems
        )
        raise

    fits = {name for name in own if name in loaded and _fits(loaded[name], own[name])}
    notes = [f"{source}: {line}" for line in _misfits(own, loaded, fits)]
    # A file of which nothing fits is the wrong file.
    if notes and not (partial and fits):
        hint = None
        if not partial:
            hint = "train.start_partial = true loads only the matching weights"
        raise Refused(
            [Problem(note, FROM, help=hint, code="shape-mismatch") for note in notes]
        )
    _require_finite(path, model, stored, {name: loaded[name] for name in fits})
    for name in fits:
        # state_dict shares memory with the model.
        own[name].copy_(loaded[name])
    return notes


def _fits(loaded: Tensor, own: Tensor) -> bool:
    """Return whether a tensor of a file is one of the model: integers are quantised weights."""
    is_same_kind = loaded.is_floating_point() == own.is_floating_point()
    return is_same_kind and loaded.shape == own.shape


def _require_finite(
    path: Path,
    model: nn.Module,
    stored: Mapping[str, Tensor],
    loaded: Mapping[str, Tensor],
) -> None:
    """Refuse NaN and inf in the loaded weights; name those of the file that have them."""
    lost = []
    # A tied weight may be stored under any of its names.
    for name, weight in model.named_parameters(remove_duplicate=False):
        # As it will be in the model: a float32 may overflow in half precision.
        if name in loaded and not all_finite([loaded[name].to(weight.dtype)]):
            lost.append(name)
    if lost:
        names = [name for name in stored if not all_finite([stored[name]])]
        # All are finite in the file if a value overflows only in the precision of the model.
        names = names or sorted(lost)
        message = f"{path}: {len(names)} weights contain NaN or inf: {_listed(names)}"
        raise Refused(Problem(message, FROM, code="non-finite"))


def _misfits(
    own: Mapping[str, Tensor], loaded: Mapping[str, Tensor], fits: Collection[str]
) -> Iterator[str]:
    """Yield a line for each reason why weights are not loaded."""
    # Tied weights are stored once.
    pointers = {own[name].data_ptr() for name in fits}
    missing = []
    other_shape = []
    other_type = []
    for name, weight in own.items():
        if name in loaded and loaded[name].shape == weight.shape:
            if name not in fits:
                other_type.append(f"{name} {loaded[name].dtype} for {weight.dtype}")
        elif name in loaded:
            other_shape.append(f"{name} {_shape(loaded[name])} for {_shape(weight)}")
        elif name not in loaded and weight.data_ptr() not in pointers:
            missing.append(name)
    unknown = [name for name in loaded if name not in own]

    reasons = {
        "missing": missing,
        "unknown to the model": unknown,
        "of another shape": other_shape,
        "of another type": other_type,
    }
    for reason, names in reasons.items():
        if names:
            yield f"{len(names)} weights {reason}: {_listed(names)}"


def _read(source: Path, foreign: bool) -> tuple[Path, Mapping[str, Tensor]]:
    """Return the file of weights of a run, export or file, and its tensors."""
    if foreign:
        return source, read_weights(source)
    source = model_folder(source)
    if is_folder(source / "checkpoints"):
        path = weights_of(find_checkpoint(source))
    else:
        path = source / WEIGHTS if is_folder(source) else source
        _require_intact(path)
    try:
        return path, read_tensors(path)
    except OSError as error:
        message = f"{path} cannot be read as safetensors: {error}"
        raise Refused(message, code="unreadable-file") from None


def _require_intact(path: Path) -> None:
    """Refuse a damaged file of an export or checkpoint; other files have no checksums of ours."""
    folder = path.parent
    if path.name != WEIGHTS and not is_file(folder / "state.json"):
        return
    if not is_file(folder / MANIFEST):
        return
    if reason := verify(folder, {path.name}):
        raise Damaged(f"{folder} is damaged: {reason}")


def _shape(tensor: Tensor) -> str:
    return "x".join(map(str, tensor.shape)) or "scalar"


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more
