"""Documents, and how some of them are held out: by whole documents, never by random windows."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dither.registry.config.errors import Refused

if TYPE_CHECKING:
    from dither.registry.flow.protocols import Split

    from .markov import SourceDistribution

__all__ = ["SPLITS", "Corpus", "Document", "TextSource", "divide", "hold_out"]

SPLITS: tuple[Split, ...] = ("train", "valid", "test")
"""The splits of a corpus."""


@dataclass(frozen=True)
class Document:
    """A text with a name, read on request.

    Attributes:
        name: A path, a topic, a module.
        digest: sha256 of the content; documents with equal digests are the same text.
        size: Amount of text, in the same unit for all documents of a corpus.
        load: Returns the text.
    """

    name: str
    digest: str
    size: int
    load: Callable[[], str] = field(repr=False, compare=False)

    @classmethod
    def of(cls, name: str, text: str) -> Document:
        """Make a document of a text in memory."""
        return cls(name, hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest(), len(text), lambda: text)

    def part(self, start: float, stop: float) -> Document:
        """Return the characters between two fractions of the length; adjacent parts leave nothing out."""
        text = self.load()
        first, last = round(start * len(text)), round(stop * len(text))
        return Document.of(f"{self.name}[{first}:{last}]", text[first:last])


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
    """Documents by split, the result of a text data source.

    Attributes:
        name: Name of the source.
        splits: Documents of "train", "valid" and "test"; "test" may be empty.
        distribution: The distribution of the text, if it is known.
    """

    name: str
    splits: Mapping[Split, Sequence[Document]]
    distribution: SourceDistribution | None = None

    def __post_init__(self) -> None:
        for split in ("train", "valid"):
            if not any(document.size for document in self.splits[split]):
                raise Refused(f'{self.name}: no text is left for the split "{split}"', code="no-samples")

    def texts(self) -> Iterable[str]:
        """Read the training documents one by one."""
        return (document.load() for document in self.splits["train"])

    def content(self) -> str:
        """Return a digest of the training documents."""
        digests = "".join(document.digest for document in self.splits["train"])
        return hashlib.sha256(digests.encode()).hexdigest()


def hold_out(documents: Iterable[Document], *, valid: float, test: float) -> dict[Split, list[Document]]:
    """Divide documents into splits by their content alone, independent of order and file names.

    Duplicates count once. In the order of their digests, documents go to "test", then "valid", while the share of the
    split is not exceeded; a share smaller than every document gets the smallest one left. With fewer documents than
    splits, each document is cut: its head goes to "train", then "valid", then "test".
    """
    if not (valid > 0 and test >= 0 and valid + test < 1):
        raise ValueError(f"valid > 0, test >= 0 and valid + test < 1 required: valid = {valid}, test = {test}")
    unique = list({document.digest: document for document in documents}.values())
    if len(unique) < 2 + (test > 0):
        return _cut(unique, valid, test)
    pool = sorted(unique, key=lambda document: document.digest)
    codes = divide([document.size for document in pool], valid=valid, test=test)
    train, *held_out = ([d for d, code in zip(pool, codes, strict=True) if code == n] for n in range(3))
    digests = {document.digest for document in train}
    return {
        "train": [document for document in unique if document.digest in digests],
        "valid": held_out[0],
        "test": held_out[1],
    }


def divide(sizes: Sequence[int], *, valid: float, test: float) -> list[int]:
    """Return the split of each document, given sizes in the order of digests: 0 train, 1 valid, 2 test."""
    codes, total, left = [0] * len(sizes), sum(sizes), len(sizes)
    for code, share, reserved in ((2, test * total, 2), (1, valid * total, 1)):
        room, before = share, left
        for place, size in enumerate(sizes):
            if not codes[place] and size <= room and left > reserved:
                codes[place], room, left = code, room - size, left - 1
        if share > 0 and left == before:
            codes[min((p for p in range(len(sizes)) if not codes[p]), key=sizes.__getitem__)] = code
            left -= 1
    return codes


def _cut(documents: list[Document], valid: float, test: float) -> dict[Split, list[Document]]:
    """Cut every document into head, validation and test; empty parts are dropped."""
    edges = (0.0, 1 - valid - test, 1 - test, 1.0)
    cut = {split: [d.part(edges[n], edges[n + 1]) for d in documents] for n, split in enumerate(SPLITS)}
    return {split: [part for part in parts if part.size] for split, parts in cut.items()}
