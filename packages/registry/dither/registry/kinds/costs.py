"""What parts take: weights, and memory for each sample. Closed forms, so that nothing is built to know them.

A number is one of 4 bytes (float32). A part that says nothing counts as 0, and is named wherever the sum is shown.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

__all__ = ["Cost", "Matrix", "Stage"]


@dataclass(frozen=True)
class Cost:
    """What a part takes, in numbers of 4 bytes.

    Attributes:
        parameters: Weights, exactly.
        kept: Numbers per sample that training keeps from the way there to the way back.
        passing: Most numbers per sample that are there for a moment besides, on either way.
        silent: Parts that do not say what they take.
        tiled: Numbers per sample that pass in tiles, besides; of all samples, at most `tile` are there at once.
        tile: Most of these.
        remade: Numbers among those kept that a CPU without a compiler does not keep, but computes again.
        rounded: Numbers per sample that such a CPU keeps besides under bfloat16, in it, if all samples have at most
            `most_rounded` of them.
        most_rounded: Most of these.
        fleeting: Numbers among those passing that a CPU without a compiler does without.
    """

    parameters: int = 0
    kept: int = 0
    passing: int = 0
    silent: tuple[str, ...] = ()
    tiled: int = 0
    tile: int = 0
    remade: int = 0
    rounded: int = 0
    most_rounded: int = 0
    fleeting: int = 0

    @classmethod
    def unsaid(cls, kind: str, name: str) -> Cost:
        """What a part takes that does not say."""
        return cls(silent=(f'{kind} "{name}"',))

    def __add__(self, other: Cost) -> Cost:
        """One part after the other: moments do not add up."""
        larger = self if self.passing >= other.passing else other
        return Cost(
            self.parameters + other.parameters,
            self.kept + other.kept,
            max(self.passing, other.passing),
            tuple(dict.fromkeys(self.silent + other.silent)),
            max(self.tiled, other.tiled),
            max(self.tile, other.tile),
            self.remade + other.remade,
            self.rounded + other.rounded,
            max(self.most_rounded, other.most_rounded),
            larger.fleeting,
        )

    def momentary(self, samples: int) -> int:
        """Numbers that are there for a moment, for so many samples at once."""
        return samples * self.passing + min(samples * self.tiled, self.tile)

    def scaled(self, share: float) -> Cost:
        """The same part where what is kept and what passes takes a share of it."""
        counts = self.kept, self.passing, self.remade, self.fleeting
        kept, passing, remade, fleeting = (int(count * share) for count in counts)
        return replace(self, kept=kept, passing=passing, remade=remade, fleeting=fleeting)

    def eager(self, samples: int = 0) -> Cost:
        """The same part on a CPU without a compiler, under bfloat16 if so many samples at once are told."""
        rounded = self.rounded if samples * self.rounded <= self.most_rounded and samples else 0
        kept, passing = self.kept - self.remade + rounded // 2, self.passing - self.fleeting
        return replace(self, kept=kept, passing=passing, remade=0, rounded=0, fleeting=0)

    def recomputed(self, entering: int) -> Cost:
        """The same part where only what enters is kept, and all else is computed again on the way back."""
        passing = self.passing + self.kept
        return replace(self, kept=entering, passing=passing, remade=0, rounded=0, fleeting=self.remade)


@dataclass(frozen=True)
class Stage:
    """A part, or several alike, at its place in the order of the forward pass.

    Attributes:
        name: What it is, such as "blocks".
        cost: Of one of them.
        times: How many there are, one after the other.
        last_map: Whether it is one linear map that gives the raw output, which need not be held at all positions then.
        leaves_out: Positions that it does without on a CPU: "padding", "hidden" ones but for one that stands for all.
    """

    name: str
    cost: Cost
    times: int = 1
    last_map: bool = False
    leaves_out: frozenset[Literal["padding", "hidden"]] = frozenset()

    @property
    def parameters(self) -> int:
        """Weights of all of them."""
        return self.cost.parameters * self.times

    @property
    def kept(self) -> int:
        """Numbers per sample that all of them keep."""
        return self.cost.kept * self.times


@dataclass(frozen=True)
class Matrix:
    """A matrix of a model, which may be changed by another of low rank.

    Attributes:
        name: Of what holds it, such as "blocks.0.attention.qkv".
        rows: Values that come out.
        columns: Values that go in.
        times: How many there are like it, under names that differ in the number of the layer.
    """

    name: str
    rows: int
    columns: int
    times: int = 1
