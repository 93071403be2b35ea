"""Read a run directory for a report; missing or damaged files are listed as problems."""

from __future__ import annotations

import base64
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from dither.registry.files.limits import RECORD_BYTES, TABLE_BYTES, read_bytes, read_text

from ..config.paths import not_a_run
from ..files.checksums import checksum_differs, text_checksum_differs
from ..files.metrics_file import TIMES, as_number, baselines_of, from_json

__all__ = ["PictureFile", "RunRecord", "read_run"]

MEDIA_TYPES = {".png": "image/png", ".svg": "image/svg+xml", ".txt": "text/plain"}


class PictureFile(NamedTuple):
    """A picture of samples: FOLDER/NAME under samples/, and its text or a data URI, which cannot run scripts."""

    name: str
    text: str | None
    data: str | None


@dataclass
class RunRecord:
    """Content of a run directory: its JSON files, resolved.toml as tables and as text, experiment.toml as `given`.

    `curves` are (step, value) by kind and metric, `pictures` the newest, `problems` what is missing
    or damaged.
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
        return str(self.resolved.get("name") or self.summary.get("name") or self.path.name)

    def last(self) -> dict[str, float]:
        """Return the newest value of every metric by kind/name."""
        return {
            f"{kind}/{name}": p[-1][1]
            for kind, metrics in self.curves.items()
            for name, p in metrics.items()
        }

    @property
    def step(self) -> int | None:
        """The last step in metrics.jsonl."""
        return max(
            (p[-1][0] for metrics in self.curves.values() for p in metrics.values()), default=None
        )

    def baselines(self, kind: str, metric: str) -> dict[str, float]:
        """Return the baselines of a metric by name; there are none of training."""
        known = self.summary.get("baselines")
        numbers = known.items() if isinstance(known, dict) and kind != "train" else ()
        return baselines_of(
            kind, metric, {key: value for key, value in numbers if as_number(value) is not None}
        )


def read_run(path: Path, brief: bool = False) -> RunRecord:
    """Read a run directory, or refuse another folder; `brief` leaves out pictures, and curves of a finished run."""
    if not any(
        (path / name).exists() for name in ("resolved.toml", "manifest.json", "metrics.jsonl")
    ):
        raise not_a_run(path, "resolved.toml, manifest.json or metrics.jsonl")
    record = RunRecord(path)
    record.manifest = _read(record, "manifest.json", _json, checksum_differs) or {}
    unfinished = "unfinished run: there is no summary.json"
    record.summary = _read(record, "summary.json", _json, checksum_differs, unfinished) or {}
    if not brief:
        record.given = _read(record, "experiment.toml", str) or ""
    toml = _read(
        record, "resolved.toml", str, lambda text: text_checksum_differs(text) is not False
    )
    if toml is not None:
        record.toml = toml
        record.resolved = _read(record, "resolved.toml", tomllib.loads) or {}
    if brief and isinstance(figures := record.summary.get("figures"), dict):
        step = int(as_number(record.summary.get("step")) or 0)
        record.curves = {
            kind: {
                name: [(step, value)]
                for name, value in values.items()
                if as_number(value) is not None
            }
            for kind, values in figures.items()
            if isinstance(values, dict)
        }
        return record
    _read_metrics(record)
    if not brief:
        _read_pictures(record)
    return record


def _read(
    record: RunRecord,
    name: str,
    parse: Callable[[str], Any],
    differs: Callable[[Any], object] = lambda value: False,
    missing: str = "",
) -> Any:
    """Return a parsed file, or None; a failure is a problem, and so is a checksum that differs."""
    try:
        value = parse(
            read_text(record.path / name, TABLE_BYTES if name.endswith(".jsonl") else RECORD_BYTES)
        )
        if differs(value):
            record.problems.append(f"{name} was changed: its checksum differs")
        return value
    except FileNotFoundError:
        record.problems.append(missing or f"{name} is missing")
    except OSError as error:
        record.problems.append(f"{name} cannot be read: {error}")
    except (ValueError, RecursionError) as error:
        record.problems.append(f"{name} is damaged: {error}")
    return None


def _json(text: str) -> dict[str, Any]:
    values = from_json(text)
    if not isinstance(values, dict):
        raise ValueError("not a table")
    return values


def _read_metrics(record: RunRecord) -> None:
    damaged = []
    text = _read(record, "metrics.jsonl", str) or ""
    for number, line in enumerate(text.splitlines(), 1):
        try:
            values = from_json(line)
            step = int(values.pop("step"))
            kind = str(values.pop("kind"))
            values = {name: value for name, value in values.items() if name not in TIMES}
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError):
            damaged.append(number)
            continue
        curves = record.curves.setdefault(kind, {})
        for name, value in values.items():
            if as_number(value) is not None:
                curves.setdefault(str(name), []).append((step, float(value)))
    if damaged:
        shown = ", ".join(map(str, damaged[:5])) + (", ..." if len(damaged) > 5 else "")
        record.problems.append(
            f"metrics.jsonl is damaged: {len(damaged)} lines cannot be read: {shown}"
        )


def _read_pictures(record: RunRecord) -> None:
    """Read the newest folder of pictures; of several formats of one picture, the first of `MEDIA_TYPES`."""
    folders = (path for path in (record.path / "samples").glob("*") if path.is_dir())
    for folder in sorted(folders, reverse=True):
        files: dict[str, Path] = {}
        for suffix in MEDIA_TYPES:
            for file in sorted(folder.glob(f"*{suffix}")):
                files.setdefault(file.stem, file)
        for file in files.values():
            try:
                content = read_bytes(file)
            except OSError as error:
                record.problems.append(f"{file.relative_to(record.path)} cannot be read: {error}")
                continue
            text = content.decode("utf-8", "replace") if file.suffix == ".txt" else None
            data = f"data:{MEDIA_TYPES[file.suffix]};base64,{base64.b64encode(content).decode()}"
            record.pictures.append(
                PictureFile(f"{folder.name}/{file.name}", text, data if text is None else None)
            )
        if files:
            return
