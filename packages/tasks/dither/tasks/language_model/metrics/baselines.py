"""Baselines and diversity of text, in the units of the metrics.

Letters: N ids, V size of the vocabulary, S samples, L length.

Witten-Bell n-grams are a strong, fast baseline of language models, and a scorer of samples:

    P(c | h) = (n(h c) + T(h) P(c | h')) / (n(h) + T(h))

n counts, T(h) is the number of distinct ids seen after h, h' is h without its oldest id, and the
empty context backs off to 1/V. A context that was never seen backs off to h'. Witten and Bell
(1991), "The zero-frequency problem", method C, interpolated.
"""

from __future__ import annotations

import lzma
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import log, nan
from typing import Protocol

import numpy as np
from jaxtyping import Bool, Float64, Int64, Integer
from numpy import ndarray

from dither.registry.config.errors import Refused

from ..data.markov import MarkovChain
from ..data.tokenizers.base import Ids, Tokenizer

__all__ = [
    "LIMIT",
    "WittenBell",
    "check_vocabulary",
    "count",
    "distribution_baselines",
    "diversity_metrics",
    "strong_baselines",
    "trivial_baselines",
]

LIMIT = 1 << 23
"""Maximum number of training ids, taken from the end, that strong baselines are fitted on."""
EVALUATED = 1 << 20
"""Maximum number of held-out ids, taken from the start, that they predict."""
LOOP = 8
"""Length of the n-grams whose repetition is counted."""

DIVERSITY = (
    "sample_unigram_bits",
    "distinct_1",
    "distinct_2",
    "distinct_3",
    "repetition",
    "unique",
)
"""Metrics of `diversity_metrics`."""

Starts = Integer[ndarray, " W"]
"""Offsets of windows."""


@dataclass(frozen=True)
class _Order:
    """Counts of one order.

    An n-gram is `context * V + id`; its index in `grams` is a context of the next order.

    Letters: G n-grams seen, H contexts seen.
    """

    grams: Int64[ndarray, " G"]
    counts: Int64[ndarray, " G"]
    total: Int64[ndarray, " H"]
    kinds: Int64[ndarray, " H"]


