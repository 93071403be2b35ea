"""The menu of conditions: the noise level, labels, and sums of them. No torch here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar, Literal, Self

from pydantic import Field

from dither.registry import Misfit, Slot, Space, below, named
from dither.registry.kinds import ConditionSpec
from dither.registry.kinds.costs import Cost
from dither.registry.kinds.space_compatibility import missing_condition
from dither.registry.spec.misfit import raise_misfits

from .options import Layout, misfit_frequencies

if TYPE_CHECKING:
    from .conditions import ConditionSum, LabelEmbedding, Unconditional
    from .timestep import TimestepEmbedding

__all__ = ["Label", "Level", "NoCondition", "Sum"]


class Level(ConditionSpec):
    """The noise level: cosines and sines of it, then two linear maps with a SiLU between them (DiT)."""

    name: ClassVar[str] = "level"
    frequencies: int = Field(256, ge=2)
    """How many cosines and sines there are; an odd number is filled up with a 0."""
    max_period: float = Field(10_000.0, gt=1, le=1e9)
    """The longest period is 2 pi times this."""
    layout: Layout = "cos-sin"
    """Order of the numbers: all cosines before all sines, all sines before all cosines, or sine and cosine by turns."""
    freq_shift: Literal[0, 1] = 0
    """1 makes the slowest frequency exactly 1 / max_period (DDPM); with 0 it is one step above (DiT)."""
    time_scale: float = Field(1.0, gt=0, le=1e6)
    """What the level is multiplied with first. Levels between 0 and 1 are hard to tell apart as they are: use 1000."""

    def check(self, width: int) -> Iterator[Misfit]:
        """Yield too few frequencies for the shift."""
        yield from misfit_frequencies(self.frequencies, self.freq_shift)

    def cost(self, width: int) -> Cost:
        """What the two maps take."""
        return Cost((self.frequencies + 1 + width + 1) * width, self.frequencies + 2 * width)

    def build(self, width: int) -> TimestepEmbedding:
        """Return the maps."""
        from .timestep import TimestepEmbedding

        return TimestepEmbedding(width, **self.model_dump())


class Label(ConditionSpec):
    """A label that the task tells beside each sample, such as a cell type: a learned vector for each, and for none.

    Put it into a `sum` with the noise level.
    """

    name: ClassVar[str] = "label"
    rev: ClassVar[int] = 2
    of: str = "cell"
    """The condition, by its name; the task says how many labels it has."""
    dropout: float = Field(0.0, ge=0, lt=1)
    """Share of the samples whose label is left out in training, so that samples can be guided by it
    (`sample.guidance`); 0.1 is usual. A label that a task does not tell is read as left out."""
    std: float = Field(1.0, gt=0, le=100)
    """Standard deviation of the vectors at the start. DiT has 0.02, and 400,000 steps: blocks whose modulation starts
    at zero hardly tell vectors so small apart, and learn nothing of labels in a few hundred."""

    def traits(self) -> frozenset[str]:
        """Promise not to look at the noise level."""
        return frozenset({"level-free"})

    def left_out(self) -> tuple[str, ...]:
        """Tell the label, if it is ever left out."""
        return (self.of,) if self.dropout else ()

    def check(self, width: int) -> Iterator[Misfit]:
        """Yield if the task tells no such label, or not always, and nothing trains what stands for none."""
        yield from missing_condition(self.told, self.of, ("of",), labels=True)
        if not self.dropout and any(condition.name == self.of and condition.partial for condition in self.told):
            message = f'held-out samples have no "{self.of}", and without dropout nothing trains what stands for none'
            yield Misfit(message, ("of",), ("task",), "dropout = 0.1")

    def cost(self, width: int) -> Cost:
        """What the table takes; the label is kept, in 8 bytes."""
        return Cost((self._size() + 1) * width, 2, width)

    def build(self, width: int) -> LabelEmbedding:
        """Return the table."""
        from .conditions import LabelEmbedding

        return LabelEmbedding(self.of, self._size(), width, dropout=self.dropout, std=self.std)

    def _size(self) -> int:
        raise_misfits(self.check(0))
        return next(condition.size or 0 for condition in self.told if condition.name == self.of)


class Sum(ConditionSpec):
    """Several conditions, added up: the noise level, labels, and what else there is."""

    name: ClassVar[str] = "sum"
    parts: list[Slot[ConditionSpec]] = Field([named("level")], min_length=1)
    """The conditions, such as ["level", { use = "label", of = "cell", dropout = 0.1 }]."""

    def traits(self) -> frozenset[str]:
        """Promise not to look at the noise level, if none of the parts does."""
        return frozenset({"level-free"} if all("level-free" in part.traits() for part in self.parts) else ())

    def over(self, space: Space) -> Self:
        """Return the sum of the parts, each where the task tells what its space says."""
        return super().over(space).model_copy(update={"parts": [part.over(space) for part in self.parts]})

    def left_out(self) -> tuple[str, ...]:
        """Tell what any of the parts leaves out."""
        return tuple(dict.fromkeys(name for part in self.parts for name in part.left_out()))

    def check(self, width: int) -> Iterator[Misfit]:
        """Yield what does not fit in any of the parts."""
        for number, part in enumerate(self.parts):
            yield from below("parts", below(number, part.check(width)))

    def cost(self, width: int) -> Cost:
        """What the parts take together."""
        return sum((part.cost(width) for part in self.parts), Cost(passing=2 * width))

    def build(self, width: int) -> ConditionSum:
        """Return the sum."""
        from .conditions import ConditionSum

        return ConditionSum([part.build(width) for part in self.parts])


class NoCondition(ConditionSpec):
    """Nothing: the model is told neither the noise level nor anything else beside the sample."""

    name: ClassVar[str] = "none"

    def traits(self) -> frozenset[str]:
        """Promise not to look at the noise level."""
        return frozenset({"level-free"})

    def cost(self, width: int) -> Cost:
        """No weights."""
        return Cost(passing=width)

    def build(self, width: int) -> Unconditional:
        """Return zeros."""
        from .conditions import Unconditional

        return Unconditional(width)
