"""A run directory: made once, held by one process, and enough to run again.

It is called `<utc>-<6 hex>` and holds experiment.toml and what it extends as given, resolved.toml with every default
and every name pinned, the one-file plugins, manifest.json, metrics.jsonl, summary.json, run.lock, and the folders
tensorboard, samples and checkpoints.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import secrets
import shutil
import socket
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import tomlkit

from dither.registry.config.document import Document
from dither.registry.config.errors import Problem, Refused
from dither.registry.config.validation import dump, validate
from dither.registry.files.atomic import atomic_write, fsync

from ..config.experiment import Experiment
from ..config.load_experiment import Loaded
from ..config.paths import PATH_OPTIONS, absolute_paths, not_a_run
from ..files.checksums import KEY, checksum_differs, text_checksum_differs, text_with_checksum, with_checksum
from ..files.metrics_file import as_json

__all__ = ["RunDirectory", "flat", "held_by", "lock", "read_manifest", "refuse_held", "resolved", "resolved_file"]

TRIES = 100
LEFT = re.compile(r"\.(?!report-[0-9a-f]{8}\.html).+-[0-9a-f]{8}(\.[a-z]+)?")
"""Names of files that were being written aside when they were broken off; not the page of `dither report`."""


class RunDirectory:
    """A run directory whose lock this process holds. Use it as a context, which gives the lock back at the end.

    Attributes:
        path: Where it is.
    """

    def __init__(self, path: Path, lock: int) -> None:
        self.path, self._lock = path, lock

    @classmethod
    def create(cls, runs: Path) -> Self:
        """Make a new one, named by the time and six random hex digits.

        Raises:
            Refused: It cannot be made there.
        """
        for _ in range(TRIES):
            name = f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(3)}"
            try:
                return cls.at(runs / name)
            except FileExistsError:
                continue
        raise Refused(f"no free name for a run directory was found in {runs}")

    @classmethod
    def at(cls, path: Path) -> Self:
        """Make a new one at a path where nothing is yet.

        Raises:
            FileExistsError: Something is there; it is left as it is.
            Refused: It cannot be made there.
        """
        try:
            str(path.absolute()).encode()
        except UnicodeEncodeError:
            what = f"the run directory {path} cannot be made: its path is no UTF-8, and safetensors could not read it"
            raise Refused(what) from None
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.mkdir()
            fsync(path.parent)
        except OSError as error:
            if error.errno == errno.EEXIST and path.parent.is_dir():
                raise
            raise Refused(f"the run directory {path} cannot be made: {error.strerror}") from None
        return cls(path, lock(path))

    @classmethod
    def open(cls, path: Path) -> Self:
        """Take hold of one that exists, to go on with its run.

        Raises:
            Refused: It is no run directory, or another process holds it.
        """
        resolved_file(path, sealed=False)
        return cls(path, lock(path))

    @classmethod
    def elsewhere(cls) -> Self:
        """Stand for one that another process holds, and writes."""
        return cls(Path(), -1)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._lock >= 0:
            os.close(self._lock)

    def record(self, loaded: Loaded, manifest: Mapping[str, Any]) -> None:
        """Write down what is about to be run: the files as given, every default, and the manifest."""
        *parents, given = loaded.document.files
        shutil.copyfile(given, self.path / "experiment.toml")
        for number, parent in enumerate(parents, 1):
            (self.path / "extends").mkdir(exist_ok=True)
            shutil.copyfile(parent, self.path / "extends" / f"{number}-{parent.name}")
        self.write_json("manifest.json", manifest)
        self.accept(loaded)  # last: it makes this a run directory

    def changes(self, loaded: Loaded, moved: bool = False) -> list[str]:
        """Return what an experiment has otherwise than this run.

        Args:
            loaded: The experiment.
            moved: Whether its data may lie elsewhere than before.

        Raises:
            Refused: There is something among it under which a run cannot go on.
        """
        before, after = flat(self._meant(loaded)), flat(resolved(loaded))
        changed = [key for key in {**before, **after} if before.get(key) != after.get(key)]
        notes = {key: f"{key}: {_shown(before.get(key))} -> {_shown(after.get(key))}" for key in changed}
        elsewhere = {key for key in changed if moved and key.rpartition(".")[2] in PATH_OPTIONS}
        fixed = [notes[key] for key in changed if not key.startswith(CHANGEABLE) and key not in elsewhere]
        if fixed:
            hint = f"a run may go on with other values of {', '.join(CHANGEABLE)}; for anything else start a new run"
            message = f"the run in {self.path} was started with another value of "
            raise Refused([Problem(message + note, help=hint) for note in fixed])
        return list(notes.values())

    def _meant(self, loaded: Loaded) -> dict[str, Any]:
        """Return the experiment of this run as it is read today: earlier names of parts mean the present ones."""
        document = Document.read(self.path / "resolved.toml")
        try:
            tree = dump(validate(Experiment, document, loaded.plugins.catalog), loaded.plugins.catalog)
        except Refused:  # it names what is not here any more, and which was replaced
            tree = document.tree
        return absolute_paths(tree, Path.cwd())  # a run of before may hold relative names

    def accept(self, loaded: Loaded) -> None:
        """Go on under these values, with the one-file plugins beside them."""
        for path in loaded.plugins.files:
            copy = self.path / "plugins" / path.name
            if copy.resolve() != path:
                with atomic_write(copy) as beside:
                    shutil.copyfile(path, beside)
        self._write_text("resolved.toml", text_with_checksum(tomlkit.dumps(resolved(loaded))))

    def clear(self, begins: bool = False) -> None:
        """Remove what this run was writing when it was broken off, and where it `begins` anew, its summary.

        Drawings of other commands are not its own.
        """
        if begins:
            (self.path / "summary.json").unlink(missing_ok=True)
        for folder in (self.path, self.path / "plugins", *self.path.glob("samples/step-" + 8 * "[0-9]")):
            for path in folder.glob(".*"):
                if LEFT.fullmatch(path.name):
                    path.unlink(missing_ok=True)

    def write_json(self, name: str, values: Mapping[str, Any]) -> None:
        """Write a JSON file with its seal, whole or not at all."""
        self._write_text(name, as_json(with_checksum(values), indent=2) + "\n")

    def _write_text(self, name: str, text: str) -> None:
        with atomic_write(self.path / name) as beside:
            beside.write_text(text, encoding="utf-8")


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
    "train.compile",
    "train.non_finite",
    "train.skip_limit",
)
"""What a resumed run may have otherwise than before."""


def resolved(loaded: Loaded) -> dict[str, Any]:
    """Return the experiment with every default, parts pinned, one-file plugins as they lie in the run directory.

    Files that it names relative to this folder are named from the root.
    """
    tree = absolute_paths(dump(loaded.experiment, loaded.plugins.catalog), Path.cwd())
    files = [f"plugins/{path.name}" for path in loaded.plugins.files]
    tree["plugins"] = files + loaded.plugins.requested
    return tree


def flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the values of tables in tables by dotted key."""
    values: dict[str, Any] = {}
    for key, value in tree.items():
        inner = flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
        values.update(inner)
    return values


