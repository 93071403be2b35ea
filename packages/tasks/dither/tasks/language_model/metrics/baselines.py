"""Baselines: uniform, unigram, n-grams, xz and the known distribution, in the units of the metrics.

Letters: N ids.
"""

from __future__ import annotations

import lzma
from collections import Counter
from collections.abc import Sequence
from math import log

import numpy as np
from jaxtyping import Int64, Integer

from dither.registry.config.errors import Problem, Refused

from ..data.markov import SourceDistribution
from ..data.streams import Joined
from ..data.tokenizers.base import Tokenizer
from .ngrams import WittenBell

__all__ = [
    "EVALUATED",
    "LIMIT",
    "Ids",
    "check_vocabulary",
    "count",
    "distribution_baselines",
    "entropy",
    "strong_baselines",
    "trivial_baselines",
]

LIMIT = 1 << 23
"""Maximum number of training ids, taken from the end, that strong baselines are fitted on."""
EVALUATED = 1 << 20
"""Maximum number of held-out ids, taken from the start, that they predict."""

Ids = Integer[np.ndarray, " N"] | Joined


def trivial_baselines(train: Ids, text: Ids, tokenizer: Tokenizer) -> dict[str, float]:
    """Return the uniform distribution, the unigram of the training split, and the best possible unigram.

    `unigram` learns from `train` (one count added to every id) and predicts `text`; `unigram-of-split` is the entropy
    of `text` itself, which no unigram can beat.
    """
    learned = count(train, tokenizer.size) + 1.0
    counts = count(text, tokenizer.size)
    nats = {
        "uniform": len(text) * log(tokenizer.size),
        "unigram": float(-(counts * np.log(learned / learned.sum())).sum()),
        "unigram-of-split": len(text) * entropy(counts),
    }
    return _metrics(nats, text, tokenizer)


def strong_baselines(ngrams: WittenBell, train: Ids, text: Ids, tokenizer: Tokenizer) -> dict[str, float]:
    """Return n-grams of order 2 and up, and xz: the bits that `text` adds after (the end of) `train`.

    They take 2 s of CPU per million ids, so they are optional; large splits are cut (LIMIT, EVALUATED).
    """
    text = text[:EVALUATED]
    by_order = ngrams.nats(text)
    nats = {f"{n}-gram": total for n, total in enumerate(by_order, 1) if n > 1}
    known = tokenizer.decode(train[-LIMIT:]).encode()[-LIMIT:]
    added = _packed(known + tokenizer.decode(text).encode()) - _packed(known)
    return _metrics({**nats, "xz": 8 * added * log(2)}, text, tokenizer)


def count(ids: Ids, size: int) -> Int64[np.ndarray, " size"]:
    """Count each id, block by block, so that a memory-mapped array is never read as a whole.

    Raises:
        Refused: There is an id outside the vocabulary.
    """
    total = np.zeros(size, np.int64)
    for start in range(0, len(ids), LIMIT):
        block = ids[start : start + LIMIT]
        check_vocabulary(block, size)
        total += np.bincount(block, minlength=size)
    return total


def check_vocabulary(ids: Integer[np.ndarray, "..."], size: int) -> None:
    """Check ids of files that were not verified.

    Raises:
        Refused: There is an id outside the vocabulary.
    """
    if ids.size and (largest := ids.max()) >= size:
        what = f"id {largest} is outside the vocabulary 0..{size - 1}"
        raise Refused(
            Problem(what, ("task", "data"), help='verify = "once" names the damaged file', code="out-of-range")
        )


def entropy(counts: Int64[np.ndarray, " size"]) -> float:
    """Return the entropy of relative frequencies in nats; 0 without counts."""
    p = counts[counts > 0] / max(counts.sum(), 1)
    return float(-(p * np.log(p)).sum())


def _packed(raw: bytes) -> int:
    return len(lzma.compress(raw, preset=9 | lzma.PRESET_EXTREME))


def _metrics(nats: dict[str, float], text: Ids, tokenizer: Tokenizer) -> dict[str, float]:
    characters = sum(tokenizer.characters(text[start : start + LIMIT]) for start in range(0, len(text), LIMIT))
    bits = {f"bits_per_char/{name}": total / log(2) / characters for name, total in nats.items()}
    return bits | {f"nats_per_token/{name}": total / len(text) for name, total in nats.items()}


def distribution_baselines(
    distribution: SourceDistribution, windows: Sequence[Integer[np.ndarray, " N"]], tokenizer: Tokenizer
) -> dict[str, float]:
    """Return the entropy and the cross-entropy of the true distribution on windows predicted independently.

    `source-entropy` is the mean over all texts of these lengths; `source` is the cross-entropy on these very windows,
    which varies with the sample like the metrics of a model.

    Args:
        distribution: The distribution.
        windows: The ids of each window, without padding.
        tokenizer: Their tokenizer; the result is empty unless it has one id per character.
    """
    ids = sum(map(len, windows))
    if not ids or any(tokenizer.characters(window) != len(window) for window in windows):
        return {}
    lengths = Counter(map(len, windows))
    nats = {
        "source-entropy": sum(number * distribution.entropy(length) for length, number in lengths.items()),
        "source": sum(distribution.nats(tokenizer.decode(window)) for window in windows),
    }
    bits = {f"bits_per_char/{name}": total / log(2) / ids for name, total in nats.items()}
    return bits | {f"nats_per_token/{name}": total / ids for name, total in nats.items()}
