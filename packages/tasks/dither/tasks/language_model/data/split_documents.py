"""The first reading of a text: which documents there are, which are copies, and which split each goes to.

Letters: E entries, D documents.
"""

from __future__ import annotations

import hashlib
from array import array
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Int64, UInt8, UInt64

from dither.registry.config.errors import Refused

from .corpus import divide
from .documents import Fault, Passage, entries
from .manifest import SplitRecord
from .rejected import Rejected
from .text_files import NoText
from .token_store import SplitWriter
from .tokenizers.base import Tokenizer
from .tokenizers.chunks import encode_texts

if TYPE_CHECKING:
    from dither.registry.flow.protocols import Split

__all__ = ["COPY", "OUT", "PARTS", "SPLITS", "Survey", "SurveyedText", "digest_of", "survey", "write_splits"]

ROWS = 1 << 16
OUT, COPY, PARTS = 3, 4, 5
"""What becomes of an entry that goes to no split (0, 1, 2): left out, left out as a copy, cut into a part for each."""


@dataclass(frozen=True)
class Survey:
    """What the first reading found; 17 bytes an entry, whatever the length of the text.

    Attributes:
        keys: Digest of the text of each entry, 64 bits.
        sizes: Its characters.
        codes: Where it goes: 0 train, 1 valid, 2 test, or `OUT`, `COPY`, `PARTS`.
        stopped: Whether reading stopped at a limit.
    """

    keys: UInt64[np.ndarray, " E"]
    sizes: Int64[np.ndarray, " E"]
    codes: UInt8[np.ndarray, " E"]
    stopped: bool

    def content(self) -> str:
        """Return a digest of all documents that are taken, in order, and of where they go."""
        taken = self.codes != OUT
        return hashlib.sha256(self.keys[taken].tobytes() + self.codes[taken].tobytes()).hexdigest()

    def trained_on(self, valid: float, test: float) -> str:
        """Return a digest of the text to train on; the shares matter where documents are cut."""
        cut = self.keys[self.codes == PARTS]
        shares = repr((valid, test)) if len(cut) else ""
        return hashlib.sha256(self.keys[self.codes == 0].tobytes() + cut.tobytes() + shares.encode()).hexdigest()

    def rows(self) -> Iterator[tuple[int, int, int]]:
        """Yield key, size and code of each entry."""
        for start in range(0, len(self.keys), ROWS):
            part = slice(start, start + ROWS)
            columns = self.keys[part].tolist(), self.sizes[part].tolist(), self.codes[part].tolist()
            yield from zip(*columns, strict=True)


def survey(
    found: Iterable[Passage | Fault],
    left_out: Rejected,
    *,
    valid: float,
    test: float,
    documents: int | None = None,
    characters: int | None = None,
) -> Survey:
    """Read everything once.

    Args:
        found: The entries.
        left_out: Takes down what is not taken.
        valid: Share of the text for validation.
        test: Share for testing.
        documents: Stop after this many.
        characters: Stop once there are this many.

    Raises:
        Refused: Nothing is left.
    """
    keys, sizes, taken, total, stopped = array("Q"), array("q"), 0, 0, False
    for entry in found:
        key, size = 0, -1
        if isinstance(entry, Fault):
            left_out.add(entry)
        else:
            try:
                key, size = _read(entry.pieces)
            except NoText as fault:
                left_out.add(Fault(entry.place, fault.sort, fault.message))
            taken, total = taken + (size >= 0), total + max(size, 0)
        keys.append(key)
        sizes.append(size)
        if taken == documents or (characters is not None and total >= characters):
            stopped = True
            break
    if not taken:
        raise Refused("\n".join(["there is no text in what was given", *left_out.lines()]))
    made = np.frombuffer(keys, np.uint64), np.frombuffer(sizes, np.int64)
    return Survey(*made, _codes(*made, valid=valid, test=test), stopped)


def digest_of() -> hashlib.blake2b:
    """Return what makes the digest of a text out of its UTF-8."""
    return hashlib.blake2b(digest_size=8)


def _read(pieces: Iterable[str]) -> tuple[int, int]:
    """Return the digest of a text and its length.

    Raises:
        NoText: It is nothing but white space, or no text that UTF-8 can write.
    """
    digest, size, blank = digest_of(), 0, True
    for piece in pieces:
        try:
            digest.update(piece.encode("utf-8"))
        except UnicodeEncodeError as error:
            what = f"holds half a character, U+{ord(error.object[error.start]):04X}, at place {size + error.start}"
            raise NoText("encoding", what) from None
        size += len(piece)
        blank = blank and piece.isspace()
    if blank:
        raise NoText("empty", "holds nothing but white space" if size else "is empty")
    return int.from_bytes(digest.digest(), "big"), size


