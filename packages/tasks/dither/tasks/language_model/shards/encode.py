"""The second reading of a text: documents to ids, each into the shards of its split."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dither.registry.problems import Refused

from ..encoding import encode_texts
from ..text_files import NoText
from ..tokenizers import Tokenizer
from .left_out import LeftOut
from .passages import Fault, Passage, entries
from .record import SplitRecord
from .survey import COPY, OUT, PARTS, Survey, digest_of
from .writing import SplitWriter

if TYPE_CHECKING:
    from dither.registry.parts import Split

__all__ = ["SPLITS", "SurveyedText", "write_splits"]

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

    def parts(self, left_out: LeftOut | None = None) -> Iterator[Part]:
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
