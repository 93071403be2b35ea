"""Text files of the user. Whatever is not text is named, with the offset of the first byte that says so."""

from __future__ import annotations

import codecs
import glob
import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from dither.registry.config.errors import Problem, Refused, nearest

from .corpus import Document

__all__ = ["NoText", "find_files", "read_blocks", "read_files"]

BLOCK = 1 << 20


class NoText(ValueError):  # noqa: N818 - it is no error of the program
    """A file, or a part of one, that holds no text.

    Attributes:
        sort: What is wrong with it, in a word, to count by.
        message: What is wrong with it, and where.
        help: What to do about it.
    """

    def __init__(self, sort: str, message: str, help: str | None = None) -> None:
        super().__init__(message)
        self.sort, self.message, self.help = sort, message, help


def read_files(patterns: Sequence[str]) -> list[Document]:
    r"""Return one document per file, after a first reading of each.

    Args:
        patterns: Paths or globs (`**` for folders at any depth), relative to the working directory. UTF-8, with or
            without a byte order mark; line ends become "\n".

    Raises:
        Refused: Names every path that is missing, no plain file, empty, binary or not UTF-8, the last two with the
            offset of the first such byte.
    """
    problems: list[Problem] = []
    documents: dict[Path, Document] = {}
    for pattern in patterns:
        try:
            found = find_files(pattern)
        except Refused as refused:
            problems += refused.problems
            continue
        for path in found:
            try:
                documents[path.resolve()] = _document(path)
            except Refused as refused:
                problems += refused.problems
    if problems:
        raise Refused(problems)
    return [documents[path] for path in sorted(documents)]


def find_files(pattern: str) -> list[Path]:
    """Return the files that a path or a glob names, sorted; folders that a glob matches are passed over.

    Raises:
        Refused: There is none.
    """
    try:
        path = Path(pattern).expanduser()
        folder, there = path.is_dir(), path.exists()
    except (OSError, RuntimeError) as error:  # a name that is too long, a folder that is closed, an unknown ~user
        raise Refused(f"{pattern[:200]} cannot be a path: {getattr(error, 'strerror', None) or error}") from error
    if folder:
        inside = f'for what is in it, write "{path}/**/*.txt"'
        raise Refused(Problem(f"{path} is a folder, not a text file", help=inside))
    if there:
        return [path]
    found = [Path(name) for name in sorted(glob.glob(str(path), recursive=True))]
    if files := [path for path in found if not path.is_dir()]:
        return files
    where = "" if path.is_absolute() else f" (from {Path.cwd()})"
    if glob.has_magic(pattern):
        raise Refused(f"no file matches {path}{where}")
    near = nearest(path.name, (other.name for other in path.parent.glob("*"))) if path.parent.is_dir() else None
    raise Refused(Problem(f"there is no file {path}{where}", help=f'did you mean "{near}"?' if near else None))


def read_blocks(path: Path) -> Iterator[tuple[bytes, str]]:
    """Yield a text file block by block, raw and decoded; a byte order mark and line ends stay as they are.

    Raises:
        NoText: It cannot be read, or is empty, binary or not UTF-8.
    """
    if not path.is_file():
        raise NoText("unreadable", f"{path} is no plain file")
    decoder, offset = codecs.getincrementaldecoder("utf-8")(), 0
    try:
        with path.open("rb") as file:
            while block := file.read(BLOCK):
                if (null := block.find(0)) >= 0:
                    raise NoText("binary", f"{path} is binary, not text: a zero byte at offset {offset + null}")
                yield block, _decode(decoder, block, offset, path)
                offset += len(block)
            _decode(decoder, b"", offset, path)
    except OSError as error:
        raise NoText("unreadable", f"{path} cannot be read: {error.strerror}") from error
    if not offset:
        raise NoText("empty", f"{path} is empty")


def _document(path: Path) -> Document:
    """Read a file once, block by block: its digest, its size, and whether it is text."""
    digest, size = hashlib.sha256(), 0
    try:
        for block, _ in read_blocks(path):
            digest.update(block)
            size += len(block)
    except NoText as fault:
        raise Refused(Problem(fault.message, help=fault.help)) from fault
    return Document(str(path), digest.hexdigest(), size, lambda: _load(path, digest.hexdigest()))


def _decode(decoder: codecs.IncrementalDecoder, block: bytes, offset: int, path: Path) -> str:
    pending = len(decoder.getstate()[0])
    try:
        return decoder.decode(block, final=not block)
    except UnicodeDecodeError as error:
        at = offset - pending + error.start
        what = f"{path} is not UTF-8 text: byte 0x{error.object[error.start]:02x} at offset {at} ({error.reason})"
        raise NoText("encoding", what, "save it as UTF-8") from error


def _load(path: Path, digest: str) -> str:
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise Refused(f"{path} cannot be read: {error.strerror}") from error
    if hashlib.sha256(raw).hexdigest() != digest:
        raise Refused(f"{path} has changed since it was first read")
    return raw.decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
