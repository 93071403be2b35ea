"""Documents as one stream of ids: in memory while small, else a file in the cache folder that is mapped, never loaded.

Letters: N ids.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Integer

from dither.registry.problems import Refused
from dither.registry.storage import cache_folder, write_aside

from .corpora import Document
from .encoding import encode_texts
from .streams import Stream
from .tokenizers import Tokenizer, storage_type

__all__ = ["RESIDENT", "encode_documents"]

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
    with write_aside(path) as aside, aside.open("wb") as file:
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
    with write_aside(_sidecar(path)) as aside:
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
