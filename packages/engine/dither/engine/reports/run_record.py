"""What a run directory tells. Whatever is missing or damaged is named, and the rest is still told."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any

from ..config.paths import not_a_run
from ..files.checksums import checksum_differs, text_checksum_differs
from ..files.metrics_file import as_number, from_json

__all__ = ["PictureFile", "RunRecord", "read_rates", "read_run"]

FORMS = {".png": "image/png", ".svg": "image/svg+xml", ".txt": "text/plain"}
MAX_PICTURE_BYTES = 8 << 20
"""Bytes of a picture that is taken into the page."""


@dataclass(frozen=True)
class PictureFile:
    """A picture of samples.

    Attributes:
        folder: The folder under samples/, such as step-00000100.
        name: Of the file.
        form: Its media type.
        content: Its bytes.
    """

    folder: str
    name: str
    form: str
    content: bytes


@dataclass
class RunRecord:
    """All that a page says of one run.

    Attributes:
        path: The run directory.
        manifest: manifest.json.
        summary: summary.json; of a run that has not ended there is none.
        resolved: resolved.toml as tables.
        toml: resolved.toml as text.
        given: experiment.toml as text.
        curves: Kind -> name of a figure -> its (step, value), numbers only.
        pictures: Of the newest drawing.
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
        """What the run is called."""
        return str(self.resolved.get("name") or self.summary.get("name") or self.path.name)

    def last(self) -> dict[str, float]:
        """Return the newest value of every figure as kind/name."""
        return {f"{kind}/{name}": p[-1][1] for kind, figures in self.curves.items() for name, p in figures.items()}

    @property
    def step(self) -> int | None:
        """The last step of which there is a line."""
        return max((p[-1][0] for figures in self.curves.values() for p in figures.values()), default=None)


def read_run(path: Path) -> RunRecord:
    """Read a run directory.

    Raises:
        Refused: It is none: not one of a run's files is there.
    """
    if not any((path / name).exists() for name in ("resolved.toml", "manifest.json", "metrics.jsonl")):
        raise not_a_run(path, "resolved.toml, manifest.json or metrics.jsonl")
    record = RunRecord(path)
    record.manifest = _json(record, "manifest.json")
    record.summary = _json(record, "summary.json", missing="the run has not come to its end: there is no summary.json")
    record.given = _text(record, "experiment.toml")
    record.toml = _text(record, "resolved.toml")
    try:
        record.resolved = tomllib.loads(record.toml)
    except (ValueError, RecursionError) as error:
        record.problems.append(f"resolved.toml is damaged: {error}")
    if text_checksum_differs(record.toml):
        record.problems.append("resolved.toml is not what was written")
    absent = [
        key for key in ("task", "process", "model", "loss", "train", "evaluate", "sample") if key not in record.resolved
    ]
    if absent and not any("resolved.toml" in problem for problem in record.problems):
        record.problems.append(f"resolved.toml is damaged: it has no {', '.join(absent)}")
    _metrics(record)
    _pictures(record)
    try:
        rates = read_rates(path / "tensorboard")
        if rates:
            record.curves.setdefault("train", {})["steps_per_second"] = rates
    except Exception as error:  # derived data, read by a library that raises what it likes
        record.problems.append(f"tensorboard/ cannot be read: {error}")
    return record


def _text(record: RunRecord, name: str, missing: str | None = None) -> str:
    try:
        return (record.path / name).read_text(encoding="utf-8")
    except FileNotFoundError:
        record.problems.append(missing or f"{name} is missing")
    except (OSError, UnicodeDecodeError) as error:
        record.problems.append(f"{name} cannot be read: {error}")
    return ""


def _json(record: RunRecord, name: str, missing: str | None = None) -> dict[str, Any]:
    before = len(record.problems)
    text = _text(record, name, missing)
    if len(record.problems) > before:
        return {}
    try:
        values = from_json(text)
    except (ValueError, RecursionError) as error:
        record.problems.append(f"{name} is damaged: {error}")
        return {}
    if not isinstance(values, dict):
        record.problems.append(f"{name} is damaged: it holds no table")
        return {}
    if checksum_differs(values):
        record.problems.append(f"{name} is not what was written")
    return values


def _metrics(record: RunRecord) -> None:
    damaged = []
    for number, text in enumerate(_text(record, "metrics.jsonl").splitlines(), 1):
        try:
            line = from_json(text)
            step, kind = int(line.pop("step")), str(line.pop("kind"))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError):
            damaged.append(number)
            continue
        curves = record.curves.setdefault(kind, {})
        for name, value in line.items():
            if as_number(value) is not None:
                curves.setdefault(str(name), []).append((step, float(value)))
    if damaged:
        shown = ", ".join(map(str, damaged[:5])) + (", ..." if len(damaged) > 5 else "")
        record.problems.append(f"metrics.jsonl is damaged: {len(damaged)} lines cannot be read: {shown}")


def _pictures(record: RunRecord) -> None:
    """Take in the pictures of the newest drawing that has any; of several forms of one, the first that there is."""
    folders = sorted((path for path in (record.path / "samples").glob("*") if path.is_dir()), reverse=True)
    for folder in folders:
        names: dict[str, Path] = {}
        for suffix in FORMS:
            for file in sorted(folder.glob(f"*{suffix}")):
                names.setdefault(file.stem, file)
        for file in names.values():
            try:
                if file.stat().st_size > MAX_PICTURE_BYTES:
                    record.problems.append(f"samples/{folder.name}/{file.name} is too large to be shown here")
                    continue
                content = file.read_bytes()
            except OSError as error:
                record.problems.append(f"samples/{folder.name}/{file.name} cannot be read: {error}")
                continue
            record.pictures.append(PictureFile(folder.name, file.name, FORMS[file.suffix], content))
        if names:
            return


def read_rates(folder: Path) -> list[tuple[int, float]]:
    """Return (step, steps per second since the line before) from the events of a run, or nothing where there are none.

    Evaluations and drawings between two lines count as time of training here.
    """
    if not any(folder.glob("*tfevents*")):
        return []
    loader: Any = import_module("tensorboard.backend.event_processing.event_file_loader").EventFileLoader

    stamps: dict[int, float] = {}
    for path in sorted(folder.glob("*tfevents*")):
        for event in loader(str(path)).Load():
            if any(value.tag == "train/loss" for value in event.summary.value):
                stamps[event.step] = event.wall_time
    steps = sorted(stamps)
    return [(b, (b - a) / (stamps[b] - stamps[a])) for a, b in pairwise(steps) if stamps[b] > stamps[a]]
