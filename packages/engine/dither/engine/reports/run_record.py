"""Read a run directory for a report; missing or damaged files are listed as problems."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any

from ..config.paths import not_a_run
from ..files.checksums import checksum_differs, text_checksum_differs
from ..files.metrics_file import as_number, from_json

__all__ = ["PictureFile", "RunRecord", "read_run", "read_speed"]

MEDIA_TYPES = {".png": "image/png", ".svg": "image/svg+xml", ".txt": "text/plain"}
MAX_PICTURE_BYTES = 8 << 20
TABLES = ("task", "process", "model", "loss", "train", "evaluate", "sample")
"""Keys of every resolved.toml."""


@dataclass(frozen=True)
class PictureFile:
    """A picture of samples: folder under samples/, file name, media type, content."""

    folder: str
    name: str
    media_type: str
    content: bytes


@dataclass
class RunRecord:
    """Content of a run directory.

    Attributes:
        path: The run directory.
        manifest: manifest.json.
        summary: summary.json, empty for an unfinished run.
        resolved: resolved.toml as tables.
        toml: resolved.toml as text.
        given: experiment.toml as text.
        curves: Kind -> name of a metric -> (step, value).
        pictures: The newest pictures.
        problems: What is missing or damaged.
    """

    path: Path
    manifest: dict[str, Any] = field(default_factory=dict)
    summary: dict[str, Any] = field(default_factory=dict)
    resolved: dict[str, Any] = field(default_factory=dict)
    toml: str = ""
    given: str = ""
    curves: dict[str, dict[str, list[tuple[int, float]]]] = field(default_factory=dict)
    pictures: list[PictureFile] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        """Name of the run."""
        return str(self.resolved.get("name") or self.summary.get("name") or self.path.name)

    def last(self) -> dict[str, float]:
        """Return the newest value of every metric by kind/name."""
        return {f"{kind}/{name}": p[-1][1] for kind, metrics in self.curves.items() for name, p in metrics.items()}

    @property
    def step(self) -> int | None:
        """The last step in metrics.jsonl."""
        return max((p[-1][0] for metrics in self.curves.values() for p in metrics.values()), default=None)


def read_run(path: Path) -> RunRecord:
    """Read a run directory.

    Raises:
        Refused: It is not a run directory.
    """
    if not any((path / name).exists() for name in ("resolved.toml", "manifest.json", "metrics.jsonl")):
        raise not_a_run(path, "resolved.toml, manifest.json or metrics.jsonl")
    record = RunRecord(path)
    record.manifest = _read(record, "manifest.json", _table) or {}
    unfinished = "unfinished run: there is no summary.json"
    record.summary = _read(record, "summary.json", _table, unfinished) or {}
    record.given = _read(record, "experiment.toml", str) or ""
    text = _read(record, "resolved.toml", str)
    if text is not None:
        record.toml, record.resolved = text, _read(record, "resolved.toml", _resolved) or {}
    _read_metrics(record)
    _read_pictures(record)
    try:
        if speed := read_speed(path / "tensorboard"):
            record.curves.setdefault("train", {})["steps_per_second"] = speed
    except Exception as error:  # any error of the library
        record.problems.append(f"tensorboard/ cannot be read: {error}")
    return record


def _read(record: RunRecord, name: str, parse: Callable[[str], Any], missing: str | None = None) -> Any:
    """Return a parsed file; a failure is a problem, and so is a checksum that differs (a ValueError with a value)."""
    try:
        return parse((record.path / name).read_text(encoding="utf-8"))
    except FileNotFoundError:
        record.problems.append(missing or f"{name} is missing")
    except _ChangedError as changed:
        record.problems.append(f"{name} {changed}")
        return changed.value
    except (OSError, UnicodeDecodeError) as error:
        record.problems.append(f"{name} cannot be read: {error}")
    except (ValueError, RecursionError) as error:
        record.problems.append(f"{name} is damaged: {error}")
    return None


class _ChangedError(Exception):
    """A file that can be used, but was changed or is incomplete."""

    def __init__(self, message: str, value: Any) -> None:
        super().__init__(message)
        self.value = value


def _table(text: str) -> dict[str, Any]:
    values = from_json(text)
    if not isinstance(values, dict):
        raise ValueError("not a table")
    if checksum_differs(values):
        raise _ChangedError("was changed: its checksum differs", values)
    return values


def _resolved(text: str) -> dict[str, Any]:
    values = tomllib.loads(text)
    if text_checksum_differs(text):
        raise _ChangedError("was changed: its checksum differs", values)
    if absent := [key for key in TABLES if key not in values]:
        raise _ChangedError(f"is damaged: it has no {', '.join(absent)}", values)
    return values


def _read_metrics(record: RunRecord) -> None:
    damaged = []
    text = _read(record, "metrics.jsonl", str) or ""
    for number, line in enumerate(text.splitlines(), 1):
        try:
            values = from_json(line)
            step, kind = int(values.pop("step")), str(values.pop("kind"))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError):
            damaged.append(number)
            continue
        curves = record.curves.setdefault(kind, {})
        for name, value in values.items():
            if as_number(value) is not None:
                curves.setdefault(str(name), []).append((step, float(value)))
    if damaged:
        shown = ", ".join(map(str, damaged[:5])) + (", ..." if len(damaged) > 5 else "")
        record.problems.append(f"metrics.jsonl is damaged: {len(damaged)} lines cannot be read: {shown}")


def _read_pictures(record: RunRecord) -> None:
    """Read the newest folder of pictures; of several formats of one picture, the first of `MEDIA_TYPES`."""
    folders = (path for path in (record.path / "samples").glob("*") if path.is_dir())
    for folder in sorted(folders, reverse=True):
        files: dict[str, Path] = {}
        for suffix in MEDIA_TYPES:
            for file in sorted(folder.glob(f"*{suffix}")):
                files.setdefault(file.stem, file)
        for file in files.values():
            name = f"samples/{folder.name}/{file.name}"
            try:
                if file.stat().st_size > MAX_PICTURE_BYTES:
                    record.problems.append(f"{name} is too large to be shown")
                    continue
                content = file.read_bytes()
            except OSError as error:
                record.problems.append(f"{name} cannot be read: {error}")
                continue
            record.pictures.append(PictureFile(folder.name, file.name, MEDIA_TYPES[file.suffix], content))
        if files:
            return


def read_speed(folder: Path) -> list[tuple[int, float]]:
    """Return (step, steps per second) from TensorBoard events; evaluations between two lines count as training time."""
    if not any(folder.glob("*tfevents*")):
        return []
    loader: Any = import_module("tensorboard.backend.event_processing.event_file_loader").EventFileLoader
    times: dict[int, float] = {}
    for path in sorted(folder.glob("*tfevents*")):
        for event in loader(str(path)).Load():
            if any(value.tag == "train/loss" for value in event.summary.value):
                times[event.step] = event.wall_time
    return [(b, (b - a) / (times[b] - times[a])) for a, b in pairwise(sorted(times)) if times[b] > times[a]]
