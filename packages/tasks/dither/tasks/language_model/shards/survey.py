"""The first reading of a text: which documents there are, which are copies, and which split each goes to.

Letters: E entries, D documents.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int64, UInt8, UInt64

from dither.registry.problems import Refused

from ..corpora import divide
from ..text_files import NoText
from .left_out import LeftOut
from .passages import Fault, Passage

__all__ = ["COPY", "OUT", "PARTS", "Survey", "digest_of", "survey"]

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
    left_out: LeftOut,
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
