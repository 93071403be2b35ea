"""Which documents there are, which are duplicates, and which split each goes to: the first of two passes over a text.

Both passes are needed: duplicates and shares are known only when all digests are, and texts need not fit into memory.

Letters: E entries.
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

from ...prepared.rejected import Rejected, RejectedRows
from .corpus import SPLITS, divide
from .documents import SourceDocument, read_documents
from .text_files import NotText
from .token_store import Part

if TYPE_CHECKING:
    from dither.registry.flow.protocols import Split

__all__ = ["CUT", "DUPLICATE", "REJECTED", "SORTS", "SplitText", "Survey", "survey"]

ROWS = 1 << 16
REJECTED, DUPLICATE, CUT = 3, 4, 5
"""Codes of entries that go to no single split (0, 1, 2): rejected, rejected as duplicate, cut into a part for each."""

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


@dataclass(frozen=True)
class Survey:
    """Result of the first pass; 17 bytes an entry.

    Attributes:
        keys: 64-bit digest of each text.
        sizes: Its characters.
        codes: Its split: 0 train, 1 valid, 2 test, or `REJECTED`, `DUPLICATE`, `CUT`.
        stopped: Whether a limit was reached.
    """

    keys: UInt64[np.ndarray, " E"]
    sizes: Int64[np.ndarray, " E"]
    codes: UInt8[np.ndarray, " E"]
    stopped: bool

    def content(self) -> str:
        """Return a digest of all documents, in order, and of their splits."""
        taken = self.codes != REJECTED
        return hashlib.sha256(self.keys[taken].tobytes() + self.codes[taken].tobytes()).hexdigest()

    def training_content(self, valid: float, test: float) -> str:
        """Return a digest of the training text; the shares matter if documents are cut."""
        cut = self.keys[self.codes == CUT]
        shares = repr((valid, test)) if len(cut) else ""
        return hashlib.sha256(self.keys[self.codes == 0].tobytes() + cut.tobytes() + shares.encode()).hexdigest()

    def rows(self) -> Iterator[tuple[int, int, int]]:
        """Yield key, size and code of each entry."""
        for start in range(0, len(self.keys), ROWS):
            part = slice(start, start + ROWS)
            columns = self.keys[part].tolist(), self.sizes[part].tolist(), self.codes[part].tolist()
            yield from zip(*columns, strict=True)


def survey(
    entries: Iterable[SourceDocument | Rejected],
    rejected: RejectedRows,
    *,
    valid: float,
    test: float,
    documents: int | None = None,
    characters: int | None = None,
) -> Survey:
    """Read everything once.

    Args:
        entries: Documents and rejected places.
        rejected: Collects what is not taken.
        valid: Share of the text for validation.
        test: Share for testing.
        documents: Stop after this many.
        characters: Stop after the document that reaches this many.

    Raises:
        Refused: No text was found.
    """
    keys, sizes, taken, total, stopped = array("Q"), array("q"), 0, 0, False
    for entry in entries:
        key, size = 0, -1
        if isinstance(entry, Rejected):
            rejected.add(entry)
        else:
            try:
                key, size = _digest_text(entry.pieces)
            except NotText as error:
                rejected.add(Rejected(entry.place, error.sort, error.message))
            taken, total = taken + (size >= 0), total + max(size, 0)
        keys.append(key)
        sizes.append(size)
        if taken == documents or (characters is not None and total >= characters):
            stopped = True
            break
    if not taken:
        raise Refused("\n".join(["no text found", *rejected.lines(sorts=SORTS)]), code="no-samples")
    columns = np.frombuffer(keys, np.uint64), np.frombuffer(sizes, np.int64)
    return Survey(*columns, _split_codes(*columns, valid=valid, test=test), stopped)


def _digest() -> hashlib.blake2b:
    return hashlib.blake2b(digest_size=8)


def _digest_text(pieces: Iterable[str]) -> tuple[int, int]:
    """Return the digest of a text and its length.

    Raises:
        NotText: It is blank, or holds half a surrogate pair.
    """
    digest, size, blank = _digest(), 0, True
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
    keys: UInt64[np.ndarray, " E"], sizes: Int64[np.ndarray, " E"], *, valid: float, test: float
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


@dataclass(frozen=True)
class SplitText:
    """A surveyed text, to be read again: by split, or for a tokenizer to learn from (a `TextSource`).

    Attributes:
        sources: Files and named texts.
        column: Key or column of the text.
        survey: Result of the first pass.
        valid: Share for validation.
        test: Share for testing.
    """

    sources: list[str | Path]
    column: str
    survey: Survey
    valid: float
    test: float

    def content(self, split: Split) -> str:
        """Return a digest of the training split, the only one that tokenizers learn from."""
        assert split == "train"
        return self.survey.training_content(self.valid, self.test)

    def texts(self, split: Split) -> Iterator[str]:
        """Yield the texts of a split, in pieces."""
        return (part.text for part in self.parts() if SPLITS[part.split] == split)

    def characters(self) -> str:
        """Return every character of the training split once, sorted."""
        characters: set[str] = set()
        for text in self.texts("train"):
            characters.update(text)
        return "".join(sorted(characters))

    def parts(self, rejected: RejectedRows | None = None) -> Iterator[Part]:
        """Yield the parts of all splits, in order; duplicates are added to `rejected`.

        Raises:
            Refused: A file has changed since the first pass.
        """
        ends = 1 - self.valid - self.test, 1 - self.test, 1.0
        entries = zip(read_documents(self.sources, self.column), self.survey.rows(), strict=False)
        for entry, (key, size, code) in entries:
            if code == REJECTED:
                continue
            if isinstance(entry, Rejected):
                raise _changed(entry.place)
            if code == DUPLICATE:
                if rejected is not None:
                    rejected.add(Rejected(entry.place, "duplicate", "same text as an earlier document"))
                continue
            edges = [(n, round(end * size)) for n, end in enumerate(ends)] if code == CUT else [(code, size)]
            yield from _cut(entry, edges, key)


def _cut(entry: SourceDocument, edges: list[tuple[int, int]], key: int) -> Iterator[Part]:
    """Cut the pieces of a document where one split ends and the next begins."""
    start = position = 0
    left = deque(edges)
    digest = _digest()
    try:
        for piece in entry.pieces:
            digest.update(piece.encode("utf-8", "surrogatepass"))
            rest = piece
            while rest and left:
                split, end = left[0]
                text, rest = rest[: end - position], rest[end - position :]
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
