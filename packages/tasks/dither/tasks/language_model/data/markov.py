"""Text of a Markov chain: a source of exactly known entropy, to test models and bounds.

Letters: V symbols, K order, C = V**K contexts, N symbols of a text, L length of a window.

A context is the number formed by its K symbols in base V, the newest symbol last.
"""

from __future__ import annotations

import string
from bisect import bisect_right
from collections.abc import Iterator
from functools import cached_property

import numpy as np
from jaxtyping import Float64, Int64
from numpy import ndarray

__all__ = ["ALPHABET", "FLOOR", "MarkovChain"]

ALPHABET = string.ascii_lowercase + string.ascii_uppercase + string.digits
"""Symbols of a chain, each one byte and one character."""
FLOOR = 0.01
"""Share of the uniform distribution in every row of transitions, so that the chain is ergodic."""

STRETCH = 256
"""Symbols of a stretch; stretches are walked in parallel."""
STRETCHES = 2048
"""Stretches of a piece of text."""
ROUNDS = 3
"""After these, the number of stretches still to walk must fall by a quarter in each."""


class MarkovChain:
    """A stationary Markov chain over characters: its texts, and their entropy in closed form.

    Each context of `order` symbols has its own distribution of the next one, drawn from a symmetric
    Dirichlet distribution and mixed with 1 % of the uniform one.
    """

    def __init__(
        self,
        states: int,
        *,
        order: int = 1,
        concentration: float = 1.0,
        seed: int = 0,
    ) -> None:
        self.states = states
        self.order = order
        self.seed = seed
        # Seeds of texts begin with [seed, 1], so that they do not repeat these draws.
        rng = np.random.default_rng([seed, 0])
        rows = rng.dirichlet(np.full(states, concentration), states**order)
        # A floor, so that no text has probability 0.
        rows = (1 - FLOOR) * rows + FLOOR / states
        self.transitions: Float64[ndarray, "C V"] = rows

    @cached_property
    def stationary(self) -> Float64[ndarray, " C"]:
        """The stationary distribution of contexts."""
        contexts = len(self.transitions)
        now = np.full(contexts, 1 / contexts)
        for _ in range(1_000_000):
            # sum over the oldest symbol of the context, add the newest one
            joint = now[:, None] * self.transitions
            after = joint.reshape(self.states, -1).sum(0)
            after = after / after.sum()
            if np.abs(after - now).sum() < 1e-14:
                break
            now = after
        return now

    @cached_property
    def rate(self) -> float:
        """Entropy rate: nats per symbol once the context is known, sum_c pi(c) H(p(. | c))."""
        surprise = -(self.transitions * np.log(self.transitions)).sum(1)
        return float(self.stationary @ surprise)

    def entropy(self, length: int) -> float:
        """Return the entropy of `length` consecutive symbols in nats.

        H(L) = H(pi over K symbols) + (L - K) rate; up to K symbols it is that of the marginal of
        pi.
        """
        known = min(length, self.order)
        first = self.stationary.reshape(self.states**known, -1).sum(1)
        of_first = float(-(first * np.log(first)).sum())
        return of_first + (length - known) * self.rate

    def nats(self, text: str) -> float:
        """Return -log p of a text in nats; its first symbols follow the stationary distribution."""
        # Four bytes a character, so that a buffer of the text has its code points.
        points = np.frombuffer(text.encode("utf-32-le"), "<u4")
        symbols = self._numbers[points]
        known = min(len(symbols), self.order)
        first = self.stationary.reshape(self.states**known, -1).sum(1)
        begin = 0
        for symbol in symbols[:known].tolist():
            begin = begin * self.states + symbol

        # The context of each later symbol: the newest symbol has the lowest digit.
        later = symbols[known:]
        contexts = np.zeros(len(later), np.int64)
        for back in range(self.order):
            start = known - 1 - back
            earlier = symbols[start : start + len(later)]
            contexts += earlier * self.states**back
        log_p = np.log(self.transitions[contexts, later]).sum()
        return float(-np.log(first[begin]) - log_p)

    def text(self, length: int, stream: int = 0) -> str:
        """Draw a text; texts of different `stream` are independent."""
        return "".join(self._pieces(length, stream))

    def characters(self, length: int) -> str:
        """Return every symbol of a text once, sorted; drawing stops once all have occurred."""
        symbols: set[str] = set()
        for piece in self._pieces(length, 0):
            symbols.update(piece)
            if len(symbols) == self.states:
                break
        return "".join(sorted(symbols))

    def _pieces(self, length: int, stream: int) -> Iterator[str]:
        rng = np.random.default_rng([self.seed, 1, stream])
        context = int(rng.choice(len(self.stationary), p=self.stationary))
        rows = self.transitions.cumsum(1)
        # Rounding must not leave a gap at the end.
        rows[:, -1] = 1.0
        letters = np.frombuffer(ALPHABET.encode(), np.uint8)
        piece = STRETCH * STRETCHES
        for start in range(0, length, piece):
            u = rng.random(min(piece, length - start))
            contexts = self._walk(rows, context, u)
            context = int(contexts[-1])
            symbols = contexts % self.states
            yield letters[symbols].tobytes().decode()

    def _walk(
        self,
        rows: Float64[ndarray, "C V"],
        context: int,
        u: Float64[ndarray, " N"],
    ) -> Int64[ndarray, " N"]:
        """Return the context after each draw, given cumulative transitions.

        Stretches are walked in parallel from guessed contexts, again from the context at which the
        one before it ends, until nothing changes; walks with the same draws soon meet. Where they
        do not, the rest is walked in sequence.
        """
        count = -(-len(u) // STRETCH)
        padding = np.zeros(count * STRETCH - len(u))
        draws = np.append(u, padding).reshape(count, STRETCH).T.copy()
        contexts = np.full((STRETCH + 1, count), -1)
        contexts[0] = context
        stale = np.arange(count)
        rounds = 0
        while len(stale):
            now = contexts[0, stale]
            for step in range(STRETCH):
                symbols = (rows[now] <= draws[step, stale, None]).sum(1)
                now = (now * self.states + symbols) % len(rows)
                # From a context where the former walk was, the same draws lead the same way.
                if (now == contexts[step + 1, stale]).all():
                    break
                contexts[step + 1, stale] = now
            before = len(stale)
            stale = 1 + np.flatnonzero(contexts[0, 1:] != contexts[-1, :-1])
            contexts[0, 1:] = contexts[-1, :-1]
            rounds += 1
            if rounds > ROUNDS and 4 * len(stale) > 3 * before:
                break
        walked = contexts[1:].T.reshape(-1)[: len(u)]
        if not len(stale):
            return walked

        # Near-deterministic chains do not meet: walk from the first open stretch in sequence.
        first = int(stale[0]) * STRETCH
        ladders = rows.reshape(-1).data
        context = int(walked[first - 1])
        for place, draw in enumerate(u[first:].tolist(), first):
            # The index in the flat table is context * V + symbol, the next context in base V.
            begin = context * self.states
            index = bisect_right(ladders, draw, begin, begin + self.states)
            context = index % len(rows)
            walked[place] = context
        return walked

    @cached_property
    def _numbers(self) -> Int64[ndarray, " codes"]:
        """The number of each symbol by its code point; -1 for other characters."""
        codes = [ord(letter) for letter in ALPHABET[: self.states]]
        numbers = np.full(max(codes) + 1, -1)
        numbers[codes] = np.arange(self.states)
        return numbers
