"""Read a run directory for a report; missing or damaged files are listed as problems."""

from __future__ import annotations

import base64
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from dither.registry.files.limits import (
    RECORD_BYTES,
    TABLE_BYTES,
    read_bytes,
    read_text,
)
from dither.registry.files.lookup import exists, is_folder

from ..config.paths import not_a_run
from ..files.checksums import checksum_differs
from ..files.damage import UNREADABLE, DamageError, damage_of
from ..files.metrics_file import TIMES, as_number, baselines_of, from_json

__all__ = ["PictureFile", "RunRecord", "read_run"]

MEDIA_TYPES = {".png": "image/png", ".svg": "image/svg+xml", ".txt": "text/plain"}

Curves = dict[str, dict[str, list[tuple[int, float]]]]


class PictureFile(NamedTuple):
    """A picture of samples: FOLDER/NAME, and its text, or a data URI, which cannot run scripts."""

    name: str
    text: str | None
    data: str | None


@dataclass
class RunRecord:
    """Content of a run directory.

    Attributes:
        resolved: resolved.toml as tables; `toml` is its text.
        given: Text of experiment.toml.
        curves: Steps and values by kind and metric.
        pictures: Those of the newest folder.
        problems: Missing and damaged files.
    """

    path: Path
    manifest: dict[str, Any] = field(default_factory=dict)
    summary: dict[str, Any] = field(default_factory=dict)
    resolved: dict[str, Any] = field(default_factory=dict)
    toml: str = ""
    given: str = ""
    curves: Curves = field(default_factory=dict)
    pictures: list[PictureFile] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        return str(
            self.resolved.get("name") or self.summary.get("name") or self.path.name
        )

    def last(self) -> dict[str, float]:
        """Return the newest value of every metric by kind/name."""
        values = {}
        for kind, curves in self.curves.items():
            for name, points in curves.items():
                values[f"{kind}/{name}"] = points[-1][1]
        return values

    @property
    def step(self) -> int | None:
        """The last step in metrics.jsonl."""
        steps = []
        for curves in self.curves.values():
            steps += [points[-1][0] for points in curves.values()]
        return max(steps, default=None)

    def baselines(self, kind: str, metric: str) -> dict[str, float]:
        """Return the baselines of a metric by name; there are none of training."""
        baselines = self.summary.get("baselines")
        if kind == "train" or not isinstance(baselines, dict):
            return {}
        numbers = {
            key: value
            for key, value in baselines.items()
            if as_number(value) is not None
        }
        return baselines_of(kind, metric, numbers)


def read_run(path: Path, brief: bool = False) -> RunRecord:
    """Read a run directory; `brief` leaves out pictures, and curves of a finished run.

    Raises:
        Refused: It is another folder.
    """
    files = ("resolved.toml", "manifest.json", "metrics.jsonl")
    if not any(exists(path / name) for name in files):
        raise not_a_run(path, "resolved.toml, manifest.json or metrics.jsonl")
    record = RunRecord(path)
    record.manifest = _read(record, "manifest.json", _json, checksum_differs) or {}
    # It is written at the end of a run.
    unfinished = "unfinished run: there is no summary.json"
    summary = _read(record, "summary.json", _json, checksum_differs, unfinished)
    record.summary = summary or {}
    toml = _read(record, "resolved.toml", str)
    if toml is not None:
        record.toml = toml
        # A text that is not TOML is shown all the same.
        record.resolved = _read(record, "resolved.toml", tomllib.loads) or {}

    metrics = record.summary.get("metrics")
    if brief and isinstance(metrics, dict):
        record.curves = _last_points(record, metrics)
        return record
    _read_metrics(record)
    if not brief:
        record.given = _read(record, "experiment.toml", str) or ""
        _read_pictures(record)
    return record


def _last_points(record: RunRecord, metrics: dict[str, Any]) -> Curves:
    """Return the metrics of a summary as curves of one point."""
    step = int(as_number(record.summary.get("step")) or 0)
    curves: Curves = {}
    for kind, values in metrics.items():
        if not isinstance(values, dict):
            continue
        curves[kind] = {}
        for name, value in values.items():
            number = as_number(value)
            if number is not None:
                curves[kind][name] = [(step, number)]
    return curves


def _read(
    record: RunRecord,
    name: str,
    parse: Callable[[str], Any],
    differs: Callable[[Any], object] = lambda value: False,
    missing: str = "",
) -> Any:
    """Return a parsed file, or None; a failure is a problem, and so is a checksum that differs."""
    # A file of metrics grows with the run.
    limit = TABLE_BYTES if name.endswith(".jsonl") else RECORD_BYTES
    try:
        value = parse(read_text(record.path / name, limit))
        if differs(value):
            record.problems.append(f"{name} was changed: its checksum differs")
        return value
    except FileNotFoundError:
        record.problems.append(missing or f"{name} is missing")
    except OSError as error:
        record.problems.append(f"{name} {damage_of(error).reason}")
    except (ValueError, RecursionError) as error:
        record.problems.append(f"{name} is damaged: {damage_of(error).reason}")
    return None


def _json(text: str) -> dict[str, Any]:
    values = from_json(text)
    if not isinstance(values, dict):
        raise DamageError("not a table")
    return values


def _read_metrics(record: RunRecord) -> None:
    damaged = []
    text = _read(record, "metrics.jsonl", str) or ""
    for number, line in enumerate(text.splitlines(), 1):
        try:
            values = from_json(line)
            step = int(values.pop("step"))
            kind = str(values.pop("kind"))
        # It is not a table with a step and a kind.
        except UNREADABLE:
            # The other lines of a file that a full disk has cut are worth showing.
            damaged.append(number)
            continue
        curves = record.curves.setdefault(kind, {})
        for name, value in values.items():
            if name not in TIMES and as_number(value) is not None:
                curves.setdefault(str(name), []).append((step, float(value)))
    if damaged:
        numbers = ", ".join(map(str, damaged[:5]))
        if len(damaged) > 5:
            numbers += ", ..."
        message = (
            f"metrics.jsonl is damaged: {len(damaged)} lines cannot be read: {numbers}"
        )
        record.problems.append(message)


def _read_pictures(record: RunRecord) -> None:
    """Read the newest folder of pictures."""
    folders = (path for path in (record.path / "samples").glob("*") if is_folder(path))
    # The newest may be empty: a run was killed while it drew.
    for folder in sorted(folders, reverse=True):
        # Of several formats of one picture, the first of `MEDIA_TYPES`.
        files: dict[str, Path] = {}
        for suffix in MEDIA_TYPES:
            for file in sorted(folder.glob(f"*{suffix}")):
                files.setdefault(file.stem, file)
        for file in files.values():
            try:
                record.pictures.append(_picture(f"{folder.name}/{file.name}", file))
            except OSError as error:
                record.problems.append(
                    f"{file.relative_to(record.path)} {damage_of(error).reason}"
                )
        if files:
            return


def _picture(name: str, file: Path) -> PictureFile:
    content = read_bytes(file)
    if file.suffix == ".txt":
        return PictureFile(name, content.decode("utf-8", "replace"), None)
    data = base64.b64encode(content).decode()
    return PictureFile(name, None, f"data:{MEDIA_TYPES[file.suffix]};base64,{data}")