def _shown(value: Any) -> str:
    return "(none)" if value is None else json.dumps(value, default=str)


def resolved_file(run_directory: Path, sealed: bool = True) -> Path:
    """Return the experiment of a run.

    Args:
        run_directory: Of the run.
        sealed: Whether it has to be as it was written.

    Raises:
        Refused: It is no run directory, or the file was changed.
    """
    path = run_directory / "resolved.toml"
    if not path.is_file():
        raise not_a_run(run_directory, "resolved.toml")
    if sealed and _broken(path):
        hint = "bring it back as it was; or, if you meant the change, go on with it: --resume RUN --accept-changes"
        raise Refused(Problem(f"{path} is not what was written", help=hint))
    return path


def _broken(path: Path) -> bool:
    """Tell whether resolved.toml was changed; that it lacks its seal shows where the manifest has one."""
    try:
        broken = text_checksum_differs(path.read_text(encoding="utf-8"))
        return KEY in read_manifest(path.parent) if broken is None else broken
    except UnicodeDecodeError:
        return True
    except (OSError, Refused):  # the reader of the file says more of it
        return False


def read_manifest(run_directory: Path) -> dict[str, Any]:
    """Return manifest.json of a run, with tables where tables should be.

    Raises:
        Refused: It is missing or damaged.
    """
    path = run_directory / "manifest.json"
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise Refused(f"{path} cannot be read: {error}") from None
    if not isinstance(manifest, dict):
        raise Refused(f"{path} is damaged: it holds no table")
    if checksum_differs(manifest):
        raise Refused(f"{path} is damaged: it is not what was written")
    manifest = {"environment": {}, "resumed": []} | manifest
    if not isinstance(manifest["environment"], dict) or not isinstance(manifest["resumed"], list):
        raise Refused(f"{path} is damaged: environment should be a table, and resumed a list")
    return manifest


def lock(path: Path) -> int:
    """Lock a run directory for as long as this process lives; the lock of a process that was killed is free.

    Returns:
        The descriptor to close when it is given back.

    Raises:
        Refused: Another process holds it; it is named.
    """
    try:
        descriptor = os.open(path / "run.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise Refused(f"the run directory {path} cannot be locked: run.lock: {error.strerror}") from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        holder = os.read(descriptor, 1000).decode(errors="replace").strip()
        os.close(descriptor)
        if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
            raise Refused(f"the run directory {path} cannot be locked: run.lock: {error.strerror}") from None
        raise Refused(f"the run directory {path} is held by another process: {holder or 'unknown'}") from None
    who = f"process {os.getpid()} on {socket.gethostname()} since {datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC\n"
    os.ftruncate(descriptor, 0)
    os.write(descriptor, who.encode())
    return descriptor


def held_by(path: Path) -> str | None:
    """Return the process that holds a run directory, as it wrote itself down; None if none does.

    The lock is looked up in the list of the kernel: to try it would take it away from a run that is just beginning.
    """
    file = path / "run.lock"
    try:
        inode = f":{file.stat().st_ino} "
        held = any("FLOCK" in line and inode in line for line in Path("/proc/locks").read_text().splitlines())
        return (file.read_text(errors="replace").strip() or "unknown") if held else None
    except OSError:
        return None


def refuse_held(run_directory: Path) -> None:
    """Look whether another process holds a run directory, before anything that takes time is begun.

    Raises:
        Refused: One does.
    """
    if held_by(run_directory):  # perhaps: the list of the kernel does not say on which disk
        os.close(lock(run_directory))
