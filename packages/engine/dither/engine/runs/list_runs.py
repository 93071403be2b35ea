"""Listing and verifying runs."""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from dither.registry.config.document import Document
from dither.registry.config.errors import Refused
from dither.registry.files.limits import read_text

from ..files.checksums import checkpoint_folders, checksum_differs, text_checksum_differs, verify
from ..files.metrics_file import FilePosition, as_number, changed_lines, from_json, read_metrics
from ..files.run_folders import by_time, is_locked

__all__ = ["Finding", "ListedRun", "list_runs", "verify_run"]

SWEEP = "sweep.json"
NAME = re.compile(r'name = "([^"\\\n]*)"\n')
STEPS = re.compile(r"^\[train\]\n(?:[a-z_]+ = .*\n)*?steps = ([0-9]+)$", re.MULTILINE)
UNREADABLE = (
    OSError,
    ValueError,
    KeyError,
    TypeError,
    AttributeError,
    RecursionError,
    OverflowError,
)
"""What reading a file raises that is missing or damaged."""


@dataclass(frozen=True)
class ListedRun:
    """A run in a list: its files take `size` bytes, `figures` are its last metrics by kind/name.

    `state` is done; running; stopped with a checkpoint; empty, without one; or damaged. `step` is
    that of the newest checkpoint, damaged or not.
    """

    path: Path
    name: str
    state: str
    step: int | None
    steps: int | None
    figures: dict[str, float]
    size: int


@dataclass(frozen=True)
class Finding:
    """The result of verifying a file or folder of a run: its path there, and what is wrong with it, or None."""

    what: str
    reason: str | None = None


def list_runs(folder: Path) -> Iterator[ListedRun]:
    """Yield the runs of a folder or of a sweep, oldest first; other folders are skipped. Refused if it is missing."""
    if not folder.is_dir():
        raise Refused(f"not a folder: {folder}", code="file-not-found")
    paths = folder.glob("*/*") if (folder / SWEEP).is_file() else folder.iterdir()
    for path in sorted(paths, key=by_time):
        if not path.is_symlink() and (
            (path / "resolved.toml").is_file() or (path / "run.lock").is_file()
        ):
            yield _listed(path)


def _listed(path: Path) -> ListedRun:
    name = path.name
    steps = None
    damaged = True
    with suppress(*UNREADABLE):
        text = read_text(path / "resolved.toml")
        differs = text_checksum_differs(text)
        heads = NAME.match(text), STEPS.search(text)
        if (
            differs is False and heads[0] and heads[1]
        ):  # as written by a run; parsing it takes 30 times as long
            name = heads[0][1]
            steps = int(heads[1][1])
        else:
            tables = tomllib.loads(text)
            steps = int(tables["train"]["steps"])
            name = str(tables["name"])
        damaged = bool(differs)
    figures = {}
    ended = steps
    with suppress(*UNREADABLE):
        summary = from_json(read_text(path / "summary.json"))
        if not checksum_differs(summary):
            tables = summary["figures"].items()
            entries = (
                (f"{kind}/{key}", value) for kind, table in tables for key, value in table.items()
            )
            figures = {key: value for key, value in entries if as_number(value) is not None}
        ended = summary["step"] if summary.get("steps") == steps else steps  # early stopping
    newest = next((step for step, _ in checkpoint_folders(path / "checkpoints")), None)
    state = "empty" if newest is None else "done" if figures and newest == ended else "stopped"
    state = "running" if is_locked(path / "run.lock") else "damaged" if damaged else state
    return ListedRun(path, name, state, newest, steps, figures, _bytes(path))


def _bytes(folder: str | Path) -> int:
    size = 0
    with suppress(OSError), os.scandir(folder) as entries:  # a run may delete some
        for entry in entries:
            with suppress(OSError):
                inner = entry.is_dir(follow_symlinks=False)
                size += _bytes(entry.path) if inner else entry.stat(follow_symlinks=False).st_size
    return size


def verify_run(path: Path) -> list[Finding]:
    """Verify the checksums of everything that a run would resume from."""
    from .run_directory import read_manifest, resolved_file

    resolved_file(path, verify=False)
    readers: dict[str, Callable[[], object]] = {
        "resolved.toml": lambda: Document.read(resolved_file(path)),
        "manifest.json": lambda: read_manifest(path),
        "metrics.jsonl": lambda: _read_metrics(path),
    }
    found = []
    for name, read in readers.items():
        try:
            read()
            found.append(Finding(name))
        except (Refused, OSError, ValueError) as error:
            found.append(Finding(name, str(error)))
    checkpoints = sorted((path / "checkpoints").glob("*"))
    for folder in checkpoints:
        left_over = folder.name.startswith(".tmp-")
        reason = (
            "left by an interrupted write; deleted when the run resumes"
            if left_over
            else verify(folder)
        )
        found.append(Finding(f"checkpoints/{folder.name}", reason))
    return found if checkpoints else [*found, Finding("checkpoints", "no checkpoint")]


def _read_metrics(path: Path) -> None:
    """Read metrics.jsonl and compare it with the newest checkpoint; ValueError or Refused if it is damaged."""
    from ..checkpoints.checkpoint import Checkpoints

    read_metrics(path / "metrics.jsonl")
    for _, folder in Checkpoints(path / "checkpoints").steps()[:1]:
        with suppress(*UNREADABLE):  # `verify` reports the checkpoint
            state = json.loads(read_text(folder / "state.json"))
            position = FilePosition(
                int(state["metrics_bytes"]), str(state.get("metrics_sha256", ""))
            )
            if reason := changed_lines(path / "metrics.jsonl", position):
                raise Refused(reason, code="damaged-file")
