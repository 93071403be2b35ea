"""How sure figures are that were measured on some samples of many.

Letters: B batch, n samples.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float64
from torch import Tensor

from dither.registry.flow import Clean, Measured
from dither.registry.parts import Metrics, SampledMetrics

__all__ = ["NORMAL_95", "Intervals", "half_width"]

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
