"""Files at addresses of fsspec, such as https://host/text.jsonl.zst or s3://bucket/*.parquet, read in pieces."""

from __future__ import annotations

import hashlib
import io
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path, PosixPath
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from dither.registry.config.errors import Refused
from dither.registry.files.addresses import (
    CHECK_ADDRESS,
    address_of,
    address_problem,
    cause_of,
    error_reason,
    is_http,
    is_silent,
    is_unreachable,
    lacks_credentials,
    service_options,
)

from ...missing_library import require_extra

__all__ = [
    "ChangedError",
    "RandomReader",
    "RangeReader",
    "RemotePath",
    "RemoteReader",
    "exact_path",
    "file_digest",
    "file_stamp",
    "remote_files",
]

logger = logging.getLogger(__name__)

_Result = TypeVar("_Result")

PIECE = 1 << 22
"""Bytes per request to a service that reads ranges."""
WAITS: tuple[float, ...] = (0.2, 0.8, 3.2, 12.8)
"""Seconds before each further attempt to read a piece: a network may be gone for a while."""
FIRST_WAITS = (0.5,)
"""The same for a host that has never answered: its name may be wrong."""
IDENTITY = {"Accept-Encoding": "identity"}
"""Header of HTTP; compressed on the way, parts of a file would have other offsets."""
NO_FILES = (".", "?", "javascript:", "mailto:")
"""Beginnings of hidden names, and of links that are no files."""
CHANGED = 412
"""HTTP status of a file whose tag is not the requested one."""
FORBIDDEN = (400, 401, 402, 403)
"""Status of HTTP for what another attempt does not change."""


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

    Hidden files, whose names begin with a dot, are left out unless the address names one.

    Raises:
        Refused: There is none, the service is unknown or does not respond, a library is missing, or
            the address is invalid, not that of a path, or contains credentials.
    """
    path = exact_path(address.rstrip("/"))
    if is_http(address) and address.endswith("/"):
        message = f"{address} is a folder, not a file"
        raise Refused(message, help=f"{address}*", code="unreadable-file")
    address = str(path)
    file_system, place = _file_system(path)
    entries: dict[str, Any] | None = None
    try:
        if "*" in place:
            entries = _matching(file_system, place)
        elif file_system.info(place)["type"] != "directory":
            return [path]
        elif folders:
            entries = file_system.find(place, detail=True)
    # Libraries of services raise anything.
    except Exception as error:
        raise _refused(address, error) from None
    if entries is None:
        message = f"{address} is a folder, not a file"
        raise Refused(message, help=f"{address}/*", code="unreadable-file")

    names = _visible_files(place, entries)
    # An address with a query is refused, as it may be a signature.
    plain = [name for name in names if not _has_query(name, address)]
    left_out = len(names) - len(plain)
    if left_out:
        logger.warning("%s: links with ? or #, left out: %d", address, left_out)
    if not plain:
        raise Refused(f"{address}: no such file", code="file-not-found")
    root = _root_of_names(address, place)
    return [exact_path(root + name.lstrip("/")) for name in plain]


def _root_of_names(address: str, place: str) -> str:
    """Return the service and host, which names found lack, except those of HTTP."""
    within = place.lstrip("/")
    if not address.endswith(within):
        message = f"{address}: this service lists files by other names"
        raise Refused(message, help="name each file", code="invalid-value")
    return address.removesuffix(within)


def _matching(file_system: Any, place: str) -> dict[str, Any]:
    """Return the entries that match a pattern."""
    folder, _, pattern = place.rpartition("/")
    if not is_http(place) or "*" in folder or "**" in pattern:
        return file_system.glob(place, detail=True)
    entries = {}
    for entry in file_system.ls(f"{folder}/", detail=True):
        # Some servers list ./name, which no pattern matches.
        name = entry["name"].replace("/./", "/")
        last = name.removeprefix(f"{folder}/")
        if "/" not in last and fnmatchcase(last, pattern):
            entries[name] = entry
    return entries


def _has_query(name: str, address: str) -> bool:
    return is_http(address) and ("?" in name or "#" in name)


def _visible_files(place: str, entries: Mapping[str, Any]) -> list[str]:
    """Return the names of files below a folder or pattern, sorted, without hidden ones."""
    folder = place
    if "*" in place:
        folder = place.partition("*")[0].rpartition("/")[0]
    names = []
    for name in sorted(entries):
        parts = name.removeprefix(folder).split("/")
        # Pages that list files have links such as "?C=N", which sort them.
        skipped = any(part.startswith(NO_FILES) for part in parts)
        is_folder = name.endswith("/") or entries[name].get("type") == "directory"
        if not skipped and not is_folder:
            names.append(name)
    return names


def exact_path(address: str) -> RemotePath:
    """Return an address as a path; Refused if that would be another address."""
    if address.startswith("file:"):
        message = f"{address}: a file of this machine is named by its path"
        fix = "/" + address.removeprefix("file:").lstrip("/")
        raise Refused(message, help=fix, code="invalid-value")
    if problem := address_problem(address):
        raise Refused(problem)
    path = RemotePath(address)
    if str(path) != address_of(address):
        message = f"{address}: an address has no empty part, and no part ."
        raise Refused(message, help=str(path), code="invalid-value")
    return path


def _file_system(address: str | Path) -> tuple[Any, str]:
    """Return a file system of fsspec and the path in it.

    Raises:
        Refused: A library is missing, or the service needs more than an address.
    """
    address = str(address)
    require_extra("remote", address)
    import fsspec  # type: ignore[import-untyped,unused-ignore]

    try:
        # The class alone: some services connect as soon as there is an instance.
        fsspec.get_filesystem_class(urlsplit(address).scheme)
    except (ImportError, ValueError) as error:
        message = f"{address}: {error_reason(error)}"
        raise Refused(message, code="missing-dependency") from None
    try:
        options = service_options(address)
        file_system, place = fsspec.core.url_to_fs(address, **options)
    except Exception as error:
        raise _refused(address, error) from None
    return file_system, place


def _refused(address: str, error: BaseException) -> Refused:
    code, reason = _reason(error)
    hint = CHECK_ADDRESS if code == "download-failed" else None
    return Refused(f"{address}: {reason}", help=hint, code=code)


def _os_error(error: BaseException) -> OSError:
    code, reason = _reason(error)
    if code == "file-not-found":
        return FileNotFoundError(reason)
    if isinstance(error, ChangedError) or getattr(error, "status", None) == CHANGED:
        return ChangedError(reason)
    return OSError(reason)


def _reason(error: BaseException) -> tuple[str, str]:
    """Return the code and the reason of a failure."""
    error = cause_of(error)
    if isinstance(error, FileNotFoundError):
        return "file-not-found", "no such file"
    if getattr(error, "status", None) == CHANGED:
        return "download-failed", "the file has changed"
    return "download-failed", error_reason(error)


def file_stamp(path: Path) -> int:
    """Return a number that differs once a file has changed: its time, or its size at an address.

    A change at an address that keeps the size is not seen.
    """
    if not isinstance(path, RemotePath):
        return path.stat().st_mtime_ns
    file_system, place = _file_system(path)
    try:
        return file_system.info(place).get("size") or 0
    except Exception as error:
        raise _refused(str(path), error) from None


def file_digest(path: Path) -> tuple[int, str]:
    """Return the bytes of a file, and the SHA-256 of its content, which is read to its end.

    The ETag of many servers has the time of the file, which differs between copies.

    Raises:
        Refused: It cannot be read.
    """
    digest = hashlib.sha256()
    size = 0
    try:
        with (
            RemoteReader(path) if isinstance(path, RemotePath) else path.open("rb")
        ) as file:
            while block := file.read(PIECE):
                digest.update(block)
                size += len(block)
    except OSError as error:
        message = f"{path}: {error.strerror or error}"
        raise Refused(message, code="download-failed") from None
    return size, digest.hexdigest()


class ChangedError(OSError):
    """A file has changed since it was opened."""


_reached: set[str] = set()
"""Services that have answered in this process."""


def _retried(address: str, request: Callable[[], _Result]) -> _Result:
    """Return the result of a request, after several attempts.

    Raises:
        OSError: The last one failed, or the file is missing or has changed.
    """
    service = "//".join(urlsplit(address)[:2])
    attempt = 0
    while True:
        try:
            result = request()
        except Exception as error:
            wait = _wait(service, error, attempt)
            if wait is None:
                raise _os_error(error) from None
        else:
            _reached.add(service)
            return result
        time.sleep(wait)
        attempt += 1


def _wait(service: str, error: Exception, attempt: int) -> float | None:
    """Return the seconds before another attempt after a failure; None if there is none."""
    waits = WAITS
    if not is_unreachable(error):
        _reached.add(service)
    elif service not in _reached:
        # A host that is silent would be so again.
        waits = () if is_silent(error) else FIRST_WAITS
    if _is_permanent(error) or attempt >= len(waits):
        return None
    return waits[attempt]


def _is_permanent(error: Exception) -> bool:
    """Return whether another attempt would fail likewise."""
    # A ValueError is that of a server without ranges.
    if isinstance(error, ValueError | PermissionError) or lacks_credentials(error):
        return True
    if isinstance(_os_error(error), FileNotFoundError | ChangedError):
        return True
    # HTTP has the reason of a missing file as its cause.
    status = getattr(error.__cause__ or error, "status", None)
    return status in FORBIDDEN


class RangeReader:
    """A file at an address, of which several ranges are requested together.

    Raises:
        Refused: A library is missing, or the service needs more than an address.
    """

    def __init__(self, path: RemotePath) -> None:
        self._file_system, self._place = _file_system(path)
        self._address = str(path)
        self._options: dict[str, Any] = {}
        if is_http(self._address):
            self._options["headers"] = IDENTITY

    def read(
        self,
        ranges: Sequence[range],
        use: Callable[[range, bytes], None],
    ) -> None:
        """Call `use` with the bytes of each range.

        Raises:
            OSError: One cannot be read, after several attempts, or `use` raised ChangedError.
        """
        missing = list(ranges)

        def request() -> None:
            contents = self._file_system.cat_ranges(
                [self._place] * len(missing),
                [part.start for part in missing],
                [part.stop for part in missing],
                on_error="return",
                **self._options,
            )
            failure = None
            for part, content in zip(tuple(missing), contents, strict=True):
                if isinstance(content, BaseException):
                    failure = content
                    continue
                if len(content) != len(part):
                    sizes = f"{len(content):,} of {len(part):,} bytes"
                    failure = OSError(f"an answer has {sizes}")
                    continue
                use(part, content)
                missing.remove(part)
            if failure is not None:
                raise failure

        _retried(self._address, request)


class RandomReader(io.RawIOBase):
    """A file at an address of which parts are read, such as a table, by requests of ranges.

    Raises:
        OSError: It cannot be opened, a part cannot be read, or the file has changed.
    """

    def __init__(self, path: RemotePath) -> None:
        file_system, place = _file_system(path)

        def opened() -> Any:
            options: dict[str, Any] = {}
            if is_http(str(path)):
                options["headers"] = dict(IDENTITY)
                tag = file_system.info(place).get("ETag", "W/")
                # Servers refuse a file with another tag. A weak tag never matches.
                if not tag.startswith("W/"):
                    options["headers"]["If-Match"] = tag
            return file_system.open(place, "rb", block_size=PIECE, **options)

        self._address = str(path)
        self._file = _retried(self._address, opened)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()

    def readinto(self, buffer: Any) -> int:
        # After an error, the position is that of before.
        data = _retried(self._address, lambda: self._file.read(len(buffer)))
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()


class RemoteReader(io.RawIOBase):
    """The bytes of a file at an address, from beginning to end.

    A broken connection is opened again where it broke; whether the file is still the same is known
    by its ETag and Last-Modified of HTTP, where the server sends them, or by what another service
    says of it. Memory is that of a piece.

    Attributes:
        size: Bytes of the file; None if the service does not say.

    Raises:
        OSError: A piece cannot be read, after several attempts, or the file has changed.
    """

    def __init__(self, path: RemotePath) -> None:
        self._file_system, self._place = _file_system(path)
        self._address = str(path)
        self._position = 0
        self._file: Any = None
        self._version: object = None
        about = _retried(self._address, lambda: self._file_system.info(self._place))
        self.size: int | None = about.get("size")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = _retried(self._address, lambda: self._read(len(buffer)))
        buffer[: len(data)] = data
        self._position += len(data)
        return len(data)

    def close(self) -> None:
        self._forget()
        super().close()

    def _read(self, count: int) -> bytes:
        try:
            return self._next(count)
        except Exception:
            # It is opened again at the position.
            self._forget()
            raise

    def _next(self, count: int) -> bytes:
        if self._file is None:
            # Servers refuse a range that is empty.
            if self._position == self.size:
                return b""
            self._open()
        data: bytes = self._file.read(count)
        if not data and self.size is not None and self._position < self.size:
            raise OSError(f"ends after {self._position:,} of {self.size:,} bytes")
        return data

    def _open(self) -> None:
        """Open the file at the position."""
        if not is_http(self._address):
            self._file = self._file_system.open(self._place, "rb", block_size=PIECE)
            version = dict(self._file_system.info(self._place))
            # Of SFTP, the time of the last access.
            version.pop("time", None)
            self._require_version(version)
            self._file.seek(self._position)
            return

        # One request for all of it, as many servers have no ranges; it may take hours.
        self._file = self._file_system.open(
            self._place,
            "rb",
            block_size=0,
            headers={**IDENTITY, "Range": f"bytes={self._position}-"},
        )
        response = self._file.r
        versions = ("ETag", "Last-Modified")
        self._require_version([response.headers.get(name) for name in versions])
        # 206: partial content. Other servers begin again.
        skipped = 0
        while response.status != 206 and skipped < self._position:
            data = self._file.read(min(self._position - skipped, PIECE))
            if not data:
                raise OSError("the file has become shorter")
            skipped += len(data)

    def _require_version(self, version: object) -> None:
        if self._version is None:
            self._version = version
        if version != self._version:
            raise ChangedError("the file has changed")

    def _forget(self) -> None:
        if self._file is not None:
            self._file.close()
        self._file = None
