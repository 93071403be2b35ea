"""Write the report of a run, of several runs, or of a sweep."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from dither.registry.config.errors import Refused

from ..sweeps.directory import MARK, PointFolder, SweepDirectory
from ..sweeps.points import format_value
from ..sweeps.summary import columns_of, rows_of
from .metrics import charts_of, format_metric
from .page import Section, Table, compare_page, render, run_page, write_page
from .run_record import RunRecord, read_run
from .svg import COLOURS, scatters

__all__ = ["sweep_page", "write_report", "write_sweep_page", "write_sweep_report"]


def write_report(paths: Sequence[Path], out: Path | None = None) -> Path:
    """Write the page of a run or sweep, or one that compares several runs; return its path.

    Args:
        paths: Run directories. A sweep among others stands for the runs of its points, a point for its run.
        out: The file; by default report.html in the run or sweep, or comparison.html in the working directory.

    Raises:
        Refused: A path is not a run directory, or the page cannot be written.
    """
    named = list(dict.fromkeys(paths))
    if len(named) == 1 and (named[0] / MARK).is_file():
        sweep = SweepDirectory.open(named[0])
        return write_sweep_page(sweep, out or sweep.path / "report.html", rows_of(sweep))
    records = [read_run(run) for run in dict.fromkeys(run for path in named for run in _runs(path))]
    if not records:
        raise Refused("no point of these sweeps has started", code="not-a-run")
    single = len(records) == 1
    target = out or (records[0].path / "report.html" if single else Path("comparison.html"))
    return write_page(target, run_page(records[0]) if single else compare_page(records))


def _runs(path: Path) -> Iterator[Path]:
    if (path / MARK).is_file():
        runs = (point.run_directory() for point in SweepDirectory.open(path).folders())
        yield from (run for run in runs if run is not None)
    else:
        run = PointFolder(path, {}).run_directory() if (path / "point.lock").is_file() else None
        yield run or path


def write_sweep_report(sweep: SweepDirectory, rows: Sequence[dict[str, Any]]) -> Path:
    """Write report.html into a sweep directory."""
    return write_sweep_page(sweep, sweep.path / "report.html", rows)


def write_sweep_page(sweep: SweepDirectory, path: Path, rows: Sequence[dict[str, Any]]) -> Path:
    """Write the page of a sweep and return its path.

    Raises:
        Refused: It cannot be written.
    """
    return write_page(path, sweep_page(sweep, rows))


def sweep_page(sweep: SweepDirectory, rows: Sequence[dict[str, Any]]) -> str:
    """Return the page of a sweep, given the rows of its points, best first."""
    keys, metrics = columns_of(rows)
    search = sweep.facts.get("search") or {}
    metric = str(search.get("metric", "valid/loss"))
    records: dict[str, RunRecord] = {}
    for row in rows:
        if row["run"] is not None and len(records) < COLOURS:
            with suppress(Refused):  # its row has the reason
                record = read_run(sweep.path / row["name"] / row["run"])
                records |= {row["name"]: record} if record.curves else {}
    states = [row["state"] for row in rows]
    subtitle = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
    if search:
        subtitle += f"; {search.get('direction')} {metric} with {search.get('sampler')}"
    head = ("point", "state", "step", *keys, *metrics)
    table = Table([_cells(row, keys, metrics) for row in rows], head, {2, *range(3 + len(keys), len(head))}, wide=True)
    charts = charts_of(list(records.values()), list(records)) if records else []
    plots = scatters(rows, keys, metric)
    sections = [
        Section("Points, best first", tables=[table]),
        Section("Values", f"{metric} over each key." if plots else "", charts=plots),
        Section("Curves", f"The best {len(records)} points." if charts else "", legend=list(records), charts=charts),
    ]
    return render(
        f"sweep {sweep.facts.get('name', sweep.path.name)}",
        sections,
        subtitle=subtitle,
        problems=[f"{row['name']}: {row['reason']}" for row in rows if row["state"] in ("failed", "lost")],
        problems_title="Failed or lost",
        command=shlex.join(map(str, sweep.facts.get("argv") or [])),
    )


def _cells(row: dict[str, Any], keys: Sequence[str], metrics: Sequence[str]) -> list[str]:
    values = [format_value(row["values"][key]) if key in row["values"] else "" for key in keys]
    numbers = [format_metric(row["figures"].get(name)) for name in metrics]
    return [row["name"].partition("-")[0], row["state"], format_metric(row["step"]), *values, *numbers]
