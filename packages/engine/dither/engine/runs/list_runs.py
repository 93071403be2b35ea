"""Listing the runs of a folder, and verifying the files of a run."""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from dither.registry.config.document import Document
from dither.registry.config.errors import Refused

from ..checkpoints.best_checkpoint import Scores
from ..checkpoints.checkpoint import Checkpoints
from ..files.checksums import checksum_differs, text_checksum_differs, verify
from ..files.metrics_file import as_number
from .run_directory import held_by, read_manifest, resolved_file

__all__ = ["Finding", "ListedRun", "list_runs", "verify_run"]

SWEEP = "sweep.json"
State = Literal["done", "running", "stopped", "empty", "damaged"]


@dataclass(frozen=True)
class ListedRun:
    """A run in a list.

    Attributes:
        path: The run directory.
        name: Name of the experiment.
        state: done; running; stopped with a checkpoint; empty, without one; damaged.
        step: Step of the newest checkpoint, damaged or not; None for none.
        steps: `train.steps`.
        figures: The last metrics, by kind/name.
        size: Bytes of all files.
    """

    path: Path
    name: str
    state: State
    step: int | None
    steps: int | None
    figures: dict[str, float]
    size: int


@dataclass(frozen=True)
class Finding:
    """The result of verifying a file or folder of a run.

    Attributes:
        what: Its path in the run directory.
        reason: What is wrong with it, or None.
    """

    what: str
    reason: str | None = None


def list_runs(folder: Path) -> Iterator[ListedRun]:
    """Yield the runs of a folder or of a sweep, oldest first; other folders are skipped.

    Raises:
        Refused: Not a folder.
    """
    if not folder.is_dir():
        raise Refused(f"not a folder: {folder}", code="file-not-found")
    for path in sorted(folder.glob("*/*") if (folder / SWEEP).is_file() else folder.iterdir()):
        if (path / "resolved.toml").is_file() or (path / "run.lock").is_file():
            yield _listed(path)


def _listed(path: Path) -> ListedRun:
    steps: int | None = None
    state: State | None = None
    name = path.name
    try:
        text = (path / "resolved.toml").read_text(encoding="utf-8")
        tables = tomllib.loads(text)
        steps, name = int(tables["train"]["steps"]), str(tables["name"])
        state = "damaged" if text_checksum_differs(text) else None
    except (OSError, ValueError, KeyError, TypeError, RecursionError, OverflowError):
        state = "damaged"
    figures, ended = {}, steps
    with suppress(OSError, ValueError, TypeError, AttributeError, KeyError, RecursionError):
        summary = json.loads((path / "summary.json").read_text(encoding="utf-8"))
        figures = {
            f"{kind}/{key}": value
            for kind, values in summary["figures"].items()
            for key, value in values.items()
            if as_number(value) is not None
        }
        figures = {} if checksum_differs(summary) else figures
        ended = summary["step"] if summary.get("steps") == steps else steps  # early stopping
    newest = next((step for step, _ in Checkpoints(path / "checkpoints").steps()), None)
    if held_by(path):
        state = "running"
    elif state is None:
        state = "empty" if newest is None else "done" if figures and newest == ended else "stopped"
    return ListedRun(path, name, state, newest, steps, figures, _bytes(path))


def _bytes(folder: Path) -> int:
    """Return the bytes of all files in a folder, while a run may delete some."""
    size = 0
    for inner, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                size += os.lstat(os.path.join(inner, name)).st_size
    return size


def verify_run(path: Path) -> list[Finding]:
    """Verify the checksums of everything that a run would resume from.

    Raises:
        Refused: Not a run directory.
    """
    resolved_file(path, verify=False)
    found = []
    for name, read in (
        ("resolved.toml", lambda: Document.read(resolved_file(path))),
        ("manifest.json", lambda: read_manifest(path)),
        ("scores.json", lambda: Scores(path, "", "lower")),
    ):
        try:
            read()
            found.append(Finding(name))
        except Refused as error:
            found.append(Finding(name, str(error)))
    found.append(Finding("metrics.jsonl", _metrics(path)))
    checkpoints = sorted((path / "checkpoints").glob("*")) if (path / "checkpoints").is_dir() else []
    for folder in checkpoints:
        left_over = folder.name.startswith(".tmp-")
        reason = "left by an interrupted write; deleted when the run resumes" if left_over else None
        found.append(Finding(f"checkpoints/{folder.name}", reason or verify(folder)))
    if not checkpoints:
        found.append(Finding("checkpoints", "no checkpoint"))
    return found


def _metrics(path: Path) -> str | None:
    """Return what is wrong with metrics.jsonl, or None."""
    try:
        text = (path / "metrics.jsonl").read_bytes()
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    *lines, rest = text.split(b"\n")
    if rest:
        return f"line {len(lines) + 1} is incomplete"
    for number, line in enumerate(lines, 1):
        try:
            values = json.loads(line)
            if not (isinstance(values, dict) and isinstance(values.get("step"), int) and "kind" in values):
                return f"line {number} lacks step or kind"
        except (ValueError, RecursionError):
            return f"line {number} is not valid JSON"
    missing = _bytes_at_checkpoint(path) - len(text)
    return f"{missing:,} bytes written before the newest checkpoint are missing" if missing > 0 else None


def _bytes_at_checkpoint(path: Path) -> int:
    """Return the size of metrics.jsonl at the newest checkpoint."""
    for _, folder in Checkpoints(path / "checkpoints").steps():
        with suppress(OSError, ValueError, KeyError, TypeError, RecursionError, OverflowError):
            return int(json.loads((folder / "state.json").read_text(encoding="utf-8"))["metrics_bytes"])
    return 0
