"""Text files in UTF-8, compressed or not; errors name the offset of the first offending byte."""

from __future__ import annotations

import bz2
import codecs
import glob
import gzip
import hashlib
import io
import json
import logging
import lzma
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from dither.registry.config.errors import Problem, Refused, did_you_mean
from dither.registry.files.addresses import address_of
from dither.registry.files.limits import max_expanded, open_file
from dither.registry.files.lookup import as_argument, command_line

from ...missing_library import require_extra
from .corpus import Document
from .file_formats import COMPRESSED, record_format
from .hub import HUB, hub_files
from .published_splits import splits_of_sources
from .remote_files import RemotePath, RemoteReader, file_digest, remote_files

__all__ = [
    "CODES_OF",
    "NotText",
    "check_encodable",
    "cut_pieces",
    "describe_elsewhere",
    "find_all",
    "find_files",
    "find_plain",
    "open_data",
    "plain_text",
    "read_blocks",
    "read_files",
    "read_text_file",
    "require_plain",
]


logger = logging.getLogger(__name__)

CODES_OF = {
    "binary": "damaged-file",
    "csv": "syntax-error",
    "encoding": "damaged-file",
    "json": "syntax-error",
    "missing": "file-not-found",
    "records": "unknown-format",
}
"""Code of each reason why a file or record is not text."""
BLOCK = 1 << 20
"""Bytes per read of a file."""
PIECE = 1 << 16
"""Characters after which a piece ends at the next safe position."""
LONGEST = 1 << 24
"""Characters after which it ends at any blank, even if this changes the encoding."""
_NAMES = {"lines": "JSON lines (.jsonl)", "json": "JSON"}
"""Formats that messages call by another name."""


class NotText(ValueError):  # noqa: N818 - the state of a file, not an error of the program
    """A file, or a part of one, that is not text; `sort` is the reason as one word."""

    def __init__(self, sort: str, message: str, help: str | None = None) -> None:
        super().__init__(message)
        self.sort = sort
        self.message = message
        self.help = help


def read_files(patterns: Sequence[str]) -> list[Document]:
    r"""Return one document per file; each file is read once to check it.

    Args:
        patterns: Paths or globs (`**` for folders at any depth), relative to the working directory.
            UTF-8, with or without a byte order mark; line ends become "\n".

    Raises:
        Refused: Names every path that is missing, not a regular file, empty, binary, not UTF-8, or
            of records.
    """
    problems: list[Problem] = []
    documents: list[Document] = []
    files = find_all(patterns, problems, find_plain)
    if records := [file for file in files if record_format(file)]:
        message = "files with names of records, read as plain text: %d, such as %s"
        logger.warning(message, len(records), records[0])
    published = dict(zip(files, splits_of_sources(files), strict=True))
    for file in sorted(files, key=lambda file: file.resolve()):
        path = file.resolve()
        try:
            digest, size, _ = _read(path)
        except NotText as error:
            code = CODES_OF.get(error.sort, "unreadable-file")
            problems.append(Problem(error.message, help=error.help, code=code))
        else:
            load = partial(_load, path, digest)
            documents.append(Document(str(path), digest, size, load, published[file]))
    if problems:
        raise Refused(problems)
    return documents


def find_all(
    patterns: Iterable[str],
    problems: list[Problem],
    find: Callable[[str], list[Path]],
) -> list[Path]:
    """Return the files of several patterns, each once; patterns without files go to `problems`."""
    files: dict[Path, Path] = {}
    for pattern in patterns:
        try:
            for path in find(pattern):
                files[path.resolve()] = path
        except Refused as refused:
            problems += refused.problems
    return list(files.values())


def find_files(pattern: str, *, folders: bool = False) -> list[Path]:
    """Return the files of a path or glob, sorted; folders that match a glob are skipped.

    With `folders`, a path may be a folder: all files in it at any depth, except hidden ones.
    `hub:OWNER/NAME` is a data set of the Hugging Face Hub; an address is one of fsspec.

    Raises:
        Refused: There is none.
    """
    if address_of(pattern) or pattern.startswith("file:"):
        return remote_files(pattern, folders=folders)
    if pattern.startswith(HUB):
        return hub_files(pattern)
    try:
        path = Path(pattern).expanduser()
        if path.is_dir():
            return _files_of_folder(path, folders=folders)
        if path.exists():
            return [path]
        matches = map(Path, sorted(glob.glob(str(path), recursive=True)))
        files = [match for match in matches if not match.is_dir()]
    except (OSError, RuntimeError, ValueError) as error:
        # Too long, no permission, an unknown ~user, a zero byte.
        reason = error.strerror if isinstance(error, OSError) else error
        message = f"{pattern[:200]}: invalid path: {reason}"
        raise Refused(message, code="unreadable-file") from error
    if not files:
        raise Refused(_not_found(path, pattern))
    return files


