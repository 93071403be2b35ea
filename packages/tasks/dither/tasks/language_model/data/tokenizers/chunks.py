"""Cut long texts into chunks that are encoded one by one with the same result."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
from jaxtyping import Integer

from .base import Tokenizer

__all__ = ["LONGEST", "PIECE", "cut_pieces", "encode_texts"]

PIECE = 1 << 16
"""Characters after which a chunk ends at the next safe position."""
LONGEST = 1 << 24
"""Characters after which it ends at any blank, even if this changes the encoding."""


def cut_pieces(blocks: Iterable[str]) -> Iterator[str]:
    """Cut a text after a line end between two visible characters, where GPT-2's pattern also cuts.

    A text without such positions is cut before a blank after `LONGEST` characters, so that memory stays bounded.

    Args:
        blocks: The text, in blocks of any length.
    """
    buffer, looked = "", 0
    for block in blocks:
        buffer += block
        start = 0
        while (cut := _place(buffer, max(start + PIECE, looked))) is not None:
            yield buffer[start:cut]
            start = looked = cut
        buffer = buffer[start:]
        looked = max(len(buffer) - 1, 0)  # a line end there depends on the next character
        while len(buffer) > LONGEST:
            blank = buffer.rfind(" ", 1, LONGEST)
            cut = blank if blank > 0 else LONGEST
            yield buffer[:cut]
            buffer = buffer[cut:]
            looked = 0
    if buffer:
        yield buffer


def _place(text: str, start: int) -> int | None:
    """Return the first position from `start` on where a text may be cut; None if there is none."""
    cut = text.find("\n", start) + 1
    while cut and (cut < 2 or cut >= len(text) or text[cut - 2].isspace() or text[cut].isspace()):
        cut = text.find("\n", cut) + 1
    return cut or None


BATCH = 1 << 22
"""Characters per encoding batch."""
MANY = 4096
"""Texts per encoding batch."""


def encode_texts(texts: Iterable[str], tokenizer: Tokenizer) -> Iterator[Integer[np.ndarray, " n"]]:
    """Yield the ids of each text, in order and in the smallest type, reading ahead by a batch."""
    batch: list[str] = []
    buffer = 0
    for text in texts:
        batch.append(text)
        buffer += len(text)
        if buffer >= BATCH or len(batch) >= MANY:
            yield from tokenizer.encode_each(batch)
            batch, buffer = [], 0
    yield from tokenizer.encode_each(batch)
