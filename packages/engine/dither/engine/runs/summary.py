"""What is said before a run and after it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Console
from rich.table import Table

from dither.registry.flow.protocols import DataWarnings, Split

from ..config.experiment import Experiment
from ..files.metrics_file import FLOOR, is_companion_metric, with_interval
from ..training.device import peak_device_memory, peak_memory
from ..training.diffusion import Diffusion
from ..training.evaluation import has_targets
from .loop import Run
from .progress import say

__all__ = ["baselines_beside", "data_warnings", "introduce", "show_figures", "summarise"]


def introduce(experiment: Experiment, system: Diffusion) -> list[str]:
    """Return lines on what is about to be run: parts, parameters, data."""
    parts = (experiment.task, experiment.process, experiment.model, experiment.loss, experiment.sampler)
    counts = system.parameter_counts()
    trained = sum(parameter.numel() for parameter in system.model.parameters() if parameter.requires_grad)
    only = f"; {trained:,} of them are trained" if trained < sum(counts.values()) else ""
    sizes = {split: system.task.size(split) for split in ("train", "valid", "test")}
    return [
        f"{experiment.name}: " + ", ".join(f"{part.kind} {part.name}" for part in parts),
        f"{sum(counts.values()):,} parameters: " + ", ".join(f"{name} {n:,}" for name, n in counts.items()) + only,
        "samples: " + ", ".join(f"{size:,} {split}" for split, size in sizes.items()),
        f"each is {system.task.space}",
    ]


def summarise(run: Run) -> dict[str, Any]:
    """Return the results of a run: figures, baselines, speed and memory."""
    done = run.trainer.step - run.first - 1
    return {
        "name": run.experiment.name,
        "step": run.trainer.step,
        "steps": run.experiment.train.steps,
        "figures": run.figures,
        "baselines": run.system.task.baselines(),
        "steps_per_second": done / run.seconds if run.seconds else None,
        "peak_memory_bytes": peak_memory(),
        "peak_device_memory_bytes": peak_device_memory(),
    }


def show_figures(console: Console, summary: Mapping[str, Any]) -> None:
    """Print every figure with its baselines beside it, then the baselines of figures that were not measured.

    The interval of a figure stands behind it, and its noise floor beside it.
    """
    figures, baselines = summary["figures"], dict(summary["baselines"])
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("figure", "model", "baseline"):
        table.add_column(column, justify="right" if column == "model" else "left", overflow="fold")
    for kind, measured in figures.items():
        for name in [name for name in measured if not is_companion_metric(name, measured)]:
            beside = {"floor": measured.get(name + FLOOR), **_of(kind, name, baselines)}
            shown = ", ".join(f"{of} {number:.4g}" for of, number in beside.items() if number is not None)
            table.add_row(f"{kind} {name}", with_interval(name, measured), shown)
    if table.row_count:
        console.print(table)
    names = {said for kind, measured in figures.items() for name in measured for said in (name, f"{kind} {name}")}
    for key in [key for key in baselines if key.partition("/")[0] not in names]:
        say(console, f"baseline {key} {baselines[key]:.4g}")


def _of(kind: str, metric: str, baselines: Mapping[str, float]) -> dict[str, float]:
    if any(key.startswith(f"{kind} ") for key in baselines):  # measured on what was asked for there
        metric = f"{kind} {metric}"
    return baselines_beside(metric, baselines)


def baselines_beside(metric: str, baselines: Mapping[str, float]) -> dict[str, float]:
    """Return the baselines of a figure, by name, of all by `figure/name`."""
    split = ((key.partition("/"), value) for key, value in baselines.items())
    return {name: value for (of, _, name), value in split if of == metric}


LACKS: dict[Split, str] = {"train": "nothing is learned from them", "valid": "there is no loss, and no figure"}
"""What comes of a split in which nothing is taken away."""


def data_warnings(experiment: Experiment, system: Diffusion) -> Iterator[str]:
    """Yield what a task says of its data, and the splits in which the process finds nothing to take away."""
    task, settings = system.task, experiment.evaluate
    if isinstance(task, DataWarnings):
        yield from task.data_warnings()
    size = settings.batch_size or experiment.train.batch_size
    for split, lack in LACKS.items():
        count = min(settings.samples, task.size(split))
        if count and not has_targets(system, count, size, experiment.seed, split):
            yield f"nothing is hidden in the first {count:,} samples of the {split} split: {lack}"
