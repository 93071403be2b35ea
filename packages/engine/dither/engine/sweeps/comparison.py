"""The table of a comparison: quality, cost and verdict of each arm, from finished runs."""

from __future__ import annotations

import io
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from dither.registry.config.document import Document
from dither.registry.config.errors import Refused
from dither.registry.contracts.units import is_likelihood
from dither.registry.files.limits import read_text
from dither.registry.plugins.install_command import optional_import

from ..config.provenance import recorded
from ..files.checksums import checksum_differs
from ..files.metrics_file import (
    as_number,
    better_of,
    from_json,
    is_companion_metric,
)
from ..files.per_sample import PerSample, read_per_sample
from ..runs.progress import cell, say, table
from ..runs.run_directory import flat, read_manifest, resolved_file
from .directory import require_metric
from .paired_statistics import Effect, Scores, compare_scores, judge

__all__ = [
    "ArmRuns",
    "Comparison",
    "FinishedRun",
    "Row",
    "compare_arms",
    "held_out_difference",
    "show_comparison",
]

LOSS = "valid/loss"
COUNTS = frozenset({"model_calls_per_sample", "drawings_per_sample", "undelivered"})
"""Metrics of samples that are costs."""
HEAD = ("arm", "mean ± sd", "difference [95 %]", "p", "verdict")
UNKNOWN_SEEDS = (
    "one seed: the variance of seeds is unknown, so there is no verdict; use --seeds 5"
)


@dataclass(frozen=True)
class FinishedRun:
    """The results of a run that a comparison reads.

    Attributes:
        objective: Options of loss and process, of which `valid/loss` is a function.
        data: Checksums of the data by option.
        metrics: The last ones by kind/name.
    """

    path: Path
    seed: int
    summary: dict[str, Any]
    task: dict[str, Any]
    objective: dict[str, Any]
    data: dict[str, str]
    metrics: dict[str, float]
    parameters: int | None
    per_sample: PerSample | None

    @classmethod
    def read(cls, path: Path) -> FinishedRun:
        """Read a run directory; Refused if it is damaged, unfinished, or something else."""
        tree = Document.read(resolved_file(path)).tree
        manifest = read_manifest(path)
        try:
            summary = from_json(read_text(path / "summary.json"))
            if checksum_differs(summary):
                raise ValueError("it does not match its checksum")
            data = recorded(manifest, "data")
            parameters = (manifest.get("parameters") or {}).get("total")
            return cls(
                path=path,
                seed=int(tree.get("seed", 0)),
                summary=summary,
                task=flat(tree["task"]),
                objective=flat({"loss": tree["loss"], "process": tree["process"]}),
                data={key: str(record["sha256"]) for key, record in data.items()},
                metrics=_metrics_of(summary),
                parameters=parameters if isinstance(parameters, int) else None,
                per_sample=read_per_sample(path, "valid"),
            )
        except FileNotFoundError:
            message = f"{path} is not finished: there is no summary.json"
            raise Refused(message, code="not-comparable") from None
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            message = f"{path} is damaged: {error}"
            raise Refused(message, code="damaged-file") from None

    def sums(self, metric: str) -> Any:
        """Return numerator and denominator of each sample, 2 x n, or None."""
        kind, _, name = metric.partition("/")
        stored = self.per_sample
        if kind != "valid" or stored is None or name not in stored.names:
            return None
        # An evaluation after the run, or of other steps, is not that of the summary.
        return stored.of(name) if stored.step == self.summary.get("step") else None

    def cost(self) -> dict[str, float]:
        """Return parameters, training steps and seconds, and model calls of a sample."""
        costs: dict[str, Any] = {
            "parameters": self.parameters,
            "steps": self.summary.get("step"),
            "calls": self.metrics.get("sample/model_calls_per_sample"),
        }
        rate = as_number(self.summary.get("steps_per_second"))
        step = as_number(self.summary.get("step"))
        if rate and step:
            costs["seconds"] = step / rate
        numbers = {name: as_number(value) for name, value in costs.items()}
        return {name: value for name, value in numbers.items() if value is not None}


def _metrics_of(summary: Mapping[str, Any]) -> dict[str, float]:
    metrics = {}
    for kind, values in summary["figures"].items():
        for name, value in values.items():
            if as_number(value) is not None:
                metrics[f"{kind}/{name}"] = float(value)
    return metrics


@dataclass(frozen=True)
class ArmRuns:
    """An arm, the number of its runs, and those that are finished, by seed."""

    name: str
    values: Mapping[str, Any]
    planned: int
    runs: Mapping[int, FinishedRun]


