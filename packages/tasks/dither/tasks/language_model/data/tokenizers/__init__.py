"""Tokenizers: bytes, characters, byte pairs, tokenizer.json."""
