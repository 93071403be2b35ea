"""What should be known of the data before a long run."""

from __future__ import annotations

from collections.abc import Iterator

from dither.registry.parts import Remarks, Split

from .evaluation import wanted
from .experiment import Experiment
from .system import Diffusion

__all__ = ["remarks"]

LACKS: dict[Split, str] = {"train": "nothing is learned from them", "valid": "there is no loss, and no figure"}
"""What comes of a split in which nothing is taken away."""


def remarks(experiment: Experiment, system: Diffusion) -> Iterator[str]:
    """Yield what a task says of its data, and the splits in which the process finds nothing to take away."""
    task, settings = system.task, experiment.evaluate
    if isinstance(task, Remarks):
        yield from task.remarks()
    size = settings.batch_size or experiment.train.batch_size
    for split, lack in LACKS.items():
        count = min(settings.samples, task.size(split))
        if count and not wanted(system, count, size, experiment.seed, split):
            yield f"nothing is hidden in the first {count:,} samples of the {split} split: {lack}"
