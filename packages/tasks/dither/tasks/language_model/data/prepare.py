"""Convert text files to token ids on disk, in two passes.

Duplicates and shares are known only after the first pass over all documents, and texts need not fit
into memory.

Letters: E entries.
"""

from __future__ import annotations

import hashlib
from array import array
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from jaxtyping import Int8, Int64, UInt8, UInt64
from numpy import ndarray

from dither.registry.config.errors import Refused
from dither.registry.contracts.protocols import Split

from ...prepared.rejected import Rejected, RejectedRows
from ...prepared.store import check_owned, find_existing, write_folder
from .corpus import SPLITS, TextSource, divide
from .documents import (
    SourceDocument,
    find_sources,
    read_documents,
)
from .manifest import SHARDS
from .published_splits import splits_of_sources
from .text_files import NotText, check_encodable
from .token_store import Part, write_store
from .tokenizers.factory import load_tokenizer

__all__ = ["convert"]

# Codes of documents that go to no single split (0, 1, 2).
REJECTED = 3
DUPLICATE = 4
CUT = 5
"""Cut into a part for each split."""

MOST = 0.75
"""Share of rejected documents above which a source is taken for a mistake."""
MANY_ROWS = 20
"""Documents from which on a single source is."""

SORTS = {
    "unreadable": "unreadable",
    "empty": "without text",
    "binary": "binary, not text",
    "encoding": "not UTF-8",
    "json": "not JSON",
    "csv": "not CSV",
    "key": "without the text column",
    "duplicate": "duplicates",
}
"""Description of each reason for rejection."""


def convert(spec: Any) -> str:
    """Convert the text of a `ConvertedText` and return a report.

    A folder that already holds the same is not written again.

    Raises:
        Refused: No text was found, the folder holds something else, or the tokenizer is not
            available.
    """
    folder = spec.folder()
    began = perf_counter()
    check_owned(folder, SHARDS)
    with RejectedRows() as rejected:
        text = SplitText(spec, _sources(spec.paths, folder), rejected)
        tokenizer = load_tokenizer(
            spec.tokenizer, lambda: text, end_of_text=spec.end_of_text
        )
        made = {
            **spec.options(),
            "source": text.digest(),
            "hash": tokenizer.fingerprint,
        }
        if find_existing(folder, SHARDS, made, force=spec.force) is not None:
            return (
                f"{folder} is up to date, nothing was done\n{spec.record().summary()}"
            )

        with write_folder(folder, SHARDS, made) as writer:
            parts = text.parts(rejected)
            info = write_store(writer, parts, tokenizer, sources=len(text.sources))
            for split in ("train", "valid"):
                if not info.splits[split].ids:
                    message = f'no text is left for the split "{split}"'
                    fix = "give more documents, or a larger share"
                    raise Refused(message, help=fix, code="no-samples")
            writer.reject(rejected)

        characters = sum(split.characters for split in info.splits.values())
        head = f"{characters:,} characters of {len(text.sources):,} sources"
        head += f" in {perf_counter() - began:.1f} s"
        if text.stopped:
            head += "; stopped at the limit"
        names = [SPLITS[code] for code in np.unique(text.published) if code >= 0]
        if names:
            head += f"; published splits are kept: {', '.join(names)}"
        lines = [
            head,
            info.summary(),
            *rejected.lines(sorts=SORTS),
            f"all of it in {folder}",
        ]
        return "\n".join(lines)


def _sources(paths: Sequence[str], folder: Path) -> list[str | Path]:
    """Return the sources of paths, without files of the store, which may be in a folder of them."""
    sources: list[str | Path] = []
    for source in find_sources(paths):
        if isinstance(source, str) or not source.resolve().is_relative_to(
            folder.resolve()
        ):
            sources.append(source)
    return sources


