"""Convert text files to token ids on disk, in two passes.

Duplicates and shares are known only after the first pass over all documents, and texts need not fit
into memory.

Letters: E entries.
"""

from __future__ import annotations

import hashlib
from array import array
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from jaxtyping import Int64, UInt8, UInt64

from dither.registry.config.errors import Problem, Refused

from ...prepared.rejected import Rejected, RejectedRows
from ...prepared.store import check_owned, find_existing, write_folder
from .corpus import TextSource, divide
from .documents import SourceDocument, find_sources, read_documents
from .manifest import SHARDS
from .text_files import NotText
from .token_store import Part, write_store
from .tokenizers.factory import load_tokenizer

__all__ = ["convert"]

REJECTED = 3
DUPLICATE = 4
CUT = 5
"""Codes of entries that go to no single split (0, 1, 2): rejected, rejected as duplicate, cut into
a part for each."""

SORTS = {
    "unreadable": "unreadable",
    "empty": "without text",
    "binary": "binary, not text",
    "encoding": "not UTF-8",
    "json": "not JSON",
    "key": "without the text column",
    "duplicate": "duplicates",
}
"""Description of each reason for rejection."""


def convert(spec: Any) -> str:
    """Convert the text of a `ConvertedText` and return a report; a folder that holds the same already is left alone.

    Raises:
        Refused: No text was found, the folder holds something else, or the tokenizer is not
            available.
    """
    folder = spec.folder()
    began = perf_counter()
    check_owned(folder, SHARDS)
    inside = folder.resolve()  # the store may be in the folder that is read
    sources = [
        s
        for s in find_sources(spec.paths)
        if isinstance(s, str) or not s.resolve().is_relative_to(inside)
    ]
    with RejectedRows() as rejected:
        text = SplitText(spec, sources, rejected)
        tokenizer = load_tokenizer(spec.tokenizer, lambda: text, end_of_text=spec.end_of_text)
        made = {**spec.options(), "source": text.digest(), "hash": tokenizer.fingerprint}
        if find_existing(folder, SHARDS, made, force=spec.force) is not None:
            return f"{folder} is up to date, nothing was done\n{spec.record().summary()}"
        with write_folder(folder, SHARDS, made) as writer:
            info = write_store(
                writer, text.parts(rejected), tokenizer, sources=len(sources), shard=spec.shard
            )
            for split in ("train", "valid"):
                if not info.splits[split].ids:
                    fix = "give more documents, or a larger share"
                    raise Refused(
                        Problem(
                            f'no text is left for the split "{split}"', help=fix, code="no-samples"
                        )
                    )
            writer.reject(rejected)
        characters = sum(split.characters for split in info.splits.values())
        limit = "; stopped at the limit" if text.stopped else ""
        head = f"{characters:,} characters of {len(sources):,} sources in {perf_counter() - began:.1f} s{limit}"
        return "\n".join(
            [head, info.summary(), *rejected.lines(sorts=SORTS), f"all of it in {folder}"]
        )