@dataclass(frozen=True)
class Row:
    """An arm in the table; `effect` is None for the reference and an arm without finished runs."""

    name: str
    values: Mapping[str, Any]
    planned: int
    scores: Scores
    costs: Mapping[str, float]
    runs: tuple[Path, ...]
    effect: Effect | None = None


@dataclass
class Comparison:
    """A table of arms: the reference first, then the others in the order given.

    Attributes:
        metric: kind/name.
        better: "lower" or "higher"; None if that is unknown, and verdicts are "lower" or "higher".
        notes: What the reader of the table must know.
        rejected: Reasons by name of the arms that were left out.
    """

    metric: str
    better: str | None
    rows: list[Row]
    notes: list[str] = field(default_factory=list)
    rejected: dict[str, list[str]] = field(default_factory=dict)

    def records(self) -> list[dict[str, Any]]:
        """Return a dictionary of plain values for each arm."""
        records = []
        for row in self.rows:
            record: dict[str, Any] = {
                "arm": row.name,
                "values": dict(row.values),
                "seeds": len(row.scores.values),
                "planned": row.planned,
                "mean": row.scores.mean,
                "sd": row.scores.sd,
            }
            effect = {} if row.effect is None else asdict(row.effect)
            for name in ("difference", "low", "high", "p", "verdict", "more_seeds"):
                record[name] = effect.get(name)
            records.append({**record, **row.costs})
        return records

    def __str__(self) -> str:
        console = Console(file=io.StringIO(), width=120, record=True)
        show_comparison(console, self)
        text: str = console.export_text()
        return text

    def to_pandas(self) -> Any:
        """Return a pandas.DataFrame with a row for each arm."""
        with optional_import("pandas is not installed", "dither-engine", "compare"):
            import pandas  # type: ignore[import-untyped,unused-ignore]

        return pandas.DataFrame(self.records()).set_index("arm")


def compare_arms(
    arms: Sequence[ArmRuns],
    metric: str | None = None,
    against: str | None = None,
    same_weights: bool = False,
) -> Comparison:
    """Compare arms by a metric, by default the first headline that all of them have.

    Args:
        arms: At least one of them has finished runs.
        metric: kind/name.
        against: Name of the reference; the default is the first arm.
        same_weights: Whether the arms differ in sampling only.

    Raises:
        Refused: No run is finished, or the metric is unknown.
    """
    finished = list(chain.from_iterable(arm.runs.values() for arm in arms))
    if not finished:
        raise Refused("no run of any arm is finished", code="not-comparable")
    metric = choose_metric(finished, metric, same_weights)
    better = _direction(metric, finished[0].summary)
    comparison = Comparison(metric, better, [])
    measured = [arm for arm in arms if _finite_seeds(arm, metric)]
    if not measured:
        message = f"no run of any arm has a finite {metric}"
        raise Refused(message, code="not-comparable")
    reference = next((arm for arm in arms if arm.name == against), measured[0])
    others = [arm for arm in arms if arm is not reference]

    paired = True
    for run in finished[1:]:
        reason = held_out_difference(finished[0], run)
        if reason and paired:
            paired = False
            note = f"the interval counts seeds only: {reason}"
            comparison.notes.append(note)
    effects = []
    compared = []
    for arm in others:
        seeds = paired_seeds(arm, reference, metric)
        if seeds:
            scores = scores_of(arm, [seed for seed, _ in seeds], metric, paired)
            of_reference = [seed for _, seed in seeds]
            base = scores_of(reference, of_reference, metric, paired)
            effects.append(compare_scores(scores, base))
            compared.append(arm.name)
    judged = dict(zip(compared, judge(effects, better), strict=True))
    for arm in (reference, *others):
        comparison.rows.append(
            Row(
                name=arm.name,
                values=arm.values,
                planned=arm.planned,
                scores=scores_of(arm, _finite_seeds(arm, metric), metric, paired),
                costs=_mean_costs(arm.runs.values()),
                runs=tuple(run.path for run in arm.runs.values()),
                effect=judged.get(arm.name),
            )
        )
    comparison.notes += _notes(comparison, metric, paired)
    if metric == LOSS and not _same_objective(finished):
        note = "the losses are different functions: they do not measure which is better"
        comparison.notes.append(note)
    return comparison


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
    if not _same_objective(runs):
        common = [name for name in common if name != LOSS] or common
    if not common:
        raise Refused("the arms have no metric in common", code="unknown-metric")

    summary = runs[0].summary
    for name in summary.get("headline", ()):
        if name in common:
            return str(name)

    def rank(name: str) -> tuple[bool, bool]:
        likelihood = is_likelihood(name.partition("/")[2])
        return not likelihood, _direction(name, summary) is None

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


