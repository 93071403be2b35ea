"""UTF-8 text files. Files that are not text are named with the offset of the first offending byte."""

from __future__ import annotations

import codecs
import glob
import hashlib
import io
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path

from dither.registry.config.errors import Problem, Refused, did_you_mean

from .corpus import Document

__all__ = [
    "NotText",
    "cut_pieces",
    "find_all",
    "find_files",
    "plain_text",
    "read_blocks",
    "read_files",
]

BLOCK = 1 << 20


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
        patterns: Paths or globs (`**` for folders at any depth), relative to the working directory. UTF-8, with or
            without a byte order mark; line ends become "\n".

    Raises:
        Refused: Names every path that is missing, not a regular file, empty, binary or not UTF-8.
    """
    problems: list[Problem] = []
    documents: list[Document] = []
    for path in sorted(find_all(patterns, problems)):
        try:
            digest, size, _ = _read(path)
        except NotText as error:
            code = "damaged-file" if error.sort in ("binary", "encoding") else "unreadable-file"
            problems.append(Problem(error.message, help=error.help, code=code))
        else:
            documents.append(Document(str(path), digest, size, partial(_load, path, digest)))
    if problems:
        raise Refused(problems)
    return documents


def find_all(
    patterns: Iterable[str], problems: list[Problem], *, folders: bool = False
) -> list[Path]:
    """Return the files of several patterns, each once; patterns without files are added to `problems`."""
    files: dict[Path, Path] = {}
    for pattern in patterns:
        try:
            files |= {path.resolve(): path for path in find_files(pattern, folders=folders)}
        except Refused as refused:
            problems += refused.problems
    return list(files.values()) if folders else list(files)


def find_files(pattern: str, *, folders: bool = False) -> list[Path]:
    """Return the files of a path or glob, sorted; folders that match a glob are skipped.

    With `folders`, a path may be a folder: all files in it at any depth, except hidden ones.

    Raises:
        Refused: There is none.
    """
    try:
        path = Path(pattern).expanduser()
        is_folder = path.is_dir()
        exists = path.exists()
        inside = (
            [file.relative_to(path) for file in path.rglob("*")] if is_folder and folders else []
        )
    except (
        OSError,
        RuntimeError,
        ValueError,
    ) as error:  # too long, no permission, an unknown ~user, a zero byte
        what = f"{pattern[:200]}: invalid path: {getattr(error, 'strerror', None) or error}"
        raise Refused(what, code="unreadable-file") from error
    if is_folder and folders:
        visible = sorted(
            file for file in inside if not any(part.startswith(".") for part in file.parts)
        )
        if files := [path / file for file in visible if not (path / file).is_dir()]:
            return files
        raise Refused(f"{path}: no files in this folder", code="file-not-found")
    if is_folder:
        raise Refused(
            Problem(
                f"{path} is a folder, not a file", help=f'"{path}/**/*.txt"', code="unreadable-file"
            )
        )
    if exists:
        return [path]
    matches = [Path(name) for name in sorted(glob.glob(str(path), recursive=True))]
    if files := [match for match in matches if not match.is_dir()]:
        return files
    start = "" if path.is_absolute() else f" (from {Path.cwd()})"
    if glob.has_magic(pattern):
        raise Refused(f"no file matches {path}{start}", code="file-not-found")
    fix = (
        did_you_mean(path.name, (other.name for other in path.parent.glob("*")))
        if path.parent.is_dir()
        else None
    )
    raise Refused(Problem(f"{path}: no such file{start}", help=fix, code="file-not-found"))


def read_blocks(path: Path) -> Iterator[tuple[bytes, str]]:
    """Yield a text file block by block, raw and decoded, byte order mark and line ends unchanged.

    Raises:
        NotText: The file is unreadable, empty, binary or not UTF-8.
    """
    if not path.is_file():
        raise NotText("unreadable", f"{path}: not a regular file")
    decoder = codecs.getincrementaldecoder("utf-8")()
    offset = 0
    try:
        with path.open("rb") as file:
            while block := file.read(BLOCK):
                if (null := block.find(0)) >= 0:
                    raise NotText(
                        "binary", f"{path}: binary, not text: zero byte at offset {offset + null}"
                    )
                yield block, _decode(decoder, block, offset, path)
                offset += len(block)
            _decode(decoder, b"", offset, path)
    except OSError as error:
        raise NotText("unreadable", f"{path}: {error.strerror}") from error
    if not offset:
        raise NotText("empty", f"{path}: empty")


def _decode(
    decoder: codecs.IncrementalDecoder,
    block: bytes,
    offset: int,
    path: Path,
) -> str:
    pending = len(decoder.getstate()[0])
    try:
        return decoder.decode(block, final=not block)
    except UnicodeDecodeError as error:
        at = offset - pending + error.start
        what = f"{path}: not UTF-8: byte 0x{error.object[error.start]:02x} at offset {at} ({error.reason})"
        raise NotText("encoding", what, "save it as UTF-8") from error


def plain_text(blocks: Iterable[str]) -> Iterator[str]:
    r"""Remove a byte order mark, and turn every line end into "\n"."""
    newlines = io.IncrementalNewlineDecoder(None, translate=True)
    for number, block in enumerate(blocks):
        yield newlines.decode(block if number else block.removeprefix("\ufeff"))
    yield newlines.decode("", final=True)


def _read(path: Path) -> tuple[str, int, str]:
    """Return digest, size in bytes, and text of a file."""
    blocks = list(read_blocks(path))
    digest = hashlib.sha256()
    size = 0
    for raw, _ in blocks:
        digest.update(raw)
        size += len(raw)
    return digest.hexdigest(), size, "".join(plain_text(text for _, text in blocks))


def _load(path: Path, expected: str) -> str:
    try:
        digest, _, text = _read(path)
    except NotText as error:
        raise Refused(Problem(error.message, help=error.help, code="unreadable-file")) from error
    if digest != expected:
        raise Refused(f"{path} has changed since it was first read", code="changed-data")
    return text


PIECE = 1 << 16
"""Characters after which a chunk ends at the next safe position."""
LONGEST = 1 << 24
"""Characters after which it ends at any blank, even if this changes the encoding."""


def cut_pieces(blocks: Iterable[str]) -> Iterator[str]:
    """Cut a text, given in blocks, after a line end between two visible characters, where GPT-2's pattern also cuts.

    A text without such positions is cut before a blank after `LONGEST` characters, so that memory
    stays bounded.
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
        looked = max(len(buffer) - 1, 0)  # a line end there depends on the next character
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
    while cut and (cut < 2 or cut >= len(text) or text[cut - 2].isspace() or text[cut].isspace()):
        cut = text.find("\n", cut) + 1
    return cut or None