class SplitText(TextSource):
    """The text of a `ConvertedText`, read once to find duplicates and shares, then by split.

    Takes 18 bytes a document; `rejected` collects the documents that are not taken.

    Raises:
        Refused: No text was found.
    """

    def __init__(
        self, spec: Any, sources: list[str | Path], rejected: RejectedRows
    ) -> None:
        self.spec = spec
        # Training text is last, so that a limit on it leaves the other splits whole.
        splits = splits_of_sources(sources)
        held_out = [split not in ("train", None) for split in splits]
        order = sorted(range(len(sources)), key=lambda n: not held_out[n])
        sources = [sources[n] for n in order]
        self.sources = sources
        self.stopped = False
        entries_of: Counter[str | Path] = Counter()
        rejected_of: Counter[str | Path] = Counter()
        keys = array("Q")
        sizes = array("q")
        published = array("b")
        read = 0
        # Of the training split, which the limits are for.
        documents = 0
        characters = 0
        for source, split, entry in _split_entries(sources, spec.column):
            key = 0
            size = -1
            entries_of[source] += 1
            if isinstance(entry, Rejected):
                rejected_of[source] += 1
                rejected.add(entry)
            else:
                try:
                    key, size = _digest_text(entry.pieces)
                    read += 1
                    if split in ("train", None):
                        documents += 1
                        characters += size
                except NotText as error:
                    rejected.add(Rejected(entry.place, error.sort, error.message))
                    rejected_of[source] += 1
            keys.append(key)
            sizes.append(size)
            published.append(-1 if split is None else SPLITS.index(split))
            enough = spec.characters is not None and characters >= spec.characters
            if documents == spec.documents or enough:
                self.stopped = True
                break
        if read == 0:
            lines = ["no text found", *rejected.lines(sorts=SORTS)]
            raise Refused("\n".join(lines), code="no-samples")
        _refuse_mostly_rejected(entries_of, rejected_of, rejected)
        self.keys = np.frombuffer(keys, np.uint64)
        self.sizes = np.frombuffer(sizes, np.int64)
        self.published = np.frombuffer(published, np.int8)
        # Shares are held out for the splits that no source has.
        self.valid = 0.0 if 1 in self.published else spec.valid
        self.test = 0.0 if 2 in self.published else spec.test
        self.codes = _split_codes(
            self.keys,
            self.sizes,
            self.published,
            valid=self.valid,
            test=self.test,
        )

    def digest(self) -> str:
        """Return a digest of all documents, in order, and of their splits."""
        taken = self.codes != REJECTED
        return hashlib.sha256(
            self.keys[taken].tobytes() + self.codes[taken].tobytes()
        ).hexdigest()

    def content(self) -> str:
        """Return a digest of the training split; the shares matter if documents are cut."""
        digest = hashlib.sha256(self.keys[self.codes == 0].tobytes())
        cut = self.keys[self.codes == CUT]
        digest.update(cut.tobytes())
        if len(cut):
            digest.update(repr((self.valid, self.test)).encode())
        return digest.hexdigest()

    def texts(self) -> Iterator[str]:
        """Yield the training split, in pieces."""
        return (part.text for part in self.parts() if part.split == 0)

    def parts(self, rejected: RejectedRows | None = None) -> Iterator[Part]:
        """Yield the parts of all splits, in order; duplicates are added to `rejected`.

        Raises:
            Refused: A file has changed since the first pass.
        """
        shares = (1 - self.valid - self.test, 1 - self.test, 1.0)
        entries = chain.from_iterable(
            read_documents(source, self.spec.column) for source in self.sources
        )
        columns = (map(int, column) for column in (self.keys, self.sizes, self.codes))
        # The first pass may have stopped at a limit.
        for entry, key, size, code in zip(entries, *columns, strict=False):
            if code == REJECTED:
                continue
            if isinstance(entry, Rejected):
                raise _changed(entry.place)
            if code == DUPLICATE:
                if rejected is not None:
                    message = "same text as an earlier document"
                    rejected.add(Rejected(entry.place, "duplicate", message))
                continue
            edges = [(code, size)]
            if code == CUT:
                edges = [
                    (split, round(share * size)) for split, share in enumerate(shares)
                ]
            yield from _cut(entry, edges, key)


