"""Tokenizers: bytes, characters, byte pairs, tokenizer.json. Here: what follows from their names."""

from __future__ import annotations

__all__ = ["ENDS", "SIZES", "TOKENIZERS", "byte_pair_ids", "invalid_byte_pairs"]

SIZES = {"bytes": 256, "gpt2": 50_257}
"""Tokenizers with a fixed number of ids."""
TOKENIZERS = "auto|bytes|chars|gpt2|bpe:.*"
"""Names of tokenizers (a regular expression); any other is the path of a file."""
ENDS = {"gpt2": 50_256}
"""Tokenizers with a fixed end-of-text id."""
# messages
BPE_RANGE = "bpe:N requires a number of ids N from 257 to 1,000,000, such as bpe:4096"
NO_END = 'documents = "ended" requires an end-of-text id, and the tokenizer has none'
ADD_END = "set end_of_text = true"


def byte_pair_ids(tokenizer: str) -> int | None:
    """Return N of the tokenizer "bpe:N"; None for any other name or an invalid number."""
    number = tokenizer.removeprefix("bpe:")
    if number == tokenizer or not (number.isascii() and number.isdigit()) or len(number) > 7:
        return None
    return int(number) if 257 <= int(number) <= 1_000_000 else None


def invalid_byte_pairs(tokenizer: str) -> bool:
    """Return whether a tokenizer is "bpe:N" with an invalid N."""
    return tokenizer.startswith("bpe:") and byte_pair_ids(tokenizer) is None
