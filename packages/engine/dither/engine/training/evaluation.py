"""How well a system does on a split, with the same noise every time.

Letters: B batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from jaxtyping import Float64
from torch import Tensor

from dither.registry.flow.protocols import Metrics, SampledMetrics, Split, TimelessProcess
from dither.registry.flow.records import Clean, Measured

from .diffusion import Diffusion
from .randomness import Stream, seed_generators

__all__ = ["NORMAL_95", "Intervals", "evaluate", "half_width", "has_targets"]


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
def has_targets(system: Diffusion, samples: int, batch_size: int, seed: int = 0, split: Split = "valid") -> bool:
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
        if noised.target_mask.any():
            return True
    return False


def _times(system: Diffusion, count: int) -> Tensor:
    """Draw times for so many samples; none are drawn where they say nothing."""
    process = system.process
    if isinstance(process, TimelessProcess) and process.fixed_time is not None:
        return torch.full((count,), process.fixed_time)
    return system.times(count)[torch.randperm(count)]


NORMAL_95 = 1.959963984540054
"""A normal variable lies within so many standard deviations of its mean in 95 % of all cases."""


class Intervals:
    """Adds up what each sample gives to the two sums of a figure, over all its repeats.

    Samples are taken as independent, and times that are stratified over them as if they were drawn one by one: that
    makes the interval of a loss a little too wide, never too narrow.

    Args:
        samples: How many there are.
    """

    def __init__(self, samples: int) -> None:
        self._samples = samples
        self._sums: dict[str, Float64[Tensor, "2 n"]] = {}

    def update(self, rows: range, metrics: Metrics, clean: Clean, measured: Measured) -> None:
        """Take in samples, once for each time that they are measured; nothing if the metrics cannot take them apart."""
        sums = metrics.per_sample(clean, measured) if isinstance(metrics, SampledMetrics) else {}
        for name, (above, below) in sums.items():
            table = self._sums.setdefault(name, torch.zeros(2, self._samples, dtype=torch.float64))
            table[0, rows.start : rows.stop] += above.double().cpu()
            table[1, rows.start : rows.stop] += below.double().cpu()

    def compute(self) -> dict[str, float]:
        """Return `NAME_ci95` for each figure: the true one lies within so much of it with a probability of 95 %."""
        return {f"{name}_ci95": half_width(*table) for name, table in self._sums.items()}


def half_width(above: Float64[Tensor, " n"], below: Float64[Tensor, " n"]) -> float:
    """Return half of the 95 % interval of sum(above) / sum(below), taken over independent samples.

    The ratio estimator (Cochran 1977, Sampling Techniques, 6.3): with R the ratio, the variance of R is that of the sum
    of above - R below, divided by sum(below) squared. Samples that give nothing to the sum below count as none.

    Returns:
        The half-width; nan for fewer than two samples.
    """
    counted = below > 0
    above, below, n = above[counted], below[counted], int(counted.sum())
    if n < 2:
        return math.nan
    rest = above - above.sum() / below.sum() * below
    return NORMAL_95 * math.sqrt(n / (n - 1) * float(rest.square().sum())) / float(below.sum())
