"""Texts and numbers about a run: its first lines, warnings about its data, and summary.json."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from dither.registry.contracts.protocols import Split
from dither.registry.kinds import TaskSpec

from ..config.experiment import Experiment
from ..training.device import (
    choose_precision,
    choose_threads,
    peak_device_memory,
    peak_memory,
)
from ..training.diffusion import Diffusion
from ..training.evaluation import has_targets, merge_metrics, without_likelihoods
from ..training.trainer import Trainer
from .loading import step_size

__all__ = ["data_warnings", "introduce", "reading_aids", "summarise"]

NO_TARGETS: dict[Split, str] = {
    "train": "nothing is learned",
    "valid": "loss and metrics are undefined",
}
"""Consequence of a split in which no position is masked."""


def introduce(experiment: Experiment, trainer: Trainer, path: Path) -> Iterator[str]:
    """Yield lines with the components, parameters, data and device of a run."""
    system = trainer.system
    ranks = trainer.ranks
    task = system.task
    device = trainer.device
    strategy = experiment.train.strategy

    yield f"{experiment.name}: {', '.join(experiment.component_names())}"

    counts = system.parameter_counts()
    total = sum(counts.values())
    trained = sum(parameter.numel() for parameter in trainer.parameters)
    trainable = f"; {trained:,} trainable" if trained < total else ""
    modules = ", ".join(f"{name} {count:,}" for name, count in counts.items())
    yield f"{total:,} parameters: {modules}{trainable}"

    splits: tuple[Split, ...] = ("train", "valid", "test")
    yield f"samples: {', '.join(f'{task.size(split):,} {split}' for split in splits)}"
    yield f"each sample: {task.space}"
    many = f"{ranks.size} ranks ({strategy}), " if ranks.size > 1 else ""
    yield f"{many}{device}, {torch.get_num_threads()} threads; {path}"
    train = experiment.train
    size = step_size(system, train)
    # A number that the user has set needs no explanation.
    if choose_threads(train.threads, size, device) == 1 and train.threads is None:
        yield (
            "one CPU thread: more gain little for a model and batch of this size; "
            "train.threads or OMP_NUM_THREADS sets their number"
        )

    # Compilation that the user has not set looks like a run that hangs.
    if trainer.compiled and experiment.train.compile is None:
        yield (
            "compiling the model: the first step may take a minute; train.compile = false avoids it"
        )
    yield from _precision_advice(experiment, trainer)
    if strategy == "fsdp" and not ranks.launched:
        yield (
            'train.strategy = "fsdp" has no effect without torchrun; start the run with torchrun'
        )


def _precision_advice(experiment: Experiment, trainer: Trainer) -> Iterator[str]:
    option = experiment.train.precision
    if option == "auto":
        yield f'precision {trainer.system.precision} (train.precision = "auto")'
        return
    best = choose_precision("auto", trainer.system.model, trainer.device.type)
    # tf32 changes nothing on a CPU.
    if trainer.device.type == "cpu" and option not in (best, "tf32"):
        yield (
            f'train.precision = "{best}" is usually faster than "{option}" '
            "for a model of this size on this CPU"
        )


def data_warnings(experiment: Experiment, system: Diffusion) -> Iterator[str]:
    """Yield the warnings of a task about its data, and splits in which the process masks no position."""
    task = system.task
    settings = experiment.evaluate
    yield from task.data_warnings()
    size = experiment.evaluation_batch
    for split, consequence in NO_TARGETS.items():
        count = min(settings.samples, task.size(split))
        if count and not has_targets(system, count, size, experiment.seed, split):
            yield (
                f"no position is masked in the first {count:,} samples of the {split} split: "
                f"{consequence}"
            )


def reading_aids(task: TaskSpec) -> dict[str, Any]:
    """Return what a table of metrics needs besides numbers: better directions, and explanations."""
    return {
        "higher": list(task.higher),
        "lower": list(task.lower),
        "explanations": dict(task.explanations),
    }


def summarise(
    experiment: Experiment,
    trainer: Trainer,
    metrics: Mapping[str, Mapping[str, float]],
    steps_per_second: float | None,
) -> dict[str, Any]:
    """Return the content of summary.json: metrics, baselines, speed and memory."""
    system = trainer.system
    baselines = system.task.baselines("valid", experiment.evaluate.samples)
    return {
        "name": experiment.name,
        "step": trainer.step,
        "steps": experiment.train.steps,
        "headline": list(experiment.task.headline),
        "legend": experiment.task.legend,
        # Recorded, so that pages and comparisons need neither the task nor its plugin.
        **reading_aids(experiment.task),
        "metrics": metrics,
        "baselines": without_likelihoods(system, merge_metrics(baselines)),
        "steps_per_second": steps_per_second,
        "peak_memory_bytes": peak_memory(),
        "peak_device_memory_bytes": peak_device_memory(),
    }
