"""The table of a comparison: quality, cost and verdict of each arm, from finished runs."""

from __future__ import annotations

import io
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from dither.registry.config.errors import Refused
from dither.registry.plugins.install_command import optional_import

from ..runs.progress import cell, fits, say, table
from .finished_runs import (
    LOSSES,
    FinishedRun,
    choose_metric,
    direction_of,
    held_out_difference,
    most_complete,
    same_objective,
)
from .paired_statistics import Effect, Scores, compare_scores, judge, require_scipy

__all__ = [
    "COSTS",
    "ArmRuns",
    "Comparison",
    "Row",
    "compare_arms",
    "row_texts",
    "show_comparison",
]

HEAD = ("arm", "mean ± sd", "difference [95 %]", "p", "verdict")
COSTS = {
    "parameters": "parameters",
    "steps": "steps",
    "seconds": "seconds of training",
    "cpu_seconds": "CPU seconds of training",
    "flops": "FLOPs of training",
    "calls": "model calls per sample",
}
"""Costs of an arm, and their heads on the page."""
UNKNOWN_SEEDS = (
    "one seed: the variance of seeds is unknown, so there is no verdict; use --seeds 5"
)


@dataclass(frozen=True)
class ArmRuns:
    """An arm, the number of its runs, those that are finished, by seed, and FLOPs of a step if known."""

    name: str
    values: Mapping[str, Any]
    planned: int
    runs: Mapping[int, FinishedRun]
    step_flops: float | None = None


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
        equal: What training all arms spent as much of: steps, samples, flops, seconds or None.
    """

    metric: str
    better: str | None
    rows: list[Row]
    notes: list[str] = field(default_factory=list)
    rejected: dict[str, list[str]] = field(default_factory=dict)
    equal: str | None = None

    @property
    def title(self) -> str:
        """Metric, its better direction, and what training of all arms costs equally."""
        better = f", {self.better} is better" if self.better else ""
        equal = f"; equal {self.equal} of training" if self.equal else ""
        return f"{self.metric}{better}{equal}"

    def records(self) -> list[dict[str, Any]]:
        """Return a dictionary of plain values for each arm, with None for unknown ones."""
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
            for name, value in {**record, **row.costs}.items():
                # JSON has no NaN.
                is_nan = isinstance(value, float) and math.isnan(value)
                record[name] = None if is_nan else value
            records.append(record)
        return records

    def __str__(self) -> str:
        # Recorded, not printed.
        console = Console(file=io.StringIO(), width=120, record=True)
        show_comparison(console, self)
        return console.export_text()

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
        Refused: No run is finished, the metric is unknown, or scipy is missing.
    """
    require_scipy()
    finished = list(chain.from_iterable(arm.runs.values() for arm in arms))
    if not finished:
        raise Refused("no run of any arm is finished", code="not-comparable")
    metric = choose_metric(finished, metric, same_weights)
    measured = [arm for arm in arms if _finite_seeds(arm, metric)]
    if not measured:
        message = f"no run of any arm has a finite {metric}"
        raise Refused(message, code="not-comparable")
    reference = next((arm for arm in arms if arm.name == against), measured[0])
    others = [arm for arm in arms if arm is not reference]
    substitution = []
    if against is None and reference is not arms[0]:
        message = f"{arms[0].name} has no finished run with a finite {metric}"
        substitution.append(f"{message}: the reference is {reference.name}")

    complete = most_complete(finished)
    reasons = [held_out_difference(complete, run) for run in finished]
    differ = next(filter(None, reasons), "")
    better = direction_of(metric, finished[0].summary)
    # Samples are paired only if all runs were measured on the same ones.
    effects = _effects(others, reference, metric, paired=not differ)
    # Together: Holm's correction depends on the number of arms.
    judged = dict(zip(effects, judge(list(effects.values()), better), strict=True))
    rows = []
    for arm in (reference, *others):
        row = Row(
            name=arm.name,
            values=arm.values,
            planned=arm.planned,
            scores=scores_of(arm, _finite_seeds(arm, metric), metric, not differ),
            costs=_mean_costs(arm),
            runs=tuple(run.path for run in arm.runs.values()),
            effect=judged.get(arm.name),
        )
        rows.append(row)
    notes = [
        *substitution,
        *_notes(rows, metric, differ),
        *_notes_of_metric(arms, metric),
    ]
    return Comparison(metric, better, rows, notes)


def _effects(
    arms: Sequence[ArmRuns], reference: ArmRuns, metric: str, paired: bool
) -> dict[str, Effect]:
    """Return the difference to the reference of each arm that has finished runs, by name."""
    effects = {}
    for arm in arms:
        pairs = paired_seeds(arm, reference, metric)
        if pairs:
            seeds, of_reference = zip(*pairs, strict=True)
            effects[arm.name] = compare_scores(
                scores_of(arm, seeds, metric, paired),
                scores_of(reference, of_reference, metric, paired),
            )
    return effects


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
    # Pairing the only common seed of several would discard the other runs.
    if len(common) > 1 or len(common) == min(len(seeds), len(others)):
        return common
    # The longer list keeps runs without a partner.
    return list(zip(seeds, others, strict=False))


def _same_samples(arm: ArmRuns) -> bool:
    """Return whether two runs of an arm were sampled with the same noise."""
    seeds = [run.sample_seed for run in arm.runs.values()]
    return len(set(seeds)) < len(seeds)


