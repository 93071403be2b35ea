"""Where a text is drawn from a known distribution, what no model can beat on it.

Letters: N ids.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import log
from typing import Protocol

import numpy as np
from jaxtyping import Integer

from .tokenizers import Tokenizer

__all__ = ["Law", "law_figures"]


class Law(Protocol):
    """The distribution that a made text is drawn from."""

    def entropy(self, length: int) -> float:
        """Entropy of `length` characters in a row, taken from anywhere, in nats."""
        ...

    def nats(self, text: str) -> float:
        """Surprise of a text in nats."""
        ...


def law_figures(law: Law, windows: Sequence[Integer[np.ndarray, " N"]], tokenizer: Tokenizer) -> dict[str, float]:
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
