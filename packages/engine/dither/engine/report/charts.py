"""The curves of runs, one drawing for each figure, and what the runs are called in them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..figure_names import INTERVAL, belongs
from ..sweep.points import short, short_keys
from .curves import curve
from .figures import baselines_of, flat
from .gather import RunRecord

__all__ = ["charts_of", "differences", "names_of"]

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
    shown = [key for key in sorted(found, key=_rank) if not belongs("/".join(key), whole)]
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
    words = ["none" if value is None else short(value) for value in values]
    return words if key == "name" else [f"{key}={word}" for word in words]
