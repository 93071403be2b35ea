"""Documents, and how some of them are held out: by whole documents, never by random windows."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dither.registry.problems import Refused

if TYPE_CHECKING:
    from dither.registry.parts import Split

    from .laws import Law
    from .streams import Stream
    from .tokenizers import Tokenizer

__all__ = ["Corpus", "Document", "divide", "hold_out", "without_quotations"]

QUOTATION = 40
"""A paragraph of at least this many characters that stands in two documents is a quotation."""


@dataclass(frozen=True)
class Document:
    """A text with a name, read when it is needed.

    Attributes:
        name: Where it comes from: a path, a topic, a module.
        digest: sha256 of the content; two documents with one digest are the same text.
        size: How much text there is, in one unit for all documents of a corpus.
        load: Returns the text.
    """

    name: str
    digest: str
    size: int
    load: Callable[[], str] = field(repr=False, compare=False)

    @classmethod
    def of(cls, name: str, text: str) -> Document:
        """Make a document of a text that is already in memory."""
        return cls(name, hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest(), len(text), lambda: text)

    def part(self, start: float, stop: float) -> Document:
        """Return the characters between two fractions of the length; adjoining parts leave out nothing."""
        text = self.load()
        first, last = round(start * len(text)), round(stop * len(text))
        return Document.of(f"{self.name}[{first}:{last}]", text[first:last])


@dataclass(frozen=True)
class Corpus:
    """Documents by split. What a data source of texts builds.

    Attributes:
        name: Name of the source.
        splits: Documents of "train", "valid" and "test"; "test" may be empty.
        law: The distribution of the text, where it is known.
    """

    name: str
    splits: Mapping[Split, Sequence[Document]]
    law: Law | None = None

    def __post_init__(self) -> None:
        for split in ("train", "valid"):
            if not any(document.size for document in self.splits[split]):
                raise Refused(f'{self.name}: no text is left for the split "{split}"')

    def texts(self, split: Split) -> Iterable[str]:
        """Read the documents of a split one by one."""
        return (document.load() for document in self.splits[split])

    def content(self, split: Split) -> str:
        """Return a digest of the texts of a split."""
        digests = "".join(document.digest for document in self.splits[split])
        return hashlib.sha256(digests.encode()).hexdigest()

    def encoded(self, tokenizer: Tokenizer) -> dict[Split, Stream]:
        """Return the ids of every split."""
        from .arrays import encode_documents

        return {split: encode_documents(documents, tokenizer) for split, documents in self.splits.items()}

    def characters(self) -> str:
        """Every character of the training split once, sorted."""
        found: set[str] = set()
        for text in self.texts("train"):
            found.update(text)
        return "".join(sorted(found))


def hold_out(documents: Iterable[Document], *, valid: float, test: float) -> dict[Split, list[Document]]:
    """Divide documents into splits by their content alone, so that neither order nor file names matter.

    Identical documents count once. Documents are taken in the order of their digests into "test", then "valid", as
    long as the share of the split is not exceeded; a share that every document exceeds gets the smallest one left. With
    fewer documents than splits, each document gives its end instead: head to "train", then "valid", then "test".

    Args:
        documents: What is to be divided.
        valid: Share of the text for validation, above 0.
        test: Share of the text for testing; 0 for none.
    """
    if not (valid > 0 and test >= 0 and valid + test < 1):
        raise ValueError(f"valid > 0, test >= 0 and valid + test < 1 is wanted: valid = {valid}, test = {test}")
    unique = list({document.digest: document for document in documents}.values())
    if len(unique) < 2 + (test > 0):
        return _ends(unique, valid, test)
    pool = sorted(unique, key=lambda document: document.digest)
    codes = divide([document.size for document in pool], valid=valid, test=test)
    trained, validated, tested = ([d for d, code in zip(pool, codes, strict=True) if code == n] for n in range(3))
    left = {document.digest for document in trained}
    return {"train": [document for document in unique if document.digest in left], "valid": validated, "test": tested}


def divide(sizes: Sequence[int], *, valid: float, test: float) -> list[int]:
    """Say of each document, given by size in the order of its digest, where it goes: 0 train, 1 valid, 2 test."""
    codes, total, left = [0] * len(sizes), sum(sizes), len(sizes)
    for code, share, leave in ((2, test * total, 2), (1, valid * total, 1)):
        room, before = share, left
        for place, size in enumerate(sizes):
            if not codes[place] and size <= room and left > leave:
                codes[place], room, left = code, room - size, left - 1
        if share > 0 and left == before:
            codes[min((p for p in range(len(sizes)) if not codes[p]), key=sizes.__getitem__)] = code
            left -= 1
    return codes


def _ends(documents: list[Document], valid: float, test: float) -> dict[Split, list[Document]]:
    """Cut every document into head, validation and test; a part without characters is left out."""
    edges: dict[Split, tuple[float, float]] = {
        "train": (0.0, 1 - valid - test),
        "valid": (1 - valid - test, 1 - test),
        "test": (1 - test, 1.0),
    }
    parts = {split: [document.part(*edge) for document in documents] for split, edge in edges.items()}
    return {split: [part for part in made if part.size] for split, made in parts.items()}


def without_quotations(texts: Mapping[str, str]) -> dict[str, str]:
    """Keep a paragraph that stands in several texts in the longest of them only, so that no split can quote another.

    Paragraphs are compared without regard to white space. A text that loses more than half of itself is dropped: what
    is left of it are headings.
    """
    seen: set[str] = set()
    kept: dict[str, str] = {}
    for name in sorted(texts, key=lambda name: (-len(texts[name]), name)):
        own = [part for part in re.split(r"\n\s*\n", texts[name]) if not (_is_long(part) and _fold(part) in seen)]
        seen.update(_fold(part) for part in own if _is_long(part))
        text = "\n\n".join(own)
        if 2 * len(text) > len(texts[name]):
            kept[name] = text
    return {name: kept[name] for name in sorted(kept)}


def _fold(paragraph: str) -> str:
    return " ".join(paragraph.split())


def _is_long(paragraph: str) -> bool:
    return len(_fold(paragraph)) >= QUOTATION
