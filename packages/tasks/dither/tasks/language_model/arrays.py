"""Documents as one array of ids: in memory while small, else a file in the cache folder that is mapped, never loaded.

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
from .tokenizers import Tokenizer

__all__ = ["RESIDENT", "encode_documents"]

RESIDENT = 1 << 20
"""Up to this much text is encoded anew each time and stays in memory."""

BLOCK = 1 << 24
LAYOUT = 1

log = logging.getLogger(__name__)


def encode_documents(
    documents: Sequence[Document], tokenizer: Tokenizer, *, folder: Path | None = None
) -> Integer[np.ndarray, " N"]:
    """Return the ids of documents, one after the other, `tokenizer.end` between them, in the smallest unsigned type.

    Args:
        documents: What is encoded.
        tokenizer: How it is encoded.
        folder: Where arrays of large corpora are kept; by default the cache folder. Several processes may share it.
    """
    if sum(document.size for document in documents) <= RESIDENT:
        return np.concatenate([np.zeros(0, _dtype(tokenizer)), *_encoded(documents, tokenizer)])
    source = [[document.name, document.digest] for document in documents]
    content = json.dumps([LAYOUT, [digest for _, digest in source], tokenizer.fingerprint])
    path = (folder or cache_folder() / "tokens") / f"{hashlib.sha256(content.encode()).hexdigest()[:32]}.bin"
    kept = _open(path)
    if kept is None:
        try:
            _write(path, documents, tokenizer, source)
        except OSError as error:
            raise Refused(f"{path.parent} cannot be written ({error.strerror}); DITHER_DATA chooses another") from error
        kept = _open(path)
        if kept is None:
            raise Refused(f"{path} does not hold what was just written to it")
    return kept


def _dtype(tokenizer: Tokenizer) -> np.dtype[np.unsignedinteger]:
    return np.min_scalar_type(tokenizer.size - 1)


def _encoded(documents: Sequence[Document], tokenizer: Tokenizer) -> Iterator[Integer[np.ndarray, " n"]]:
    dtype = _dtype(tokenizer)
    for number, document in enumerate(documents):
        if number and tokenizer.end:
            yield np.array(tokenizer.end, dtype)
        yield tokenizer.encode(document.load()).astype(dtype)


def _sidecar(path: Path) -> Path:
    return path.with_suffix(".json")


def _write(path: Path, documents: Sequence[Document], tokenizer: Tokenizer, source: list[list[str]]) -> None:
    """Write array and sidecar aside and rename them, the sidecar last; two writers write the same bytes."""
    digest, length = hashlib.sha256(), 0
    with write_aside(path) as aside, aside.open("wb") as file:
        for ids in _encoded(documents, tokenizer):
            raw = ids.tobytes()
            digest.update(raw)
            length += len(ids)
            file.write(raw)
    facts = {
        "dtype": _dtype(tokenizer).str,
        "shape": [length],
        "sha256": digest.hexdigest(),
        "source": source,
        "tokenizer": {"name": tokenizer.name, "size": tokenizer.size, "fingerprint": tokenizer.fingerprint},
    }
    with write_aside(_sidecar(path)) as aside:
        aside.write_text(json.dumps(facts, indent=1), "utf-8")


def _open(path: Path) -> Integer[np.ndarray, " N"] | None:
    """Map an array that is whole; None where there is none, or where it is damaged and must be written again."""
    try:
        facts = json.loads(_sidecar(path).read_text("utf-8"))
        array: Integer[np.ndarray, " N"] = np.memmap(path, facts["dtype"], "r", shape=tuple(facts["shape"]))
        if _digest(array) == facts["sha256"]:
            return array
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
