"""Convert text files to token ids on disk, in two passes.

Duplicates and shares are known only after the first pass over all documents, and texts need not fit
into memory.

Letters: E entries.
"""

from __future__ import annotations

import hashlib
from array import array
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
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
from ...prepared.shards import folder_of_shards
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
from .token_store import EncodedPart, Part, encode_parts, write_store
from .tokenizers.base import Tokenizer
from .tokenizers.factory import load_tokenizer

__all__ = [
    "CUT",
    "DUPLICATE",
    "REJECTED",
    "SplitText",
    "Survey",
    "convert",
    "cut_document",
    "duplicate",
    "read_again",
    "refuse_sources",
    "store_text",
    "survey_documents",
    "text_sources",
]

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
    "missing": "missing",
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
        sources = text_sources(spec.paths, folder)
        survey = survey_documents(spec, sources, rejected)
        text = SplitText(spec, sources, survey, rejected)
        tokenizer = load_tokenizer(
            spec.tokenizer, lambda: text, end_of_text=spec.end_of_text
        )
        parts = encode_parts(text.parts(rejected), tokenizer)
        return store_text(text, parts, tokenizer, rejected, began)


def store_text(
    text: SplitText,
    parts: Iterable[EncodedPart],
    tokenizer: Tokenizer,
    rejected: RejectedRows,
    began: float,
) -> str:
    """Write the encoded parts of a text, unless the folder holds them, and return a report."""
    spec = text.spec
    folder = spec.folder()
    made = {
        **spec.options(),
        "source": text.digest(),
        "hash": tokenizer.fingerprint,
    }
    # After the first pass, since the source is known by a digest of all documents.
    if find_existing(folder, SHARDS, made, force=spec.force) is not None:
        return f"{folder} is up to date, nothing was done\n{spec.record().summary()}"

    with write_folder(folder, SHARDS, made) as writer:
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
    if text.survey.stopped:
        head += "; stopped at the limit"
    names = [SPLITS[code] for code in np.unique(text.survey.published) if code >= 0]
    if names:
        head += f"; published splits are kept: {', '.join(names)}"
    lines = [
        head,
        info.summary(),
        *rejected.lines(sorts=SORTS),
        f"all of it in {folder}",
    ]
    return "\n".join(lines)


def text_sources(paths: Sequence[str], folder: Path) -> list[str | Path]:
    """Return the sources of paths, without files of the store, which may be in a folder of them.

    Training text is last, so that a limit on it leaves the other splits whole.
    """
    stores = {folder.resolve(), folder_of_shards(folder).resolve()}
    sources: list[str | Path] = []
    for source in find_sources(paths):
        if isinstance(source, str) or stores.isdisjoint(source.resolve().parents):
            sources.append(source)
    held_out = [split not in ("train", None) for split in splits_of_sources(sources)]
    # Sorting is stable: sources of a kind keep their order.
    order = sorted(range(len(sources)), key=lambda n: not held_out[n])
    return [sources[n] for n in order]


@dataclass(frozen=True)
class Survey:
    """Digest, length (-1 if it was rejected) and published split (-1 if none) of each document.

    `stopped` at a limit; `reasons` are sources of which nearly everything was rejected.
    """

    keys: UInt64[ndarray, " E"]
    sizes: Int64[ndarray, " E"]
    published: Int8[ndarray, " E"]
    stopped: bool = False
    reasons: tuple[str, ...] = ()


def survey_documents(
    spec: Any,
    sources: Sequence[str | Path],
    rejected: RejectedRows,
    published_splits: Sequence[Split | None] | None = None,
    note_place: Callable[[str], object] = str,
) -> Survey:
    """Read all documents, as far as the limits; `rejected` collects those that are not taken.

    Takes 17 bytes a document. `note_place` is called with the place of each that is taken.
    """
    entries_of: Counter[str | Path] = Counter()
    rejected_of: Counter[str | Path] = Counter()
    # Arrays: a list of Python numbers takes 40 bytes an entry.
    keys = array("Q")
    sizes = array("q")
    published = array("b")
    stopped = False
    # Of the training split, which the limits are for.
    documents = 0
    characters = 0
    splits = published_splits or splits_of_sources(sources)
    for source, split, entry in _split_entries(sources, splits, spec.column):
        key = 0
        size = -1
        entries_of[source] += 1
        row = entry
        if isinstance(entry, SourceDocument):
            try:
                key, size = _digest_text(entry.pieces)
                note_place(entry.place)
            except NotText as error:
                row = Rejected(entry.place, error.sort, error.message)
        if isinstance(row, Rejected):
            rejected_of[source] += 1
            rejected.add(row)
        elif split in ("train", None):
            documents += 1
            characters += size
        keys.append(key)
        sizes.append(size)
        published.append(-1 if split is None else SPLITS.index(split))
        enough = spec.characters is not None and characters >= spec.characters
        # Without a limit it is None, which is never equal.
        if documents == spec.documents or enough:
            stopped = True
            break
    return Survey(
        keys=np.frombuffer(keys, np.uint64),
        sizes=np.frombuffer(sizes, np.int64),
        published=np.frombuffer(published, np.int8),
        stopped=stopped,
        reasons=tuple(_mostly_rejected(entries_of, rejected_of)),
    )


