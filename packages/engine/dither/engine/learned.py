"""Which weights training changes: all, all but frozen ones, or changes of low rank. Told from options; no torch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from dither.registry.costs import Cost, Matrix, Stage

if TYPE_CHECKING:
    from .settings import Train

__all__ = ["Learned", "stands_in"]


@dataclass(frozen=True)
class Learned:
    """What has gradients, and what an optimizer keeps.

    Attributes:
        stages: Parts of the model, with the weights of each that are trained.
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
            return cls(tuple(_only(stage, not _named(stage, train.freeze)) for stage in parts))
        chosen = [m for m in matrices if any(stands_in(m.name, pattern) for pattern in train.lora.on)]
        added = sum(m.times * train.lora.rank * (m.rows + m.columns) for m in chosen)
        whole = (_only(stage, _named(stage, train.lora.whole)) for stage in parts)
        changed = sum(m.times * m.rows * m.columns for m in chosen)
        return cls((*whole, Stage("blocks", Cost(added))), added, changed)

    @property
    def parameters(self) -> int:
        """Weights that have gradients."""
        return sum(stage.parameters for stage in self.stages)


def stands_in(name: str, pattern: str) -> bool:
    """Whether a matrix is called so, or stands in something that is."""
    return fnmatchcase(f".{name}.", f"*.{pattern}.*")


def _named(stage: Stage, patterns: Sequence[str]) -> bool:
    """Whether patterns mean all weights of a part of the model, as "head.*" does."""
    return any(fnmatchcase(f"{stage.name}.0.weight", pattern) for pattern in patterns)


def _only(stage: Stage, trained: bool) -> Stage:
    return stage if trained else replace(stage, cost=replace(stage.cost, parameters=0))
