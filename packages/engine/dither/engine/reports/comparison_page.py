"""The page of a comparison: verdicts, forest plot, learning curves with bands, cost beside quality."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from dither.registry.config.errors import Refused

from ..sweeps.compare import read_comparison
from ..sweeps.comparison import COSTS, Comparison, Row, row_texts
from ..sweeps.directory import SweepDirectory
from .pages import Page, Section, Table, format_metric, of_sweep, write_page
from .run_record import RunRecord, read_run
from .svg import Points, curve, forest

__all__ = ["write_comparison_page", "write_page_of"]

HEAD = (
    "arm",
    "seeds",
    "mean",
    "sd of seeds",
    "difference",
    "95 % interval",
    "p (Holm)",
    "verdict",
)
CURVES = ("train/loss", "valid/loss")
"""Curves besides that of the metric."""


def write_comparison_page(sweep: SweepDirectory, rows: list[dict[str, Any]]) -> object:
    """Write report.html of a comparison, from its finished runs; `rows` are those of its points."""
    try:
        comparison = read_comparison(sweep)
    except Refused:
        # No run is finished: there is nothing to show yet.
        return None
    page = of_sweep(comparison_page(comparison), sweep, rows)
    return write_page(sweep.path / "report.html", page)


def write_page_of(comparison: Comparison, path: Path) -> Path:
    """Write the page of a comparison of finished runs."""
    return write_page(path, comparison_page(comparison))


def comparison_page(comparison: Comparison) -> Page:
    rows = comparison.rows
    quality = Table([row_texts(row) for row in rows], HEAD, numeric=range(1, 7))
    reference = rows[0].name
    effects = []
    for row in rows[1:]:
        if row.effect is not None:
            effect = row.effect
            effects.append((row.name, effect.difference, effect.low, effect.high))
    plot = forest(effects, f"{comparison.metric}: difference to {reference}")
    names = [row.name for row in rows]
    left_out = list(comparison.rejected.items())
    sections = [
        Section("Verdicts", "; ".join(comparison.notes), table=quality),
        Section(
            "Differences",
            f"{comparison.metric}: difference to {reference}, 95 % intervals.",
            charts=[(comparison.metric, plot)] if plot else (),
        ),
        Section("Cost", table=_costs(rows, comparison.metric)),
        Section(
            "Learning curves",
            "Mean over seeds; bands are one standard deviation.",
            legend=names,
            charts=_curves(rows, comparison.metric),
        ),
        Section(
            "Left out",
            table=Table([(name, "; ".join(reasons)) for name, reasons in left_out]),
        ),
        Section("Runs", table=Table(_run_rows(rows), ("arm", "run"))),
    ]
    return Page(f"{len(rows)} arms", sections, subtitle=comparison.title)


def _run_rows(rows: Iterable[Row]) -> list[tuple[str, str]]:
    lines = []
    for row in rows:
        lines += [(row.name, str(run)) for run in row.runs]
    return lines


def _costs(rows: Sequence[Row], metric: str) -> Table:
    """Return the cost of each arm beside its quality."""
    measured = set(chain.from_iterable(row.costs for row in rows))
    names = [name for name in COSTS if name in measured]
    cells = []
    for row in rows:
        texts = [row.name, ""]
        if len(row.scores.values):
            texts = [row.name, format_metric(row.scores.mean)]
        cells.append([*texts, *(format_metric(row.costs.get(name)) for name in names)])
    head = ("arm", metric, *(COSTS[name] for name in names))
    return Table(cells, head, numeric=range(1, len(head)))


def _curves(rows: Sequence[Row], metric: str) -> list[tuple[str, str]]:
    """Return name and SVG of the learning curves of the metric and the losses."""
    records = {}
    for row in rows:
        records[row.name] = [read_run(path) for path in row.runs]

    charts = []
    # The metric may be one of the losses.
    for name in dict.fromkeys((metric, *CURVES)):
        lines: dict[str, Points] = {}
        bands: dict[str, Points] = {}
        for arm, of_arm in records.items():
            curves = [_curve_of(record, name) for record in of_arm]
            lines[arm], bands[arm] = _mean_curve(curves)
        # A curve of one evaluation is in the table.
        if any(len(points) > 1 for points in lines.values()):
            svg = curve(lines, intervals=bands, bands=True)
            if svg:
                charts.append((name, svg))
    return charts


def _curve_of(record: RunRecord, name: str) -> Points:
    """Return the curve of a metric, called KIND/NAME, of a run; empty if it has none."""
    kind, _, metric = name.partition("/")
    return record.curves.get(kind, {}).get(metric, [])


def _mean_curve(curves: Sequence[Points]) -> tuple[Points, Points]:
    """Return mean and standard deviation over seeds of the steps that all curves have."""
    tables = [dict(points) for points in curves]
    means = []
    deviations = []
    for step in tables[0] if tables else ():
        values = [table.get(step, math.nan) for table in tables]
        if all(map(math.isfinite, values)):
            means.append((step, float(np.mean(values))))
            if len(values) > 1:
                deviations.append((step, float(np.std(values, ddof=1))))
    return means, deviations
