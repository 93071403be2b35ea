"""Tables and charts of the metrics of runs, and what differs between runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..files.metrics_file import FLOOR, INTERVAL, is_companion_metric, with_interval
from ..sweeps.points import format_value, short_keys
from .run_record import RunRecord
from .svg import curve

__all__ = [
    "MetricRow",
    "baselines_of",
    "charts_of",
    "differences",
    "flat",
    "format_metric",
    "format_toml",
    "metric_rows",
    "names_of",
]

MetricRow = tuple[str, list[str], list[tuple[str, float]]]
"""kind/name, the last value in each run, and baselines."""
FIRST = ("valid/loss", "train/loss")
LAST = ("train/lr", "train/grad_norm", "train/steps_per_second")
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
        rows.append((name, texts, _references(name, records[0]) if len(records) == 1 else []))
    return rows


def _references(name: str, record: RunRecord) -> list[tuple[str, float]]:
    kind, _, metric = name.partition("/")
    floor = record.last().get(name + FLOOR)
    known = {} if kind == "train" else baselines_of(record, kind).get(metric, {})
    return [*([("floor", floor)] if floor is not None else []), *known.items()]


def baselines_of(record: RunRecord, kind: str) -> dict[str, dict[str, float]]:
    """Return metric -> baseline -> value; only those of `kind`, such as "sample", if there are any."""
    known = record.summary.get("baselines")
    values = {str(key): value for key, value in known.items()} if isinstance(known, dict) else {}
    prefix = f"{kind} " if any(key.startswith(f"{kind} ") for key in values) else ""
    found: dict[str, dict[str, float]] = {}
    for key, value in values.items():
        metric, _, name = key.removeprefix(prefix).partition("/")
        if key.startswith(prefix) and isinstance(value, int | float):
            found.setdefault(metric, {})[name or metric] = value
    return found


def format_metric(value: Any) -> str:
    """Format a metric with five digits."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return "" if value is None else str(value)
    return f"{value:.5g}" if isinstance(value, float) else f"{value:,}"


def format_toml(value: Any) -> str:
    """Format an option as TOML, strings without quotes."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return f"[{', '.join(map(format_toml, value))}]"
    return f"{value:.12g}" if isinstance(value, float) else str(value) or '""'


def flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested tables as dotted key -> value."""
    values: dict[str, Any] = {}
    for key, value in tree.items():
        values |= flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
    return values


def charts_of(records: Sequence[RunRecord], names: Sequence[str] | None = None) -> list[tuple[str, str]]:
    """Return (name, SVG) for every metric with at least two points in some run; names in the SVG are escaped."""
    labels = names_of(records) if names is None else names
    keys = dict.fromkeys(f"{kind}/{name}" for record in records for kind, m in record.curves.items() for name in m)
    shown = sorted((key for key in keys if not is_companion_metric(key, keys)), key=_rank)
    charts = [(key, _chart(records, labels, *key.split("/", 1))) for key in shown]
    return [chart for chart in charts if chart[1]][:MAX_CHARTS]


def _rank(key: str) -> tuple[int, int]:
    if key in FIRST:
        return 0, FIRST.index(key)
    return (2, LAST.index(key)) if key in LAST else (1, key.startswith("train/"))


def _chart(records: Sequence[RunRecord], labels: Sequence[str], kind: str, metric: str) -> str:
    points = [record.curves.get(kind, {}).get(metric, []) for record in records]
    if max(map(len, points)) < 2:
        return ""
    single = len(records) == 1
    lines = [f"{kind}/{metric}" if single else f"{label} {kind}/{metric}" for label in labels]
    halves = (record.curves.get(kind, {}).get(metric + INTERVAL, []) for record in records)
    levels = baselines_of(records[0], kind).get(metric, {}) if kind != "train" and single else {}
    intervals = dict(zip(lines, halves, strict=True))
    return curve(dict(zip(lines, points, strict=True)), baselines=levels, intervals=intervals)


def differences(records: Sequence[RunRecord]) -> list[tuple[str, list[Any]]]:
    """Return every option that differs, with its value in each run, or None where it is missing."""
    configs = [flat(record.resolved) for record in records]
    keys = dict.fromkeys(key for config in configs for key in config)
    values = ((key, [config.get(key) for config in configs]) for key in keys)
    return [(key, found) for key, found in values if any(value != found[0] for value in found[1:])]


def names_of(records: Sequence[RunRecord]) -> list[str]:
    """Return unique names of runs: their own, or the options that differ, or their directories."""

    def unique(names: list[str]) -> bool:
        return len(set(names)) == len(names)

    names = [record.name for record in records]
    if unique(names):
        return names
    changed = differences(records)
    if 0 < len(changed) <= MAX_KEYS:
        keys = short_keys([tuple(key.split(".")) for key, _ in changed])
        columns = [_values(key, values) for key, (_, values) in zip(keys, changed, strict=True)]
        by_options = [", ".join(words) for words in zip(*columns, strict=True)]
        if unique(by_options):
            return by_options
    by_folder = [f"{name} {r.path.resolve().name[-6:]}" for name, r in zip(names, records, strict=True)]
    return by_folder if unique(by_folder) else [f"{number} {name}" for number, name in enumerate(by_folder, 1)]


def _values(key: str, values: Sequence[Any]) -> list[str]:
    words = ["none" if value is None else format_value(value) for value in values]
    return words if key == "name" else [f"{key}={word}" for word in words]
