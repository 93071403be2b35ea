"""How well a system does on a split, with the same noise every time.

Letters: B batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from dither.registry.parts import Split, TimelessProcess

from .intervals import Intervals
from .randomness import Stream, seed_generators
from .system import Diffusion

__all__ = ["evaluate", "wanted"]


@torch.no_grad()
def evaluate(
    system: Diffusion,
    samples: int,
    batch_size: int,
    repeats: int = 1,
    seed: int = 0,
    split: Split = "valid",
    stopped: Callable[[], bool] = lambda: False,
) -> dict[str, float] | None:
    """Measure the loss and the figures of the task, which are given the whole bound where the loss is a part of one.

    Times are stratified over the whole set and dealt out at random; where they say nothing of the states, all are one.
    They and the noise follow from the seed, the number of samples and the batch size, so that evaluations of one run
    differ by the weights alone.

    Args:
        system: What is measured, usually around averaged weights.
        samples: How many samples are taken, from the beginning of the split.
        batch_size: Samples at a time.
        repeats: Times each sample is noised anew.
        seed: Of the noise.
        split: Where the samples come from.
        stopped: Asked before every batch; once it is true, the evaluation ends with nothing.

    Returns:
        "loss", the weighted mean over all positions, and the task's figures, with half of a 95 % interval where the
        task can tell what each sample adds; an empty dict where the split is empty, and None where it was stopped.
    """
    task, device = system.task, next(system.model.parameters()).device
    count = min(samples, task.size(split))
    if not count:
        return {}
    metrics, intervals, was_training = task.metrics(), Intervals(count), system.training
    total = weight = 0.0
    system.eval()
    try:
        for repeat in range(repeats):
            seed_generators(device, Stream.EVALUATION, seed, repeat)
            times = _times(system, count)
            for start in range(0, count, batch_size):
                if stopped():
                    return None
                rows = range(start, min(start + batch_size, count))
                clean = task.batch(split, rows).to(device)
                seed_generators(device, Stream.EVALUATION, seed, repeat, start)
                t, noised = system.noise(clean, times[start : start + batch_size].to(device))
                prediction = system.denoise(noised.state, t, clean, context=system.context(clean))
                measured = system.loss(prediction, noised)
                total, weight = total + measured.total().item(), weight + measured.weights.sum().item()
                bound = system.bounded(clean, measured)
                metrics.update(clean, noised, prediction, bound)
                intervals.update(rows, metrics, clean, bound)
    finally:
        system.train(was_training)
    return {"loss": total / weight if weight else math.nan, **metrics.compute(), **intervals.compute()}


@torch.no_grad()
def wanted(system: Diffusion, samples: int, batch_size: int, seed: int = 0, split: Split = "valid") -> bool:
    """Tell whether noise takes anything at all away from the samples of an evaluation; arguments as for `evaluate`.

    Usually the first batch says so. The noise is that of the evaluation.
    """
    task, device = system.task, next(system.model.parameters()).device
    count = min(samples, task.size(split))
    seed_generators(device, Stream.EVALUATION, seed, 0)
    times = _times(system, count)
    for start in range(0, count, batch_size):
        clean = task.batch(split, range(start, min(start + batch_size, count))).to(device)
        seed_generators(device, Stream.EVALUATION, seed, 0, start)
        _, noised = system.noise(clean, times[start : start + batch_size].to(device))
        if noised.wanted.any():
            return True
    return False


def _times(system: Diffusion, count: int) -> Tensor:
    """Draw times for so many samples; none are drawn where they say nothing."""
    process = system.process
    if isinstance(process, TimelessProcess) and process.moment is not None:
        return torch.full((count,), process.moment)
    return system.times(count)[torch.randperm(count)]
