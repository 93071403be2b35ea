"""A run directory, locked by one process and sufficient to repeat the run.

It holds experiment.toml and the files that it extends as given, resolved.toml with every default,
and all results.
"""

from __future__ import annotations

import errno
import json
import os
import re
import secrets
import shutil
import socket
from collections.abc import Collection, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import tomlkit
from filelock import FileLock, Timeout

from dither.registry.config.document import Document
from dither.registry.config.errors import Problem, Refused
from dither.registry.config.validation import dump, path_options, validate
from dither.registry.files.atomic import atomic_folder, atomic_write, fsync
from dither.registry.files.limits import read_text
from dither.registry.files.lookup import exists, is_file, is_folder
from dither.registry.files.write_errors import is_full, unwritable

from ..config.experiment import Experiment
from ..config.load_experiment import Loaded
from ..config.paths import absolute_paths, not_a_run
from ..files.checksums import checksum_differs, with_checksum
from ..files.damage import damage_of
from ..files.metrics_file import as_json
from ..files.run_folders import require_folder

if TYPE_CHECKING:
    from dither.registry.contracts.protocols import Task

__all__ = [
    "ASSETS",
    "LOCK_TIMEOUT",
    "RunDirectory",
    "copy_experiment",
    "experiment_key",
    "flat",
    "link_latest",
    "now",
    "read_manifest",
    "resolved",
    "resolved_file",
    "unique_folder",
]

ASSETS = "assets"
"""Folder of files that a task needs without its data, such as a tokenizer."""
TEMPORARY = re.compile(r"\.tmp-(?!report-[0-9a-f]{8}\.html).+-[0-9a-f]{8}(\.[a-z]+)?")
"""Temporary files of interrupted atomic writes, except those of `dither report`."""
CHANGEABLE = (
    "name",
    "plugins",
    "evaluate.",
    "sample.",
    "sampler",
    "train.steps",
    "train.log_every",
    "train.checkpoint_every",
    "train.keep",
    "train.keep_every",
    "train.keep_best",
    "train.async_save",
    "train.device",
    "train.strategy",
    "train.gather",
    "train.threads",
    "train.workers",
    "train.keep_memory",
    "train.timeout",
    "train.compile",
    "tracking.",
    "run.",
    "train.non_finite",
    "train.skip_limit",
)
"""Prefixes of options that may change when a run resumes."""
LOCK_TIMEOUT = 1.0
"""Seconds to wait for a lock, which `is_locked` of another process shares for a moment."""
NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)
"""Error numbers of file systems without locks."""


