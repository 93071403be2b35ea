"""Results of a sweep: one row per point, best first."""

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
from dither.registry.files.atomic import atomic_write

from ..files.metrics_file import as_json, read_metrics
from ..runs.progress import say
from .directory import PointFolder, SweepDirectory
from .points import format_value, short_keys

__all__ = ["as_csv", "columns_of", "require_metric", "row_of", "rows_of", "show_rows", "write_tables"]

COLOURS = {"done": "green", "failed": "red", "lost": "red", "running": "cyan", "stopped": "yellow"}


def row_of(point: PointFolder) -> dict[str, Any]:
    """Return name, state, reason, run, step, values by key, and the newest metrics (`figures`) by kind/name."""
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
        names = (key for key in line if key not in ("step", "kind"))
        row["figures"].update({f"{line.get('kind')}/{key}": line[key] for key in names})
    row["figures"].update(_speed(run))
    return row


def _speed(run: Path) -> dict[str, float]:
    try:
        summary = json.loads((run / "summary.json").read_text(encoding="utf-8"))
        return {"steps_per_second": float(summary["steps_per_second"])}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def rows_of(sweep: SweepDirectory, metric: str | None = None, descending: bool | None = None) -> list[dict[str, Any]]:
    """Return the rows of all points, best first, those without the metric last.

    Args:
        sweep: The sweep.
        metric: Metric or swept key to sort by; by default the metric of the search, or the validation loss.
        descending: Whether larger is better; by default the direction of the search.

    Raises:
        Refused: No point has this metric, but some have others.
    """
    search = sweep.facts.get("search") or {}
    rows = [row_of(point) for point in sweep.folders()]
    if metric is not None:
        require_metric(metric, ({**row["values"], **row["figures"]} for row in rows if row["figures"]), "--sort")
    metric = metric or search.get("metric") or "valid/loss"
    sign = -1 if (search.get("direction") == "maximize" if descending is None else descending) else 1

    def rank(row: dict[str, Any]) -> tuple[bool, float]:
        value = row["figures"].get(metric, row["values"].get(metric))
        if isinstance(value, int | float) and math.isfinite(value):
            return False, sign * value
        return True, 0.0

    return sorted(rows, key=rank)


def require_metric(name: str, measured: Iterable[Mapping[str, Any]], option: str) -> None:
    """Check that something was measured under this name, if anything was measured.

    Raises:
        Refused: Nothing has this metric.
    """
    known = dict.fromkeys(key for metrics in measured for key in metrics)
    if known and name not in known:
        close = nearest(name, known)
        hint = f'did you mean "{close}"?' if close else f"known: {', '.join(known)}"
        raise Refused(Problem(f'{option}: unknown metric "{name}"', help=hint, code="unknown-metric"))


def columns_of(rows: Sequence[dict[str, Any]]) -> tuple[list[str], list[str]]:
    """Return the swept keys and the metrics that any row has: validation first, training last."""
    keys = dict.fromkeys(key for row in rows for key in row["values"])
    metrics = dict.fromkeys(name for row in rows for name in row["figures"])
    return list(keys), sorted(metrics, key=lambda name: (not name.startswith("valid/"), name.startswith("train/")))


def show_rows(console: Console, rows: Sequence[dict[str, Any]], metric: str | None = None) -> None:
    """Print a table with as many metrics as fit, the number of points by state, and the reasons of failures."""
    keys, metrics = columns_of(rows)
    if metric in metrics:
        metrics = [metric, *(name for name in metrics if name != metric)]
    columns = [["point", *(row["name"].partition("-")[0] for row in rows)]]
    columns.append(["state", *(row["state"] for row in rows)])
    columns.append(["step", *("" if row["step"] is None else str(row["step"]) for row in rows)])
    for key, header in zip(keys, short_keys([tuple(key.split(".")) for key in keys]), strict=True):
        columns.append([header, *(format_value(row["values"][key]) if key in row["values"] else "" for row in rows)])
    room = console.width - sum(2 + max(map(len, column)) for column in columns)
    for name in metrics:
        values = (row["figures"].get(name) for row in rows)
        column = [name, *(f"{value:.5g}" if isinstance(value, int | float) else "" for value in values)]
        room -= 2 + max(map(len, column))
        if room < 0 and name != metrics[0]:
            break
        columns.append(column)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for header, *_ in columns:
        table.add_column(header, overflow="fold", justify="right" if header == "step" or header in metrics else "left")
    for cells in list(zip(*columns, strict=True))[1:]:
        table.add_row(*(Text(cell, style=COLOURS.get(cell, "")) for cell in cells))
    console.print(table)
    states = [row["state"] for row in rows]
    console.print(", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states)), highlight=False)
    for row in rows:
        if row["reason"] and row["state"] in ("failed", "lost"):
            say(console, f"{row['name']}: {row['reason']}", "red")


def as_csv(rows: Sequence[dict[str, Any]]) -> str:
    """Return the rows as CSV, with a column per key and metric."""
    keys, metrics = columns_of(rows)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["point", "state", "step", *keys, *metrics])
    for row in rows:
        values = [row["values"].get(key) for key in keys]
        cells = [value if isinstance(value, str | int | float | None) else as_json(value) for value in values]
        writer.writerow([row["name"], row["state"], row["step"], *cells, *map(row["figures"].get, metrics)])
    return text.getvalue()


def write_tables(sweep: SweepDirectory, rows: Sequence[dict[str, Any]]) -> None:
    """Write summary.csv and summary.json into the sweep directory."""
    for name, text in (("summary.csv", as_csv(rows)), ("summary.json", as_json(list(rows), indent=2) + "\n")):
        with atomic_write(sweep.path / name) as temporary:
            temporary.write_text(text, encoding="utf-8")
