"""What trivial predictors reach on a split, in the units of the metrics.

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
from ..data.token_store import Joined
from ..data.tokenizers.base import Tokenizer
from .ngrams import WittenBell

__all__ = [
    "HELD",
    "LIMIT",
    "Ids",
    "count",
    "distribution_baselines",
    "entropy",
    "strong_baselines",
    "trivial_baselines",
]

LIMIT = 1 << 23
"""Strong baselines learn from this many training ids at most, the last ones."""
HELD = 1 << 20
"""They predict this many held-out ids at most, the first ones."""

Ids = Integer[np.ndarray, " N"] | Joined
"""A split as one stream, held or read in pieces."""


def trivial_baselines(train: Ids, held: Ids, tokenizer: Tokenizer) -> dict[str, float]:
    """Return the uniform guess, the unigram of the training split, and the best unigram that any training could find.

    `unigram` has learned from `train` (one count added to every id) and predicts `held`; `unigram-of-split` is the
    entropy of `held` itself, which no unigram can beat.
    """
    learned = count(train, tokenizer.size) + 1.0
    seen = count(held, tokenizer.size)
    nats = {
        "uniform": len(held) * log(tokenizer.size),
        "unigram": float(-(seen * np.log(learned / learned.sum())).sum()),
        "unigram-of-split": len(held) * entropy(seen),
    }
    return _figures(nats, held, tokenizer)


def strong_baselines(ngrams: WittenBell, train: Ids, held: Ids, tokenizer: Tokenizer) -> dict[str, float]:
    """Return n-grams of order 2 and up, and xz: the bits that `held` adds behind (the end of) `train`.

    They take 2 s of CPU per million ids, so they are for those who ask; large splits are cut (LIMIT, HELD).
    """
    some = held[:HELD]
    by_order = ngrams.nats(some)
    nats = {f"{n}-gram": total for n, total in enumerate(by_order, 1) if n > 1}
    known = tokenizer.decode(train[-LIMIT:]).encode()[-LIMIT:]
    added = _packed(known + tokenizer.decode(some).encode()) - _packed(known)
    return _figures({**nats, "xz": 8 * added * log(2)}, some, tokenizer)


def count(ids: Ids, size: int) -> Int64[np.ndarray, " size"]:
    """Count each id, block by block, so that a mapped array is never held whole.

    Raises:
        Refused: There is an id outside the vocabulary, in shards that were not verified.
    """
    total = np.zeros(size, np.int64)
    for start in range(0, len(ids), LIMIT):
        counts = np.bincount(ids[start : start + LIMIT], minlength=size)
        if len(counts) > size:
            what = f"the text holds the id {len(counts) - 1}, which is outside the vocabulary 0..{size - 1}"
            raise Refused(Problem(what, path=("task", "data"), help='verify = "once" tells which file is damaged'))
        total += counts
    return total


def entropy(counts: Int64[np.ndarray, " size"]) -> float:
    """Entropy of relative frequencies in nats; 0 when nothing was counted."""
    p = counts[counts > 0] / max(counts.sum(), 1)
    return float(-(p * np.log(p)).sum())


def _packed(raw: bytes) -> int:
    return len(lzma.compress(raw, preset=9 | lzma.PRESET_EXTREME))


def _figures(nats: dict[str, float], held: Ids, tokenizer: Tokenizer) -> dict[str, float]:
    characters = sum(tokenizer.characters(held[start : start + LIMIT]) for start in range(0, len(held), LIMIT))
    bits = {f"bits_per_char/{name}": total / log(2) / characters for name, total in nats.items()}
    return bits | {f"nats_per_token/{name}": total / len(held) for name, total in nats.items()}


def distribution_baselines(
    law: SourceDistribution, windows: Sequence[Integer[np.ndarray, " N"]], tokenizer: Tokenizer
) -> dict[str, float]:
    """Return what the distribution itself reaches on windows that are predicted each for itself.

    `source-entropy` is the mean over all texts of these lengths; `source` is what comes out for the very text of the
    windows, so that it moves with the sample as the figures of a model do.

    Args:
        law: The distribution.
        windows: The ids of each window, without padding.
        tokenizer: What they decode with; where it gives other than one id a character there are no figures.
    """
    ids = sum(map(len, windows))
    if not ids or any(tokenizer.characters(window) != len(window) for window in windows):
        return {}
    lengths = Counter(map(len, windows))
    nats = {
        "source-entropy": sum(number * law.entropy(length) for length, number in lengths.items()),
        "source": sum(law.nats(tokenizer.decode(window)) for window in windows),
    }
    bits = {f"bits_per_char/{name}": total / log(2) / ids for name, total in nats.items()}
    return bits | {f"nats_per_token/{name}": total / ids for name, total in nats.items()}
