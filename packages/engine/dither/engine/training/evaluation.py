"""Loss and task metrics of a split, with the same noise at every evaluation.

Letters: B batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import suppress
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Float, Float64
from torch import Tensor

from dither.registry.config.errors import Problem, Refused
from dither.registry.contracts.protocols import (
    Metrics,
    PredictionMetric,
    Split,
    is_likelihood,
)
from dither.registry.contracts.records import (
    Clean,
    Measured,
    Noised,
    TensorRecord,
    over,
)
from dither.registry.spec.base import origin_of, record_origin, shown
from dither.registry.spec.process_settings import protected_settings

from .device import to_device
from .diffusion import Diffusion
from .nan_guard import NonFiniteData, rows_with_nan
from .randomness import Stream, preserved_generators, seed_generators

__all__ = [
    "NORMAL_95",
    "Intervals",
    "SampleSums",
    "evaluate",
    "half_width",
    "has_targets",
    "mean_half_width",
    "merge_metrics",
    "student_quantiles",
    "without_likelihoods",
]

SampleSums = dict[str, npt.NDArray[np.float64]]
"""Numerator and denominator of each sample, 2 x n, by name, for the loss and ratios of sums."""


@protected_settings("evaluation")
@torch.no_grad()
def evaluate(
    system: Diffusion,
    samples: int,
    batch_size: int,
    repeats: int = 1,
    seed: int = 0,
    split: Split = "valid",
    stopped: Callable[[], bool] = lambda: False,
    per_sample: Callable[[SampleSums], object] = lambda sums: None,
) -> dict[str, float] | None:
    """Return the loss and the metrics of the task, which receive the whole bound if the loss is part of one.

    Times are stratified over the whole set and shuffled; for a process without times, all are
    equal. Times and noise are a function of seed, number of samples and batch size, so that
    evaluations of a run differ by the weights alone; torch's generators are restored at the end.

    Each of the first `samples` samples of the split gets `repeats` draws of noise. Once `stopped`,
    called before every batch, returns True, the result is None. `per_sample` is called at the end.
    """
    if not (count := min(samples, system.task.size(split))):
        return {}
    accumulators = _accumulators(system)
    intervals = Intervals(count)
    was_training = system.training
    # The sum moves to the device with the first batch, so that no batch is waited for.
    total = weight = torch.zeros((), dtype=torch.float64)
    system.eval()
    batches = _batches(system, count, batch_size, repeats, seed, split)
    try:
        with preserved_generators(system.device):
            for rows, clean, times, t, noised in batches:
                if stopped():
                    return None
                intervals.add_times(rows, times)
                context = system.context(clean)
                prediction = system.denoise(noised.state, t, clean, context=context)
                measured = system.loss(prediction, noised)
                total = total + measured.total().double()
                weight = weight + measured.weights.sum().double()
                bound = _bound(system, clean, times, measured)
                intervals.add_loss(rows, measured)
                for metrics in accumulators:
                    is_last = metrics is accumulators[-1]
                    _update(metrics, (clean, noised, prediction, bound), is_last)
                    intervals.update(rows, metrics, clean, bound)
    finally:
        system.train(was_training)
    loss = float(total / weight)
    try:
        first, *others = (metrics.compute() for metrics in accumulators)
    except (ValueError, ArithmeticError) as error:
        # scipy refuses NaN, of which the data are a likelier cause than the metric.
        if math.isfinite(loss):
            raise
        reason = f"the loss is {loss:g}, and a metric failed: {error}"
        bad = _rows_with_nan(system, count, batch_size, split)
        raise NonFiniteData(split, bad, reason) from error
    if not math.isfinite(loss):
        bad = _rows_with_nan(system, count, batch_size, split)
        if bad:
            raise NonFiniteData(split, bad, "in their conditions")
    merged = merge_metrics({"loss": loss, **first}, *others, intervals.compute())
    result = without_likelihoods(system, merged)
    per_sample(intervals.arrays(result))
    return result


@protected_settings("a metric")
def _accumulators(system: Diffusion) -> list[Metrics]:
    """Return the sums of the task's metrics, and of the others."""
    accumulators = []
    for source in (system.task, *system.metrics):
        if isinstance(source, PredictionMetric):
            accumulators.append(source.metrics())
            # Their exceptions name the metric, too.
            record_origin(accumulators[-1], origin_of(source))
    return accumulators


def _bound(
    system: Diffusion, clean: Clean, times: Tensor, measured: Measured
) -> Measured:
    """Return the bound that the measured loss is part of, drawn again where it has a heavy tail."""
    if system.bound and not system.process.low_variance:
        return system.draw_bound(clean, times)
    return system.bounded(clean, measured)


