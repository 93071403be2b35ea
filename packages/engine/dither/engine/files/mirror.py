"""Mirrors of run directories at an address of fsspec, such as s3://bucket/runs. No torch."""

from __future__ import annotations

import hashlib
import importlib
import re
import secrets
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from pathlib import Path, PurePosixPath
from shlex import quote
from typing import Any
from urllib.parse import urlsplit

from dither.registry.config.errors import Problem, Refused
from dither.registry.files.addresses import (
    CHECK_ADDRESS,
    address_of,
    address_problem,
    cause_of,
    error_reason,
    service_options,
)
from dither.registry.files.atomic import move, remove_leftovers
from dither.registry.files.cache import cache_folder
from dither.registry.files.lookup import command_line
from dither.registry.files.write_errors import is_full, unwritable
from dither.registry.plugins.install_command import optional_import

from .checksums import MANIFEST, checkpoint_folders

__all__ = [
    "Mirror",
    "copy_run",
    "fetch_run",
    "local_run",
    "mirror_cache",
    "name_of",
    "service_problem",
]

CLOSE_SECONDS = 600.0
"""Time that the last copies may take at the end of a run."""
STOPPED_SECONDS = 20.0
"""Likewise after a signal under torchrun, which kills its ranks 30 seconds after it."""
QUIET_SECONDS = 5.0
"""Time after which the end of a run says what it waits for."""
SIGNAL_SECONDS = 0.2
"""How often the end of a run looks for a signal while it waits for them."""
LISTINGS = 3
"""How often files are listed if some vanish before they are read: the run removes checkpoints."""


def service_problem(address: str) -> Problem | None:
    """Return a problem if fsspec does not know a service, or its library is missing."""
    try:
        fsspec = _fsspec(address)
        # The class alone: some services connect as soon as there is an instance.
        fsspec.get_filesystem_class(urlsplit(address).scheme)
    except Refused as refused:
        return refused.problems[0]
    except (ImportError, ValueError) as error:
        return Problem(f"{address}: {error_reason(error)}", code="missing-dependency")
    return None


def _fsspec(address: str) -> Any:
    with optional_import(f"{address} requires fsspec", "dither-engine", "mirror"):
        return importlib.import_module("fsspec")


def _file_system(address: str) -> tuple[Any, str]:
    """Return a file system of fsspec and the path in it."""
    fsspec = _fsspec(address)
    options = service_options(address)
    file_system, path = fsspec.core.url_to_fs(address, **options)
    return file_system, path.rstrip("/")