class WittenBell:
    """N-gram models of all orders up to `order`, of a stream of training ids."""

    def __init__(self, ids: Ids, *, size: int, order: int) -> None:
        self.size = size
        self.orders: list[_Order] = []
        ids = ids.astype(np.int64)
        context = np.zeros(len(ids), np.int64)
        contexts = 1
        for _ in range(order):
            # The first ids of the stream have no context of this order.
            seen = context >= 0
            codes = context[seen] * size + ids[seen]
            grams, place, counts = np.unique(
                codes, return_inverse=True, return_counts=True
            )
            # The prefix n-gram, without its last id, is the context.
            kinds = np.bincount(grams // size, minlength=contexts)
            total = np.bincount(context[seen], minlength=contexts)
            self.orders.append(
                _Order(
                    grams=grams,
                    counts=counts,
                    total=total,
                    kinds=kinds,
                )
            )
            gram = np.full(len(ids), -1)
            gram[seen] = place
            context = _next(gram)
            contexts = len(grams)

    def probabilities(
        self, ids: Ids, starts: Starts | None = None
    ) -> Iterator[Float64[ndarray, " N"]]:
        """Yield the probability of each id given those before it, for order 1, 2, and so on.

        The first ids of the stream have a shorter context; so do those of windows, which begin at
        `starts`.
        """
        ids = ids.astype(np.int64)
        p = np.full(len(ids), 1 / self.size)
        context = np.zeros(len(ids), np.int64)
        for order in self.orders:
            known = context >= 0
            target = np.where(known, context * self.size + ids, -1)
            place = np.searchsorted(order.grams, target)
            # One above all others has no place.
            place = np.minimum(place, len(order.grams) - 1)
            hit = order.grams[place] == target

            # (n(h c) + T(h) P(c | h')) / (n(h) + T(h)); a context never seen backs off to h'.
            counts = np.where(hit, order.counts[place], 0)
            kinds = np.where(known, order.kinds[context], 0)
            total = np.where(known, order.total[context], 0)
            mixed = (counts + kinds * p) / np.maximum(total + kinds, 1)
            p = np.where(total > 0, mixed, p)
            yield p
            context = _next(np.where(hit, place, -1))
            if starts is not None:
                context[starts] = -1

    def nats(self, ids: Ids, starts: Starts | None = None) -> list[float]:
        """Return the negative log-likelihood in nats by order.

        Of a stream, or of windows that begin at `starts`.
        """
        return [float(-np.log(p).sum()) for p in self.probabilities(ids, starts)]


def _next(gram: Int64[ndarray, " N"]) -> Int64[ndarray, " N"]:
    """Return the context of each position: the n-gram that ends before it; -1 for the first one."""
    context = np.roll(gram, 1)
    context[:1] = -1
    return context


def trivial_baselines(
    train: Int64[ndarray, " V"], text: Ids, tokenizer: Tokenizer
) -> dict[str, float]:
    """Return uniform, the unigram of the training split, and the best possible unigram.

    `unigram` learns from `train`, the counts of ids (one added to each), and predicts `text`;
    `unigram-of-split` is the entropy of `text` itself, which no unigram can beat.
    """
    learned = train + 1.0
    counts = count(text, tokenizer.size)
    nats = {
        "uniform": len(text) * log(tokenizer.size),
        "unigram": float(-(counts * np.log(learned / learned.sum())).sum()),
        "unigram-of-split": len(text) * entropy(counts),
    }
    return _metrics(nats, text, tokenizer)


def strong_baselines(
    ngrams: WittenBell,
    train: Ids,
    text: Ids,
    tokenizer: Tokenizer,
    starts: Starts | None = None,
) -> dict[str, float]:
    """Return n-grams of order 2 and up, and xz: the bits that `text` adds after `train`.

    The context of n-grams ends at `starts` of windows. They take 2 s of CPU per million ids, so
    they are optional, `train` is the end of the split (LIMIT), and `text` is cut (EVALUATED).
    """
    text = text[:EVALUATED]
    if starts is not None:
        starts = starts[starts < len(text)]
    nats: dict[str, float] = {}
    for order, order_nats in enumerate(ngrams.nats(text, starts), 1):
        if order > 1:
            nats[f"{order}-gram"] = order_nats

    # xz refers back over at most 64 MB: all of both.
    known = tokenizer.decode(train).encode()[-LIMIT:]
    added = _packed(known + tokenizer.decode(text).encode()) - _packed(known)
    nats["xz"] = 8 * added * log(2)
    return _metrics(nats, text, tokenizer)


class Slices(Protocol):
    """Ids of which slices are read."""

    def __len__(self) -> int: ...
    def __getitem__(self, part: slice, /) -> Ids: ...


def count(ids: Slices, size: int) -> Int64[ndarray, " size"]:
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


def check_vocabulary(ids: Integer[ndarray, "..."], size: int) -> None:
    """Check ids of files that were not verified.

    Raises:
        Refused: There is an id outside the vocabulary.
    """
    if ids.size and (largest := ids.max()) >= size:
        message = f"id {largest} is outside the vocabulary 0..{size - 1}"
        fix = 'verify = "once" names the damaged file'
        raise Refused(message, ("task", "data"), help=fix, code="out-of-range")


def entropy(counts: Int64[ndarray, " size"]) -> float:
    """Return the entropy of relative frequencies in nats; 0 without counts."""
    p = counts[counts > 0] / max(counts.sum(), 1)
    return float(-(p * np.log(p)).sum())


def _packed(raw: bytes) -> int:
    return len(lzma.compress(raw, preset=9 | lzma.PRESET_EXTREME))


def _metrics(
    nats: dict[str, float], text: Ids, tokenizer: Tokenizer
) -> dict[str, float]:
    characters = 0
    # Block by block: the text may be a memory-mapped array that is larger than memory.
    for start in range(0, len(text), LIMIT):
        characters += tokenizer.characters(text[start : start + LIMIT])
    return _per_unit(nats, characters, len(text))


def _per_unit(nats: dict[str, float], characters: int, tokens: int) -> dict[str, float]:
    """Return bits per character and nats per token; NaN of an empty split, as metrics of a model."""
    metrics = {}
    for name, value in nats.items():
        metrics[f"bits_per_char/{name}"] = value / log(2) / (characters or nan)
        metrics[f"nats_per_token/{name}"] = value / (tokens or nan)
    return metrics


def distribution_baselines(
    distribution: MarkovChain, windows: Sequence[Ids], tokenizer: Tokenizer
) -> dict[str, float]:
    """Return entropy and cross-entropy of the true distribution on independent windows.

    `source-entropy` is the mean over all texts of these lengths; `source` is the cross-entropy on
    these very windows, which varies with the sample like the metrics of a model. Empty unless the
    tokenizer has one id per character.
    """
    lengths = [len(window) for window in windows]
    ids = sum(lengths)
    # The distribution is over characters.
    if not ids or lengths != [*map(tokenizer.characters, windows)]:
        return {}
    texts = map(tokenizer.decode, windows)
    # Nearly all windows have the same length: the entropy is computed once for each.
    entropies = [
        number * distribution.entropy(length)
        for length, number in Counter(lengths).items()
    ]
    nats = {
        "source-entropy": sum(entropies),
        "source": sum(map(distribution.nats, texts)),
    }
    return _per_unit(nats, ids, ids)


def diversity_metrics(
    samples: Integer[ndarray, "S L"], valid: Bool[ndarray, "S L"]
) -> dict[str, float]:
    """Return diversity metrics: means over samples, each measured on its own.

    `sample_unigram_bits` is the entropy of the ids of a sample in bits; `distinct_1` to
    `distinct_3` are the distinct n-grams as a share of all, and `repetition` is the share of
    8-grams that occurred before in the same sample. Repetitive text is low in all but the last;
    compare with real text of the same length. `unique` is the share of distinct samples.
    """
    rows = [row[keep] for row, keep in zip(samples, valid, strict=True)]
    if not rows:
        return dict.fromkeys(DIVERSITY, float("nan"))
    metrics: dict[str, float] = {}
    counts = [np.unique(row, return_counts=True)[1] for row in rows]
    metrics["sample_unigram_bits"] = _mean(
        [entropy(count) / log(2) for count in counts]
    )
    for n in (1, 2, 3):
        metrics[f"distinct_{n}"] = _mean([distinct(row, n) for row in rows])
    metrics["repetition"] = _mean([1.0 - distinct(row, LOOP) for row in rows])
    metrics["unique"] = len({row.tobytes() for row in rows}) / len(rows)
    return metrics


def distinct(ids: Integer[ndarray, " L"], n: int) -> float:
    """Return the share of n-grams that are distinct; 1 without n-grams."""
    if len(ids) < n:
        return 1.0
    grams = np.lib.stride_tricks.sliding_window_view(ids, n)
    return len(np.unique(grams, axis=0)) / len(grams)


def _mean(values: list[float]) -> float:
    return float(np.mean(values))