def _finite_seeds(arm: ArmRuns, metric: str) -> list[int]:
    return [
        seed
        for seed, run in arm.runs.items()
        if math.isfinite(run.metrics.get(metric, math.nan))
    ]


def scores_of(arm: ArmRuns, seeds: Sequence[int], metric: str, paired: bool) -> Scores:
    """Return the metric of the runs of some seeds, per sample if all have such values."""
    runs = [arm.runs[seed] for seed in seeds]
    sums = [values for run in runs if (values := run.sums(metric)) is not None]
    if runs and paired and len(sums) == len(runs):
        return Scores.of_sums(np.stack(sums))
    return Scores(np.array([run.metrics[metric] for run in runs], dtype=np.float64))


def _mean_costs(arm: ArmRuns) -> dict[str, float]:
    costs = [run.cost() for run in arm.runs.values()]
    means = {}
    for name in dict.fromkeys(chain.from_iterable(costs)):
        values = [cost[name] for cost in costs if name in cost]
        means[name] = sum(values) / len(values)
    if arm.step_flops is not None and "steps" in means:
        means["flops"] = arm.step_flops * means["steps"]
    return means


def _notes(rows: Sequence[Row], metric: str, differ: str) -> Iterator[str]:
    """Yield what limits the table; `differ` is why held-out samples may differ, if they do."""
    effects = [row.effect for row in rows if row.effect is not None]
    if any(effect.seeds == 1 for effect in effects):
        yield UNKNOWN_SEEDS
    measured = [row for row in rows if len(row.scores.values)]
    if differ:
        yield (
            f"the interval counts seeds only: held-out samples may differ, as {differ}"
        )
    elif any(row.scores.residuals is None for row in measured):
        yield f"the interval counts seeds only: {metric} has no values per sample"
    unfinished = [row.name for row in rows if not len(row.scores.values)]
    if unfinished:
        yield f"no run is finished and has a finite {metric}: {'; '.join(unfinished)}"
    for row in measured:
        if row.effect is not None:
            yield from _notes_of_effect(row.name, row.effect)
        seeds = len(row.scores.values)
        if seeds < row.planned:
            counted = f"{seeds} of {row.planned} runs count"
            yield f"{row.name}: only {counted}: finished ones with a finite {metric}"


def _notes_of_effect(name: str, effect: Effect) -> Iterator[str]:
    """Yield what would give a verdict."""
    more = effect.more_seeds
    if more:
        seeds = "seed" if more == 1 else "seeds"
        yield f"{name}: about {more:,} more {seeds} would do for a verdict"
    if effect.seed_variance == 0 and effect.difference == 0:
        yield f"{name}: equal in every run"
    if effect.seeds > 1 and math.isnan(effect.p):
        yield f"{name}: no variance seen: more seeds are needed"


def _notes_of_metric(arms: Sequence[ArmRuns], metric: str) -> Iterator[str]:
    """Yield what the metric does not measure."""
    if metric.startswith("sample/") and any(map(_same_samples, arms)):
        yield (
            "runs of an arm have the same sample.seed: "
            "the interval does not count the randomness of sampling"
        )
    runs = list(chain.from_iterable(arm.runs.values() for arm in arms))
    if metric in LOSSES and not same_objective(runs):
        yield "the losses are different functions: they do not measure which is better"


def show_comparison(console: Console, comparison: Comparison) -> None:
    """Print the table with the cost of each arm, its notes, and the arms that were left out."""
    say(console, comparison.title)
    costs = _shown_costs(comparison.rows)
    page = _table_of(comparison.rows, [*HEAD, *costs])
    # In a narrow terminal two readable tables replace one with wrapped columns.
    if not fits(console, page):
        console.print(_table_of(comparison.rows, HEAD))
        page = _table_of(comparison.rows, [HEAD[0], *costs])
    console.print(page)
    for note in comparison.notes:
        say(console, note, "yellow")
    for name, reasons in comparison.rejected.items():
        say(console, f"left out: {name}: {'; '.join(reasons)}", "yellow")


def _table_of(rows: Sequence[Row], head: Sequence[str]) -> Table:
    """Return the columns of `head`, which are those of quality and names of costs."""
    page = table(*head, right={*HEAD[1:4], *COSTS})
    for column, name in zip(page.columns, head, strict=True):
        column.no_wrap = name in HEAD[1:]
    for row in rows:
        name, _, mean, sd, difference, interval, p, verdict = row_texts(row)
        if sd:
            mean += f" ± {sd}"
        if interval:
            difference += f" [{interval}]"
        quality = dict(zip(HEAD, (name, mean, difference, p, verdict), strict=True))
        costs = {cost: _cost_text(value) for cost, value in row.costs.items()}
        page.add_row(*(cell((quality | costs).get(column, "")) for column in head))
    return page


def _shown_costs(rows: Sequence[Row]) -> list[str]:
    """Return the costs beside quality: seconds, and those in which arms differ by a hundredth."""
    shown = []
    of_time = ("seconds", "cpu_seconds")
    for name in COSTS:
        values = [row.costs[name] for row in rows if name in row.costs]
        if values and (name in of_time or max(values) > 1.01 * min(values)):
            shown.append(name)
    return shown


def _cost_text(value: float) -> str:
    # `.3g` writes 1,234 as 1.23e+03.
    return f"{value:,.0f}" if 1000 <= value < 1e8 else f"{value:.3g}"


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
