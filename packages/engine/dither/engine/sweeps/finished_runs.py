"""Finished runs as a comparison reads them, and the metric that they have in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dither.registry.config.document import Document
from dither.registry.config.errors import Refused
from dither.registry.contracts.protocols import Split
from dither.registry.contracts.units import is_likelihood
from dither.registry.files.limits import read_text

from ..config.provenance import recorded
from ..files.checksums import checksum_differs
from ..files.damage import damage_of
from ..files.metrics_file import as_number, better_of, from_json, is_companion_metric
from ..files.per_sample import PerSample, read_per_sample
from ..runs.run_directory import flat, read_manifest, resolved_file
from .directory import require_metric

__all__ = [
    "LOSSES",
    "FinishedRun",
    "choose_metric",
    "direction_of",
    "held_out_difference",
    "most_complete",
    "same_objective",
]

LOSSES = frozenset({"valid/loss", "test/loss"})
COUNTS = frozenset({"model_calls_per_sample", "drawings_per_sample", "undelivered"})
"""Metrics of samples that are costs."""


@dataclass(frozen=True)
class FinishedRun:
    """The results of a run that a comparison reads.

    Attributes:
        split: That of the evaluation which is read.
        objective: Options of loss and process, of which `valid/loss` is a function.
        data: Checksums of the data by option.
        metrics: The last ones by kind/name; of the test split those with values per sample.
    """

    path: Path
    split: Split
    seed: int
    sample_seed: int
    summary: dict[str, Any]
    task: dict[str, Any]
    objective: dict[str, Any]
    data: dict[str, str]
    metrics: dict[str, float]
    parameters: int | None
    per_sample: PerSample | None

    @classmethod
    def read(cls, path: Path, split: Split = "valid") -> FinishedRun:
        """Read a run directory; Refused if it is damaged, unfinished, or something else."""
        tree = Document.read(resolved_file(path)).tree
        manifest = read_manifest(path)
        try:
            summary = from_json(read_text(path / "summary.json"))
            if checksum_differs(summary):
                raise ValueError("it does not match its checksum")
            data = recorded(manifest, "data")
            parameters = (manifest.get("parameters") or {}).get("total")
            stored = read_per_sample(path, split)
            # An evaluation after the run, or of other steps, is not that of the summary.
            if stored is not None and stored.step != summary.get("step"):
                stored = None
            return cls(
                path=path,
                split=split,
                seed=int(tree.get("seed", 0)),
                sample_seed=int(tree.get("sample", {}).get("seed", 0)),
                summary=summary,
                task=flat(tree["task"]),
                objective=flat({"loss": tree["loss"], "process": tree["process"]}),
                data={key: str(record["sha256"]) for key, record in data.items()},
                metrics=_metrics_of(summary, stored, split),
                parameters=parameters if isinstance(parameters, int) else None,
                per_sample=stored,
            )
        except FileNotFoundError:
            message = f"{path} is not finished: there is no summary.json"
            raise Refused(message, code="not-comparable") from None
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            message = f"{path} is damaged: {damage_of(error).reason}"
            raise Refused(message, code="damaged-file") from None

    def sums(self, metric: str) -> npt.NDArray[np.float64] | None:
        """Return numerator and denominator of each sample, 2 x n, or None."""
        kind, _, name = metric.partition("/")
        stored = self.per_sample
        if kind != self.split or stored is None or name not in stored.names:
            return None
        return stored.of(name)

    def cost(self) -> dict[str, float]:
        """Return parameters, training steps, seconds and CPU seconds, and model calls of a sample."""
        costs: dict[str, Any] = {
            "parameters": self.parameters,
            "steps": self.summary.get("step"),
            "calls": self.metrics.get("sample/model_calls_per_sample"),
        }
        rate = as_number(self.summary.get("steps_per_second"))
        step = as_number(self.summary.get("step"))
        if rate and step:
            costs["seconds"] = step / rate
        cpu_seconds = as_number(self.summary.get("cpu_seconds_per_step"))
        if cpu_seconds and step:
            costs["cpu_seconds"] = step * cpu_seconds
        numbers = {name: as_number(value) for name, value in costs.items()}
        return {name: value for name, value in numbers.items() if value is not None}


def _metrics_of(
    summary: Mapping[str, Any], stored: PerSample | None, split: Split
) -> dict[str, float]:
    # Samples are measured against validation data.
    if split != "valid":
        values = {} if stored is None else stored.metrics()
        return {f"{split}/{name}": value for name, value in values.items()}
    metrics = {}
    for kind, values in summary["metrics"].items():
        for name, value in values.items():
            # null is NaN or inf.
            if as_number(value) is not None:
                metrics[f"{kind}/{name}"] = float(value)
    return metrics


def choose_metric(
    runs: Sequence[FinishedRun], requested: str | None, same_weights: bool
) -> str:
    """Return the metric to compare; Refused if the requested one is unknown, or none is in common.

    By default it is the first headline of the task that all runs have, or else a likelihood, a
    metric of known direction, or any.
    """
    if requested is not None:
        require_metric(requested, [run.metrics for run in runs], "--metric")
        return requested
    common = _common_metrics(runs)
    if same_weights:
        # Evaluations of the same weights are equal.
        common = [name for name in common if name.startswith("sample/")] or common
    if not same_objective(runs):
        common = [name for name in common if name not in LOSSES] or common
    if not common:
        raise Refused("the arms have no metric in common", code="unknown-metric")

    summary = runs[0].summary
    for headline in summary.get("headline", ()):
        # Headlines name the validation split.
        name = str(headline).replace("valid/", f"{runs[0].split}/", 1)
        if name in common:
            return name

    def rank(name: str) -> tuple[bool, bool]:
        likelihood = is_likelihood(name.partition("/")[2])
        return not likelihood, direction_of(name, summary) is None

    return min(common, key=rank)


def _common_metrics(runs: Sequence[FinishedRun]) -> list[str]:
    """Return the metrics of all runs, in order, without intervals, floors and costs."""
    first, *others = [run.metrics for run in runs]
    common = []
    for name in first:
        is_cost = name.partition("/")[2] in COUNTS
        if is_cost or is_companion_metric(name, first):
            continue
        if all(name in metrics for metrics in others):
            common.append(name)
    return common


def direction_of(metric: str, summary: Mapping[str, Any]) -> str | None:
    """Return which values of a metric are better: "lower", "higher", or None if that is unknown."""
    name = metric.partition("/")[2]
    return better_of(name, summary.get("higher", ()), summary.get("lower", ()))


def same_objective(runs: Sequence[FinishedRun]) -> bool:
    """Return whether `valid/loss` is the same function for all runs."""
    return all(run.objective == runs[0].objective for run in runs)


def most_complete(runs: Sequence[FinishedRun]) -> FinishedRun:
    """Return a run with values per sample, whose number others must have; or else the first."""
    return next((run for run in runs if run.per_sample), runs[0])


def held_out_difference(first: FinishedRun, second: FinishedRun) -> str:
    """Return why two runs may have been evaluated on different samples, or an empty text."""
    places = first.data.keys() | second.data.keys()
    for place in sorted(places):
        if first.data.get(place) != second.data.get(place):
            return f"the data of {place} differ"
    # The path of data with a checksum may differ.
    for key in first.task.keys() | second.task.keys():
        if f"task.{key}" in places:
            continue
        if first.task.get(key) != second.task.get(key):
            return f"task.{key} differs"
    samples = [run.per_sample.samples for run in (first, second) if run.per_sample]
    if len(set(samples)) > 1:
        return f"{samples[0]:,} and {samples[1]:,} samples"
    return ""
