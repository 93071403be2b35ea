"""Long texts in pieces that are encoded one by one as if they were one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
from jaxtyping import Integer

from .base import Tokenizer

__all__ = ["LONGEST", "PIECE", "cut_pieces", "encode_texts"]

PIECE = 1 << 16
"""Characters after which a piece ends as soon as it can."""
LONGEST = 1 << 24
"""Characters after which it ends even where the encoding may then be another."""


def cut_pieces(blocks: Iterable[str]) -> Iterator[str]:
    """Cut a text after a line end between two visible characters, where GPT-2's pattern cuts as well.

    A text that has no such place is cut before a blank after `LONGEST` characters, so that memory stays bounded.

    Args:
        blocks: The text, in blocks of any length, whose borders do not matter.
    """
    held, looked = "", 0
    for block in blocks:
        held += block
        start = 0
        while (cut := _place(held, max(start + PIECE, looked))) is not None:
            yield held[start:cut]
            start = looked = cut
        held = held[start:]
        looked = max(len(held) - 1, 0)  # a line end there wants to see the character behind it
        while len(held) > LONGEST:
            blank = held.rfind(" ", 1, LONGEST)
            cut = blank if blank > 0 else LONGEST
            yield held[:cut]
            held = held[cut:]
            looked = 0
    if held:
        yield held


def _place(text: str, start: int) -> int | None:
    """Return the first place from `start` on where a text may be cut, None where there is none."""
    cut = text.find("\n", start) + 1
    while cut and (cut < 2 or cut >= len(text) or text[cut - 2].isspace() or text[cut].isspace()):
        cut = text.find("\n", cut) + 1
    return cut or None


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
