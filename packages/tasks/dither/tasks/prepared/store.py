"""A folder of prepared data: .npy files, memory-mapped, and a manifest with their checksums."""

from __future__ import annotations

import hashlib
import io
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Shaped
from numpy import ndarray

from dither.registry.config.errors import Problem, Refused
from dither.registry.files.atomic import atomic_folder, atomic_write, sha256_of
from dither.registry.files.cache import cache_folder
from dither.registry.files.limits import read_bytes, unreadable
from dither.registry.files.write_errors import is_full, unwritable

from .arrays import Arrays, map_npy
from .manifest import MANIFEST, ArrayRecord, Kind, Manifest, read_manifest
from .rejected import REJECTED, RejectedRows

__all__ = [
    "ArrayStream",
    "Writer",
    "check_owned",
    "find_existing",
    "open_arrays",
    "require_name",
    "verify",
    "verify_files",
    "write_folder",
]

_Block = Shaped[ndarray, "n ..."]

BLOCK = 1 << 24
"""Bytes per read when computing a checksum."""


class ArrayStream:
    """A .npy file that is written in blocks of rows; the number of rows need not be known.

    Values are written as a plain stream: a full disk raises OSError, where a memory map would end
    the process.
    """

    def __init__(
        self, path: Path, dtype: np.dtype[Any], row_shape: Sequence[int] = ()
    ) -> None:
        self.path = path
        self.dtype = np.dtype(dtype)
        self.row_shape = tuple(row_shape)
        self.rows = 0
        self._digest = hashlib.sha256()
        self.file = path.open("wb")
        # The header of the finished file has the true number of rows; here it only takes its space.
        self.file.write(self._header())

    def append(self, block: _Block) -> None:
        block = np.ascontiguousarray(block, self.dtype)
        if block.shape[1:] != self.row_shape:
            raise ValueError(
                f"rows of shape {self.row_shape} expected, got {block.shape[1:]}"
            )
        # The checksum is of the values alone: the header changes when the number of rows is known.
        content = block.tobytes()
        self._digest.update(content)
        self.file.write(content)
        self.rows += len(block)

    def close(self, **info: Any) -> ArrayRecord:
        """Complete the header, and return the record of the file."""
        size = self.file.tell()
        # As long as before: numpy pads a header for any number of rows.
        self.file.seek(0)
        self.file.write(self._header())
        self.file.close()
        return ArrayRecord(
            file=self.path.name,
            dtype=self.dtype.str,
            shape=(self.rows, *self.row_shape),
            bytes=size,
            sha256=self._digest.hexdigest(),
            info=info,
        )

    def _header(self) -> bytes:
        header = io.BytesIO()
        descr = np.lib.format.dtype_to_descr(self.dtype)
        fields = {
            "descr": descr,
            "fortran_order": False,
            "shape": (self.rows, *self.row_shape),
        }
        np.lib.format.write_array_header_1_0(header, fields)
        return header.getvalue()


class Writer:
    """Fills a new folder of prepared data; `write_folder` yields it, and then sets `manifest`.

    Other files than arrays go to `folder`; the manifest stores `info`.
    """

    manifest: Manifest

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.info: dict[str, Any] = {}
        self._arrays: dict[str, ArrayRecord] = {}
        self._streams: dict[str, ArrayStream] = {}
        self._rejected: dict[str, int] = {}

    def stream(
        self, name: str, dtype: Any, row_shape: Sequence[int] = ()
    ) -> ArrayStream:
        """Begin an array whose rows come in blocks; `end` completes it."""
        self._streams[name] = ArrayStream(
            self.folder / f"{name}.npy", np.dtype(dtype), row_shape
        )
        return self._streams[name]

    def append(self, name: str, block: _Block) -> None:
        """Write rows of an array, which begins with the first."""
        if name not in self._streams:
            self.stream(name, block.dtype, block.shape[1:])
        self._streams[name].append(block)

    def end(self, name: str, **info: Any) -> ArrayRecord:
        """Complete an array; `info` is stored in its record."""
        self._arrays[name] = self._streams[name].close(**info)
        # After it: `_abort` closes the file of a stream that could not be completed.
        del self._streams[name]
        return self._arrays[name]

    def add(self, name: str, array: _Block, **info: Any) -> ArrayRecord:
        self.stream(name, array.dtype, array.shape[1:]).append(array)
        return self.end(name, **info)

    def add_blocks(
        self,
        name: str,
        blocks: Iterable[Any],
        dtype: Any,
        row_shape: Sequence[int] = (),
    ) -> ArrayRecord:
        stream = self.stream(name, dtype, row_shape)
        for block in blocks:
            stream.append(block)
        return self.end(name)

    def reject(self, rows: RejectedRows, file: str = REJECTED) -> None:
        """Save rejected rows; those of the standard file are counted in the manifest."""
        rows.save(self.folder / file)
        if file == REJECTED:
            self._rejected = dict(rows.counts)

    def _finish(self, kind: Kind, made: Mapping[str, Any]) -> None:
        # Arrays whose blocks ended, without a call of `end`.
        for name in list(self._streams):
            self.end(name)
        arrays = {record.file for record in self._arrays.values()}
        files = {}
        for path in sorted(self.folder.iterdir()):
            if path.name not in arrays:
                files[path.name] = sha256_of(path)
        self.manifest = Manifest(
            kind=kind.name,
            version=kind.version,
            # As JSON has it, so that options compare equal after a round trip.
            made=json.loads(json.dumps(made)),
            arrays=self._arrays,
            info=json.loads(json.dumps(self.info)),
            rejected=self._rejected,
            files=files,
        )
        # Last in the folder, which is renamed as a whole afterwards.
        text = self.manifest.model_dump_json(indent=1) + "\n"
        (self.folder / MANIFEST).write_text(text, encoding="utf-8")

    def _abort(self) -> None:
        for stream in self._streams.values():
            # Closing writes what is buffered, which fails again on a full disk.
            with suppress(OSError):
                stream.file.close()


