"""The nearest of the allowed names: "did you mean ...?"."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

__all__ = ["did_you_mean", "nearest", "similarity"]

CANDIDATES = 500
"""Names that `nearest` compares."""

MAX_WORD = 60
"""Characters of a word that are compared: the time grows with its square."""


def nearest(word: object, allowed: Iterable[str]) -> str | None:
    """Return the allowed name most similar to `word`, or None."""
    # Only mistakes need it, so that valid files do not pay for the import.
    import difflib

    # `-` and `_` are confused more often than letters.
    folded = {_folded(name): name for name in islice(allowed, CANDIDATES)}
    close = difflib.get_close_matches(_folded(str(word)[:MAX_WORD]), folded, n=1)
    return folded[close[0]] if close else None


def similarity(word: str, name: str) -> float:
    """Return how similar two names are, from 0 to 1."""
    import difflib

    return difflib.SequenceMatcher(None, _folded(word), _folded(name)).ratio()


def _folded(name: str) -> str:
    return name.replace("_", "-").lower()


def did_you_mean(
    word: object, allowed: Iterable[str], otherwise: str | None = None
) -> str | None:
    """Return a help text with the allowed name most similar to `word`, or else another text."""
    close = nearest(word, allowed)
    return f'did you mean "{close}"?' if close else otherwise