class SplitText(TextSource):
    """Surveyed text of a `ConvertedText`, divided into splits; `rejected` are for messages.

    Raises:
        Refused: No text was found, or nearly all was rejected.
    """

    def __init__(
        self,
        spec: Any,
        sources: Sequence[str | Path],
        survey: Survey,
        rejected: RejectedRows,
    ) -> None:
        self.spec = spec
        self.sources = sources
        self.survey = survey
        check_survey(survey, rejected)
        # Shares are held out for the splits that no source has.
        self.valid = spec.valid
        if 1 in survey.published:
            self.valid = 0.0

        self.test = spec.test
        if 2 in survey.published:
            self.test = 0.0

        self.codes = _split_codes(survey, valid=self.valid, test=self.test)

    def digest(self) -> str:
        """Return a digest of all documents, in order, and of their splits."""
        taken = self.codes != REJECTED
        return hashlib.sha256(
            self.survey.keys[taken].tobytes() + self.codes[taken].tobytes()
        ).hexdigest()

    def content(self) -> str:
        """Return a digest of the training split; the shares matter if documents are cut."""
        digest = hashlib.sha256(self.survey.keys[self.codes == 0].tobytes())
        cut = self.survey.keys[self.codes == CUT]
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
        for entry, key, size, code in read_again(
            self.sources, self.spec.column, self.survey, self.codes
        ):
            if code == DUPLICATE:
                if rejected is not None:
                    rejected.add(duplicate(entry.place))
                continue
            edges = [(code, size)]
            if code == CUT:
                edges = [
                    (split, round(share * size)) for split, share in enumerate(shares)
                ]
            yield from cut_document(entry, edges, key)


def read_again(
    sources: Sequence[str | Path],
    column: str,
    survey: Survey,
    codes: UInt8[ndarray, " E"],
) -> Iterator[tuple[SourceDocument, int, int, int]]:
    """Yield the surveyed documents that were not rejected, with digest, length and code.

    Raises:
        Refused: A file has changed since the survey.
    """
    entries = chain.from_iterable(read_documents(source, column) for source in sources)
    columns = (map(int, values) for values in (survey.keys, survey.sizes, codes))
    # The survey may have stopped at a limit.
    for entry, key, size, code in zip(entries, *columns, strict=False):
        if code == REJECTED:
            continue
        if isinstance(entry, Rejected):
            raise _changed(entry.place)
        yield entry, key, size, code


def duplicate(place: str) -> Rejected:
    """Return the row of a document with the text of another."""
    return Rejected(place, "duplicate", "same text as an earlier document")


def _split_entries(
    sources: Sequence[str | Path], splits: Sequence[Split | None], column: str
) -> Iterator[tuple[str | Path, Split | None, SourceDocument | Rejected]]:
    """Yield each document or rejected place with its source, and its published split."""
    for source, split in zip(sources, splits, strict=True):
        for entry in read_documents(source, column):
            yield source, split, entry


def _mostly_rejected(
    entries: Counter[str | Path], refused: Counter[str | Path]
) -> Iterator[str]:
    """Yield the sources of which nearly everything was rejected."""
    for source, count in entries.items():
        if count >= MANY_ROWS and refused[source] > MOST * count:
            yield f"{source}: {refused[source]:,} of {count:,} documents"


def check_survey(survey: Survey, rejected: RejectedRows) -> None:
    """Raise Refused without text, or if nearly all of a source, or of all, was rejected."""
    documents = len(survey.sizes)
    refused = int((survey.sizes < 0).sum())
    if refused == documents:
        lines = ["no text found", *rejected.lines(sorts=SORTS)]
        raise Refused("\n".join(lines), code="no-samples")
    reasons = [*survey.reasons]
    if refused > MOST * documents:
        reasons.insert(0, f"{refused:,} of {documents:,} documents")
    refuse_sources(reasons, rejected)


def refuse_sources(reasons: Sequence[str], rejected: RejectedRows) -> None:
    """Raise Refused if there are sources of which nearly everything was rejected."""
    if reasons:
        lines = [f"rejected: {'; '.join(reasons)}", *rejected.lines(sorts=SORTS)]
        fix = "correct the files, set --column, or give only paths of text"
        raise Refused("\n".join(lines), help=fix, code="invalid-sample")


def _digest_text(pieces: Iterable[str]) -> tuple[int, int]:
    """Return the digest of a text and its length.

    Raises:
        NotText: It is blank, or holds half a surrogate pair.
    """
    # 64 bits: of 10 million documents two have equal digests with a probability of 3e-6.
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


def _split_codes(survey: Survey, *, valid: float, test: float) -> UInt8[ndarray, " E"]:
    """Keep published splits, and divide the rest by content alone, as `hold_out` does.

    Of equal documents the first is taken, or one of a published test or validation split, so that
    none of these is in training.
    """
    keys = survey.keys
    sizes = survey.sizes
    published = survey.published
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


def cut_document(
    entry: SourceDocument, edges: list[tuple[int, int]], key: int
) -> Iterator[Part]:
    """Cut the pieces of a document where one split ends and the next begins."""
    start = 0
    position = 0
    remaining = deque(edges)
    digest = hashlib.blake2b(digest_size=8)
    try:
        for piece in entry.pieces:
            # Half a surrogate pair, which the first pass refuses, only changes the digest.
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