@contextmanager
def write_folder(folder: Path, kind: Kind, made: Mapping[str, Any]) -> Iterator[Writer]:
    """Yield a writer; when the block ends without an error, its folder replaces `folder`.

    `check_owned` should have accepted the folder; `made` are the options, and a digest of the
    source. Refused, and nothing left behind, if the disk is full or not writable, or the block
    failed to read or write another file.
    """
    try:
        with atomic_folder(folder) as temporary:
            writer = Writer(temporary)
            try:
                yield writer
                writer._finish(kind, made)
            except OSError as error:
                # An error of another file, such as a source that the block reads, names that file.
                if _is_elsewhere(error, temporary):
                    name = Path(os.fsdecode(error.filename))
                    problem = unwritable if is_full(error) else unreadable
                    raise problem(name, error) from error
                raise
            finally:
                writer._abort()
    except OSError as error:
        raise unwritable(folder, error) from error


def _is_elsewhere(error: OSError, folder: Path) -> bool:
    if not isinstance(error.filename, str | bytes):
        return False
    path = Path(os.fsdecode(error.filename))
    return not path.absolute().is_relative_to(folder.absolute())


def require_name(folder: Path) -> None:
    """Refuse the working folder, the root and ..: a folder of prepared data is replaced as a whole."""
    if folder.name in ("", ".."):
        message = f"prepared data cannot replace the folder {folder}"
        fix = "give the name of a folder, which is created"
        raise Refused(message, help=fix, code="invalid-value")


def check_owned(folder: Path, kind: Kind) -> None:
    """Check that a folder is missing, empty, or holds nothing but prepared data of this kind.

    Its manifest lists these files; a manifest of another kind, or that cannot be parsed, is another
    file.
    """
    require_name(folder)
    if not folder.exists():
        return
    if not folder.is_dir():
        raise Refused(
            f"{folder} is a file; prepared {kind.name} need a folder",
            code="file-exists",
        )
    fix = f"--{kind.option} names another folder, which is created"
    patterns: list[str] = []
    if (folder / MANIFEST).exists():
        arrays = _listed_arrays(folder / MANIFEST, kind)
        if arrays is None:
            message = (
                f"{folder} contains other files: {MANIFEST} is not one of prepared"
            )
            raise Refused(f"{message} {kind.name}", help=fix, code="file-exists")
        patterns = [MANIFEST, REJECTED, *kind.files, *arrays]

    others = []
    for path in sorted(folder.iterdir()):
        if not any(fnmatch(path.name, pattern) for pattern in patterns):
            others.append(path.name)
    if others:
        shown = ", ".join(others[:3])
        if len(others) > 3:
            shown += ", ..."
        message = f"{folder} contains other files ({shown})"
        raise Refused(message, help=fix, code="file-exists")


def _listed_arrays(path: Path, kind: Kind) -> list[str] | None:
    """Return the files of a manifest of any version, perhaps damaged; None for another file."""
    try:
        manifest = json.loads(read_bytes(path))
        files = [f"{name}.npy" for name in dict(manifest["arrays"])]
        is_own = manifest["kind"] == kind.name and isinstance(manifest["version"], int)
    except OSError as error:
        raise unreadable(path, error) from None
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    return files if is_own else None


