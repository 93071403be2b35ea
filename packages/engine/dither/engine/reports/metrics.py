"""The figures of runs as a table: an interval stands behind its figure, the noise floor among the baselines."""

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
    "metric_rows",
    "names_of",
    "toml",
]

MetricRow = tuple[str, list[str], list[tuple[str, float]]]
"""kind/name, the last value in each run, and what stands beside it."""


def metric_rows(records: Sequence[RunRecord]) -> list[MetricRow]:
    """Return the last value of every figure in every run: evaluations first, training last."""
    lasts = [record.last() for record in records]
    names = dict.fromkeys(name for last in lasts for name in last)
    order = sorted(names, key=lambda name: (name.startswith("train/"), name.partition("/")[0] != "valid"))
    rows = []
    for name in [name for name in order if not is_companion_metric(name, names)]:
        texts = [with_interval(name, last, 5) if name in last else "" for last in lasts]
        rows.append((name, texts, _beside(name, records[0]) if len(records) == 1 else []))
    return rows


def _beside(name: str, record: RunRecord) -> list[tuple[str, float]]:
    kind, _, figure = name.partition("/")
    floor = record.last().get(name + FLOOR)
    known = {} if kind == "train" else baselines_of(record, kind).get(figure, {})
    return [*([("floor", floor)] if floor is not None else []), *known.items()]


def baselines_of(record: RunRecord, kind: str) -> dict[str, dict[str, float]]:
    """Return figure -> name of a baseline -> value; those of `kind` alone, such as "sample", where there are any."""
    found: dict[str, dict[str, float]] = {}
    known = record.summary.get("baselines")
    said = {str(key): value for key, value in known.items()} if isinstance(known, dict) else {}
    own = f"{kind} " if any(key.startswith(f"{kind} ") for key in said) else ""
    for key, value in said.items():
        figure, _, name = key.removeprefix(own).partition("/")
        if key.startswith(own) and isinstance(value, int | float):
            found.setdefault(figure, {})[name or figure] = value
    return found


def format_metric(value: Any) -> str:
    """Return a figure in five digits."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return "" if value is None else str(value)
    return f"{value:.5g}" if isinstance(value, float) else f"{value:,}"


def toml(value: Any) -> str:
    """Return an option as it is written in an experiment; a word without its quotes."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return f"[{', '.join(map(toml, value))}]"
    return f"{value:.12g}" if isinstance(value, float) else str(value) or '""'


def flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return tables inside each other as key -> value."""
    values: dict[str, Any] = {}
    for key, value in tree.items():
        values |= flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
    return values


FIRST = ("valid/loss", "train/loss")
"""Curves that come first."""
LAST = ("train/lr", "train/grad_norm", "train/steps_per_second")
"""Curves that come last."""
MOST_KEYS = 3
"""Keys that name a run."""
MOST_CURVES = 60
"""Curves on a page; further figures have their last value in the table."""


def charts_of(records: Sequence[RunRecord], names: Sequence[str] | None = None) -> list[tuple[str, str]]:
    """Return name and SVG, in which every name is escaped, of every curve with at least two points in some run."""
    labels = names_of(records) if names is None else names
    found = dict.fromkeys((kind, name) for record in records for kind, f in record.curves.items() for name in f)
    whole = {f"{kind}/{name}": None for kind, name in found}
    shown = [key for key in sorted(found, key=_rank) if not is_companion_metric("/".join(key), whole)]
    charts = ((f"{kind}/{figure}", _chart(records, labels, kind, figure)) for kind, figure in shown)
    return [chart for chart in charts if chart[1]][:MOST_CURVES]


def _rank(key: tuple[str, str]) -> tuple[int, int]:
    name = "/".join(key)
    if name in FIRST:
        return 0, FIRST.index(name)
    return (2, LAST.index(name)) if name in LAST else (1, name.startswith("train/"))


def _chart(records: Sequence[RunRecord], labels: Sequence[str], kind: str, figure: str) -> str:
    points = [record.curves.get(kind, {}).get(figure, []) for record in records]
    if max(map(len, points)) < 2:
        return ""
    one = len(records) == 1
    lines = [f"{kind}/{figure}" if one else f"{label} {kind}/{figure}" for label in labels]
    halves = (record.curves.get(kind, {}).get(figure + INTERVAL, []) for record in records)
    levels = baselines_of(records[0], kind).get(figure, {}) if kind != "train" and one else {}
    series = dict(zip(lines, points, strict=True))
    return curve(series, baselines=levels, intervals=dict(zip(lines, halves, strict=True)))


def differences(records: Sequence[RunRecord]) -> list[tuple[str, list[Any]]]:
    """Return every key that runs have otherwise, with its value in each, or None where a run has none."""
    configs = [flat(record.resolved) for record in records]
    keys = dict.fromkeys(key for config in configs for key in config)
    values = ((key, [config.get(key) for config in configs]) for key in keys)
    return [(key, found) for key, found in values if any(value != found[0] for value in found[1:])]


def names_of(records: Sequence[RunRecord]) -> list[str]:
    """Return a name for each run: its own; where two have the same, by what differs, or by their directories."""
    names = [record.name for record in records]
    if len(set(names)) == len(names):
        return names
    changed = differences(records)
    if 0 < len(changed) <= MOST_KEYS:
        keys = short_keys([tuple(key.split(".")) for key, _ in changed])
        columns = [_words(key, values) for key, (_, values) in zip(keys, changed, strict=True)]
        named = [", ".join(words) for words in zip(*columns, strict=True)]
        if len(set(named)) == len(named):
            return named
    ends = [record.path.resolve().name for record in records]
    named = [f"{record.name} {end[-6:]}" for record, end in zip(records, ends, strict=True)]
    if len(set(named)) == len(named):
        return named
    return [f"{number} {name}" for number, name in enumerate(named, 1)]  # copies of one run


def _words(key: str, values: Sequence[Any]) -> list[str]:
    words = ["none" if value is None else format_value(value) for value in values]
    return words if key == "name" else [f"{key}={word}" for word in words]
