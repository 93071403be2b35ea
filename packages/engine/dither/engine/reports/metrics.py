"""Tables and charts of the metrics of runs, and what differs between runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..files.metrics_file import FLOOR, INTERVAL, is_companion_metric, with_interval
from ..runs.run_directory import flat
from ..sweeps.points import format_value, short_keys
from .run_record import RunRecord
from .svg import curve

__all__ = ["MetricRow", "charts_of", "differences", "format_metric", "metric_rows", "names_of"]

MetricRow = tuple[str, list[str], list[tuple[str, float]]]
"""kind/name, the last value in each run, and baselines."""
MAX_KEYS = 3
"""Differing options that name a run."""
MAX_CHARTS = 60
"""Charts on a page; the table has the last value of every metric."""


def metric_rows(records: Sequence[RunRecord]) -> list[MetricRow]:
    """Return the last value of every metric in every run: validation first, training last."""
    lasts = [record.last() for record in records]
    names = dict.fromkeys(name for last in lasts for name in last)
    order = sorted(names, key=lambda name: (name.startswith("train/"), not name.startswith("valid/")))
    rows = []
    for name in [name for name in order if not is_companion_metric(name, names)]:
        texts = [with_interval(name, last, 5) if name in last else "" for last in lasts]
        floor = [("floor", lasts[0][name + FLOOR])] if name + FLOOR in lasts[0] else []
        references = [*floor, *records[0].baselines(*name.split("/", 1)).items()]
        rows.append((name, texts, references if len(records) == 1 else []))
    return rows


def format_metric(value: Any) -> str:
    """Format a metric with five digits."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return "" if value is None else str(value)
    return f"{value:.5g}" if isinstance(value, float) else f"{value:,}"


def charts_of(records: Sequence[RunRecord], labels: Sequence[str]) -> list[tuple[str, str]]:
    """Return (name, SVG) for every metric with at least two points in some run; names in the SVG are escaped."""
    keys = dict.fromkeys(f"{kind}/{name}" for record in records for kind, m in record.curves.items() for name in m)
    shown = sorted(
        (key for key in keys if not is_companion_metric(key, keys)),
        key=lambda key: (not key.endswith("/loss"), key.startswith("train/")),
    )
    charts = [(key, _chart(records, labels, *key.split("/", 1))) for key in shown]
    return [chart for chart in charts if chart[1]][:MAX_CHARTS]


def _chart(records: Sequence[RunRecord], labels: Sequence[str], kind: str, metric: str) -> str:
    points = [record.curves.get(kind, {}).get(metric, []) for record in records]
    if max(map(len, points)) < 2:
        return ""
    single = len(records) == 1
    lines = [f"{kind}/{metric}" if single else f"{label} {kind}/{metric}" for label in labels]
    halves = (record.curves.get(kind, {}).get(metric + INTERVAL, []) for record in records)
    levels = records[0].baselines(kind, metric) if single else {}
    intervals = dict(zip(lines, halves, strict=True))
    return curve(dict(zip(lines, points, strict=True)), baselines=levels, intervals=intervals)


def differences(records: Sequence[RunRecord]) -> list[tuple[str, list[str]]]:
    """Return every option that differs, with its value in each run, or an empty text where it is missing."""
    configs = [flat(record.resolved) for record in records]
    keys = dict.fromkeys(key for config in configs for key in config)
    values = ((key, [config.get(key) for config in configs]) for key in keys)
    changed = ((key, found) for key, found in values if any(value != found[0] for value in found[1:]))
    return [(key, ["" if value is None else format_value(value) or '""' for value in found]) for key, found in changed]


def names_of(records: Sequence[RunRecord]) -> list[str]:
    """Return unique names of runs: their own, or the options that differ, or their directories."""
    names = [record.name for record in records]
    changed = differences(records)
    keys = short_keys([tuple(key.split(".")) for key, _ in changed])
    columns = [[f"{key}={value or 'none'}" for value in values] for key, (_, values) in zip(keys, changed, strict=True)]
    by_options = [", ".join(words) for words in zip(*columns[:MAX_KEYS], strict=True)]
    by_folder = [f"{name} {record.path.resolve().name[-6:]}" for name, record in zip(names, records, strict=True)]
    for candidates in (names, by_options, by_folder):
        if len(set(candidates)) == len(records):
            return candidates
    return [f"{number} {name}" for number, name in enumerate(by_folder, 1)]
