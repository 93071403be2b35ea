"""Sweep directories: `sweep.json`, and a folder per point with its experiment, status, output and run.

A directory is named `sweep-<utc>-<6 hex>`. The folder of a point holds experiment.toml (every default written out,
every name pinned), status.json, output.txt, point.lock, and the run directory.
"""

from __future__ import annotations

import errno
import json
import os
import secrets
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import tomlkit
from filelock import FileLock, Timeout

from dither.registry.config.document import Document
from dither.registry.config.errors import Refused
from dither.registry.files.atomic import atomic_write
from dither.registry.plugins.manager import Plugins

from ..config.load_experiment import Loaded
from ..config.paths import absolute_paths, not_a_sweep
from ..config.plugins import governing_policy_file
from ..files.metrics_file import as_json
from ..runs.run_directory import resolved

__all__ = ["MARK", "UNFINISHED", "PointFolder", "SweepDirectory", "now"]

UNFINISHED = ("waiting", "running", "stopped", "lost", "failed")
"""States of points that `--resume` runs; the others are done and pruned."""
MARK = "sweep.json"
"""The file that identifies a sweep directory."""
LOCK_TIMEOUT = 0.05
"""Seconds to wait for a lock, since a check whether it is held takes it for a moment."""


def now() -> str:
    """Return the time in ISO format."""
    return datetime.now(UTC).isoformat(timespec="seconds")


@dataclass(frozen=True)
class PointFolder:
    """The folder of one point, and its values by key."""

    path: Path
    values: Mapping[str, Any]

    @property
    def name(self) -> str:
        """Name of the point."""
        return self.path.name

    @property
    def number(self) -> int | None:
        """Number of the point, which its name starts with."""
        head = self.name.partition("-")[0]
        return int(head) if head.isdigit() else None

    def status(self) -> dict[str, Any]:
        """Return status.json: state, exit_code, reason, pid, host, started, ended, attempts.

        A running point whose process is gone is "lost".
        """
        try:
            status = json.loads((self.path / "status.json").read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {"state": "waiting"}
        except (OSError, ValueError) as error:
            return {"state": "lost", "reason": f"status.json cannot be read: {error}"}
        if not isinstance(status, dict) or not isinstance(status.get("state"), str):
            return {"state": "lost", "reason": "status.json is damaged"}
        if status["state"] == "running" and not self.held():
            return status | {"state": "lost", "reason": "its process ended unexpectedly"}
        return status

    def write_status(self, state: str, **facts: Any) -> None:
        """Replace status.json atomically."""
        with atomic_write(self.path / "status.json") as temporary:
            temporary.write_text(as_json({"state": state, **facts}, indent=2) + "\n", encoding="utf-8")

    def claim(self) -> FileLock | None:
        """Lock the point for this process; return None if another process holds it."""
        if not self.path.is_dir():  # filelock would make it
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(self.path))
        lock = FileLock(self.path / "point.lock", thread_local=False)
        try:
            lock.acquire(timeout=LOCK_TIMEOUT, poll_interval=0.01)
        except Timeout:
            return None
        return lock

    def held(self) -> bool:
        """Return whether a process holds the point."""
        try:
            lock = self.claim()
        except OSError:  # a read-only copy, say: no process works there
            return False
        if lock is not None:
            lock.release()
        return lock is None

    def run_directory(self) -> Path | None:
        """Return the newest run directory, or None before the first run."""
        runs = [path.parent for path in self.path.glob("*/resolved.toml")]
        return max(runs, key=lambda path: path.name, default=None)


class SweepDirectory:
    """A sweep directory, and the content of its sweep.json."""

    def __init__(self, path: Path, facts: dict[str, Any]) -> None:
        self.path, self.facts = path, facts

    @classmethod
    def create(cls, runs: Path, document: Document, argv: Sequence[str], **facts: Any) -> SweepDirectory:
        """Make a new sweep directory.

        Args:
            runs: Its parent folder.
            document: The experiment.
            argv: The command line.
            facts: More entries of sweep.json.

        Raises:
            Refused: It cannot be made.
        """
        path = runs / f"sweep-{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(3)}"
        try:
            path.mkdir(parents=True)
            *parents, given = document.files
            shutil.copyfile(given, path / "experiment.toml")
            for number, parent in enumerate(parents, 1):
                (path / "extends").mkdir(exist_ok=True)
                shutil.copyfile(parent, path / "extends" / f"{number}-{parent.name}")
        except OSError as error:
            message = f"cannot make the sweep directory {path}: {error.strerror}"
            raise Refused(message, code="unreadable-file") from None
        name = str(document.tree.get("name", given.stem))
        registry = governing_policy_file(given)
        first = {"format": 1, "name": name, "file": str(given), "started": now(), "argv": list(argv)}
        first["registry"] = None if registry is None else str(registry)
        return cls(path, {**first, **facts, "points": []})

    @classmethod
    def open(cls, path: Path) -> SweepDirectory:
        """Open a sweep directory.

        Raises:
            Refused: It is not a sweep directory, or sweep.json is damaged.
        """
        try:
            facts = json.loads((path / MARK).read_text(encoding="utf-8"))
            points = facts["points"]
            valid = all(isinstance(p["name"], str) and isinstance(p["values"], dict) for p in points)
            valid = valid and not any(Path(p["name"]).name != p["name"] for p in points)
        except (FileNotFoundError, NotADirectoryError):
            raise not_a_sweep(path, MARK) from None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise Refused(f"{path / MARK} cannot be read: {error}", code="damaged-file") from None
        if not valid:
            raise Refused(f"{path / MARK} is damaged: a point requires a name and values", code="damaged-file")
        return cls(path, facts)

    def add(self, name: str, values: Mapping[str, Any], loaded: Loaded) -> PointFolder:
        """Make the folder of a point, with its experiment and plugin files."""
        folder = PointFolder(self.path / name, dict(values))
        folder.path.mkdir()
        _copy_plugins(loaded.plugins, folder.path)
        (folder.path / "experiment.toml").write_text(tomlkit.dumps(resolved(loaded)), encoding="utf-8")
        return folder

    def copy_base(self, document: Document, plugins: Plugins) -> None:
        """Write base/experiment.toml, from which a search makes further points; `extends` is merged."""
        folder = self.path / "base"
        folder.mkdir()
        _copy_plugins(plugins, folder)
        base = absolute_paths(document.tree, Path.cwd())
        tree = {**base, "plugins": [*(f"plugins/{file.name}" for file in plugins.files), *plugins.requested]}
        (folder / "experiment.toml").write_text(tomlkit.dumps(tree), encoding="utf-8")

    def record(self, folders: Iterable[PointFolder]) -> None:
        """Write sweep.json."""
        self.facts["points"] = [{"name": folder.name, "values": folder.values} for folder in folders]
        with atomic_write(self.path / MARK) as temporary:
            temporary.write_text(as_json(self.facts, indent=2) + "\n", encoding="utf-8")

    def folders(self) -> list[PointFolder]:
        """Return the folders of all points; those of a search are found on disk, since other processes may add some."""
        if not self.facts.get("search"):
            return [PointFolder(self.path / point["name"], point["values"]) for point in self.facts["points"]]
        return [PointFolder(path.parent, _values(path)) for path in sorted(self.path.glob("*/point.json"))]


def _copy_plugins(plugins: Plugins, folder: Path) -> None:
    for file in plugins.files:
        (folder / "plugins").mkdir(exist_ok=True)
        shutil.copyfile(file, folder / "plugins" / file.name)


def _values(path: Path) -> dict[str, Any]:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))["values"]
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    return values if isinstance(values, dict) else {}
