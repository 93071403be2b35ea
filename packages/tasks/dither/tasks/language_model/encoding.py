"""Many texts to ids, in batches: a tokenizer that uses several cores wants enough at once, memory has to hold it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
from jaxtyping import Integer

from .tokenizers import Tokenizer

__all__ = ["encode_texts"]

BATCH = 1 << 22
"""Characters that are encoded at once."""
MANY = 4096
"""Texts that are encoded at once."""


def encode_texts(texts: Iterable[str], tokenizer: Tokenizer) -> Iterator[Integer[np.ndarray, " n"]]:
    """Yield the ids of each text, in order and in the smallest type, reading ahead by a batch."""
    batch: list[str] = []
    held = 0
    for text in texts:
        batch.append(text)
        held += len(text)
        if held >= BATCH or len(batch) >= MANY:
            yield from tokenizer.encode_each(batch)
            batch, held = [], 0
    yield from tokenizer.encode_each(batch)
