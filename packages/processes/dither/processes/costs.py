"""What a process takes for one sample, in closed form. No torch here."""

from __future__ import annotations

from dither.registry.costs import Cost
from dither.registry.kinds import ProcessFacts
from dither.registry.spaces import TokenSpace

__all__ = ["reading_cost"]


def reading_cost(process: ProcessFacts) -> Cost:
    """What noising a sample and giving the raw output its meaning take.

    Tokens: a normalised reading keeps its logarithms and two masks of what cannot be; scores keep nothing of their own.
    Features: the noised sample, what is hidden or wanted, and the prediction.
    """
    space = process.space
    if not isinstance(space, TokenSpace):
        return Cost(kept=3 * space.length * space.width, passing=3 * space.length * space.width)
    table = space.length * space.vocab
    return Cost(passing=2 * table) if process.predict == "score" else Cost(kept=table * 3 // 2, passing=2 * table)
