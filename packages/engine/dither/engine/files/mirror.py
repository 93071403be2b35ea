"""Mirrors of run directories at an address of fsspec, such as s3://bucket/runs. No torch."""

from __future__ import annotations

import hashlib
import importlib
import os
import re
import secrets
import shutil
import threading
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import urlsplit

from dither.registry.config.errors import Problem, Refused
from dither.registry.files.cache import cache_folder
from dither.registry.plugins.install_command import optional_import

from .checksums import MANIFEST, checkpoint_folders

__all__ = ["Mirror", "address_of", "address_problem", "fetch_run", "local_run"]

ADDRESS = re.compile(r"([a-z][a-z0-9+.-]+):/{1,2}(?=[^/])")
"""Beginning of an address; `Path` makes one slash of two. A scheme has two letters or more."""
CLOSE_SECONDS = 600.0
"""Time that the last copies may take at the end of a run."""


def address_of(path: str | Path) -> str | None:
    """Return the address that a path on the command line stands for, or None if it is a path."""
    text = str(path)
    match = ADDRESS.match(text)
    return None if match is None else f"{match[1]}://{text[match.end() :]}"


def address_problem(address: str) -> Problem | None:
    """Return why nothing can be mirrored to an address; whether it exists is unknown before."""
    parts = urlsplit(address)
    if "@" in parts.netloc or parts.query:
        hint = "use the variables or the configuration of the service, such as AWS_SECRET_ACCESS_KEY"
        return Problem(
            "an address contains no credentials", help=hint, code="invalid-value"
        )
    try:
        _file_system(address)
    except Refused as refused:
        return refused.problems[0]
    return None


def _file_system(address: str) -> tuple[Any, str]:
    """Return a file system of fsspec and the path in it."""
    with optional_import(f"{address} requires fsspec", "dither-engine", "mirror"):
        fsspec = importlib.import_module("fsspec")
    try:
        file_system, path = fsspec.core.url_to_fs(address)
    except (ImportError, ValueError, OSError) as error:
        raise Refused(
            f"{address}: {_reason(error)}", code="missing-dependency"
        ) from None
    return file_system, path.rstrip("/")


def _reason(error: BaseException) -> str:
    """Return the first line of an error, without the query of an address, which may be signed."""
    text = str(error).strip() or type(error).__name__
    return re.sub(r"\?\S+", "?...", text.splitlines()[0])


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
        self._thread: threading.Thread | None = None

    def update(self) -> None:
        """Copy in the background what is there now; skip it while an earlier copy takes its time."""
        if self._thread is None or not self._thread.is_alive():
            # A daemon, so that an address that does not respond cannot keep the process alive.
            self._thread = threading.Thread(target=self._update, daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Copy the rest and wait for it."""
        if self._thread is not None:
            self._thread.join(CLOSE_SECONDS)
        self.update()
        assert self._thread is not None
        self._thread.join(CLOSE_SECONDS)
        if self._thread.is_alive():
            self._warn(f"{self.address} does not respond; the mirror is incomplete")

    def _update(self) -> None:
        try:
            file_system, root = _file_system(self.address)
            for name in self._files():
                self._copy(file_system, root, name)
            self._remove_old(file_system, root)
        # Libraries of services raise anything.
        except Exception as error:
            self.failures += 1
            again = f"failure {self.failures}; the next checkpoint tries again"
            self._warn(f"{self.address} was not updated: {_reason(error)} ({again})")

    def _copy(self, file_system: Any, root: str, name: str) -> None:
        path = self.folder / name
        state = _state_of(path)
        # The run may remove a checkpoint in the meantime.
        if state is None or state == self._copied.get(name):
            return
        file_system.makedirs(f"{root}/{PurePosixPath(name).parent}", exist_ok=True)
        try:
            file_system.put_file(str(path), f"{root}/{name}")
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
        kept = {
            path.name for _, path in checkpoint_folders(self.folder / "checkpoints")
        }
        places = f"{root}/checkpoints"
        if not file_system.exists(places):
            return
        for place in file_system.ls(places, detail=False):
            name = PurePosixPath(place.rstrip("/")).name
            if name not in kept and re.fullmatch(r"step-\d+", name):
                file_system.rm(f"{places}/{name}", recursive=True)
                for copied in [*self._copied]:
                    if copied.startswith(f"checkpoints/{name}/"):
                        del self._copied[copied]


def _state_of(path: Path) -> tuple[int, int] | None:
    """Return time and size of a file, or None if it is gone."""
    try:
        state = path.stat()
    except FileNotFoundError:
        return None
    return state.st_mtime_ns, state.st_size


def local_run(path: Path) -> Path:
    """Return the local copy of a mirrored run, or else the path."""
    address = address_of(path)
    return path if address is None else fetch_run(address)


def fetch_run(address: str, into: Path | None = None) -> Path:
    """Return a local copy of a mirrored run, in `into` or in the cache; what is there is updated.

    Raises:
        Refused: Nothing is there, or it cannot be read.
    """
    from filelock import FileLock

    if problem := address_problem(address):
        raise Refused(problem)
    address = address.rstrip("/")
    name = PurePosixPath(urlsplit(address).path or urlsplit(address).netloc).name
    if into is None:
        into = (
            cache_folder()
            / "mirrors"
            / hashlib.sha256(address.encode()).hexdigest()[:16]
        )
    folder = into / name
    try:
        into.mkdir(parents=True, exist_ok=True)
        with FileLock(into / f".{name}.lock"):
            _download(address, folder)
    # Libraries of services raise anything.
    except Exception as error:
        if isinstance(error, Refused):
            raise
        message = f"{address} cannot be read: {_reason(error)}"
        raise Refused(message, code="download-failed") from None
    return folder


def _download(address: str, folder: Path) -> None:
    file_system, root = _file_system(address)
    sizes = {}
    for place, facts in file_system.find(root, detail=True).items():
        name = place.removeprefix(root).lstrip("/")
        # A name of a server must not lead out of the folder.
        parts = name.split("/")
        if "\\" in name or not {"", ".", ".."}.isdisjoint(parts):
            raise Refused(
                f"{address} contains an invalid name: {name!r}", code="invalid-value"
            )
        sizes[name] = facts.get("size")
    if not sizes:
        raise Refused(f"{address}: nothing is there", code="file-not-found")
    for name, size in sizes.items():
        path = folder / name
        # Checkpoints never change, and are verified before they are read.
        known = name.startswith("checkpoints/") and path.is_file()
        if known and (size is None or path.stat().st_size == size):
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".tmp-{secrets.token_hex(6)}")
        try:
            file_system.get_file(f"{root}/{name}", str(temporary))
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
    for _, path in checkpoint_folders(folder / "checkpoints"):
        if f"checkpoints/{path.name}/{MANIFEST}" not in sizes:
            shutil.rmtree(path)
