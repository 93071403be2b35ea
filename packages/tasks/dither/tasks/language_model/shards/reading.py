"""A folder of shards as a source of ids: mapped, so that many processes share one copy in memory.

Letters: N ids.
"""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
from jaxtyping import Integer

from dither.registry.problems import Problem, Refused
from dither.registry.storage import cache_folder, write_aside

from ..laws import Law
from ..streams import Stream
from ..tokenizers import Tokenizer
from .record import SIDECAR, FolderRecord, ShardRecord, find_record
from .tokenizer_file import restore_tokenizer

if TYPE_CHECKING:
    from dither.registry.parts import Split

__all__ = ["TokenShards", "Verify", "open_shards", "verify_shards"]

Verify = Literal["once", "always", "never"]
"""When the bytes are read through for their checksums: on first use and after a change, each time, or not at all."""

BLOCK = 1 << 24


@dataclass(frozen=True)
class TokenShards:
    """Ids by split, and the tokenizer that made them.

    Attributes:
        name: Where they come from.
        splits: The ids of "train", "valid" and "test".
        tokenizer: What they decode with.
        law: None; the distribution of a text from files is not known.
    """

    name: str
    splits: dict[Split, Stream]
    tokenizer: Tokenizer
    law: Law | None = None

    def encoded(self, tokenizer: Tokenizer) -> dict[Split, Stream]:
        """Return the ids of every split.

        Raises:
            Refused: Another tokenizer made them.
        """
        if tokenizer.fingerprint != self.tokenizer.fingerprint:
            made = f'"{self.tokenizer.name}" ({self.tokenizer.size:,} ids, hash {self.tokenizer.fingerprint[:12]})'
            given = f'"{tokenizer.name}" ({tokenizer.size:,} ids, hash {tokenizer.fingerprint[:12]})'
            what = f"{self.name}: the tokenizer {made} made these shards, not {given}"
            fix = 'leave tokenizer = "auto", or prepare the text anew'
            raise Refused(Problem(what, path=("task", "tokenizer"), help=fix))
        return self.splits


def open_shards(folder: Path, verify: Verify = "once") -> TokenShards:
    """Map the shards of a folder.

    Args:
        folder: Where `prepare text` has put them.
        verify: Lengths are always compared; this says when checksums are.

    Raises:
        Refused: Something is missing, cut short, changed, or outside the vocabulary.
    """
    record = find_record(folder)
    if verify == "always" or (verify == "once" and not _is_verified(folder, record)):
        verify_shards(folder, record)
    splits: dict[Split, Stream] = {}
    for split, said in record.splits.items():
        arrays = tuple(_map(folder, shard, record.dtype) for shard in said.shards)
        starts = _map(folder, said.starts, "<i8")
        splits[split] = Stream(arrays or (np.zeros(0, record.dtype),), starts, len(record.tokenizer.separator))
    return TokenShards(str(folder), splits, restore_tokenizer(record.tokenizer, folder))


def verify_shards(folder: Path, record: FolderRecord) -> None:
    """Read every file, compare its checksum, and see that no id is outside the vocabulary; note that it was done.

    Raises:
        Refused: Names each file at fault, and the place of the first id outside the vocabulary.
    """
    problems = []
    for said in record.splits.values():
        for shard in said.shards:
            problems += _check(folder, shard, record.dtype, record.vocabulary)
        problems += _check(folder, said.starts, "<i8", None)
    if problems:
        raise Refused(problems)
    with suppress(OSError), write_aside(_stamp(folder)) as aside:  # without it the next run only reads them again
        aside.write_text(json.dumps([record.vocabulary, *_state(folder, record)]), "utf-8")


def _check(folder: Path, shard: ShardRecord, dtype: str, vocabulary: int | None) -> list[Problem]:
    path, digest, place, strange = folder / shard.file, hashlib.sha256(), 0, None
    ids = _map(folder, shard, dtype)
    for start in range(0, len(ids), BLOCK):
        block = ids[start : start + BLOCK]
        digest.update(block.tobytes())
        if vocabulary is not None and strange is None and block.max() >= vocabulary:
            place = start + int(np.argmax(block >= vocabulary))
            strange = int(ids[place])
    fix = "copy it again, or prepare the text anew"
    found = []
    if strange is not None:
        what = f"{path}: the id {strange} at place {place:,} is outside the vocabulary 0..{(vocabulary or 0) - 1}"
        found.append(Problem(what, help=fix))
    if digest.hexdigest() != shard.sha256:
        found.append(Problem(f"{path} is damaged: its checksum is not the one in {SIDECAR}", help=fix))
    return found


def _map(folder: Path, shard: ShardRecord, dtype: str) -> Integer[np.ndarray, " N"]:
    if not shard.ids:
        return np.zeros(0, dtype)
    try:
        return np.asarray(np.memmap(folder / shard.file, dtype, "r", shape=(shard.ids,)))
    except (OSError, ValueError) as error:
        raise Refused(f"{folder / shard.file} cannot be read: {error}") from None


def _stamp(folder: Path) -> Path:
    """Where it is noted that the checksums of this folder were right."""
    name = hashlib.sha256(str(folder.resolve()).encode("utf-8", "surrogateescape")).hexdigest()[:32]
    return cache_folder() / "verified" / f"{name}.json"


def _state(folder: Path, record: FolderRecord) -> list[list[str | int]]:
    """Every file with its checksum and what the file system knows of it; a file that was touched has another state."""
    shards = [shard for split in record.splits.values() for shard in (*split.shards, split.starts)]
    facts = [(shard, (folder / shard.file).stat()) for shard in shards]
    return [[shard.file, shard.sha256, known.st_size, known.st_mtime_ns, known.st_ino] for shard, known in facts]


def _is_verified(folder: Path, record: FolderRecord) -> bool:
    try:
        noted = json.loads(_stamp(folder).read_text("utf-8"))
        return bool(noted == [record.vocabulary, *_state(folder, record)])
    except (OSError, ValueError):
        return False