class Mirror:
    """Copies what is new in a run directory, in a thread. A failure is a warning; the next call tries again.

    MANIFEST.json of a checkpoint is copied last, so that a partial copy is never taken for one.

    Attributes:
        failures: Number of copies that failed.
    """

    def __init__(
        self, folder: Path, address: str, warn: Callable[[str], object]
    ) -> None:
        self.folder = folder
        self.address = f"{address.rstrip('/')}/{folder.name}"
        self.failures = 0
        self._warn = warn
        self._copied: dict[str, tuple[int, int]] = {}
        self._lock = threading.Lock()
        # Whether something is new since the thread began to copy.
        self._due = False
        self._closing = False
        # Names of checkpoints that only the mirror has.
        self._newer: set[str] = set()
        self._thread: threading.Thread | None = None

    def update(self) -> None:
        """Copy in the background what is there now, after an earlier copy."""
        with self._lock:
            self._due = True
            if self._thread is None:
                # A daemon, so that an address that does not respond cannot keep the process alive.
                self._thread = threading.Thread(target=self._work, daemon=True)
                self._thread.start()

    def close(
        self,
        stopped: Callable[[], bool] = lambda: False,
        seconds: float = CLOSE_SECONDS,
    ) -> None:
        """Copy the rest and wait for it, `seconds` at most, or until `stopped` becomes true."""
        self._closing = True
        # The last checkpoint of a run that a signal has stopped is copied, too.
        was_stopped = stopped()
        self.update()
        thread = self._thread
        began = time.monotonic()
        has_said = False
        while thread is not None and thread.is_alive():
            thread.join(SIGNAL_SECONDS)
            waited = time.monotonic() - began
            if not has_said and waited > QUIET_SECONDS:
                has_said = True
                self._say("is being updated; Ctrl-C ends the wait")
            is_late = waited > seconds
            if is_late or (stopped() and not was_stopped):
                if thread.is_alive():
                    self._say(f"is incomplete; {self._rest()}")
                return

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._due:
                    self._thread = None
                    return
                self._due = False
            self._update()

    def _update(self) -> None:
        try:
            file_system, root = _file_system(self.address)
            sizes = _listed(file_system, root)
            for name in self._files():
                self._copy(file_system, root, name, sizes)
            self._remove_old(file_system, root)
        # Libraries of services raise anything.
        except Exception as error:
            self.failures += 1
            again = "the next checkpoint tries again"
            if self._closing:
                again = self._rest()
            self._say(
                f"was not updated: {error_reason(error)} (failure {self.failures}; {again})"
            )

    def _rest(self) -> str:
        return f"the rest is copied by {command_line('run', '--resume', self.folder)}"

    def _say(self, text: str) -> None:
        # The terminal may be closed.
        with suppress(OSError):
            self._warn(f"{self.address} {text}")

    def _copy(
        self,
        file_system: Any,
        root: str,
        name: str,
        sizes: Mapping[str, int | None],
    ) -> None:
        """Copy a file, unless it is in the mirror, whose files have the `sizes`."""
        path = self.folder / name
        state = _state_of(path)
        # The run may remove a checkpoint in the meantime.
        if state is None:
            return
        # Others may delete the mirror, and an upload may have been cut short.
        is_there = sizes.get(name, -1) in (None, state[1])
        if is_there and state == self._copied.get(name):
            return
        # Without a slash the root begins with a bucket, which `makedirs` would create: its name may be
        # misspelled. Keys of objects need no folders.
        if root.startswith("/") or Path(root).is_absolute():
            file_system.makedirs(f"{root}/{PurePosixPath(name).parent}", exist_ok=True)
        try:
            file_system.put_file(str(path), f"{root}/{name}")
        # The run removed the checkpoint while it was copied.
        except FileNotFoundError:
            if _state_of(path) is not None:
                raise
            return
        self._copied[name] = state

    def _files(self) -> list[str]:
        """Return all files to copy, those that complete checkpoints last."""
        files = []
        for path in self.folder.rglob("*"):
            name = path.relative_to(self.folder)
            # Of this process: locks, and files that are being written.
            private = any(part.startswith(".") for part in name.parts)
            if path.is_file() and not private and path.suffix != ".lock":
                files.append(name.as_posix())
        return sorted(files, key=lambda name: (name.endswith(MANIFEST), name))

    def _remove_old(self, file_system: Any, root: str) -> None:
        """Remove checkpoints from the mirror that the run has removed."""
        folders = checkpoint_folders(self.folder / "checkpoints")
        # The folder is gone.
        if not folders:
            return
        newest, path = folders[0]
        # Not copied yet: until then, older ones are all there is.
        if f"checkpoints/{path.name}/{MANIFEST}" not in self._copied:
            return
        kept = {path.name for _, path in folders}
        places = f"{root}/checkpoints"
        for place in file_system.ls(places, detail=False):
            name = PurePosixPath(place.rstrip("/")).name
            match = re.fullmatch(r"step-(\d+)", name)
            if match is None or name in kept:
                continue
            # Of another copy of this run, which was further.
            if int(match[1]) > newest:
                self._warn_newer(name)
            else:
                file_system.rm(f"{places}/{name}", recursive=True)
                for copied in [*self._copied]:
                    if copied.startswith(f"checkpoints/{name}/"):
                        del self._copied[copied]

    def _warn_newer(self, name: str) -> None:
        """Say once that the mirror has a checkpoint that is newer than those of the run."""
        if name not in self._newer:
            self._newer.add(name)
            self._say(f"has {name}, newer than this run; it stays there")


def _state_of(path: Path) -> tuple[int, int] | None:
    """Return time and size of a file, or None if it is gone."""
    try:
        state = path.stat()
    except FileNotFoundError:
        return None
    return state.st_mtime_ns, state.st_size


def mirror_cache() -> Path:
    """Return the folder of local copies, which may not exist."""
    return cache_folder() / "mirrors"


def local_run(path: Path) -> Path:
    """Return the local copy of a mirrored run, or else the path."""
    address = address_of(path)
    return path if address is None else fetch_run(address)


def name_of(address: str) -> str:
    """Return the last part of an address; Refused if it is not the name of a folder."""
    name = address.rstrip("/").rpartition("/")[2]
    if name in {".", ".."}:
        raise Refused(f"{address} names no run", code="invalid-value")
    return name


