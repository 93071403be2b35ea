"""Documents, and how some of them are held out: by whole documents, never by random windows."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Integer

from dither.registry.config.errors import Refused
from dither.registry.files.atomic import atomic_write
from dither.registry.files.cache import cache_folder

from .token_store import Stream
from .tokenizers.base import Tokenizer, storage_type
from .tokenizers.chunks import encode_texts

if TYPE_CHECKING:
    from dither.registry.flow.protocols import Split

    from .markov import SourceDistribution

__all__ = ["RESIDENT", "Corpus", "Document", "divide", "encode_documents", "hold_out"]


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
    law: SourceDistribution | None = None

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


RESIDENT = 1 << 20
"""Up to this much text is encoded anew each time and stays in memory."""

BLOCK = 1 << 24
LAYOUT = 2

log = logging.getLogger(__name__)


def encode_documents(documents: Sequence[Document], tokenizer: Tokenizer, *, folder: Path | None = None) -> Stream:
    """Return the ids of documents, one after the other, in the smallest unsigned type.

    Each document ends with `tokenizer.end`, or where there is no such id `tokenizer.separator` stands between two.

    Args:
        documents: What is encoded.
        tokenizer: How it is encoded.
        folder: Where arrays of large corpora are kept; by default the cache folder. Several processes may share it.
    """
    if sum(document.size for document in documents) <= RESIDENT:
        parts, starts = [np.zeros(0, storage_type(tokenizer))], []
        length = 0
        for begins, ids in _encoded(documents, tokenizer):
            starts += [length] if begins else []
            parts.append(ids)
            length += len(ids)
        return Stream((np.concatenate(parts),), np.array(starts, np.int64), len(tokenizer.separator))
    source = [[document.name, document.digest] for document in documents]
    content = json.dumps([LAYOUT, [digest for _, digest in source], tokenizer.fingerprint])
    path = (folder or cache_folder() / "tokens") / f"{hashlib.sha256(content.encode()).hexdigest()[:32]}.bin"
    kept = _open(path, len(tokenizer.separator))
    if kept is None:
        try:
            _write(path, documents, tokenizer, source)
        except OSError as error:
            raise Refused(f"{path.parent} cannot be written ({error.strerror}); DITHER_DATA chooses another") from error
        kept = _open(path, len(tokenizer.separator))
        if kept is None:
            raise Refused(f"{path} does not hold what was just written to it")
    return kept


def _encoded(documents: Sequence[Document], tokenizer: Tokenizer) -> Iterator[tuple[bool, Integer[np.ndarray, " n"]]]:
    """Yield the ids in pieces, and of each whether it begins a document."""
    dtype = storage_type(tokenizer)
    between = np.array(tokenizer.separator, dtype)
    ending = None if tokenizer.end is None else np.array([tokenizer.end], dtype)
    texts = (document.load() for document in documents)
    for number, ids in enumerate(encode_texts(texts, tokenizer)):
        if number and ending is None and len(between):
            yield False, between
        yield True, ids
        if ending is not None:
            yield False, ending


def _sidecar(path: Path) -> Path:
    return path.with_suffix(".json")


def _write(path: Path, documents: Sequence[Document], tokenizer: Tokenizer, source: list[list[str]]) -> None:
    """Write array and sidecar aside and rename them, the sidecar last; two writers write the same bytes."""
    digest, length, starts = hashlib.sha256(), 0, []
    with atomic_write(path) as aside, aside.open("wb") as file:
        for begins, ids in _encoded(documents, tokenizer):
            raw = ids.tobytes()
            starts += [length] if begins else []
            digest.update(raw)
            length += len(ids)
            file.write(raw)
    facts = {
        "dtype": storage_type(tokenizer).str,
        "shape": [length],
        "sha256": digest.hexdigest(),
        "starts": starts,
        "source": source,
        "tokenizer": {"name": tokenizer.name, "size": tokenizer.size, "fingerprint": tokenizer.fingerprint},
    }
    with atomic_write(_sidecar(path)) as aside:
        aside.write_text(json.dumps(facts, indent=1), "utf-8")


def _open(path: Path, gap: int) -> Stream | None:
    """Map an array that is whole; None where there is none, or where it is damaged and must be written again."""
    try:
        facts = json.loads(_sidecar(path).read_text("utf-8"))
        array: Integer[np.ndarray, " N"] = np.memmap(path, facts["dtype"], "r", shape=tuple(facts["shape"]))
        starts = np.array(facts["starts"], np.int64)
        if _digest(array) == facts["sha256"] and len(starts) == len(facts["source"]):
            return Stream((array,), starts, gap)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError) as error:
        log.warning("%s is damaged (%s) and is written again", path, error)
        return None
    log.warning("%s is damaged (its checksum differs) and is written again", path)
    return None


def _digest(array: Integer[np.ndarray, " N"]) -> str:
    digest = hashlib.sha256()
    for start in range(0, len(array), BLOCK):
        digest.update(array[start : start + BLOCK].tobytes())
    return digest.hexdigest()