class RunDirectory:
    """A run directory locked by this process; a context manager that releases the lock."""

    def __init__(self, path: Path, lock: FileLock | None = None) -> None:
        self.path = path
        self._lock = lock

    @classmethod
    def create(cls, runs: Path, name: str = "run") -> Self:
        """Create a run directory `<name>-<utc>-<6 hex>`."""
        path = unique_folder(runs, name)
        try:
            # safetensors requires paths in UTF-8.
            str(path.absolute()).encode()
            runs.mkdir(parents=True, exist_ok=True)
            path.mkdir()
            # A crash of the machine must not lose the entry of the new directory.
            fsync(runs)
        except FileExistsError:
            # Two runs of the same second may draw the same name.
            if is_folder(runs):
                return cls.create(runs, name)
            raise Refused(
                f"{runs} exists and is not a folder", code="unwritable-file"
            ) from None
        except (OSError, ValueError) as error:
            raise unwritable(f"the run directory {path}", error) from None
        return cls(path, _lock(path))

    @classmethod
    def open(cls, path: Path) -> Self:
        """Lock an existing run directory to resume its run; Refused if another process uses it."""
        resolved_file(path)
        return cls(path, _lock(path))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.release()

    def release(self) -> None:
        """Release the lock, if this process has it."""
        if self._lock is not None:
            self._lock.release()

    def require(self) -> None:
        """Raise `Vanished` if this directory was deleted or renamed since the run began."""
        require_folder(self.path, "resolved.toml")

    def record(self, loaded: Loaded, manifest: Mapping[str, Any]) -> None:
        """Write the experiment files as given, the resolved experiment, and the manifest."""
        copy_experiment(loaded.document, self.path)
        self.write_json("manifest.json", manifest)
        # Last: resolved.toml marks a run directory.
        self.accept(loaded)

    def changes(self, loaded: Loaded, moved: bool = False) -> list[str]:
        """Return the options in which an experiment differs from this run; if `moved`, paths of data may differ.

        Refused if an option differs with which a run cannot resume.
        """
        tree = resolved(loaded)
        before = flat(self._read_resolved(loaded))
        after = flat(tree)
        may_differ = set[str]()
        if moved:
            for path, _ in path_options(Experiment, tree, loaded.plugins.catalog):
                key = ".".join(map(str, path))
                # `flat` keeps lists whole, so that a path in a list has the key of the list.
                may_differ |= {key, key.removesuffix(".0")}

        notes = []
        problems = []
        for key in {**before, **after}:
            if before.get(key) == after.get(key):
                continue
            note = f"{key}: {_shown(before.get(key))} -> {_shown(after.get(key))}"
            notes.append(note)
            if not key.startswith(CHANGEABLE) and key not in may_differ:
                message = (
                    f"the run in {self.path} was started with another value of {note}"
                )
                hint = (
                    f"a run may resume with other values of {', '.join(CHANGEABLE)}; "
                    "for anything else start a new run"
                )
                problems.append(Problem(message, help=hint, code="changed-components"))
        if problems:
            raise Refused(problems)
        return notes

    def _read_resolved(self, loaded: Loaded) -> dict[str, Any]:
        """Return the experiment of this run with defaults of new options."""
        document = Document.read(self.path / "resolved.toml")
        catalog = loaded.plugins.catalog
        try:
            return dump(validate(Experiment, document, catalog), catalog)
        # It names a component that no longer exists.
        except Refused:
            return document.tree

    def accept(self, loaded: Loaded) -> None:
        """Write resolved.toml and copies of the plugin files."""
        for path in loaded.plugins.files:
            copy = self.path / "plugins" / path.name
            # A resumed run has loaded its own copies.
            if copy.resolve() != path:
                with atomic_write(copy) as temporary:
                    shutil.copyfile(path, temporary)
        self._write_text("resolved.toml", tomlkit.dumps(resolved(loaded)))

    def save_assets(self, task: Task) -> None:
        """Write the files that a task needs without its data, if it has some and they are not there."""
        assets = self.path / ASSETS
        if exists(assets):
            return
        with atomic_folder(assets) as folder:
            task.save_assets(folder)
        # Most tasks write no files, and a run shows no empty folder.
        if not any(assets.iterdir()):
            assets.rmdir()

    def clear(self, restarts: bool = False) -> None:
        """Remove temporary files of interrupted writes, and the summary of a run that restarts at step 0."""
        if restarts:
            (self.path / "summary.json").unlink(missing_ok=True)
        # Not those of other commands.
        samples = self.path.glob("samples/step-" + 8 * "[0-9]")
        own = [self.path / name for name in ("", "plugins", "evaluation")]
        for folder in (*own, *samples):
            for path in folder.glob(".*"):
                if TEMPORARY.fullmatch(path.name):
                    path.unlink(missing_ok=True)

    def write_json(self, name: str, values: Mapping[str, Any]) -> None:
        """Write a JSON file with its checksum atomically."""
        self._write_text(name, as_json(with_checksum(values), indent=2) + "\n")

    def _write_text(self, name: str, text: str) -> None:
        with atomic_write(self.path / name) as temporary:
            temporary.write_text(text, encoding="utf-8")