def copy_run(address: str, runs: Path, named: Collection[str] = ()) -> Path:
    """Copy a mirrored run into a new run directory below `runs`, whole or not at all.

    Raises:
        Refused: As by `fetch_run`; or it has plugin files whose names are not among `named`, since a
            download may have recorded any checksum.
    """
    target = runs / name_of(address)
    try:
        runs.mkdir(parents=True, exist_ok=True)
        # On the file system of the target, so that the last step is a rename.
        with tempfile.TemporaryDirectory(prefix=".mirror-", dir=runs) as folder:
            copy = fetch_run(address, Path(folder))
            for file in sorted((copy / "plugins").rglob("*.py")):
                if file.name not in named:
                    message = f"{address} has the plugin file {file.name}"
                    hint = f"read it; to run it, pass -p {quote(file.name)}"
                    raise Refused(Problem(message, help=hint, code="untrusted-plugin"))
            move(copy, target)
    except OSError as error:
        raise unwritable(target, error) from None
    return target


def fetch_run(address: str, into: Path | None = None) -> Path:
    """Return a local copy of a mirrored run, in `into` or in the cache; what is there is updated.

    Raises:
        Refused: Nothing is there, or it cannot be read.
    """
    from filelock import FileLock

    if problem := address_problem(address):
        raise Refused(problem)
    address = address.rstrip("/")
    name = name_of(address)
    if into is None:
        into = mirror_cache() / hashlib.sha256(address.encode()).hexdigest()[:16]
    folder = into / name
    try:
        into.mkdir(parents=True, exist_ok=True)
        # Two commands may read the same run.
        with FileLock(into / f".{name}.lock"):
            _download(address, folder)
    # Libraries of services raise anything.
    except Exception as error:
        if isinstance(error, Refused):
            raise
        if is_full(error):
            raise unwritable(folder, error) from None
        message = f"{address} cannot be read: {error_reason(error)}"
        raise Refused(message, help=CHECK_ADDRESS, code="download-failed") from None
    return folder


def _download(address: str, folder: Path) -> None:
    # A file of a killed download may be as large as a checkpoint.
    remove_leftovers(folder)
    file_system, root = _file_system(address)
    for attempt in range(1, LISTINGS + 1):
        sizes = _sizes(file_system, root, address)
        try:
            # Manifests first: with another one, a checkpoint of the same step is another.
            for name in sorted(sizes, key=lambda name: not _is_manifest(name)):
                _fetch(file_system, root, folder, name, sizes[name])
            break
        except FileNotFoundError:
            if attempt == LISTINGS:
                raise
    # Without its manifest on the server, a checkpoint was removed there, or is not complete yet.
    for _, path in checkpoint_folders(folder / "checkpoints"):
        if f"checkpoints/{path.name}/{MANIFEST}" not in sizes:
            shutil.rmtree(path)


def _listed(file_system: Any, root: str) -> dict[str, int | None]:
    """Return the size of every file below a folder, None if it is unknown."""
    # fsspec keeps listings in memory, in which new checkpoints are missing.
    file_system.invalidate_cache()
    sizes = {}
    # Some services have no folder that is empty.
    with suppress(FileNotFoundError):
        for place, facts in file_system.find(root, detail=True).items():
            sizes[place.removeprefix(root).lstrip("/")] = facts.get("size")
    return sizes


def _sizes(file_system: Any, root: str, address: str) -> dict[str, int | None]:
    """Return the size of every file below an address; Refused if there is none, or a name is invalid."""
    sizes = _listed(file_system, root)
    for name in sizes:
        # A name of a server must not lead out of the folder.
        parts = name.split("/")
        if "\\" in name or not {"", ".", ".."}.isdisjoint(parts):
            raise Refused(
                f"{address} contains an invalid name: {name!r}", code="invalid-value"
            )
    if not sizes:
        # A listing of fsspec has no errors.
        with suppress(FileNotFoundError):
            _require_reachable(file_system, root)
        raise Refused(f"{address}: nothing is there", code="file-not-found")
    return sizes


def _require_reachable(file_system: Any, root: str) -> None:
    """Raise the reason why a folder cannot be read, or FileNotFoundError."""
    try:
        file_system.info(root)
    except Exception as error:
        raise cause_of(error) from None


def _is_manifest(name: str) -> bool:
    """Return whether a file completes a checkpoint."""
    return bool(re.fullmatch(f"checkpoints/[^/]+/{MANIFEST}", name))


def _fetch(
    file_system: Any, root: str, folder: Path, name: str, size: int | None
) -> None:
    """Download a file, unless it is of a checkpoint that is known."""
    path = folder / name
    known = name.startswith("checkpoints/") and path.is_file()
    if known and not _is_manifest(name) and size in (None, path.stat().st_size):
        return
    folder.mkdir(exist_ok=True)
    temporary = folder / f".tmp-{secrets.token_hex(6)}"
    try:
        file_system.get_file(f"{root}/{name}", str(temporary))
        if known and path.read_bytes() != temporary.read_bytes():
            shutil.rmtree(path.parent)
        path.parent.mkdir(parents=True, exist_ok=True)
        move(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
