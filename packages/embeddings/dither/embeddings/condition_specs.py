"""Specs of conditions: the noise level, labels, and sums of them. Read without torch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal, Self

from pydantic import Field

from dither.registry import Misfit, Slot, Space, below, named
from dither.registry.kinds import ConditionSpec, missing_condition
from dither.registry.spec.misfit import raise_misfits

from .options import Layout

if TYPE_CHECKING:
    from .conditions import (
        ConditionSum,
        LabelEmbedding,
        NumberEmbedding,
        OutlineEmbedding,
        Unconditional,
    )
    from .timestep import TimestepEmbedding

__all__ = ["Label", "Level", "NoCondition", "Number", "Outline", "Sum"]

UNIT_SCALE = 1000.0
"""Time scale of levels between 0 and 1: that of DDPM and DiT, whose levels are indices to 1000."""


class Level(ConditionSpec):
    """Noise level: sinusoids, then two linear layers with a SiLU between them (DiT)."""

    name = "level"
    frequencies: int = Field(256, ge=2)
    """Number of cosines and sines; an odd number is padded with a 0."""
    max_period: float = Field(10_000.0, gt=1, le=1e9)
    """The longest period is 2 pi times this."""
    layout: Layout = "cos-sin"
    """Order: all cosines before all sines, all sines before all cosines, or sine and cosine
    interleaved."""
    freq_shift: Literal[0, 1] = 0
    """1 makes the lowest frequency exactly 1 / max_period (DDPM); with 0 it is one step higher
    (DiT)."""
    time_scale: float | None = Field(None, gt=0, le=1e6)
    """Factor applied to the level first. By default 1000 if levels are at most 1, such as `t`,
    whose sinusoids would hardly differ; else 1."""

    def traits(self) -> frozenset[str]:
        """Positions of one level are the same."""
        return frozenset({"position-free"})

    def reads(self) -> tuple[str, ...]:
        return ()

    def check(self, width: int) -> Iterator[Misfit]:
        """Require at least 4 frequencies with a shift."""
        if self.freq_shift and self.frequencies < 4:
            message = f"freq_shift = 1 requires at least 4 frequencies, not {self.frequencies}"
            yield Misfit(message, ("frequencies",), code="out-of-range")

    def build(self, width: int) -> TimestepEmbedding:
        from .timestep import TimestepEmbedding

        options = self.model_dump()
        if self.time_scale is None:
            end = self.level_end
            options["time_scale"] = UNIT_SCALE if end is not None and end <= 1 else 1.0
        return TimestepEmbedding(width, **options)


class _OfSample(ConditionSpec):
    """A condition of the sample, which training may drop."""

    of: str
    dropout: float

    def traits(self) -> frozenset[str]:
        """The noise level is ignored."""
        return frozenset({"level-free", "position-free"})

    def dropped(self) -> tuple[str, ...]:
        return (self.of,) if self.dropout else ()

    def reads(self) -> tuple[str, ...]:
        return (self.of,)


class Label(_OfSample):
    """A label of the sample, such as a cell type: a learned vector per label, and one for no label.

    Use it in a `sum` with the noise level.
    """

    name = "label"
    rev = 2
    of: str = "cell"
    """Name of the condition; the task defines how many labels it has."""
    dropout: float = Field(0.0, ge=0, lt=1)
    """Probability with which training drops the label, for classifier-free guidance
    (`sample.guidance`); 0.1 is usual. A missing label is treated as dropped."""
    std: float = Field(1.0, gt=0, le=100)
    """Initial standard deviation of the vectors. DiT uses 0.02 and trains for 400,000 steps: blocks
    whose modulation starts at zero hardly distinguish such small vectors and learn nothing about
    labels in a few hundred steps."""

    def check(self, width: int) -> Iterator[Misfit]:
        """Require labels of the task, for all samples unless dropout trains the vector for no label."""
        yield from missing_condition(self.conditions, self.of, ("of",), labels=True)
        if not self.dropout and any(
            condition.name == self.of and condition.partial
            for condition in self.conditions
        ):
            message = (
                f'held-out samples have no "{self.of}", and dropout = 0 never trains the vector '
                "for no label"
            )
            yield Misfit(message, ("of",), ("task",), "dropout = 0.1")

    def build(self, width: int) -> LabelEmbedding:
        from .conditions import LabelEmbedding

        # The check has found the condition, with a size.
        raise_misfits(self.check(0))
        sizes = {condition.name: condition.size for condition in self.conditions}
        size = sizes[self.of] or 0
        return LabelEmbedding(self.of, size, width, dropout=self.dropout, std=self.std)


class Number(_OfSample):
    """A real number of the sample, such as an activity: two linear layers with a SiLU between them.

    Use it in a `sum` with the noise level. The number is standardised with the statistics of the
    data, which are stored with the weights.
    """

    name = "number"
    of: str = "activity"
    """Name of the condition."""
    dropout: float = Field(0.0, ge=0, lt=1)
    """Probability with which training drops the number, for classifier-free guidance
    (`sample.guidance`); 0.1 is usual. A missing number is treated as dropped."""

    def check(self, width: int) -> Iterator[Misfit]:
        """Require a number of the task."""
        yield from missing_condition(self.conditions, self.of, ("of",), number=True)

    def build(self, width: int) -> NumberEmbedding:
        from .conditions import NumberEmbedding

        raise_misfits(self.check(0))
        numbers = {condition.name: condition.number for condition in self.conditions}
        known = numbers[self.of]
        # The check has found the number.
        assert known is not None
        return NumberEmbedding(
            self.of, width, mean=known.mean, std=known.std, dropout=self.dropout
        )


class Outline(_OfSample):
    """Outline and front door of a floor plan: a vector per wall and one for the door, added up.

    Use it in a `sum` with the noise level. Translations of an outline do not matter.
    """

    name = "outline"
    of: str = "boundary"
    """Name of the condition: points x, y of the two ends of the door, then of the corners; -1 after
    the last."""
    dropout: float = Field(0.0, ge=0, lt=1)
    """Probability with which training drops the outline, for classifier-free guidance
    (`sample.guidance`)."""

    def check(self, width: int) -> Iterator[Misfit]:
        """Require this condition of the task."""
        yield from missing_condition(self.conditions, self.of, ("of",), integers=True)

    def build(self, width: int) -> OutlineEmbedding:
        from .conditions import OutlineEmbedding

        return OutlineEmbedding(self.of, width, dropout=self.dropout)


class Sum(ConditionSpec):
    """Sum of several conditions, such as the noise level and labels."""

    name = "sum"
    parts: list[Slot[ConditionSpec]] = Field([named("level")], min_length=1)
    """The conditions, such as ["level", { use = "label", of = "cell", dropout = 0.1 }]."""

    def traits(self) -> frozenset[str]:
        """Return the traits shared by all conditions."""
        return frozenset.intersection(*(part.traits() for part in self.parts))

    def with_space(self, space: Space) -> Self:
        """Return the sum with every condition bound to the space."""
        parts = [part.with_space(space) for part in self.parts]
        return super().with_space(space).model_copy(update={"parts": parts})

    def dropped(self) -> tuple[str, ...]:
        names: dict[str, None] = {}
        for part in self.parts:
            names |= dict.fromkeys(part.dropped())
        return tuple(names)

    def reads(self) -> tuple[str, ...] | None:
        names: dict[str, None] = {}
        for part in self.parts:
            of_part = part.reads()
            if of_part is None:
                return None
            names |= dict.fromkeys(of_part)
        return tuple(names)

    def check(self, width: int) -> Iterator[Misfit]:
        """Reject what any of the conditions rejects."""
        for number, part in enumerate(self.parts):
            yield from below("parts", below(number, part.check(width)))

    def build(self, width: int) -> ConditionSum:
        from .conditions import ConditionSum

        return ConditionSum([part.build(width) for part in self.parts])


class NoCondition(ConditionSpec):
    """No condition: the model gets neither the noise level nor labels."""

    name = "none"

    def traits(self) -> frozenset[str]:
        """The output is always the same."""
        return frozenset({"level-free", "constant", "position-free"})

    def reads(self) -> tuple[str, ...]:
        return ()

    def build(self, width: int) -> Unconditional:
        from .conditions import Unconditional

        return Unconditional(width)