def _rows_with_nan(
    system: Diffusion, count: int, batch_size: int, split: Split
) -> list[int]:
    """Return the samples of which a condition is NaN or inf; a model may know what that means."""
    bad: list[int] = []
    for start in range(0, count, batch_size):
        rows = range(start, min(start + batch_size, count))
        clean = system.task.batch(split, rows)
        bad += rows_with_nan(clean.cond.values(), rows)
    return bad


@protected_settings("a metric")
def _update(metrics: Metrics, batch: tuple[Any, ...], is_last: bool) -> None:
    """Add a batch to the metrics, which may change it for themselves only."""
    clean, *rest = batch
    # A batch may be a view of the data of the task.
    values = [_cloned(clean), *rest] if is_last else map(_cloned, batch)
    metrics.update(*values)


def _cloned(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.clone()
    if isinstance(value, TensorRecord):
        return value.apply(torch.clone)
    return value


def _batches(
    system: Diffusion,
    count: int,
    batch_size: int,
    repeats: int,
    seed: int,
    split: Split,
) -> Iterator[tuple[range, Clean, Tensor, Tensor, Noised]]:
    """Yield rows, samples, drawn times, times of the states and noised samples; refuse NaN in the data."""
    device = system.device
    process = system.process
    order = None
    for repeat in range(repeats):
        seed_generators(device, Stream.EVALUATION, seed, repeat)
        if process.fixed_time is not None:
            times = torch.full((count,), process.fixed_time)
        else:
            strata = system.stratified_times(1, count)[0]
            if order is None:
                order = torch.randperm(count)
            # Samples with neighbouring times have these in all repeats, for the intervals.
            shift = repeat * count // repeats
            times = strata[(order + shift) % count]
        times = times.to(device)
        for start in range(0, count, batch_size):
            rows = range(start, min(start + batch_size, count))
            clean = system.task.batch(split, rows)
            # The values of padding mean nothing.
            values = clean.x0.where(over(clean.valid, clean.x0), 0)
            if bad := rows_with_nan([values], rows):
                raise NonFiniteData(split, bad)
            clean = to_device(clean.mark_unpadded(), device)
            # Again for each batch, whose noise then does not depend on what models draw.
            seed_generators(device, Stream.EVALUATION, seed, repeat, start)
            drawn = times[start : rows.stop]
            t, noised = system.noise(clean, drawn)
            yield rows, clean, drawn, t, noised


@torch.no_grad()
def has_targets(
    system: Diffusion,
    samples: int,
    batch_size: int,
    seed: int = 0,
    split: Split = "valid",
) -> bool:
    """Return whether any position of an evaluation has a target; usually the first batch decides."""
    count = min(samples, system.task.size(split))
    batches = _batches(system, count, batch_size, 1, seed, split)
    with preserved_generators(system.device):
        return any(bool(noised.target_mask.any()) for *_, noised in batches)


def without_likelihoods(
    system: Diffusion, metrics: Mapping[str, float]
) -> dict[str, float]:
    """Return metrics or baselines, without those of a likelihood if the loss bounds none.

    Other losses are in no unit, so that they cannot be compared with baselines in nats.
    """
    return {
        name: value
        for name, value in metrics.items()
        if system.bound or name.startswith("sample ") or not is_likelihood(name)
    }


def merge_metrics(*tables: Mapping[str, float]) -> dict[str, float]:
    """Return the metrics of several sources in one table; Refused if two compute a metric of the same name."""
    merged: dict[str, float] = {}
    for table in tables:
        if not isinstance(table, Mapping):
            message = f"a metric returned {shown(table)}, expected numbers by name"
            raise Refused(
                Problem(message, ("evaluate", "metrics"), code="plugin-failed")
            )
        if twice := sorted(merged.keys() & table.keys()):
            message = f"metrics of the same name are computed twice: {', '.join(twice)}"
            raise Refused(Problem(message, ("evaluate", "metrics"), code="duplicate"))
        for name, value in table.items():
            merged[name] = _number(name, value)
    return merged


def _number(name: str, value: Any) -> float:
    """Return a metric as a number of Python; Refused if it is none."""
    # Also tensors and numpy scalars; an integer may be too large for a float.
    with suppress(TypeError, ValueError, RuntimeError, OverflowError):
        # A text is not a metric, even if it looks like a number.
        if not isinstance(value, str | bytes):
            number = float(value)
            return value if isinstance(value, int) else number
    message = f'the metric "{name}" is {shown(value)}, expected a number'
    raise Refused(Problem(message, ("evaluate", "metrics"), code="plugin-failed"))


LOSS = "loss"
NORMAL_95 = 1.959963984540054
"""Half-width of the central 95 % interval of the standard normal distribution."""


class Intervals:
    """Sums numerator and denominator of each metric for each of n samples, over all repeats, for 95 % intervals."""

    def __init__(self, samples: int) -> None:
        self._samples = samples
        self._times: Float64[Tensor, " n"] | None = None
        self._timed = 0
        self.sums: dict[str, Float64[Tensor, "2 n"]] = {}

    def add_times(self, rows: range, times: Float[Tensor, "B *L"]) -> None:
        """Store the times of the first repeat, in whose order samples are neighbours."""
        if self._times is None:
            self._times = times.new_full((self._samples,), math.nan)
        # Later repeats begin with the first row again.
        if rows.start >= self._timed:
            part = slice(rows.start, rows.stop)
            self._times[part] = times.flatten(1)[:, 0] if times.ndim > 1 else times
            self._timed = rows.stop

    def update(
        self,
        rows: range,
        metrics: Metrics,
        clean: Clean,
        measured: Measured,
    ) -> None:
        """Add a batch; does nothing if the metrics report no sums per sample."""
        for name, terms in metrics.per_sample(clean, measured).items():
            self._add(rows, name, *terms)

    def add_loss(self, rows: range, measured: Measured) -> None:
        """Add the loss of a batch, which has no interval in the metrics of a run."""
        losses = (measured.values * measured.weights).flatten(1).sum(1)
        self._add(rows, LOSS, losses, measured.weights.flatten(1).sum(1))

    def _add(
        self,
        rows: range,
        name: str,
        numerator: Float[Tensor, " B"],
        denominator: Float[Tensor, " B"],
    ) -> None:
        if name not in self.sums:
            zeros = numerator.new_zeros(2, self._samples, dtype=torch.float64)
            self.sums[name] = zeros
        self.sums[name][:, rows.start : rows.stop] += torch.stack(
            (numerator.double(), denominator.double())
        )

    def arrays(self, names: Container[str]) -> SampleSums:
        """Return the sums of these metrics."""
        tables = {name: table for name, table in self.sums.items() if name in names}
        return {name: table.cpu().numpy() for name, table in tables.items()}

    def compute(self) -> dict[str, float]:
        """Return `NAME_ci95` for each metric: the half-width of its 95 % confidence interval."""
        if self._times is None:
            return {}
        # Of equal times in a random order: neighbours in a data set may be alike.
        generator = torch.Generator().manual_seed(0)
        shuffled = torch.randperm(self._samples, generator=generator)
        order = shuffled[self._times.cpu()[shuffled].argsort()]
        return {
            f"{name}_ci95": half_width(*table.cpu()[:, order])
            for name, table in self.sums.items()
            if name != LOSS
        }


def half_width(
    numerator: Float64[Tensor, " n"], denominator: Float64[Tensor, " n"]
) -> float:
    """Return the half-width of the 95 % interval of sum(numerator) / sum(denominator) over samples in order of time.

    Ratio estimator (Cochran 1977, Sampling Techniques, 6.3): with ratio R, its variance is the
    variance of the sum of numerator - R denominator, divided by sum(denominator) squared. That of
    the sum is estimated from differences of neighbours, whose times differ by a stratum or two (von
    Neumann et al. 1941), since stratified times have less variance than independent ones. Samples
    with denominator 0 are left out; NaN for fewer than two.
    """
    counted = denominator > 0
    above = numerator[counted]
    below = denominator[counted]
    n = int(counted.sum())
    if n < 2:
        return math.nan
    residual = above - above.sum() / below.sum() * below
    variance = n / (n - 1) * float(residual.diff().square().sum()) / 2
    # Neighbouring differences share a sample, which leaves 2 / 3 of their degrees of freedom.
    freedom = torch.tensor(max(2 * (n - 1) / 3, 1.0), dtype=torch.float64)
    quantile = float(student_quantiles(freedom))
    return quantile * math.sqrt(variance) / float(below.sum())


def mean_half_width(values: Float64[Tensor, " n"]) -> float:
    """Return the half-width of the 95 % interval of a mean over samples in any order; NaN for one."""
    n = len(values)
    if n < 2:
        return math.nan
    freedom = torch.tensor(n - 1, dtype=torch.float64)
    return float(student_quantiles(freedom) * values.std() / math.sqrt(n))


def student_quantiles(freedom: Float64[Tensor, "..."]) -> Float64[Tensor, "..."]:
    """Return the 97.5 % quantiles of Student's t, by the expansion of Cornish and Fisher.

    The relative error is at most 2 %, from 1 degree of freedom on.
    """
    z = NORMAL_95
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    # Replaces all further terms: exact at 1 degree of freedom, the Cauchy distribution
    fourth = math.tan(0.475 * math.pi) - z - first - second - third
    return (
        z
        + first / freedom
        + second / freedom**2
        + third / freedom**3
        + fourth / freedom**4
    )
