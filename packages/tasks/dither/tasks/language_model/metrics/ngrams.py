"""Witten-Bell n-grams: a strong, fast baseline of language models, and a scorer of samples.

Letters: N ids, V size of the vocabulary.

    P(c | h) = (n(h c) + T(h) P(c | h')) / (n(h) + T(h))

n counts, T(h) is the number of distinct ids seen after h, h' is h without its oldest id, and the empty context backs
off to 1/V. A context that was never seen backs off to h'. Witten and Bell (1991), "The zero-frequency problem", method
C, interpolated.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64, Int64, Integer

__all__ = ["WittenBell"]


@dataclass(frozen=True)
class _Order:
    """Counts of one order. An n-gram is `context * V + id`; its index in `grams` is a context of the next order.

    Letters: G n-grams seen, H contexts seen.
    """

    grams: Int64[np.ndarray, " G"]
    counts: Int64[np.ndarray, " G"]
    total: Int64[np.ndarray, " H"]
    kinds: Int64[np.ndarray, " H"]


class WittenBell:
    """N-gram models of all orders up to `order`.

    Args:
        ids: Training ids, as one stream.
        size: Size of the vocabulary.
        order: Longest n-gram, at least 1.
    """

    def __init__(self, ids: Integer[np.ndarray, " N"], *, size: int, order: int) -> None:
        if order < 1 or size < 1 or len(ids) < 1:
            raise ValueError(f"order, size and number of ids must be at least 1: {order}, {size}, {len(ids)}")
        self.size = size
        self.orders: list[_Order] = []
        ids = ids.astype(np.int64)
        context, contexts = np.zeros(len(ids), np.int64), 1
        for _ in range(order):
            seen = context >= 0
            grams, place, counts = np.unique(context[seen] * size + ids[seen], return_inverse=True, return_counts=True)
            kinds = np.bincount(grams // size, minlength=contexts)
            total = np.bincount(context[seen], minlength=contexts)
            self.orders.append(_Order(grams, counts, total, kinds))
            gram = np.full(len(ids), -1)
            gram[seen] = place
            context, contexts = _next(gram), len(grams)

    def probabilities(self, ids: Integer[np.ndarray, " N"]) -> Iterator[Float64[np.ndarray, " N"]]:
        """Yield the probability of each id given those before it, for order 1, 2, and so on.

        The first ids of the stream have a shorter context.
        """
        ids = ids.astype(np.int64)
        p = np.full(len(ids), 1 / self.size)
        context = np.zeros(len(ids), np.int64)
        for order in self.orders:
            target = np.where(context >= 0, context * self.size + ids, -1)
            place = np.minimum(np.searchsorted(order.grams, target), len(order.grams) - 1)
            hit = order.grams[place] == target
            kinds = np.where(context >= 0, order.kinds[context], 0)
            total = np.where(context >= 0, order.total[context], 0)
            mixed = (np.where(hit, order.counts[place], 0) + kinds * p) / np.maximum(total + kinds, 1)
            p = np.where(total > 0, mixed, p)
            yield p
            context = _next(np.where(hit, place, -1))

    def nats(self, ids: Integer[np.ndarray, " N"]) -> list[float]:
        """Return the negative log-likelihood of a stream in nats, by order."""
        return [float(-np.log(p).sum()) for p in self.probabilities(ids)]


def _next(gram: Int64[np.ndarray, " N"]) -> Int64[np.ndarray, " N"]:
    """Return the context of each position: the n-gram that ends before it; -1 for the first one."""
    return np.concatenate([np.full(1, -1), gram[:-1]])
