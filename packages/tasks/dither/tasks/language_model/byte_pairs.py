"""Byte pairs of one's own: learned from the training split, kept in the cache folder."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from dither.registry.problems import Problem, Refused
from dither.registry.storage import cache_folder, write_aside

from .learned import Learned
from .tokenizers import END_MARK

__all__ = ["byte_pairs"]

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
    definition = _kept(path)
    if definition is None:
        definition = _learn(size, texts())
        with suppress(OSError):  # a cache that cannot be written only costs time
            _keep(path, definition, size, content)
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


def _kept(path: Path) -> str | None:
    """Read what was learned before; None where there is nothing, or something else than was written."""
    try:
        raw = path.read_bytes()
        facts = json.loads(_sidecar(path).read_text("utf-8"))
        return raw.decode("utf-8") if facts["sha256"] == hashlib.sha256(raw).hexdigest() else None
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _keep(path: Path, definition: str, size: int, content: str) -> None:
    """Write the pairs and then their sidecar; two writers write the same bytes."""
    raw = definition.encode()
    with write_aside(path) as aside:
        aside.write_bytes(raw)
    facts = {"sha256": hashlib.sha256(raw).hexdigest(), "ids": size, "content": content}
    with write_aside(_sidecar(path)) as aside:
        aside.write_text(json.dumps(facts, indent=1), "utf-8")
