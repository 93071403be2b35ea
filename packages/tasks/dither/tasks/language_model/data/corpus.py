"""Documents, and how some of them are held out: by whole documents, never by random windows."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dither.registry.config.errors import Refused

if TYPE_CHECKING:
    from dither.registry.contracts.protocols import Split

    from .markov import MarkovChain

__all__ = ["SPLITS", "Corpus", "Document", "TextSource", "divide", "hold_out"]

SPLITS: tuple[Split, ...] = ("train", "valid", "test")
"""The splits of a corpus."""


@dataclass(frozen=True)
class Document:
    """A text with a name, read on request; `size` has one unit for all documents of a corpus."""

    name: str
    digest: str
    size: int
    load: Callable[[], str] = field(repr=False, compare=False)
    published: Split | None = None
    """The split of the source that it belongs to."""

    @classmethod
    def of(cls, name: str, text: str) -> Document:
        """Make a document of a text in memory."""
        digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
        return cls(name, digest, size=len(text), load=lambda: text)


class TextSource(ABC):
    """Text that a tokenizer learns from."""

    @abstractmethod
    def texts(self) -> Iterable[str]:
        """Yield the texts of the training split."""

    @abstractmethod
    def content(self) -> str:
        """Return a digest of the training split."""

    def characters(self) -> str:
        """Return every character of the training split once, sorted."""
        characters: set[str] = set()
        for text in self.texts():
            characters.update(text)
        return "".join(sorted(characters))


@dataclass(frozen=True)
class Corpus(TextSource):
    """Documents by split, and the distribution of the text, if it is known."""

    name: str
    splits: Mapping[Split, Sequence[Document]]
    distribution: MarkovChain | None = None

    def __post_init__(self) -> None:
        for split in ("train", "valid"):
            if not any(document.size for document in self.splits[split]):
                message = f'{self.name}: no text is left for the split "{split}"'
                raise Refused(message, code="no-samples")

    def texts(self) -> Iterable[str]:
        """Read the training documents one by one."""
        return (document.load() for document in self.splits["train"])

    def characters(self) -> str:
        """Return every character of the training split once, sorted."""
        if self.distribution is None:
            return super().characters()
        # The text of a chain need not be drawn to its end.
        return self.distribution.characters(self.splits["train"][0].size)

    def content(self) -> str:
        """Return a digest of the training documents."""
        digests = "".join(document.digest for document in self.splits["train"])
        return hashlib.sha256(digests.encode()).hexdigest()


def hold_out(
    documents: Iterable[Document], *, valid: float, test: float
) -> dict[Split, list[Document]]:
    """Divide documents into splits by their content alone, independent of order and file names.

    Published splits are kept, and only those that are missing are held out. Duplicates count once.
    In the order of their digests, documents go to "test", then "valid",
    while the share of the split is not exceeded; a share smaller than every document gets the
    smallest one left. With fewer documents than splits, each document is cut: its head goes to
    "train", then "valid", then "test".
    """
    unique: dict[str, Document] = {}
    for document in documents:
        other = unique.get(document.digest, document)
        # A document that is also in a published test or validation split is never in training.
        if _rank(document) >= _rank(other):
            unique[document.digest] = document
    splits: dict[Split, list[Document]] = {split: [] for split in SPLITS}
    pool = []
    for document in unique.values():
        if document.published in ("valid", "test"):
            splits[document.published].append(document)
        else:
            pool.append(document)
    shares = {
        "valid": 0.0 if splits["valid"] else valid,
        "test": 0.0 if splits["test"] else test,
    }
    for split, held_out in _divide_documents(pool, **shares).items():
        splits[split] += held_out
    return splits


def _rank(document: Document) -> int:
    return SPLITS.index(document.published or "train")


def _divide_documents(
    documents: list[Document], *, valid: float, test: float
) -> dict[Split, list[Document]]:
    splits_in_use = 1 + sum(share > 0 for share in (valid, test))
    if len(documents) < splits_in_use:
        return _cut(documents, valid, test)
    pool = sorted(documents, key=lambda document: document.digest)
    codes = divide([document.size for document in pool], valid=valid, test=test)
    splits: dict[Split, list[Document]] = {split: [] for split in SPLITS}
    for document, code in zip(pool, codes, strict=True):
        splits[SPLITS[code]].append(document)

    # Training documents keep their order, which a reader of the stream would expect.
    digests = {document.digest for document in splits["train"]}
    splits["train"] = [d for d in documents if d.digest in digests]
    return splits


def divide(sizes: Sequence[int], *, valid: float, test: float) -> list[int]:
    """Return the index in `SPLITS` of each document, given sizes in the order of digests."""
    codes = [0] * len(sizes)
    remaining = len(sizes)
    # Test comes first and leaves a document for each of the other two splits.
    for code, share, reserved in ((2, test, 2), (1, valid, 1)):
        room = share * sum(sizes)
        remaining_before = remaining
        for index, size in enumerate(sizes):
            if codes[index] == 0 and size <= room and remaining > reserved:
                codes[index] = code
                room -= size
                remaining -= 1

        # Every document is larger than the share: the smallest one is held out.
        if share > 0 and remaining == remaining_before:
            free = [index for index, taken in enumerate(codes) if not taken]
            codes[min(free, key=sizes.__getitem__)] = code
            remaining -= 1
    return codes


def _cut(
    documents: list[Document], valid: float, test: float
) -> dict[Split, list[Document]]:
    """Cut every document into head, validation and test; empty parts are dropped."""
    cut: dict[Split, list[Document]] = {split: [] for split in SPLITS}
    ends: dict[Split, float] = {
        "train": 1 - valid - test,
        "valid": 1 - test,
        "test": 1.0,
    }
    for document in documents:
        text = document.load()
        # Each part begins where the one before it ends, so that rounding loses no character.
        first = 0
        for split, share in ends.items():
            last = round(share * len(text))
            part = text[first:last]
            if part:
                name = f"{document.name}[{first}:{last}]"
                cut[split].append(Document.of(name, part))
            first = last
    return cut
