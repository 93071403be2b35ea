"""The manifest of a folder of token ids, `shards.json`. Imports neither torch nor numpy."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from dither.registry.config.errors import Problem, Refused, nearest

__all__ = [
    "MANIFEST",
    "PREPARE_AGAIN",
    "TYPES",
    "FileRecord",
    "SplitRecord",
    "StoreManifest",
    "TokenizerRecord",
    "read_manifest",
    "summarize",
]

MANIFEST = "shards.json"
"""Written last: a folder that has it is complete."""

PREPARE_AGAIN = "prepare the folder again: dither prepare text --to FOLDER PATHS"

Type = Literal["|u1", "<u2", "<u4"]
"""Type of the ids, little-endian."""
TYPES: dict[int, Type] = {1: "|u1", 2: "<u2", 4: "<u4"}
"""The same by bytes per id."""


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class FileRecord(_Record):
    """A file of `ids` little-endian unsigned numbers without a header; `largest` is -1 if it is not known."""

    file: str = Field(pattern=r"^[a-z]+-(\d{5,}|starts)\.bin$")
    ids: int = Field(ge=0)
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    largest: int = Field(ge=-1)


class SplitRecord(_Record):
    """A split: its files of ids in order, and the file of document offsets (64 bits)."""

    documents: int = Field(ge=0)
    characters: int = Field(ge=0)
    shards: list[FileRecord]
    starts: FileRecord

    @property
    def ids(self) -> int:
        """Number of ids."""
        return sum(shard.ids for shard in self.shards)


class TokenizerRecord(_Record):
    """The tokenizer of the ids; `file` is in the folder, `added_end` says whether an end-of-text id was added."""

    name: str
    sort: Literal["bytes", "chars", "file"]
    fingerprint: str
    end: int | None
    added_end: bool
    separator: list[int]
    file: str | None = Field(None, pattern=r"^[a-z.]+$")


class StoreManifest(_Record):
    """Content of `shards.json`."""

    format: Literal["dither-shards"] = "dither-shards"
    version: Literal[1] = 1
    dtype: Type
    vocabulary: int = Field(ge=1)
    tokenizer: TokenizerRecord
    splits: dict[Literal["train", "valid", "test"], SplitRecord]
    made: dict[str, Any]
    sources: int = Field(ge=1)
    left_out: dict[str, int]


def read_manifest(folder: Path) -> StoreManifest:
    """Read the manifest of a folder and compare the length of every file with it.

    Raises:
        Refused: The folder or a file is missing, damaged, or of another version.
    """
    path = folder / MANIFEST
    try:
        manifest = StoreManifest.model_validate_json(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        raise Refused(_missing(folder)) from None
    except OSError as error:
        raise Refused(f"{path}: {error.strerror}", code="unreadable-file") from None
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = "".join(f"{part}: " for part in first["loc"])
        what = f"{path} is damaged or of another version: {key}{first['msg']}"
        raise Refused(Problem(what, help=PREPARE_AGAIN, code="damaged-file")) from None
    if problems := [
        problem for split in manifest.splits.values() for problem in _length_problems(folder, split, manifest)
    ]:
        raise Refused(problems)
    return manifest


def _missing(folder: Path) -> Problem:
    if folder.is_dir():
        return Problem(f"{folder} holds no shards: no {MANIFEST}", help=PREPARE_AGAIN, code="not-prepared")
    if folder.exists():
        return Problem(f"{folder} is a file, expected a folder with {MANIFEST}", code="not-prepared")
    siblings = (other.name for other in folder.parent.glob("*")) if folder.parent.is_dir() else ()
    near = nearest(folder.name, siblings)
    fix = f'did you mean "{near}"?' if near else PREPARE_AGAIN
    return Problem(f"{folder}: no such folder", help=fix, code="not-prepared")


def _length_problems(folder: Path, split: SplitRecord, manifest: StoreManifest) -> list[Problem]:
    problems = []
    width = int(manifest.dtype[-1])
    for record, size in [*((shard, width) for shard in split.shards), (split.starts, 8)]:
        path = folder / record.file
        try:
            found = path.stat().st_size
        except OSError:
            problems.append(Problem(f"{path} is missing", help=PREPARE_AGAIN, code="file-not-found"))
            continue
        if found != record.ids * size:
            what = f"{path} has {found:,} bytes, expected {record.ids * size:,} as in {MANIFEST}"
            problems.append(Problem(what, help=PREPARE_AGAIN, code="damaged-file"))
        if size == width and record.largest >= manifest.vocabulary:
            what = f"{path} holds the id {record.largest}, outside the vocabulary 0..{manifest.vocabulary - 1}"
            problems.append(Problem(what, help=PREPARE_AGAIN, code="out-of-range"))
    return problems


def summarize(manifest: StoreManifest) -> str:
    """Return the tokenizer, and documents and ids by split."""
    tokenizer, width = manifest.tokenizer, int(manifest.dtype[-1])
    end = "no end-of-text id" if tokenizer.end is None else f"end-of-text id {tokenizer.end}"
    size = f"{manifest.vocabulary:,} ids of {width} bytes"
    lines = [f'tokenizer "{tokenizer.name}": {size}, {end}, hash {tokenizer.fingerprint[:12]}']
    for name, split in manifest.splits.items():
        ratio = f", {split.characters / split.ids:.2f} characters per id" if split.ids else ""
        documents = "1 document" if split.documents == 1 else f"{split.documents:,} documents"
        files = "1 file" if len(split.shards) == 1 else f"{len(split.shards)} files"
        lines.append(f"  {name:5} {documents}, {split.ids:,} ids in {files}{ratio}")
    return "\n".join(lines)
