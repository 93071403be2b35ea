"""The figures of runs as a table: an interval stands behind its figure, the noise floor among the baselines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..figure_names import FLOOR, belongs, with_interval
from .gather import RunRecord

__all__ = ["FigureRow", "as_text", "baselines_of", "figure_rows", "flat", "toml"]

FigureRow = tuple[str, list[str], list[tuple[str, float]]]
"""kind/name, the last value in each run, and what stands beside it."""


def figure_rows(records: Sequence[RunRecord]) -> list[FigureRow]:
    """Return the last value of every figure in every run: evaluations first, training last."""
    lasts = [record.last() for record in records]
    names = dict.fromkeys(name for last in lasts for name in last)
    order = sorted(names, key=lambda name: (name.startswith("train/"), name.partition("/")[0] != "valid"))
    rows = []
    for name in [name for name in order if not belongs(name, names)]:
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


def as_text(value: Any) -> str:
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
