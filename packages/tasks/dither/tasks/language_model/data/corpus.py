"""Documents, and how some of them are held out: by whole documents, never by random windows."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
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
    """A text with a name, read on request; `size` has the same unit for all documents of a corpus."""

    name: str
    digest: str
    size: int
    load: Callable[[], str] = field(repr=False, compare=False)

    @classmethod
    def of(cls, name: str, text: str) -> Document:
        """Make a document of a text in memory."""
        return cls(
            name,
            hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest(),
            len(text),
            lambda: text,
        )


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
    """Documents by split, the result of a text data source, and the distribution of the text, if it is known."""

    name: str
    splits: Mapping[Split, Sequence[Document]]
    distribution: MarkovChain | None = None

    def __post_init__(self) -> None:
        for split in ("train", "valid"):
            if not any(document.size for document in self.splits[split]):
                raise Refused(
                    f'{self.name}: no text is left for the split "{split}"', code="no-samples"
                )

    def texts(self) -> Iterable[str]:
        """Read the training documents one by one."""
        return (document.load() for document in self.splits["train"])

    def characters(self) -> str:
        """Return every character of the training split once, sorted."""
        chain = self.distribution  # whose text need not be drawn as a whole
        return (
            super().characters()
            if chain is None
            else chain.characters(self.splits["train"][0].size)
        )

    def content(self) -> str:
        """Return a digest of the training documents."""
        digests = "".join(document.digest for document in self.splits["train"])
        return hashlib.sha256(digests.encode()).hexdigest()


def hold_out(
    documents: Iterable[Document], *, valid: float, test: float
) -> dict[Split, list[Document]]:
    """Divide documents into splits by their content alone, independent of order and file names.

    Duplicates count once. In the order of their digests, documents go to "test", then "valid",
    while the share of the split is not exceeded; a share smaller than every document gets the
    smallest one left. With fewer documents than splits, each document is cut: its head goes to
    "train", then "valid", then "test".
    """
    unique = list({document.digest: document for document in documents}.values())
    if len(unique) < 2 + (test > 0):
        return _cut(unique, valid, test)
    pool = sorted(unique, key=lambda document: document.digest)
    codes = divide([document.size for document in pool], valid=valid, test=test)
    train, *held_out = (
        [d for d, code in zip(pool, codes, strict=True) if code == n] for n in range(3)
    )
    digests = {document.digest for document in train}
    return {
        "train": [document for document in unique if document.digest in digests],
        "valid": held_out[0],
        "test": held_out[1],
    }


def divide(sizes: Sequence[int], *, valid: float, test: float) -> list[int]:
    """Return the split of each document, given sizes in the order of digests: 0 train, 1 valid, 2 test."""
    codes = [0] * len(sizes)
    total = sum(sizes)
    left = len(sizes)
    for code, share, reserved in ((2, test * total, 2), (1, valid * total, 1)):
        room = share
        before = left
        for place, size in enumerate(sizes):
            if not codes[place] and size <= room and left > reserved:
                codes[place] = code
                room = room - size
                left = left - 1
        if share > 0 and left == before:
            codes[min((p for p in range(len(sizes)) if not codes[p]), key=sizes.__getitem__)] = code
            left -= 1
    return codes


def _cut(documents: list[Document], valid: float, test: float) -> dict[Split, list[Document]]:
    """Cut every document into head, validation and test; empty parts are dropped."""
    cut: dict[Split, list[Document]] = {split: [] for split in SPLITS}
    for document in documents:
        text = document.load()
        edges = [round(share * len(text)) for share in (0.0, 1 - valid - test, 1 - test, 1.0)]
        for split, (first, last) in zip(SPLITS, pairwise(edges), strict=True):
            if last > first:
                cut[split].append(Document.of(f"{document.name}[{first}:{last}]", text[first:last]))
    return cut