def now() -> str:
    """Return the time in ISO format."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def unique_folder(parent: Path, name: str) -> Path:
    """Return the path of a new folder `<name>-<utc>-<6 hex>`."""
    return parent / f"{name}-{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(3)}"


def link_latest(run: Path) -> None:
    """Let the link `latest` in the folder of a run directory lead to it, where the file system has links."""
    link = run.with_name("latest")
    # Anything else of that name is the user's.
    if exists(link) and not link.is_symlink():
        return
    # Replaced in one step, so that `latest` always leads to a run.
    with suppress(OSError, NotImplementedError), atomic_write(link) as temporary:
        temporary.symlink_to(run.name, target_is_directory=True)


def copy_experiment(document: Document, folder: Path) -> None:
    """Copy an experiment file, and those that it extends, as given."""
    # An experiment comes after those that it extends.
    *parents, given = document.files
    shutil.copyfile(given, folder / "experiment.toml")
    for number, parent in enumerate(parents, 1):
        (folder / "extends").mkdir(exist_ok=True)
        shutil.copyfile(parent, folder / "extends" / f"{number}-{parent.name}")


def resolved(loaded: Loaded) -> dict[str, Any]:
    """Return the experiment with every default, pinned components, absolute paths, and plugin files of the run."""
    catalog = loaded.plugins.catalog
    tree = absolute_paths(dump(loaded.experiment, catalog), Path.cwd(), catalog)
    files = [f"plugins/{path.name}" for path in loaded.plugins.files]
    tree["plugins"] = files + loaded.plugins.requested
    return tree


def experiment_key(loaded: Loaded, ignored: Collection[str] = ()) -> str:
    """Return a text that is the same for experiments that are equal but for some tables."""
    tree = {key: value for key, value in resolved(loaded).items() if key not in ignored}
    return json.dumps(tree, sort_keys=True, default=str)


def flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the values of nested tables by dotted key."""
    values: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, dict):
            values |= flat(value, f"{prefix}{key}.")
        else:
            values[prefix + key] = value
    return values


def _shown(value: Any) -> str:
    return "(none)" if value is None else json.dumps(value, default=str)


def resolved_file(run_directory: Path) -> Path:
    """Return the path of resolved.toml of a run; Refused if it is missing."""
    path = run_directory / "resolved.toml"
    if not is_file(path):
        raise not_a_run(run_directory, "resolved.toml")
    return path


def read_manifest(run_directory: Path) -> dict[str, Any]:
    """Return manifest.json of a run; Refused if it is missing or damaged."""
    path = run_directory / "manifest.json"
    try:
        manifest = json.loads(read_text(path))
    except (OSError, ValueError, RecursionError) as error:
        damage = damage_of(error)
        raise Refused(f"{path}: {damage.reason}", code=damage.code) from None
    if not isinstance(manifest, dict) or checksum_differs(manifest):
        raise Refused(
            f"{path} is damaged: it does not match its checksum", code="damaged-file"
        )
    manifest = {"environment": {}, "resumed": [], **manifest}
    if not isinstance(manifest["environment"], dict) or not isinstance(
        manifest["resumed"], list
    ):
        raise Refused(
            f"{path} is damaged: environment or resumed has a wrong type",
            code="damaged-file",
        )
    return manifest


def _lock(path: Path) -> FileLock:
    """Lock a run directory; the kernel releases the lock when the process ends."""
    file = path / "run.lock"
    # A soft lock is a file, which a killed process would leave.
    lock = FileLock(file, thread_local=False, fallback_to_soft=False)
    try:
        lock.acquire(timeout=LOCK_TIMEOUT, poll_interval=0.01)
        now = f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC"
        file.write_text(
            f"process {os.getpid()} on {socket.gethostname()} since {now}\n"
        )
    except Timeout:
        holder = "unknown"
        with suppress(OSError):
            holder = read_text(file, errors="replace").strip() or holder
        message = f"the run directory {path} is used by another process: {holder}"
        raise Refused(message, code="run-locked") from None
    except (OSError, NotImplementedError) as error:
        hint = None
        if isinstance(error, NotImplementedError) or error.errno in NO_LOCKS:
            hint = "the file system has no locks; use another disk for --runs"
        message = f"the run directory {path} cannot be locked: {error}"
        if is_full(error):
            raise unwritable(file, error) from None
        raise Refused(Problem(message, help=hint, code="unreadable-file")) from None
    return lock
