"""What the name of a tokenizer says about it without reading anything."""

from __future__ import annotations

__all__ = ["ENDS", "SIZES", "byte_pair_ids"]

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
