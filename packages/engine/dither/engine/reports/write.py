"""Write the page of what is named: a run, several, or a sweep."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from dither.registry.config.errors import Refused

from ..sweeps.directory import MARK, PointFolder, SweepDirectory
from ..sweeps.summary import columns_of, rows_of
from .metrics import charts_of
from .page import compare_page, render, run_page, write_page
from .run_record import RunRecord, read_run
from .svg import scatters

__all__ = ["sweep_page", "write_report", "write_sweep_page", "write_sweep_report"]


def write_report(paths: Sequence[Path], out: Path | None = None) -> Path:
    """Write the page of a run or of a sweep, or the page that compares several runs; return where it is.

    Args:
        paths: Run directories. A sweep among others stands for the runs of its points, a point for its run.
        out: The file; by default report.html in the run or sweep, or comparison.html in the working directory.

    Raises:
        Refused: One is no run directory, or the page cannot be written.
    """
    named = list(dict.fromkeys(paths))
    if len(named) == 1 and (named[0] / MARK).is_file():
        sweep = SweepDirectory.open(named[0])
        return write_sweep_page(sweep, out or sweep.path / "report.html", rows_of(sweep))
    records = [read_run(run) for run in dict.fromkeys(run for path in named for run in _runs(path))]
    if not records:
        raise Refused("no point of these sweeps has begun: there is no run to compare")
    one = len(records) == 1
    target = out or (records[0].path / "report.html" if one else Path("comparison.html"))
    return write_page(target, run_page(records[0]) if one else compare_page(records))


def _runs(path: Path) -> Iterator[Path]:
    if (path / MARK).is_file():
        for point in SweepDirectory.open(path).folders():
            run = point.run_directory()
            if run is not None:
                yield run
    else:
        begun = PointFolder(path, {}).run_directory() if (path / "point.lock").is_file() else None
        yield begun or path


BEST = 10
"""Points whose curves are drawn: as many as there are colours."""


def write_sweep_page(sweep: SweepDirectory, path: Path, rows: Sequence[dict[str, Any]]) -> Path:
    """Write the page of a sweep and return where it is.

    Raises:
        Refused: It cannot be written.
    """
    return write_page(path, sweep_page(sweep, rows))


def sweep_page(sweep: SweepDirectory, rows: Sequence[dict[str, Any]]) -> str:
    """Return the page of a sweep as HTML.

    Args:
        sweep: The sweep.
        rows: Of its points, the best first.
    """
    keys, figures = columns_of(rows)
    search = sweep.facts.get("search")
    metric = str(search["metric"]) if isinstance(search, dict) and "metric" in search else "valid/loss"
    records: dict[str, RunRecord] = {}
    for row in rows:
        if row["run"] is not None and len(records) < BEST:
            with suppress(Refused):  # damaged beyond that: its row says so
                record = read_run(sweep.path / row["name"] / row["run"])
                records |= {row["name"]: record} if record.curves else {}
    states = [row["state"] for row in rows]
    return render(
        "sweep.html",
        title=f"sweep {sweep.facts.get('name', sweep.path.name)}",
        states=", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states)),
        command=shlex.join(map(str, sweep.facts.get("argv") or [])),
        search=search,
        problems=[f"{row['name']}: {row['reason']}" for row in rows if row["state"] in ("failed", "lost")],
        rows=rows,
        keys=keys,
        figures=figures,
        metric=metric,
        scatters=scatters(rows, keys, metric),
        names=list(records),
        charts=charts_of(list(records.values()), list(records)) if records else [],
    )


def write_sweep_report(sweep: SweepDirectory, rows: Sequence[dict[str, Any]]) -> Path:
    """Write report.html into a sweep directory."""
    return write_sweep_page(sweep, sweep.path / "report.html", rows)
