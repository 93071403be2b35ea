"""A sweep directory: one folder for each point, with its experiment, its status, its output and its run.

It is called `sweep-<utc>-<6 hex>`. `sweep.json` says what is swept; a point's folder holds experiment.toml (every
default, every name pinned: it runs as it is), status.json, output.txt, point.lock, and the directory of its run.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import shutil
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import tomlkit

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
"""States of points that `--resume` takes up again; the others are done and pruned."""
MARK = "sweep.json"
"""The file that makes a folder a sweep directory."""
TRIES, BETWEEN = 6, 0.01
"""Times that a lock is asked for, and seconds between them: a look whether somebody has it takes it for a moment."""


def now() -> str:
    """Return the time as it is written into files."""
    return datetime.now(UTC).isoformat(timespec="seconds")


@dataclass(frozen=True)
class PointFolder:
    """The folder of one point.

    Attributes:
        path: Where it is.
        values: Key -> value.
    """

    path: Path
    values: Mapping[str, Any]

    @property
    def name(self) -> str:
        """What the point is called."""
        return self.path.name

    def status(self) -> dict[str, Any]:
        """Return what is known of it: state, exit_code, reason, pid, host, started, ended, attempts.

        A point whose process is gone without a word is "lost".
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
            return status | {"state": "lost", "reason": "its process ended without a word"}
        return status

    def write_status(self, state: str, **facts: Any) -> None:
        """Write what is known of it, whole or not at all."""
        with atomic_write(self.path / "status.json") as beside:
            beside.write_text(as_json({"state": state, **facts}, indent=2) + "\n", encoding="utf-8")

    def claim(self) -> int | None:
        """Take hold of the point; return the descriptor of the lock, or None where another process has it.

        The lock lasts as long as any process has the descriptor.
        """
        for _ in range(TRIES - 1):
            descriptor = self._lock(fcntl.LOCK_EX)
            if descriptor is not None:
                return descriptor
            time.sleep(BETWEEN)
        return self._lock(fcntl.LOCK_EX)

    def _lock(self, how: int) -> int | None:
        descriptor = os.open(self.path / "point.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, how | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            return None
        return descriptor

    def held(self) -> bool:
        """Whether a process has the point now."""
        try:
            descriptor = self._lock(fcntl.LOCK_SH)  # which others that only look may have, too
        except OSError:  # such as a read-only copy: no process works there
            return False
        if descriptor is not None:
            os.close(descriptor)
        return descriptor is None

    def run_directory(self) -> Path | None:
        """Return the directory of the newest run, or None where none has begun."""
        runs = [path.parent for path in self.path.glob("*/resolved.toml")]
        return max(runs, key=lambda path: path.name, default=None)


class SweepDirectory:
    """A sweep directory.

    Attributes:
        path: Where it is.
        facts: What sweep.json holds.
    """

    def __init__(self, path: Path, facts: dict[str, Any]) -> None:
        self.path, self.facts = path, facts

    @classmethod
    def create(cls, runs: Path, document: Document, argv: Sequence[str], **facts: Any) -> SweepDirectory:
        """Make a new one.

        Args:
            runs: The folder in which it is made.
            document: The experiment as it was read.
            argv: The command line.
            facts: More to write down, as sweep.json holds it.

        Raises:
            Refused: It cannot be made there.
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
            raise Refused(f"the sweep directory {path} cannot be made: {error.strerror}") from None
        name = str(document.tree.get("name", given.stem))
        registry = governing_policy_file(given)
        first = {"format": 1, "name": name, "file": str(given), "started": now(), "argv": list(argv)}
        first["registry"] = None if registry is None else str(registry)
        return cls(path, {**first, **facts, "points": []})

    @classmethod
    def open(cls, path: Path) -> SweepDirectory:
        """Open one that exists.

        Raises:
            Refused: It is none, or sweep.json is damaged.
        """
        try:
            facts = json.loads((path / MARK).read_text(encoding="utf-8"))
            points = facts["points"]
            valid = all(isinstance(p["name"], str) and isinstance(p["values"], dict) for p in points)
            valid = valid and not any(Path(p["name"]).name != p["name"] for p in points)
        except (FileNotFoundError, NotADirectoryError):
            raise not_a_sweep(path, MARK) from None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise Refused(f"{path / MARK} cannot be read: {error}") from None
        if not valid:
            raise Refused(f"{path / MARK} is damaged: a point needs a name and a table of values")
        return cls(path, facts)

    def add(self, name: str, values: Mapping[str, Any], loaded: Loaded) -> PointFolder:
        """Make the folder of a point, with its experiment, ready to run."""
        folder = PointFolder(self.path / name, dict(values))
        folder.path.mkdir()
        for file in loaded.plugins.files:
            (folder.path / "plugins").mkdir(exist_ok=True)
            shutil.copyfile(file, folder.path / "plugins" / file.name)
        (folder.path / "experiment.toml").write_text(tomlkit.dumps(resolved(loaded)), encoding="utf-8")
        return folder

    def copy_base(self, document: Document, plugins: Plugins) -> None:
        """Keep what a search varies, with all that it extends laid together, so that other points can be made of it."""
        folder = self.path / "base"
        (folder / "plugins").mkdir(parents=True)
        for file in plugins.files:
            shutil.copyfile(file, folder / "plugins" / file.name)
        base = absolute_paths(document.tree, Path.cwd())
        tree = {**base, "plugins": [*(f"plugins/{file.name}" for file in plugins.files), *plugins.asked]}
        (folder / "experiment.toml").write_text(tomlkit.dumps(tree), encoding="utf-8")

    def record(self, folders: Iterable[PointFolder]) -> None:
        """Write sweep.json, which makes this a sweep directory."""
        self.facts["points"] = [{"name": folder.name, "values": folder.values} for folder in folders]
        with atomic_write(self.path / MARK) as beside:
            beside.write_text(as_json(self.facts, indent=2) + "\n", encoding="utf-8")

    def folders(self) -> list[PointFolder]:
        """Return the folders of all points; those of a search are found on disk, since more may be added meanwhile."""
        if self.facts.get("search"):
            return [self._found(path.parent) for path in sorted(self.path.glob("*/point.json"))]
        return [PointFolder(self.path / point["name"], point["values"]) for point in self.facts["points"]]

    @staticmethod
    def _found(path: Path) -> PointFolder:
        try:
            values = json.loads((path / "point.json").read_text(encoding="utf-8"))["values"]
        except (OSError, ValueError, KeyError, TypeError):
            values = {}
        return PointFolder(path, values if isinstance(values, dict) else {})