class SplitText(TextSource):
    """The text of a `ConvertedText`, read once to find duplicates and shares, to be read again by split.

    Takes 17 bytes a document; `rejected` collects what is not taken.

    Raises:
        Refused: No text was found.
    """

    def __init__(self, spec: Any, sources: list[str | Path], rejected: RejectedRows) -> None:
        self.spec = spec
        self.sources = sources
        self.stopped = False
        keys = array("Q")
        sizes = array("q")
        taken = 0
        total = 0
        for entry in read_documents(sources, spec.column):
            key = 0
            size = -1
            if isinstance(entry, Rejected):
                rejected.add(entry)
            else:
                try:
                    key, size = _digest_text(entry.pieces)
                except NotText as error:
                    rejected.add(Rejected(entry.place, error.sort, error.message))
            taken = taken + (size >= 0)
            total = total + max(size, 0)
            keys.append(key)
            sizes.append(size)
            if taken == spec.documents or (
                spec.characters is not None and total >= spec.characters
            ):
                self.stopped = True
                break
        if not taken:
            raise Refused(
                "\n".join(["no text found", *rejected.lines(sorts=SORTS)]), code="no-samples"
            )
        self.keys = np.frombuffer(keys, np.uint64)
        self.sizes = np.frombuffer(sizes, np.int64)
        self.codes = _split_codes(self.keys, self.sizes, valid=spec.valid, test=spec.test)

    def digest(self) -> str:
        """Return a digest of all documents, in order, and of their splits."""
        taken = self.codes != REJECTED
        return hashlib.sha256(self.keys[taken].tobytes() + self.codes[taken].tobytes()).hexdigest()

    def content(self) -> str:
        """Return a digest of the training split; the shares matter if documents are cut."""
        cut = self.keys[self.codes == CUT]
        shares = repr((self.spec.valid, self.spec.test)) if len(cut) else ""
        return hashlib.sha256(
            self.keys[self.codes == 0].tobytes() + cut.tobytes() + shares.encode()
        ).hexdigest()

    def texts(self) -> Iterator[str]:
        """Yield the training split, in pieces."""
        return (part.text for part in self.parts() if not part.split)

    def parts(self, rejected: RejectedRows | None = None) -> Iterator[Part]:
        """Yield the parts of all splits, in order; duplicates are added to `rejected`.

        Raises:
            Refused: A file has changed since the first pass.
        """
        spec = self.spec
        ends = 1 - spec.valid - spec.test, 1 - spec.test, 1.0
        columns = (map(int, column) for column in (self.keys, self.sizes, self.codes))
        for entry, key, size, code in zip(
            read_documents(self.sources, spec.column), *columns, strict=False
        ):
            if code == REJECTED:
                continue
            if isinstance(entry, Rejected):
                raise _changed(entry.place)
            if code == DUPLICATE:
                if rejected is not None:
                    rejected.add(
                        Rejected(entry.place, "duplicate", "same text as an earlier document")
                    )
                continue
            edges = (
                [(n, round(end * size)) for n, end in enumerate(ends)]
                if code == CUT
                else [(code, size)]
            )
            yield from _cut(entry, edges, key)


def _digest_text(pieces: Iterable[str]) -> tuple[int, int]:
    """Return the digest of a text and its length.

    Raises:
        NotText: It is blank, or holds half a surrogate pair.
    """
    digest = hashlib.blake2b(digest_size=8)
    size = 0
    blank = True
    for piece in pieces:
        try:
            digest.update(piece.encode("utf-8"))
        except UnicodeEncodeError as error:
            what = f"unpaired surrogate U+{ord(error.object[error.start]):04X} at position {size + error.start}"
            raise NotText("encoding", what) from None
        size += len(piece)
        blank = blank and piece.isspace()
    if blank:
        raise NotText("empty", "only white space" if size else "empty")
    return int.from_bytes(digest.digest(), "big"), size


def _split_codes(
    keys: UInt64[np.ndarray, " E"],
    sizes: Int64[np.ndarray, " E"],
    *,
    valid: float,
    test: float,
) -> UInt8[np.ndarray, " E"]:
    """Divide by content alone, as `hold_out` does; the first of equal documents is taken."""
    codes = np.full(len(keys), REJECTED, np.uint8)
    taken = np.flatnonzero(sizes >= 0)
    unique, first = np.unique(keys[taken], return_index=True)
    codes[taken] = DUPLICATE
    order = taken[first]  # ascending by key
    few = len(unique) < 2 + (test > 0)
    codes[order] = CUT if few else divide(sizes[order].tolist(), valid=valid, test=test)
    return codes


def _cut(entry: SourceDocument, edges: list[tuple[int, int]], key: int) -> Iterator[Part]:
    """Cut the pieces of a document where one split ends and the next begins."""
    start = position = 0
    left = deque(edges)
    digest = hashlib.blake2b(digest_size=8)
    try:
        for piece in entry.pieces:
            digest.update(piece.encode("utf-8", "surrogatepass"))
            rest = piece
            while rest and left:
                split, end = left[0]
                text = rest[: end - position]
                rest = rest[end - position :]
                if text:
                    yield Part(split, text, position == start, position + len(text) == end)
                position += len(text)
                if position == end:
                    start = end
                    left.popleft()
    except NotText:
        raise _changed(entry.place) from None
    if int.from_bytes(digest.digest(), "big") != key:
        raise _changed(entry.place)


def _changed(place: str) -> Refused:
    return Refused(f"{place} has changed while it was read", code="changed-data")
