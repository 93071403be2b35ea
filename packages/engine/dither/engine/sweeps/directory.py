"""Sweep directories: `sweep.json`, a folder per point with experiment, status, output, lock, run; results."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import tomlkit
from filelock import FileLock, Timeout
from rich.console import Console
from rich.table import Table

from dither.registry.config.document import Document
from dither.registry.config.errors import Problem, Refused, did_you_mean
from dither.registry.files.atomic import atomic_write
from dither.registry.files.limits import read_text
from dither.registry.files.write_errors import unwritable
from dither.registry.plugins.manager import Plugins

from ..config.load_experiment import Loaded
from ..config.paths import absolute_paths, not_a_run
from ..config.plugins import governing_policy_file
from ..files.damage import DamageError, damage_of
from ..files.metrics_file import as_json, read_metrics
from ..files.run_folders import is_locked
from ..runs.progress import cell, fits, say, table
from ..runs.run_directory import (
    LOCK_TIMEOUT,
    copy_experiment,
    now,
    resolved,
    unique_folder,
)
from .points import format_value, short_keys

__all__ = [
    "MARK",
    "RESUMABLE",
    "WEIGHTS_OF",
    "PointFolder",
    "SweepDirectory",
    "columns_of",
    "count_states",
    "require_metric",
    "row_of",
    "rows_of",
    "show_rows",
    "write_json",
]

RESUMABLE = ("waiting", "stopped", "lost", "failed")
"""States of points that `--resume` runs; the others are running, done and pruned."""
WEIGHTS_OF = "weights.json"
"""The file of a point that measures the weights of another one."""
MARK = "sweep.json"
"""The file that identifies a sweep directory."""


def write_json(path: Path, values: Any) -> None:
    """Replace a JSON file atomically; FileNotFoundError if its folder was deleted or renamed."""
    # atomic_write would create the folder again.
    path.parent.stat()
    with atomic_write(path) as temporary:
        temporary.write_text(as_json(values, indent=2) + "\n", encoding="utf-8")


@dataclass(frozen=True)
class PointFolder:
    """The folder of one point, and its values by key."""

    path: Path
    values: Mapping[str, Any]

    @property
    def name(self) -> str:
        return self.path.name

    def status(self) -> dict[str, Any]:
        """Return status.json: state, exit_code, reason, pid, host, started, ended, attempts.

        A running point whose process is gone is "lost". Reading neither takes the lock of a running
        point nor waits.
        """
        try:
            status: dict[str, Any] = json.loads(read_text(self.path / "status.json"))
            running = status["state"] == "running"
        except FileNotFoundError:
            return {"state": "waiting"}
        except (OSError, ValueError, KeyError, TypeError) as error:
            reason = f"status.json is damaged: {damage_of(error).reason}"
            return {"state": "lost", "reason": reason}
        if running and not is_locked(self.path / "point.lock"):
            return status | {
                "state": "lost",
                "reason": "its process ended unexpectedly",
            }
        return status

    def write_status(self, state: str, **facts: Any) -> None:
        write_json(self.path / "status.json", {"state": state, **facts})

    def claim(self) -> FileLock | None:
        """Lock the point for this process; return None if another process holds it."""
        # A soft lock is a file, which a killed process would leave.
        lock = FileLock(
            self.path / "point.lock", thread_local=False, fallback_to_soft=False
        )
        try:
            lock.acquire(timeout=LOCK_TIMEOUT, poll_interval=0.01)
        except Timeout:
            return None
        return lock

    def weights_point(self) -> PointFolder | None:
        """Return the point whose weights this one measures, or None if it trains its own."""
        try:
            name = str(json.loads(read_text(self.path / WEIGHTS_OF))["point"])
            # A name with a separator is refused below.
            if name in ("", ".", ".."):
                raise DamageError("not the name of a point")
            return PointFolder(self.path.with_name(name), {})
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            reason = damage_of(error).reason
            message = f"{self.path / WEIGHTS_OF} is damaged: {reason}"
            raise Refused(message, code="damaged-file") from None

    def run_directory(self) -> Path | None:
        """Return the newest run directory, or None before the first run."""
        runs = [path.parent for path in self.path.glob("*/resolved.toml")]
        # Names end in the time.
        return max(runs, key=lambda path: path.name, default=None)


class SweepDirectory:
    """A sweep directory, and the content of its sweep.json."""

    def __init__(self, path: Path, facts: dict[str, Any]) -> None:
        self.path = path
        self.facts = facts

    @classmethod
    def create(
        cls,
        runs: Path,
        document: Document,
        argv: Sequence[str],
        kind: str = "sweep",
        **facts: Any,
    ) -> SweepDirectory:
        """Make a new directory `<kind>-...` inside `runs`; `facts` are added to sweep.json."""
        path = unique_folder(runs, kind)
        # The files that it extends come first.
        given = document.files[-1]
        try:
            path.mkdir(parents=True)
            copy_experiment(document, path)
        except (OSError, ValueError) as error:
            raise unwritable(f"the sweep directory {path}", error) from None
        registry = governing_policy_file(given)
        first: dict[str, Any] = {
            "format": 1,
            "name": str(document.tree.get("name", given.stem)),
            "file": str(given),
            "started": now(),
            "argv": list(argv),
            "registry": None if registry is None else str(registry),
        }
        return cls(path, {**first, **facts, "points": []})

    @classmethod
    def open(cls, path: Path) -> SweepDirectory:
        """Open a sweep directory, or refuse another folder or a damaged sweep.json."""
        try:
            facts = json.loads(read_text(path / MARK))
            for point in facts["points"]:
                # A name from a file is never a path.
                if Path(point["name"]).name != point["name"] or not isinstance(
                    point["values"], dict
                ):
                    raise DamageError("a point requires a name and values")
        except (FileNotFoundError, NotADirectoryError):
            raise not_a_run(path, MARK, "sweep") from None
        except (OSError, ValueError, KeyError, TypeError) as error:
            message = f"{path / MARK} is damaged: {damage_of(error).reason}"
            raise Refused(message, code="damaged-file") from None
        return cls(path, facts)

    def add(self, name: str, values: Mapping[str, Any], loaded: Loaded) -> PointFolder:
        """Make the folder of a point, with its experiment and plugin files."""
        folder = PointFolder(self.path / name, dict(values))
        self._write_experiment(folder.path, resolved(loaded), loaded.plugins)
        return folder

    def copy_base(self, document: Document, plugins: Plugins) -> None:
        """Write base/experiment.toml, from which a search makes further points; `extends` is merged."""
        tree = absolute_paths(document.tree, Path.cwd(), plugins.catalog)
        tree["plugins"] = [
            *(f"plugins/{file.name}" for file in plugins.files),
            *plugins.requested,
        ]
        self._write_experiment(self.path / "base", tree, plugins)

    def _write_experiment(
        self, folder: Path, tree: Mapping[str, Any], plugins: Plugins
    ) -> None:
        folder.mkdir()
        checksums = self.facts.setdefault("plugins", {})
        for file, status in plugins.files.items():
            (folder / "plugins").mkdir(exist_ok=True)
            shutil.copyfile(file, folder / "plugins" / file.name)
            # The points run these copies only if they are as recorded in sweep.json.
            checksums[file.name] = {"sha256": status.sha256}
        (folder / "experiment.toml").write_text(tomlkit.dumps(tree), encoding="utf-8")

    def record(self, folders: Iterable[PointFolder] = ()) -> None:
        self.facts["points"] = [
            {"name": folder.name, "values": folder.values} for folder in folders
        ]
        write_json(self.path / MARK, self.facts)

    def folders(self) -> list[PointFolder]:
        """Return the folders of all points.

        Those of a search are found on disk, since other processes may add some.
        """
        if self.facts.get("search"):
            files = sorted(self.path.glob("*/point.json"))
            return [PointFolder(file.parent, _values(file)) for file in files]
        points = self.facts["points"]
        return [
            PointFolder(self.path / point["name"], point["values"]) for point in points
        ]


def _values(file: Path) -> dict[str, Any]:
    """Return the values of a point, or none if the file is damaged."""
    try:
        return dict(json.loads(read_text(file))["values"])
    except (OSError, ValueError, KeyError, TypeError):
        return {}


# In the printed table; --json and the page have all.
MAX_METRICS = 5


def row_of(point: PointFolder) -> dict[str, Any]:
    """Return name, state, reason, run, step, values by key, and the newest metrics by kind/name."""
    status = point.status()
    run = point.run_directory()
    row: dict[str, Any] = {
        "name": point.name,
        "state": status["state"],
        "reason": status.get("reason"),
        "run": None if run is None else run.name,
        "step": None,
        "values": dict(point.values),
        "metrics": {},
    }
    if run is None:
        return row
    try:
        for line in read_metrics(run / "metrics.jsonl"):
            row["step"] = line.pop("step", None)
            kind = line.pop("kind")
            for key, value in line.items():
                row["metrics"][f"{kind}/{key}"] = value
    except FileNotFoundError:
        pass
    except (OSError, ValueError, KeyError) as error:
        reason = f"metrics.jsonl is damaged: {damage_of(error).reason}"
        row["reason"] = row["reason"] or reason
    # Only a finished run has a summary.
    with suppress(OSError, ValueError, KeyError, TypeError):
        summary = json.loads(read_text(run / "summary.json"))
        row["metrics"]["steps_per_second"] = float(summary["steps_per_second"])
    return row


def rows_of(
    sweep: SweepDirectory, metric: str | None = None, descending: bool | None = None
) -> list[dict[str, Any]]:
    """Return the rows of all points by a metric or swept key, best first, those without it last.

    By default the metric and direction are those of the search, or the validation loss.
    """
    search = sweep.facts.get("search") or {}
    rows = [row_of(point) for point in sweep.folders()]
    if metric is not None:
        measured = [
            {**row["values"], **row["metrics"]} for row in rows if row["metrics"]
        ]
        require_metric(metric, measured, "--sort")
    by = metric or search.get("metric") or "valid/loss"
    if descending is None:
        descending = search.get("direction") == "maximize"
    sign = -1 if descending else 1

    def rank(row: dict[str, Any]) -> tuple[bool, float]:
        value = row["metrics"].get(by, row["values"].get(by))
        if isinstance(value, int | float) and math.isfinite(value):
            return False, sign * value
        return True, 0.0

    return sorted(rows, key=rank)


def require_metric(
    name: str, measured: Iterable[Mapping[str, Any]], option: str
) -> None:
    """Refuse a name under which nothing was measured, if anything was."""
    known = dict.fromkeys(chain.from_iterable(measured))
    if known and name not in known:
        listed = f"known: {', '.join(known)}"
        lines = [line for line in (did_you_mean(name, known), listed) if line]
        hint = "\n".join(lines)
        message = f'{option}: unknown metric "{name}"'
        raise Refused(Problem(message, help=hint, code="unknown-metric"))


def columns_of(rows: Sequence[dict[str, Any]]) -> tuple[list[str], list[str]]:
    """Return the swept keys and the metrics of all rows: validation first, training last."""
    keys = list(dict.fromkeys(chain.from_iterable(row["values"] for row in rows)))
    metrics = list(dict.fromkeys(chain.from_iterable(row["metrics"] for row in rows)))
    metrics.sort(
        key=lambda name: (not name.startswith("valid/"), name.startswith("train/"))
    )
    return keys, metrics


def show_rows(
    console: Console, rows: Sequence[dict[str, Any]], metric: str | None = None
) -> None:
    """Print a table, the number of points by state, and the reasons of failures; `metric` is the first column.

    It has as many metrics as fit the console.
    """
    keys, metrics = columns_of(rows)
    metrics = sorted(metrics, key=lambda name: name != metric)[:MAX_METRICS]
    page = _table_of(rows, keys, metrics)
    while len(metrics) > 1 and not fits(console, page):
        metrics.pop()
        page = _table_of(rows, keys, metrics)
    console.print(page)
    say(console, count_states(rows))
    for row in rows:
        if row["reason"] and row["state"] in ("failed", "lost"):
            say(console, f"{row['name']}: {row['reason']}", "red")


def count_states(rows: Sequence[dict[str, Any]]) -> str:
    """Return the number of points in each state."""
    states = [row["state"] for row in rows]
    return ", ".join(
        f"{states.count(state)} {state}" for state in dict.fromkeys(states)
    )


def _table_of(
    rows: Sequence[dict[str, Any]], keys: Sequence[str], metrics: Sequence[str]
) -> Table:
    short = short_keys([tuple(key.split(".")) for key in keys])
    page = table("point", "state", "step", *short, *metrics, right=("step", *metrics))
    for row in rows:
        number = row["name"].partition("-")[0]
        texts = [number, row["state"], "" if row["step"] is None else str(row["step"])]
        for key in keys:
            texts.append(
                format_value(row["values"][key]) if key in row["values"] else ""
            )
        for name in metrics:
            value = row["metrics"].get(name)
            texts.append(f"{value:.5g}" if isinstance(value, int | float) else "")
        page.add_row(*map(cell, texts))
    return page
