"""The runs of a folder at a glance, and whether everything in a run directory is as it was written."""

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
        name: What it is called.
        state: done; running; stopped with a checkpoint to go on from; empty, without one; damaged.
        step: The newest checkpoint, of any condition; None for none.
        steps: Steps that were asked for.
        figures: What it measured last, by kind/name.
        size: Bytes of all its files.
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
    """What was found of one file or folder of a run.

    Attributes:
        what: Its name in the run directory.
        reason: What is wrong with it, or None.
    """

    what: str
    reason: str | None = None


def list_runs(folder: Path) -> Iterator[ListedRun]:
    """Yield the runs of a folder, the oldest first, or those of a sweep; other folders in it are passed over.

    Raises:
        Refused: It is no folder.
    """
    if not folder.is_dir():
        raise Refused(f"{folder} is no folder")
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
        ended = summary["step"] if summary.get("steps") == steps else steps  # it may have ended early
    newest = next((step for step, _ in Checkpoints(path / "checkpoints").steps()), None)
    if held_by(path):
        state = "running"
    elif state is None:
        state = "empty" if newest is None else "done" if figures and newest == ended else "stopped"
    return ListedRun(path, name, state, newest, steps, figures, _bytes(path))


def _bytes(folder: Path) -> int:
    """Return the bytes of all files in a folder; of those that a run removes meanwhile, nothing."""
    size = 0
    for inner, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                size += os.lstat(os.path.join(inner, name)).st_size
    return size


def verify_run(path: Path) -> list[Finding]:
    """Read everything of a run that it would be resumed from, and compare it with what was written.

    Raises:
        Refused: It is no run directory.
    """
    resolved_file(path, sealed=False)
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
        reason = "left over from a write that was broken off; the next resumption removes it" if left_over else None
        found.append(Finding(f"checkpoints/{folder.name}", reason or verify(folder)))
    if not checkpoints:
        found.append(Finding("checkpoints", "there is none"))
    return found


def _metrics(path: Path) -> str | None:
    """Return what is wrong with the lines of metrics.jsonl."""
    try:
        text = (path / "metrics.jsonl").read_bytes()
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    *lines, rest = text.split(b"\n")
    if rest:
        return f"line {len(lines) + 1} has no end"
    for number, line in enumerate(lines, 1):
        try:
            values = json.loads(line)
            if not (isinstance(values, dict) and isinstance(values.get("step"), int) and "kind" in values):
                return f"line {number} has no step or no kind"
        except (ValueError, RecursionError):
            return f"line {number} is no JSON"
    missing = _promised(path) - len(text)
    return f"{missing:,} bytes are missing that the newest checkpoint speaks of" if missing > 0 else None


def _promised(path: Path) -> int:
    """Return the bytes of metrics.jsonl that the newest checkpoint says there are."""
    for _, folder in Checkpoints(path / "checkpoints").steps():
        with suppress(OSError, ValueError, KeyError, TypeError, RecursionError, OverflowError):
            return int(json.loads((folder / "state.json").read_text(encoding="utf-8"))["metrics_bytes"])
    return 0
