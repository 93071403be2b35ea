"""What `shards.json` says about a folder of shards. No torch and no numpy here."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from dither.registry.config.errors import Problem, Refused, nearest

__all__ = [
    "REMEDY",
    "SIDECAR",
    "TYPES",
    "FolderRecord",
    "ShardRecord",
    "SplitRecord",
    "TokenizerRecord",
    "find_record",
    "summarise",
    "summary_of",
]

SIDECAR = "shards.json"
"""Name of the file; it is written last, so that a folder that has it is whole."""

REMEDY = "make the folder again: dither prepare text --to FOLDER PATHS"
"""What helps where a folder is not whole."""

Type = Literal["|u1", "<u2", "<u4"]
"""How an id is written, the lowest byte first."""
TYPES: dict[int, Type] = {1: "|u1", 2: "<u2", 4: "<u4"}
"""The same by bytes per id."""


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class ShardRecord(_Record):
    """One file of ids, without a header: little-endian unsigned numbers."""

    file: str = Field(pattern=r"^[a-z]+-(\d{5,}|starts)\.bin$")
    ids: int = Field(ge=0)
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    largest: int = Field(ge=-1)


class SplitRecord(_Record):
    """One split: its shards in order, and the file that says where its documents begin (numbers of 64 bits)."""

    documents: int = Field(ge=0)
    characters: int = Field(ge=0)
    shards: list[ShardRecord]
    starts: ShardRecord

    @property
    def ids(self) -> int:
        """Number of ids."""
        return sum(shard.ids for shard in self.shards)


class TokenizerRecord(_Record):
    """The tokenizer that made the ids; `file` is kept in the folder, `added_end` says that an end was added to it."""

    name: str
    sort: Literal["bytes", "chars", "file"]
    fingerprint: str
    end: int | None
    added_end: bool
    separator: list[int]
    file: str | None = Field(None, pattern=r"^[a-z.]+$")


class FolderRecord(_Record):
    """The whole file."""

    format: Literal["dither-shards"] = "dither-shards"
    version: Literal[1] = 1
    dtype: Type
    vocabulary: int = Field(ge=1)
    tokenizer: TokenizerRecord
    splits: dict[Literal["train", "valid", "test"], SplitRecord]
    made: dict[str, Any]
    sources: int = Field(ge=1)
    left_out: dict[str, int]


def find_record(folder: Path) -> FolderRecord:
    """Read the record of a folder, and see that every file is there and as long as it should be.

    Raises:
        Refused: Names all that is missing, of another length, or not as this version writes it.
    """
    path = folder / SIDECAR
    try:
        record = FolderRecord.model_validate_json(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        raise Refused(_missing(folder)) from None
    except OSError as error:
        raise Refused(f"{path} cannot be read: {error.strerror}") from None
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"]))
        what = f"{path} is damaged, or of another version: {place + ': ' if place else ''}{first['msg']}"
        raise Refused(Problem(what, help=REMEDY)) from None
    if problems := [problem for split in record.splits.values() for problem in _lengths(folder, split, record)]:
        raise Refused(problems)
    return record


def _missing(folder: Path) -> Problem:
    if folder.is_dir():
        return Problem(f"{folder} holds no shards: there is no {SIDECAR} in it", help=REMEDY)
    if folder.exists():
        return Problem(f"{folder} is no folder; the folder that has {SIDECAR} in it is wanted")
    beside = (other.name for other in folder.parent.glob("*")) if folder.parent.is_dir() else ()
    near = nearest(folder.name, beside)
    return Problem(f"there is no folder {folder}", help=f'did you mean "{near}"?' if near else REMEDY)


def _lengths(folder: Path, split: SplitRecord, record: FolderRecord) -> list[Problem]:
    found = []
    width = int(record.dtype[-1])
    for shard, bytes_each in [*((shard, width) for shard in split.shards), (split.starts, 8)]:
        path, due = folder / shard.file, shard.ids * bytes_each
        try:
            given = path.stat().st_size
        except OSError:
            found.append(Problem(f"{path} is missing", help=REMEDY))
            continue
        if given != due:
            what = f"{path} has {given:,} bytes, {SIDECAR} says {due:,}"
            found.append(Problem(what + (": it was cut short" if given < due else ""), help=REMEDY))
        if bytes_each == width and shard.largest >= record.vocabulary:
            what = f"{path} holds the id {shard.largest}, the vocabulary ends at {record.vocabulary - 1}"
            found.append(Problem(what, help=REMEDY))
    return found


def summarise(folder: Path) -> str:
    """Say what the shards of a folder are."""
    return summary_of(find_record(folder))


def summary_of(record: FolderRecord) -> str:
    """Say what a record is about: tokenizer, and documents and ids by split."""
    made, width = record.tokenizer, int(record.dtype[-1])
    ending = "no id ends a text" if made.end is None else f"{made.end} ends a text"
    lines = [
        f'tokenizer "{made.name}": {record.vocabulary:,} ids of {width} bytes, {ending}, hash {made.fingerprint[:12]}'
    ]
    for split, said in record.splits.items():
        each = f", {said.characters / said.ids:.2f} characters per id" if said.ids else ""
        files = "1 file" if len(said.shards) == 1 else f"{len(said.shards)} files"
        lines.append(f"  {split:5} {_counted(said.documents)}, {said.ids:,} ids in {files}{each}")
    return "\n".join(lines)


def _counted(documents: int) -> str:
    return "1 document" if documents == 1 else f"{documents:,} documents"
