"""Which weights training changes: all, all but frozen ones, or changes of low rank. Told from options; no torch."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase, translate
from functools import lru_cache
from typing import TYPE_CHECKING

from dither.registry.costs import Cost, Matrix, Stage

if TYPE_CHECKING:
    from .settings import Train

__all__ = ["Learned", "stands_in"]

MANY = 256
"""Parts alike that are looked at one by one; of more, the names of so many at even distances tell the share."""
REMEMBERED = 64
"""Answers on names that are kept: an experiment is asked anew with each of its numbers changed."""


@dataclass(frozen=True)
class Learned:
    """What has gradients, and what an optimizer keeps.

    Attributes:
        stages: Parts of the model; of several alike, as many as are trained.
        added: Numbers of changes of low rank.
        changed: Numbers of the matrices that these change: each is made anew in a step, and kept for the way back.
    """

    stages: tuple[Stage, ...]
    added: int = 0
    changed: int = 0

    @classmethod
    def of(cls, train: Train, parts: Sequence[Stage], matrices: Iterable[Matrix]) -> Learned:
        """Tell what is trained of these parts, of which the matrices may be changed."""
        if train.lora is None:
            frozen = _named(parts, train.freeze)
            return cls(tuple(replace(stage, times=stage.times - named) for stage, named in frozen))
        known = tuple(matrices)
        names = _meant(tuple(f".{m.name}." for m in known), tuple(f".{pattern}.*" for pattern in train.lora.on), True)
        chosen = [m for m in known if f".{m.name}." in names]
        added = sum(m.times * train.lora.rank * (m.rows + m.columns) for m in chosen)
        whole = (replace(stage, times=named) for stage, named in _named(parts, train.lora.whole))
        changed = sum(m.times * m.rows * m.columns for m in chosen)
        return cls((*whole, Stage("blocks", Cost(added))), added, changed)

    @property
    def parameters(self) -> int:
        """Weights that have gradients."""
        return sum(stage.parameters for stage in self.stages)


def stands_in(name: str, pattern: str) -> bool:
    """Whether a matrix is called so, or stands in something that is."""
    return fnmatchcase(f".{name}.", f"*.{pattern}.*")


def _named(parts: Sequence[Stage], patterns: Sequence[str]) -> Iterator[tuple[Stage, int]]:
    """Yield each part with the number of those alike of which patterns mean all weights, as "head.*" does.

    Of the blocks the last may be a part of its own; it is called by its number too.
    """
    blocks = sum(stage.times for stage in parts if stage.name == "blocks")
    for stage in parts:
        name, first = ("blocks", blocks) if stage.name == "last block" else (stage.name, 0)
        seen = min(stage.times, MANY)
        weights = (f"{name}.{first + number * stage.times // seen}.weight" for number in range(seen))
        yield stage, len(_meant(tuple(weights), tuple(patterns))) * stage.times // max(seen, 1)


@lru_cache(REMEMBERED)
def _meant(names: tuple[str, ...], patterns: tuple[str, ...], within: bool = False) -> frozenset[str]:
    """Return the names that fit one of the patterns at least, from the beginning or from anywhere `within`."""
    if not patterns:
        return frozenset()
    expression = _any_of(patterns)
    return frozenset(filter(expression.search if within else expression.match, names))


@lru_cache(REMEMBERED)
def _any_of(patterns: tuple[str, ...]) -> re.Pattern[str]:
    """Return one expression for all patterns: a file may have thousands of them."""
    return re.compile("|".join(translate(pattern) for pattern in dict.fromkeys(patterns)))
