"""Lines printed before a run, and the results printed after it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from dither.registry.flow.protocols import DataWarnings, Split

from ..config.experiment import Experiment
from ..files.metrics_file import FLOOR, baselines_of, is_companion_metric, with_interval
from ..training.device import peak_device_memory, peak_memory
from ..training.diffusion import Diffusion
from ..training.evaluation import has_targets
from .loop import Run
from .progress import say

__all__ = ["data_warnings", "introduce", "show_metrics", "summarise"]


def introduce(run: Run) -> list[str]:
    """Return lines with the components, parameters, data and device of a run."""
    experiment, system, ranks = run.experiment, run.system, run.ranks
    components = (experiment.task, experiment.process, experiment.model, experiment.loss, experiment.sampler)
    counts, strategy = system.parameter_counts(), experiment.train.strategy
    trained = sum(parameter.numel() for parameter in system.model.parameters() if parameter.requires_grad)
    trainable = f"; {trained:,} trainable" if trained < sum(counts.values()) else ""
    sizes = {split: system.task.size(split) for split in ("train", "valid", "test")}
    many = f"{ranks.size} ranks ({strategy}), " if ranks.size > 1 else ""
    lines = [
        f"{experiment.name}: " + ", ".join(f"{part.kind} {part.name}" for part in components),
        f"{sum(counts.values()):,} parameters: " + ", ".join(f"{name} {n:,}" for name, n in counts.items()) + trainable,
        "samples: " + ", ".join(f"{size:,} {split}" for split, size in sizes.items()),
        f"each sample: {system.task.space}",
        f"{many}{run.trainer.device}, {torch.get_num_threads()} threads; {run.directory.path}",
    ]
    if strategy == "fsdp" and ranks.size == 1:
        lines.append('train.strategy = "fsdp" has no effect with one process; start the run with torchrun')
    return lines


def summarise(run: Run) -> dict[str, Any]:
    """Return the content of summary.json: metrics, baselines, speed and memory."""
    done = run.trainer.step - run.first - 1
    return {
        "name": run.experiment.name,
        "step": run.trainer.step,
        "steps": run.experiment.train.steps,
        "figures": run.metrics,
        "baselines": run.system.task.baselines(),
        "steps_per_second": done / run.seconds if run.seconds else None,
        "peak_memory_bytes": peak_memory(),
        "peak_device_memory_bytes": peak_device_memory(),
    }


def show_metrics(console: Console, summary: Mapping[str, Any]) -> None:
    """Print every metric with its interval, noise floor and baselines, then the baselines of other metrics."""
    metrics, baselines = summary["figures"], dict(summary["baselines"])
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("metric", "model", "baseline"):
        table.add_column(column, justify="right" if column == "model" else "left", overflow="fold")
    for kind, values in metrics.items():
        for name in [name for name in values if not is_companion_metric(name, values)]:
            references = {"floor": values.get(name + FLOOR), **baselines_of(kind, name, baselines)}
            shown = ", ".join(f"{of} {number:.4g}" for of, number in references.items() if number is not None)
            table.add_row(f"{kind} {name}", with_interval(name, values), shown)
    if table.row_count:
        console.print(table)
    names = {full for kind, values in metrics.items() for name in values for full in (name, f"{kind} {name}")}
    for key in [key for key in baselines if key.partition("/")[0] not in names]:
        say(console, f"baseline {key} {baselines[key]:.4g}")


NO_TARGETS: dict[Split, str] = {"train": "nothing is learned", "valid": "loss and metrics are undefined"}
"""Consequence of a split in which no position is masked."""


def data_warnings(experiment: Experiment, system: Diffusion) -> Iterator[str]:
    """Yield the warnings of a task about its data, and splits in which the process masks no position."""
    task, settings = system.task, experiment.evaluate
    if isinstance(task, DataWarnings):
        yield from task.data_warnings()
    size = settings.batch_size or experiment.train.batch_size
    for split, consequence in NO_TARGETS.items():
        count = min(settings.samples, task.size(split))
        if count and not has_targets(system, count, size, experiment.seed, split):
            yield f"no position is masked in the first {count:,} samples of the {split} split: {consequence}"
