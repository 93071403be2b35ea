"""Results of a sweep: one row per point, best first."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Console

from dither.registry.config.errors import Problem, Refused, did_you_mean
from dither.registry.files.limits import read_text

from ..files.metrics_file import read_metrics
from ..runs.progress import cell, say, table
from .directory import PointFolder, SweepDirectory
from .points import format_value, short_keys

__all__ = ["columns_of", "require_metric", "row_of", "rows_of", "show_rows"]

MAX_METRICS = 5  # in the printed table; --json and the page have all


def row_of(point: PointFolder) -> dict[str, Any]:
    """Return name, state, reason, run, step, values by key, and the newest metrics (`figures`) by kind/name."""
    status, run = point.status(), point.run_directory()
    row: dict[str, Any] = {"name": point.name, "state": status["state"], "reason": status.get("reason")}
    row |= {"run": None if run is None else run.name, "step": None, "values": dict(point.values), "figures": {}}
    if run is None:
        return row
    try:
        for line in read_metrics(run / "metrics.jsonl"):
            row["step"] = line.get("step")
            row["figures"] |= {f"{line['kind']}/{key}": line[key] for key in line if key not in ("step", "kind")}
    except FileNotFoundError:
        pass
    except (OSError, ValueError, KeyError) as error:
        row["reason"] = row["reason"] or f"metrics.jsonl cannot be read: {error}"
    try:
        summary = json.loads(read_text(run / "summary.json"))
        row["figures"]["steps_per_second"] = float(summary["steps_per_second"])
    except (OSError, ValueError, KeyError, TypeError):
        pass
    return row


def rows_of(sweep: SweepDirectory, metric: str | None = None, descending: bool | None = None) -> list[dict[str, Any]]:
    """Return the rows of all points by a metric or swept key, best first, those without it last.

    By default the metric and direction are those of the search, or the validation loss.
    """
    search = sweep.facts.get("search") or {}
    rows = [row_of(point) for point in sweep.folders()]
    if metric is not None:
        require_metric(metric, ({**row["values"], **row["figures"]} for row in rows if row["figures"]), "--sort")
    metric = metric or search.get("metric") or "valid/loss"
    sign = -1 if (search.get("direction") == "maximize" if descending is None else descending) else 1

    def rank(row: dict[str, Any]) -> tuple[bool, float]:
        value = row["figures"].get(metric, row["values"].get(metric))
        known = isinstance(value, int | float) and math.isfinite(value)
        return not known, sign * value if known else 0.0

    return sorted(rows, key=rank)


def require_metric(name: str, measured: Iterable[Mapping[str, Any]], option: str) -> None:
    """Refuse a name under which nothing was measured, if anything was."""
    known = dict.fromkeys(key for metrics in measured for key in metrics)
    if known and name not in known:
        hint = did_you_mean(name, known, f"known: {', '.join(known)}")
        raise Refused(Problem(f'{option}: unknown metric "{name}"', help=hint, code="unknown-metric"))


def columns_of(rows: Sequence[dict[str, Any]]) -> tuple[list[str], list[str]]:
    """Return the swept keys and the metrics that any row has: validation first, training last."""
    keys = dict.fromkeys(key for row in rows for key in row["values"])
    metrics = dict.fromkeys(name for row in rows for name in row["figures"])
    return list(keys), sorted(metrics, key=lambda name: (not name.startswith("valid/"), name.startswith("train/")))


def show_rows(console: Console, rows: Sequence[dict[str, Any]], metric: str | None = None) -> None:
    """Print a table, the number of points by state, and the reasons of failures; `metric` is the first column."""
    keys, metrics = columns_of(rows)
    metrics = sorted(metrics, key=lambda name: name != metric)[:MAX_METRICS]
    headers = ("point", "state", "step", *short_keys([tuple(key.split(".")) for key in keys]), *metrics)
    page = table(*headers, right=("step", *metrics))
    for row in rows:
        values = [format_value(row["values"][key]) if key in row["values"] else "" for key in keys]
        numbers = [row["figures"].get(name) for name in metrics]
        texts = [f"{number:.5g}" if isinstance(number, int | float) else "" for number in numbers]
        step = "" if row["step"] is None else str(row["step"])
        page.add_row(*map(cell, (row["name"].partition("-")[0], row["state"], step, *values, *texts)))
    console.print(page)
    states = [row["state"] for row in rows]
    say(console, ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states)))
    for row in rows:
        if row["reason"] and row["state"] in ("failed", "lost"):
            say(console, f"{row['name']}: {row['reason']}", "red")
