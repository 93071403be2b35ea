"""What came out of a sweep: one row for each point, the best first."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from dither.registry.config.errors import Problem, Refused, nearest

from ..files.metrics_file import as_json, read_metrics
from ..runs.progress import say
from .directory import PointFolder, SweepDirectory
from .points import format_value, short_keys

__all__ = ["as_csv", "columns_of", "require_metric", "row_of", "rows_of", "show_rows"]

COLOURS = {"done": "green", "failed": "red", "lost": "red", "running": "cyan", "stopped": "yellow"}


def row_of(point: PointFolder) -> dict[str, Any]:
    """Return name, state, step, values by key, and the newest figures as kind/name; damage is named under reason."""
    status = point.status()
    row: dict[str, Any] = {"name": point.name, "state": status["state"], "reason": status.get("reason")}
    run = point.run_directory()
    row |= {"run": None if run is None else run.name, "step": None, "values": dict(point.values), "figures": {}}
    if run is None:
        return row
    try:
        lines = read_metrics(run / "metrics.jsonl") if (run / "metrics.jsonl").is_file() else []
    except (OSError, ValueError) as error:
        row["reason"] = row["reason"] or f"metrics.jsonl cannot be read: {error}"
        lines = []
    for line in lines:
        row["step"] = line.get("step")
        figures = {key: value for key, value in line.items() if key not in ("step", "kind")}
        row["figures"].update({f"{line.get('kind')}/{key}": value for key, value in figures.items()})
    row["figures"].update(_speed(run))
    return row


def _speed(run: Path) -> dict[str, float]:
    try:
        summary = json.loads((run / "summary.json").read_text(encoding="utf-8"))
        return {"steps_per_second": float(summary["steps_per_second"])}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def rows_of(sweep: SweepDirectory, metric: str | None = None, descending: bool | None = None) -> list[dict[str, Any]]:
    """Return the rows of all points, the best first and those without the figure last.

    Args:
        sweep: The sweep.
        metric: What they are sorted by; by default that of the search, else the validation loss.
        descending: Whether more is better; by default as the search has it.

    Raises:
        Refused: The points have figures, but no such one.
    """
    search = sweep.facts.get("search") or {}
    rows = [row_of(point) for point in sweep.folders()]
    if metric is not None:
        require_metric(metric, ({**row["values"], **row["figures"]} for row in rows if row["figures"]), "--sort")
    metric = metric or search.get("metric") or "valid/loss"
    down = search.get("direction") == "maximize" if descending is None else descending

    def rank(row: dict[str, Any]) -> tuple[bool, float]:
        value = row["figures"].get(metric, row["values"].get(metric))
        there = isinstance(value, int | float) and math.isfinite(value)
        return (not there, (-value if down else value) if there else 0.0)

    return sorted(rows, key=rank)


def require_metric(name: str, measured: Iterable[Mapping[str, Any]], option: str) -> None:
    """See to it that something has a figure of this name, where anything was measured at all.

    Raises:
        Refused: Nothing has.
    """
    known = dict.fromkeys(figure for figures in measured for figure in figures)
    if known and name not in known:
        close = nearest(name, known)
        hint = f'did you mean "{close}"?' if close else f"there are {', '.join(known)}"
        raise Refused(Problem(f'{option}: nothing has a figure "{name}"', help=hint))


def columns_of(rows: Sequence[dict[str, Any]]) -> tuple[list[str], list[str]]:
    """Return the swept keys and the figures that any row has, in their order."""
    keys = dict.fromkeys(key for row in rows for key in row["values"])
    figures = dict.fromkeys(name for row in rows for name in row["figures"])
    order = sorted(figures, key=lambda name: (not name.startswith("valid/"), name.startswith("train/")))
    return list(keys), order


def show_rows(console: Console, rows: Sequence[dict[str, Any]], metric: str | None = None) -> None:
    """Print the rows as a table with as many figures as there is room for, and how many points are in which state."""
    keys, figures = columns_of(rows)
    if metric in figures:
        figures = [metric, *(name for name in figures if name != metric)]
    columns = [["point", *(row["name"].partition("-")[0] for row in rows)]]
    columns.append(["state", *(row["state"] for row in rows)])
    columns.append(["step", *("" if row["step"] is None else str(row["step"]) for row in rows)])
    for key, header in zip(keys, short_keys([tuple(key.split(".")) for key in keys]), strict=True):
        columns.append([header, *(format_value(row["values"][key]) if key in row["values"] else "" for row in rows)])
    room = console.width - sum(2 + max(map(len, column)) for column in columns)
    for name in figures:
        column = [name, *(_number(row["figures"].get(name)) for row in rows)]
        room -= 2 + max(map(len, column))
        if room < 0 and name != figures[0]:
            break
        columns.append(column)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for header, *_ in columns:
        table.add_column(header, overflow="fold", justify="right" if header == "step" or header in figures else "left")
    for cells in list(zip(*columns, strict=True))[1:]:
        table.add_row(*(Text(cell, style=COLOURS.get(cell, "")) for cell in cells))
    console.print(table)
    states = [row["state"] for row in rows]
    console.print(", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states)), highlight=False)
    for row in rows:
        if row["reason"] and row["state"] in ("failed", "lost"):
            say(console, f"{row['name']}: {row['reason']}", "red")


def _number(value: Any) -> str:
    return f"{value:.5g}" if isinstance(value, int | float) else ""


def as_csv(rows: Sequence[dict[str, Any]]) -> str:
    """Return the rows as CSV, with one column for each key and figure."""
    keys, figures = columns_of(rows)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["point", "state", "step", *keys, *figures])
    for row in rows:
        values = [row["values"].get(key) for key in keys]
        plain = [value if isinstance(value, str | int | float | None) else as_json(value) for value in values]
        writer.writerow([row["name"], row["state"], row["step"], *plain, *map(row["figures"].get, figures)])
    return text.getvalue()