def _codes(
    keys: UInt64[np.ndarray, " E"], sizes: Int64[np.ndarray, " E"], *, valid: float, test: float
) -> UInt8[np.ndarray, " E"]:
    """Divide by content alone, as `hold_out` does; of equal documents the first one counts."""
    codes = np.full(len(keys), OUT, np.uint8)
    there = np.flatnonzero(sizes >= 0)
    unique, first = np.unique(keys[there], return_index=True)
    codes[there] = COPY
    order = there[first]  # ascending by key
    if len(unique) < 2 + (test > 0):
        codes[order] = PARTS
    else:
        codes[order] = divide(sizes[order].tolist(), valid=valid, test=test)
    return codes


SPLITS: tuple[Split, ...] = ("train", "valid", "test")
"""The splits by number."""


@dataclass(frozen=True)
class Part:
    """A piece of a document on its way to a split."""

    split: int
    text: str
    begins: bool
    ends: bool


@dataclass(frozen=True)
class SurveyedText:
    """A text that has been read once, to be read again: whole, or for a tokenizer to learn from.

    Attributes:
        sources: Where it is.
        column: Where the text is in a line or a row.
        seen: What the first reading found.
        valid: Share for validation.
        test: Share for testing.
    """

    sources: list[str | Path]
    column: str
    seen: Survey
    valid: float
    test: float

    def content(self, split: Split) -> str:
        """Return a digest of the training split, the only one that is learned from."""
        assert split == "train"
        return self.seen.trained_on(self.valid, self.test)

    def texts(self, split: Split) -> Iterator[str]:
        """Yield the texts of a split, in pieces."""
        return (part.text for part in self.parts() if SPLITS[part.split] == split)

    def characters(self) -> str:
        """Return every character of the training split once, sorted."""
        found: set[str] = set()
        for text in self.texts("train"):
            found.update(text)
        return "".join(sorted(found))

    def parts(self, left_out: Rejected | None = None) -> Iterator[Part]:
        """Yield what goes to any split, in order; copies are taken down.

        Raises:
            Refused: A file has changed since the first reading.
        """
        ends = 1 - self.valid - self.test, 1 - self.test, 1.0
        found = zip(entries(self.sources, self.column), self.seen.rows(), strict=False)
        for entry, (key, size, code) in found:
            if code == OUT:
                continue
            if isinstance(entry, Fault):
                raise _changed(entry.place)
            if code == COPY:
                if left_out is not None:
                    left_out.add(Fault(entry.place, "duplicate", "is the same text as an earlier one"))
                continue
            edges = [(n, round(end * size)) for n, end in enumerate(ends)] if code == PARTS else [(code, size)]
            yield from _parts(entry, edges, key)


def _parts(entry: Passage, edges: list[tuple[int, int]], key: int) -> Iterator[Part]:
    """Cut the pieces of a document where one split ends and the next begins."""
    start = place = 0
    left = deque(edges)
    digest = digest_of()
    try:
        for piece in entry.pieces:
            digest.update(piece.encode("utf-8", "surrogatepass"))
            rest = piece
            while rest and left:
                split, end = left[0]
                text, rest = rest[: end - place], rest[end - place :]
                if text:
                    yield Part(split, text, place == start, place + len(text) == end)
                place += len(text)
                if place == end:
                    start = end
                    left.popleft()
    except NoText:
        raise _changed(entry.place) from None
    if int.from_bytes(digest.digest(), "big") != key:
        raise _changed(entry.place)


def _changed(place: str) -> Refused:
    return Refused(f"{place} has changed while it was read")


def write_splits(parts: Iterable[Part], tokenizer: Tokenizer, folder: Path, most: int) -> dict[Split, SplitRecord]:
    """Encode parts in batches and write them, and return what the record says of each split.

    Args:
        parts: What goes where, in order.
        tokenizer: How it is encoded.
        folder: Where the files go.
        most: Ids per file.
    """
    writers = [SplitWriter(folder, split, tokenizer, most) for split in SPLITS]
    ahead: deque[Part] = deque()

    def texts() -> Iterator[str]:
        for part in parts:
            ahead.append(part)
            yield part.text

    for ids in encode_texts(texts(), tokenizer):
        part = ahead.popleft()
        writer = writers[part.split]
        if part.begins:
            writer.begin()
        writer.add(ids, len(part.text))
        if part.ends:
            writer.end()
    return {split: writer.close() for split, writer in zip(SPLITS, writers, strict=True)}