def _direction(metric: str, summary: Mapping[str, Any]) -> str | None:
    """Return which values of a metric are better: "lower", "higher", or None if that is unknown."""
    name = metric.partition("/")[2]
    return better_of(name, summary.get("higher", ()), summary.get("lower", ()))


def _same_objective(runs: Sequence[FinishedRun]) -> bool:
    return all(run.objective == runs[0].objective for run in runs)


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


def paired_seeds(
    arm: ArmRuns, reference: ArmRuns, metric: str
) -> list[tuple[int, int]]:
    """Return pairs of a seed of the arm and one of the reference, of runs with a finite metric.

    They are equal where both have them; arms with other seeds are paired in order, as any pairing
    of independent runs is valid.
    """
    seeds = _finite_seeds(arm, metric)
    others = _finite_seeds(reference, metric)
    common = [(seed, seed) for seed in seeds if seed in others]
    if len(common) > 1 or len(common) == min(len(seeds), len(others)):
        return common
    return list(zip(seeds, others, strict=False))


def _finite_seeds(arm: ArmRuns, metric: str) -> list[int]:
    return [
        seed
        for seed, run in arm.runs.items()
        if math.isfinite(run.metrics.get(metric, math.nan))
    ]


def scores_of(arm: ArmRuns, seeds: Sequence[int], metric: str, paired: bool) -> Scores:
    """Return the metric of the runs of some seeds, per sample if all have such values."""
    runs = [arm.runs[seed] for seed in seeds]
    sums = [run.sums(metric) for run in runs]
    if runs and paired and all(values is not None for values in sums):
        return Scores.of_sums(np.stack(sums))
    return Scores(np.array([run.metrics[metric] for run in runs], dtype=np.float64))


def _mean_costs(runs: Iterable[FinishedRun]) -> dict[str, float]:
    costs = [run.cost() for run in runs]
    means = {}
    for name in dict.fromkeys(chain.from_iterable(costs)):
        values = [cost[name] for cost in costs if name in cost]
        means[name] = sum(values) / len(values)
    return means


def _notes(comparison: Comparison, metric: str, paired: bool) -> Iterator[str]:
    rows = comparison.rows
    effects = [row.effect for row in rows if row.effect is not None]
    if any(effect.seeds == 1 for effect in effects):
        yield UNKNOWN_SEEDS
    if paired and any(row.scores.residuals is None for row in rows):
        yield f"the interval counts seeds only: {metric} has no values per sample"
    for row in rows:
        more = None if row.effect is None else row.effect.more_seeds
        if more:
            yield f"{row.name}: about {more:,} more seeds would do for a verdict"
        if len(row.scores.values) < row.planned:
            ended = f"{len(row.scores.values)} of {row.planned} runs"
            yield f"{row.name}: {ended} are finished and have a finite {metric}"


def show_comparison(console: Console, comparison: Comparison) -> None:
    """Print the table, its notes, and the arms that were left out."""
    page = table(*HEAD, right=HEAD[1:4])
    for column in page.columns[1:4]:
        column.no_wrap = True
    for row in comparison.rows:
        name, _, mean, sd, difference, interval, p, verdict = row_texts(row)
        if sd:
            mean += f" ± {sd}"
        if interval:
            difference += f" [{interval}]"
        page.add_row(*map(cell, (name, mean, difference, p, verdict)))
    better = f", {comparison.better} is better" if comparison.better else ""
    say(console, f"{comparison.metric}{better}")
    console.print(page)
    for note in comparison.notes:
        say(console, note, "yellow")
    for name, reasons in comparison.rejected.items():
        say(console, f"left out: {name}: {'; '.join(reasons)}", "yellow")


def row_texts(row: Row) -> list[str]:
    """Return the cells of an arm: name, seeds, mean, sd, difference, interval, p, verdict."""
    seeds = len(row.scores.values)
    texts = [row.name, str(seeds), "", ""]
    if seeds:
        texts[2:] = [f"{row.scores.mean:.5g}", _number(row.scores.sd, ".2g")]
    effect = row.effect
    if effect is None:
        return [*texts, "", "", "", ""]
    interval = ""
    if math.isfinite(effect.low):
        interval = f"{effect.low:+.2g}, {effect.high:+.2g}"
    difference = f"{effect.difference:+.3g}"
    return [*texts, difference, interval, _number(effect.p, ".2g"), effect.verdict]


def _number(value: float, form: str) -> str:
    return format(value, form) if math.isfinite(value) else ""