def _split_entries(
    sources: Sequence[str | Path], column: str
) -> Iterator[tuple[str | Path, Split | None, SourceDocument | Rejected]]:
    """Yield each document or rejected place with its source, and its published split."""
    for source, split in zip(sources, splits_of_sources(sources), strict=True):
        for entry in read_documents(source, column):
            yield source, split, entry


def _refuse_mostly_rejected(
    entries: Counter[str | Path],
    refused: Counter[str | Path],
    rejected: RejectedRows,
) -> None:
    """Raise Refused if nearly all of a source, or of all sources, was rejected."""
    reasons = []
    if refused.total() > MOST * entries.total():
        reasons.append(f"{refused.total():,} of {entries.total():,} documents")
    for source, count in entries.items():
        if count >= MANY_ROWS and refused[source] > MOST * count:
            reasons.append(f"{source}: {refused[source]:,} of {count:,} documents")
    if reasons:
        lines = [f"rejected: {'; '.join(reasons)}", *rejected.lines(sorts=SORTS)]
        fix = "correct the files, set --column, or give only paths of text"
        raise Refused("\n".join(lines), help=fix, code="invalid-sample")


def _digest_text(pieces: Iterable[str]) -> tuple[int, int]:
    """Return the digest of a text and its length.

    Raises:
        NotText: It is blank, or holds half a surrogate pair.
    """
    digest = hashlib.blake2b(digest_size=8)
    size = 0
    blank = True
    for piece in pieces:
        check_encodable(piece, size)
        digest.update(piece.encode("utf-8"))
        size += len(piece)
        blank = blank and piece.isspace()
    if blank:
        raise NotText("empty", "only white space" if size else "empty")
    return int.from_bytes(digest.digest(), "big"), size


def _split_codes(
    keys: UInt64[ndarray, " E"],
    sizes: Int64[ndarray, " E"],
    published: Int8[ndarray, " E"],
    *,
    valid: float,
    test: float,
) -> UInt8[ndarray, " E"]:
    """Keep published splits, and divide the rest by content alone, as `hold_out` does.

    Of equal documents the first is taken, or one of a published test or validation split, so that
    none of these is in training.
    """
    codes = np.full(len(keys), REJECTED, np.uint8)
    taken = np.flatnonzero(sizes >= 0)
    codes[taken] = DUPLICATE

    # Sorted by key, the order in which documents are divided, and stable.
    ordered = taken[np.lexsort((-published[taken], keys[taken]))]
    is_first = np.append(True, keys[ordered][1:] != keys[ordered][:-1])
    unique = ordered[is_first]
    held_out = unique[published[unique] > 0]
    codes[held_out] = published[held_out]

    order = unique[published[unique] <= 0]
    splits_in_use = 1 + sum(share > 0 for share in (valid, test))
    if len(order) < splits_in_use:
        codes[order] = CUT
    else:
        codes[order] = divide(sizes[order].tolist(), valid=valid, test=test)
    return codes


def _cut(
    entry: SourceDocument, edges: list[tuple[int, int]], key: int
) -> Iterator[Part]:
    """Cut the pieces of a document where one split ends and the next begins."""
    start = 0
    position = 0
    remaining = deque(edges)
    digest = hashlib.blake2b(digest_size=8)
    try:
        for piece in entry.pieces:
            digest.update(piece.encode("utf-8", "surrogatepass"))
            rest = piece
            # Nothing remains if the document has grown: its digest will differ.
            while rest and remaining:
                split, end = remaining[0]
                text = rest[: end - position]
                rest = rest[end - position :]
                if text:
                    begins = position == start
                    yield Part(split, text, begins, ends=position + len(text) == end)
                position += len(text)
                if position == end:
                    start = end
                    remaining.popleft()
    except NotText:
        raise _changed(entry.place) from None
    if int.from_bytes(digest.digest(), "big") != key:
        raise _changed(entry.place)


def _changed(place: str) -> Refused:
    return Refused(f"{place} has changed while it was read", code="changed-data")
