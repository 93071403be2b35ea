"""The page of a sweep: every point in a table, and the curves of the best beside each other."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from dither.registry.problems import Refused

from ..sweep.directory import SweepDirectory
from ..sweep.summary import columns_of
from .charts import charts_of
from .gather import RunRecord, gather
from .page import render, write_page
from .scatter import scatters

__all__ = ["sweep_page", "write_sweep_page"]

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
                record = gather(sweep.path / row["name"] / row["run"])
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