def find_existing(
    folder: Path,
    kind: Kind,
    made: Mapping[str, Any],
    *,
    force: bool = False,
) -> Manifest | None:
    """Return the manifest of a folder that holds exactly this, all checksums verified.

    None if it must be written: damaged data, data of another version, and any data with `force`
    are to be replaced. Refused if the folder holds other files, even with `force`, or the same kind
    of data made with other options.
    """
    check_owned(folder, kind)
    # All of it is replaced, so its checksums do not matter.
    if force:
        return None
    try:
        manifest = read_manifest(folder, kind)
        # As the manifest has it: tuples become lists.
        made = json.loads(json.dumps(made))
        keys = sorted({*made, *manifest.made})
        changed = [key for key in keys if made.get(key) != manifest.made.get(key)]
        if not changed:
            verify(folder, manifest, kind)
            verify_files(folder, manifest, kind)
            return manifest
    # Damaged data of this kind are replaced without --force.
    except Refused:
        return None

    texts = []
    for key in changed:
        if key != "source":
            texts.append(f"{key} was {json.dumps(manifest.made.get(key))}")
    if "source" in changed:
        texts.append("the source changed")
    message = (
        f"{folder} holds {kind.name} prepared with other options: {'; '.join(texts)}"
    )
    fix = f"--force replaces them; --{kind.option} names another folder"
    raise Refused(message, help=fix, code="changed-options")


def open_arrays(
    folder: Path,
    manifest: Manifest,
    kind: Kind,
    names: Iterable[str] | None = None,
) -> Arrays:
    """Memory-map arrays, all by default; raise Refused if one differs from the manifest."""
    arrays: Arrays = {}
    fix = f"run: {kind.command}"
    for name in manifest.arrays if names is None else names:
        record = manifest.arrays.get(name)
        if record is None:
            message = f"{folder / MANIFEST} has no array {name}"
            raise Refused(message, help=fix, code="missing-array")
        path = folder / record.file
        array = map_npy(path, fix)
        is_declared = (array.dtype.str, array.shape) == (record.dtype, record.shape)
        if not is_declared or not array.flags.c_contiguous:
            message = (
                f"{path} holds {array.dtype.str} of shape {array.shape}, "
                f"{MANIFEST} declares {record.dtype} of shape {record.shape}"
            )
            raise Refused(message, help=fix, code="damaged-file")
        arrays[name] = array
    return arrays


def verify(
    folder: Path,
    manifest: Manifest,
    kind: Kind,
    names: Iterable[str] | None = None,
    *,
    once: bool = False,
) -> None:
    """Read arrays, all by default, and compare their checksums.

    With `once` this is skipped if it succeeded before for all arrays and no file has changed since.
    """
    # Sizes first, which takes no time: a file that was cut short is reported at once.
    opened = open_arrays(folder, manifest, kind, names)
    stamp = _stamp(folder)
    state = _state(folder, manifest)
    if once:
        with suppress(OSError, ValueError):
            if json.loads(stamp.read_text("utf-8")) == state:
                return

    fix = f"copy them again, or run: {kind.command}"
    problems = []
    for name in opened:
        record = manifest.arrays[name]
        path = folder / record.file
        if _sha256(path, record) != record.sha256:
            message = f"{path}: checksum differs from {MANIFEST}"
            problems.append(Problem(message, help=fix, code="damaged-file"))
    if problems:
        raise Refused(problems)
    if once and names is None:
        with suppress(OSError), atomic_write(stamp) as temporary:
            temporary.write_text(json.dumps(state), "utf-8")


def verify_files(folder: Path, manifest: Manifest, kind: Kind) -> None:
    """Compare the checksums of the files that are no arrays, which training does not need."""
    fix = f"copy them again, or run: {kind.command}"
    problems = []
    for name, digest in manifest.files.items():
        path = folder / name
        try:
            differs = sha256_of(path) != digest
        except OSError as error:
            raise unreadable(path, error, fix) from None
        if differs:
            message = f"{path}: checksum differs from {MANIFEST}"
            problems.append(Problem(message, help=fix, code="damaged-file"))
    if problems:
        raise Refused(problems)


def _sha256(path: Path, record: ArrayRecord) -> str:
    """Return the checksum of the values, which are at the end of the file."""
    # dtype=object: a product of Python integers does not wrap around for a damaged shape.
    values = np.dtype(record.dtype).itemsize * int(np.prod(record.shape, dtype=object))
    digest = hashlib.sha256()
    try:
        with path.open("rb") as file:
            file.seek(record.bytes - values)
            while block := file.read(BLOCK):
                digest.update(block)
    except OSError as error:
        raise unreadable(path, error) from None
    return digest.hexdigest()


def _stamp(folder: Path) -> Path:
    """File that notes that the checksums of this folder were verified."""
    # Resolved: a folder has one stamp under all its names.
    name = hashlib.sha256(
        str(folder.resolve()).encode("utf-8", "surrogateescape")
    ).hexdigest()[:32]
    return cache_folder() / "verified" / f"{name}.json"


def _state(folder: Path, manifest: Manifest) -> list[list[str | int]]:
    """Checksum, size, time and inode of each file: a file that was touched has another state."""
    rows: list[list[str | int]] = []
    for record in manifest.arrays.values():
        stat = (folder / record.file).stat()
        rows.append(
            [record.file, record.sha256, stat.st_size, stat.st_mtime_ns, stat.st_ino]
        )
    return rows
