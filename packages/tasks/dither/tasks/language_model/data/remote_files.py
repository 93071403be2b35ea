"""Files at addresses of fsspec, such as https://host/text.jsonl.zst or s3://bucket/*.parquet, read in pieces."""

from __future__ import annotations

import io
import time
from pathlib import Path, PosixPath
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from dither.registry.config.errors import Refused
from dither.registry.files.addresses import (
    address_of,
    credentials_problem,
    error_reason,
)

from ...missing_library import require_extra

__all__ = ["RemotePath", "RemoteReader", "file_stamp", "open_random", "remote_files"]

PIECE = 1 << 22
"""Bytes per request to a service that reads ranges."""
ATTEMPTS = 3
"""How often a piece is requested."""
SILENCE = 60.0
"""Seconds without a byte after which a connection counts as broken."""
GONE = (404, 410)
"""Status of HTTP for a file that does not exist."""


class RemotePath(PosixPath):
    """An address, whose name and suffix are those of a path."""

    def __str__(self) -> str:
        return address_of(super().__str__()) or super().__str__()

    if not TYPE_CHECKING:
        # An address is the same in every working directory.
        def absolute(self) -> RemotePath:
            return self

        def resolve(self, strict: bool = False) -> RemotePath:
            return self


def remote_files(address: str, *, folders: bool = False) -> list[Path]:
    """Return the files of an address: one, those that match a pattern with `*`, or all of a folder.

    Raises:
        Refused: There is none, the service is unknown or does not respond, a library is missing, or
            the address contains credentials.
    """
    if problem := credentials_problem(address):
        raise Refused(problem)
    file_system, place = _file_system(address)
    try:
        if "*" in place:
            names = sorted(file_system.glob(place))
        elif file_system.info(place)["type"] != "directory":
            names = [place]
        elif folders:
            names = sorted(file_system.find(place))
        else:
            message = f"{address} is a folder, not a file"
            raise Refused(message, help=f"{address}/*", code="unreadable-file")
    except Refused:
        raise
    # Libraries of services raise anything.
    except Exception as error:
        code, reason = _reason(error)
        raise Refused(f"{address}: {reason}", code=code) from None
    if not names:
        raise Refused(f"{address}: no such file", code="file-not-found")
    return [RemotePath(file_system.unstrip_protocol(name)) for name in names]


def _file_system(address: str | Path) -> tuple[Any, str]:
    """Return a file system of fsspec and the path in it; Refused if a library is missing."""
    address = str(address)
    require_extra("remote", address)
    import fsspec  # type: ignore[import-untyped,unused-ignore]

    try:
        # The class alone: some services connect as soon as there is an instance.
        fsspec.get_filesystem_class(urlsplit(address).scheme)
    except (ImportError, ValueError) as error:
        message = f"{address}: {error_reason(error)}"
        raise Refused(message, code="missing-dependency") from None
    options: dict[str, Any] = {}
    if _is_http(address):
        from aiohttp import ClientTimeout

        # By default a request may take five minutes, however much arrives.
        timeout = ClientTimeout(total=None, sock_connect=SILENCE, sock_read=SILENCE)
        options["client_kwargs"] = {"timeout": timeout}
    file_system, place = fsspec.core.url_to_fs(address, **options)
    return file_system, place


def _is_http(address: str) -> bool:
    return urlsplit(address).scheme in ("http", "https")


def _reason(error: BaseException) -> tuple[str, str]:
    """Return the code and the reason of a failure."""
    if isinstance(error, FileNotFoundError):
        # HTTP reports every failure as a missing file, and has the reason as its cause.
        cause = error.__cause__
        if cause is None or getattr(cause, "status", None) in GONE:
            return "file-not-found", "no such file"
        return "download-failed", error_reason(cause)
    return "download-failed", error_reason(error)


def file_stamp(path: Path) -> int:
    """Return a number that differs once a file has changed: its time, or its size at an address."""
    if not isinstance(path, RemotePath):
        return path.stat().st_mtime_ns
    file_system, place = _file_system(path)
    return file_system.info(place).get("size") or 0


def open_random(path: RemotePath) -> Any:
    """Open a file of which parts are read, such as a table, by requests of ranges."""
    file_system, place = _file_system(path)
    return file_system.open(place, "rb", block_size=PIECE)


class RemoteReader(io.RawIOBase):
    """The bytes of a file at an address, from beginning to end.

    A broken connection is opened again where it broke. Memory is that of a piece.

    Attributes:
        size: Bytes of the file; None if the service does not say.

    Raises:
        OSError: A piece cannot be read, after several attempts.
    """

    def __init__(self, path: RemotePath) -> None:
        self._file_system, self._place = _file_system(path)
        self._address = str(path)
        self._position = 0
        self._file: Any = None
        try:
            self.size: int | None = self._file_system.info(self._place).get("size")
        except Exception as error:
            raise OSError(_reason(error)[1]) from None

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        for attempt in range(1, ATTEMPTS + 1):
            try:
                data = self._read(len(buffer))
                break
            except Exception as error:
                self._forget()
                if attempt == ATTEMPTS:
                    raise OSError(_reason(error)[1]) from None
                time.sleep(0.2 * attempt)
        buffer[: len(data)] = data
        self._position += len(data)
        return len(data)

    def close(self) -> None:
        self._forget()
        super().close()

    def _read(self, count: int) -> bytes:
        if self._file is None:
            self._file = self._open()
        data: bytes = self._file.read(count)
        if not data and self.size is not None and self._position < self.size:
            raise OSError(f"ends after {self._position:,} of {self.size:,} bytes")
        return data

    def _open(self) -> Any:
        """Open the file at the position."""
        if not _is_http(self._address):
            file = self._file_system.open(self._place, "rb", block_size=PIECE)
            file.seek(self._position)
            return file

        # One request for all of it, as many servers have no ranges; it may take hours. Compressed
        # on the way, a file would have other offsets.
        file = self._file_system.open(
            self._place,
            "rb",
            block_size=0,
            headers={
                "Accept-Encoding": "identity",
                "Range": f"bytes={self._position}-",
            },
        )
        # 206: partial content. Other servers begin again.
        skipped = 0
        while file.r.status != 206 and skipped < self._position:
            data = file.read(min(self._position - skipped, PIECE))
            if not data:
                raise OSError("the file has become shorter")
            skipped += len(data)
        return file

    def _forget(self) -> None:
        if self._file is not None:
            self._file.close()
        self._file = None