def find_plain(pattern: str) -> list[Path]:
    """Return the files of `find_files`; those of records only if a pattern matches them.

    Raises:
        Refused: There is none, or the name of one, or of a data set, is that of a file of records.
    """
    files = find_files(pattern)
    exact = Path(pattern).expanduser()
    for path in files:
        form = record_format(path)
        is_named = path == exact or not glob.has_magic(pattern)
        # Of a data set, files were chosen by their names.
        if form and (is_named or pattern.startswith(HUB)):
            message = f"{pattern}: {_NAMES.get(form, form)}, not plain text"
            fix = command_line("prepare", "text", as_argument(pattern))
            raise Refused(message, help=fix, code="unknown-format")
    return files


def describe_elsewhere(patterns: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Describe the files at addresses and on the Hub, as `DataSpec.describe_elsewhere`."""
    lines = []
    total = 0
    for pattern in patterns:
        if address_of(pattern) is None and not pattern.startswith(HUB):
            continue
        for path in find_files(pattern):
            size, digest = file_digest(path)
            total += size
            lines.append(f"{path.name} {digest}")
    if not lines:
        return {}
    about = {
        "first": lines[0].partition(" ")[0],
        "files": len(lines),
        "bytes": total,
        "sha256": hashlib.sha256("\n".join(lines).encode()).hexdigest(),
    }
    return {"paths": about}


def _files_of_folder(folder: Path, *, folders: bool) -> list[Path]:
    if not folders:
        message = f"{folder} is a folder, not a file"
        raise Refused(message, help=f'"{folder}/**/*.txt"', code="unreadable-file")
    files = []
    for path in sorted(folder.rglob("*")):
        hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
        if not hidden and not path.is_dir():
            files.append(path)
    if not files:
        raise Refused(f"{folder}: no files in this folder", code="file-not-found")
    return files


def _not_found(path: Path, pattern: str) -> Problem:
    start = ""
    if not path.is_absolute():
        start = f" (from {Path.cwd()})"

    if glob.has_magic(pattern):
        return Problem(f"no file matches {path}{start}", code="file-not-found")
    fix = None
    if path.parent.is_dir():
        fix = did_you_mean(path.name, (other.name for other in path.parent.glob("*")))
    return Problem(f"{path}: no such file{start}", help=fix, code="file-not-found")


@contextmanager
def open_data(path: Path) -> Iterator[Any]:
    """Open a file, which is decompressed if its first bytes are those of gzip, bz2, xz or zstd.

    Raises:
        NotText: On opening or reading, the file is unreadable, damaged, or expands too far.
        Refused: zstd requires pyarrow.
    """
    try:
        with ExitStack() as stack:
            file: Any
            if isinstance(path, RemotePath):
                reader = RemoteReader(path)
                file = stack.enter_context(io.BufferedReader(reader, BLOCK))
                size = reader.size or 0
            else:
                if not path.exists():
                    raise NotText("missing", f"{path}: no such file")
                if not path.is_file():
                    raise NotText("unreadable", f"{path}: not a regular file")
                file = stack.enter_context(open_file(path))
                size = path.stat().st_size
            # By content: a file may have lost the end of its name.
            first = file.peek(16)
            for suffix, (start, magic) in COMPRESSED.items():
                if first.startswith(magic, start):
                    raw = stack.enter_context(_decompressed(file, suffix, path))
                    yield stack.enter_context(
                        io.BufferedReader(_Limited(raw, max_expanded(size)), BLOCK)
                    )
                    return
            yield file
    except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
        sort = "unreadable"
        reason = str(error)
        if isinstance(error, OSError):
            reason = error.strerror or reason
        if isinstance(error, FileNotFoundError):
            sort = "missing"
        raise NotText(sort, f"{path}: {reason}") from error


def _decompressed(file: Any, suffix: str, path: Path) -> Any:
    if suffix == ".gz":
        return gzip.GzipFile(fileobj=file)
    if suffix == ".bz2":
        return bz2.BZ2File(file)
    if suffix == ".xz":
        return lzma.LZMAFile(file)
    require_extra("parquet", str(path))
    from pyarrow import CompressedInputStream  # type: ignore[import-not-found,unused-ignore]

    return CompressedInputStream(file, "zstd")


class _Limited(io.RawIOBase):
    """Decompressed bytes below the size policy."""

    def __init__(self, file: Any, limit: int) -> None:
        self._file = file
        self._left = limit

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._file.read(len(buffer))
        self._left -= len(data)
        if self._left < 0:
            raise OSError("expands to more than the size policy allows")
        buffer[: len(data)] = data
        return len(data)


def check_encodable(text: str, start: int = 0) -> None:
    """Raise `NotText` if a text, which begins at position `start`, has half a surrogate pair."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        surrogate = f"U+{ord(text[error.start]):04X}"
        message = f"unpaired surrogate {surrogate} at position {start + error.start}"
        raise NotText("encoding", message) from None


def read_blocks(path: Path) -> Iterator[tuple[bytes, str]]:
    """Yield a text file block by block, raw and decoded, byte order mark and line ends unchanged.

    Raises:
        NotText: The file is unreadable, empty, binary or not UTF-8.
    """
    decoder = codecs.getincrementaldecoder("utf-8")()
    offset = 0
    with open_data(path) as file:
        while block := file.read(BLOCK):
            # Text has no zero byte, nearly every binary file has one.
            zero = block.find(0)
            if zero >= 0:
                message = (
                    f"{path}: binary, not text: zero byte at offset {offset + zero}"
                )
                raise NotText("binary", message)
            yield block, _decode(decoder, block, offset, path)
            offset += len(block)
        # The file may end inside of a character.
        _decode(decoder, b"", offset, path)
    if not offset:
        raise NotText("empty", f"{path}: empty")


def _decode(
    decoder: codecs.IncrementalDecoder, block: bytes, offset: int, path: Path
) -> str:
    # What the decoder holds back of the block before comes before this block.
    pending = len(decoder.getstate()[0])
    try:
        return decoder.decode(block, final=not block)
    except UnicodeDecodeError as error:
        byte = f"byte 0x{error.object[error.start]:02x} at offset {offset - pending + error.start}"
        message = f"{path}: not UTF-8: {byte} ({error.reason})"
        raise NotText("encoding", message, "save it as UTF-8") from error


def require_plain(
    path: Path, blocks: Iterable[str], column: str = "text"
) -> Iterator[str]:
    """Yield the blocks of plain text unchanged.

    Raises:
        NotText: The file begins with a record in JSON that has the key `column`.
    """
    for number, block in enumerate(blocks):
        # The end of the name may be missing or wrong.
        if number == 0 and _begins_with_record(block, column):
            message = f"{path}: {_NAMES['lines']}, not plain text"
            fix = command_line("prepare", "text", path)
            if record_format(path) is None:
                # Its name decides how it is read.
                ending = path.suffix if path.suffix.lower() in COMPRESSED else ""
                name = Path(f"{str(path).removesuffix(ending)}.jsonl{ending}")
                fix = f"rename it, then: {command_line('prepare', 'text', name)}"
            raise NotText("records", message, fix)
        yield block


def _begins_with_record(block: str, column: str) -> bool:
    line = block.removeprefix("\ufeff").lstrip().partition("\n")[0]
    if not line.startswith("{"):
        return False
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return False
    return isinstance(record, dict) and isinstance(record.get(column), str)


def plain_text(blocks: Iterable[str]) -> Iterator[str]:
    r"""Remove a byte order mark, and turn every line end into "\n"."""
    # Unlike str.replace it joins a line end that two blocks share.
    newlines = io.IncrementalNewlineDecoder(None, translate=True)
    mark = "\ufeff"
    for block in blocks:
        yield newlines.decode(block.removeprefix(mark))
        # Only at the beginning of a file is it a mark.
        mark = ""
    yield newlines.decode("", final=True)


def _read(path: Path) -> tuple[str, int, str]:
    """Return digest, size in bytes, and text of a file."""
    blocks = list(read_blocks(path))
    digest = hashlib.sha256()
    size = 0
    for raw, _ in blocks:
        digest.update(raw)
        size += len(raw)
    texts = require_plain(path, (text for _, text in blocks))
    return digest.hexdigest(), size, "".join(plain_text(texts))


def read_text_file(path: Path) -> str:
    """Return the text of a file, as a document of `read_files`.

    Raises:
        Refused: The file is unreadable, empty, binary or not UTF-8.
    """
    try:
        return _read(path)[2]
    except NotText as error:
        reason = error.message.removeprefix(f"{path}: ")
        message = f"{path} cannot be read: {reason}"
        raise Refused(message, help=error.help, code="unreadable-file") from error


def _load(path: Path, expected: str) -> str:
    try:
        digest, _, text = _read(path)
    except NotText as error:
        raise Refused(error.message, help=error.help, code="unreadable-file") from error
    # The document is in its split by the content that was read first.
    if digest != expected:
        raise Refused(
            f"{path} has changed since it was first read", code="changed-data"
        )
    return text


def cut_pieces(blocks: Iterable[str]) -> Iterator[str]:
    """Cut a text, given in blocks, after a line end between two visible characters.

    The pattern of GPT-2 also cuts there, so that the ids do not depend on the pieces. A text
    without such positions is cut before a blank after `LONGEST` characters, so that memory stays
    bounded.
    """
    buffer = ""
    looked = 0
    for block in blocks:
        buffer += block
        start = 0
        while (cut := _place(buffer, max(start + PIECE, looked))) is not None:
            yield buffer[start:cut]
            start = looked = cut
        buffer = buffer[start:]
        # A line end at the end of the buffer depends on the next character.
        looked = max(len(buffer) - 1, 0)
        while len(buffer) > LONGEST:
            blank = buffer.rfind(" ", 1, LONGEST)
            cut = blank if blank > 0 else LONGEST
            yield buffer[:cut]
            buffer = buffer[cut:]
            looked = 0
    if buffer:
        yield buffer


def _place(text: str, start: int) -> int | None:
    """Return the first position from `start` on where a text may be cut; None if there is none."""
    cut = text.find("\n", start) + 1
    while cut:
        inside = 2 <= cut < len(text)
        if inside and not text[cut - 2].isspace() and not text[cut].isspace():
            return cut
        cut = text.find("\n", cut) + 1
    return None
