"""What the name of a tokenizer says about it without reading anything."""

from __future__ import annotations

__all__ = ["ADD_END", "ENDS", "NO_END", "SIZES", "byte_pair_ids"]

SIZES = {"bytes": 256, "gpt2": 50_257}
"""Tokenizers whose number of ids is known without reading anything."""
ENDS = {"gpt2": 50_256}
"""Those of them whose vocabulary has an id that ends a text."""


def byte_pair_ids(tokenizer: str) -> int | None:
    """Return N of the tokenizer "bpe:N", None where it is another one or no such number of ids is possible."""
    number = tokenizer.removeprefix("bpe:")
    if number == tokenizer or not (number.isascii() and number.isdigit()) or len(number) > 7:
        return None
    return int(number) if 257 <= int(number) <= 1_000_000 else None


NO_END = 'documents = "ended" needs an id that ends a text, and the tokenizer has none'
"""Why documents cannot be filled up with it."""
ADD_END = "end_of_text = true adds one"
"""What helps."""
