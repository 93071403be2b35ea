"""List and verify runs."""

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
from dither.registry.files.lookup import exists, is_file, is_folder

from ..files.checksums import checkpoint_folders, checksum_differs, verify
from ..files.damage import UNREADABLE, DamageError, damage_of
from ..files.metrics_file import (
    Position,
    as_number,
    damaged_lines,
    from_json,
    read_metrics,
)
from ..files.run_folders import by_time, is_locked

__all__ = ["Finding", "ListedRun", "list_runs", "verify_run"]

SWEEP = "sweep.json"
NAME = re.compile(r'name = "([^"\\\n]*)"\n')
STEPS = re.compile(r"^\[train\]\n(?:[a-z_]+ = .*\n)*?steps = ([0-9]+)$", re.MULTILINE)


@dataclass(frozen=True)
class ListedRun:
    """A run in a list: its files take `size` bytes, `metrics` are its last ones by kind/name.

    `state` is done; running; stopped with a checkpoint; empty, without one; or damaged. `step` is
    that of the newest checkpoint, damaged or not.
    """

    path: Path
    name: str
    state: str
    step: int | None
    steps: int | None
    metrics: dict[str, float]
    size: int


@dataclass(frozen=True)
class Finding:
    """A verified file or folder of a run: its path there, and reason and code if it is damaged."""

    path: str
    reason: str | None = None
    code: str | None = None


def list_runs(folder: Path) -> Iterator[ListedRun]:
    """Yield the runs of a folder or of a sweep, oldest first; other folders are skipped.

    Refused if the folder is missing.
    """
    if not is_folder(folder):
        raise Refused(f"not a folder: {folder}", code="file-not-found")
    paths = folder.glob("*/*") if is_file(folder / SWEEP) else folder.iterdir()
    for path in sorted(paths, key=by_time):
        is_run = is_file(path / "resolved.toml") or is_file(path / "run.lock")
        # `latest` is a link to a run that is listed anyway.
        if is_run and not path.is_symlink():
            yield _listed(path)


def _listed(path: Path) -> ListedRun:
    name = path.name
    steps = None
    damaged = True
    with suppress(*UNREADABLE):
        name, steps = _read_resolved(path)
        damaged = False
    metrics: dict[str, float] = {}
    last_step = steps
    with suppress(*UNREADABLE):
        metrics, last_step = _read_summary(path, steps)
    newest = next((step for step, _ in checkpoint_folders(path / "checkpoints")), None)

    if is_locked(path / "run.lock"):
        state = "running"
    elif damaged:
        state = "damaged"
    elif newest is None:
        state = "empty"
    elif metrics and newest == last_step:
        state = "done"
    else:
        state = "stopped"
    return ListedRun(
        path=path,
        name=name,
        state=state,
        step=newest,
        steps=steps,
        metrics=metrics,
        size=_bytes(path),
    )


def _read_resolved(path: Path) -> tuple[str, int]:
    """Return name and steps of a run."""
    text = read_text(path / "resolved.toml")
    name = NAME.match(text)
    steps = STEPS.search(text)
    # As a run has written it: parsing TOML takes 30 times as long.
    if name and steps:
        return name[1], int(steps[1])
    tables = tomllib.loads(text)
    return str(tables["name"]), int(tables["train"]["steps"])


def _read_summary(path: Path, steps: int | None) -> tuple[dict[str, float], int | None]:
    """Return the last metrics of a finished run, none if they are damaged, and its last step."""
    summary = from_json(read_text(path / "summary.json"))
    metrics = {}
    if not checksum_differs(summary):
        for kind, table in summary["metrics"].items():
            for key, value in table.items():
                if as_number(value) is not None:
                    metrics[f"{kind}/{key}"] = value
    # Early stopping ends before the last step.
    return metrics, summary["step"] if summary.get("steps") == steps else steps


def _bytes(folder: str | Path) -> int:
    size = 0
    # A run may delete some.
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            with suppress(OSError):
                if entry.is_dir(follow_symlinks=False):
                    size += _bytes(entry.path)
                else:
                    size += entry.stat(follow_symlinks=False).st_size
    return size


def verify_run(path: Path) -> list[Finding]:
    """Verify the checksums of everything that a run would resume from."""
    from .run_directory import read_manifest, resolved_file

    resolved_file(path)
    readers: dict[str, Callable[[], object]] = {
        "resolved.toml": lambda: Document.read(resolved_file(path)),
        "manifest.json": lambda: read_manifest(path),
        "metrics.jsonl": lambda: _read_metrics(path),
    }
    # Written at the end of a run.
    if exists(path / "summary.json"):
        readers["summary.json"] = lambda: _verify_summary(path)
    findings = []
    for name, read in readers.items():
        try:
            read()
            findings.append(Finding(name))
        except (Refused, *UNREADABLE) as error:
            damage = damage_of(error)
            findings.append(Finding(name, damage.reason, damage.code))

    checkpoints = sorted((path / "checkpoints").glob("*"))
    for folder in checkpoints:
        reason = verify(folder)
        if folder.name.startswith(".tmp-"):
            reason = "left by an interrupted write; deleted when the run resumes"
        code = "damaged-checkpoint" if reason else None
        findings.append(Finding(f"checkpoints/{folder.name}", reason, code))
    if not checkpoints:
        missing = Finding("checkpoints", "no checkpoint", "missing-checkpoint")
        findings.append(missing)
    return findings


def _verify_summary(path: Path) -> None:
    """Read summary.json; an error of `UNREADABLE` if it is damaged."""
    if checksum_differs(from_json(read_text(path / "summary.json"))):
        raise DamageError("it does not match its checksum")
    _read_summary(path, None)


def _read_metrics(path: Path) -> None:
    """Read metrics.jsonl and compare it with the newest checkpoint; an exception if it is damaged."""
    # It imports torch, which a list of runs does not need.
    from ..checkpoints.checkpoint import Checkpoints

    read_metrics(path / "metrics.jsonl")
    for _, folder in Checkpoints(path / "checkpoints").steps()[:1]:
        # `verify` reports the checkpoint.
        with suppress(*UNREADABLE):
            state = json.loads(read_text(folder / "state.json"))
            position = Position(
                int(state["metrics_bytes"]), int(state["metrics_crc32"])
            )
            for reason in damaged_lines(path / "metrics.jsonl", position):
                raise Refused(reason, code="damaged-file")
