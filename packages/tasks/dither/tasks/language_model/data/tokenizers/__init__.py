"""Tokenizers: bytes, characters, byte pairs, tokenizer.json; here, properties of their names."""

from __future__ import annotations

import re

__all__ = [
    "ENDS",
    "OPTION",
    "SIZES",
    "TOKENIZERS",
    "byte_pair_ids",
    "invalid_byte_pairs",
]

SIZES = {"bytes": 256, "gpt2": 50_257}
"""Tokenizers with a fixed number of ids."""
TOKENIZERS = "auto|bytes|chars|gpt2|bpe:.*"
"""Names of tokenizers (a regular expression); any other is the path of a file."""
ENDS = {"gpt2": 50_256}
"""Tokenizers with a fixed end-of-text id."""
OPTION = ("task", "tokenizer")
"""Key of an experiment at which problems are reported."""
# Messages that both the check of an experiment and its build raise.
BPE_RANGE = "bpe:N requires a number of ids N from 257 to 1,000,000, such as bpe:4096"
NO_END = 'documents = "ended" requires an end-of-text id, and the tokenizer has none'
ADD_END = "set end_of_text = true"


def byte_pair_ids(tokenizer: str) -> int | None:
    """Return N of the tokenizer "bpe:N"; None for any other name or an invalid number."""
    match = re.fullmatch(r"bpe:([0-9]{3,7})", tokenizer)
    if match is None or not 257 <= int(match[1]) <= 1_000_000:
        return None
    return int(match[1])


def invalid_byte_pairs(tokenizer: str) -> bool:
    """Return whether a tokenizer is "bpe:N" with an invalid N."""
    return tokenizer.startswith("bpe:") and byte_pair_ids(tokenizer) is None
