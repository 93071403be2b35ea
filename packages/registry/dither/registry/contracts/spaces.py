"""Spaces: the shape and vocabulary of one sample of a task; and facts of processes and models.

Both are plain data, known before torch is imported, so that incompatible components are rejected
early. Only methods that return tensors import torch. Letters: B batch, L length, V vocabulary (the
largest of all fields).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from jaxtyping import Bool, Shaped
    from torch import Tensor

__all__ = [
    "Condition",
    "Data",
    "FeatureSpace",
    "Field",
    "Group",
    "ModelFacts",
    "NumberRange",
    "ProcessFacts",
    "Space",
    "TokenSpace",
]

Data = Literal["tokens", "features"]


@dataclass(frozen=True)
class NumberRange:
    """Mean, standard deviation, least and largest value of a number in the training split."""

    mean: float
    std: float
    low: float
    high: float

    def __post_init__(self) -> None:
        # Also false for NaN
        if not (0 < self.std < math.inf and self.low < self.high):
            raise ValueError(f"the values of a number are constant or infinite: {self}")

    @classmethod
    def of(cls, values: Sequence[float]) -> NumberRange:
        """Return the range of values; ValueError if they are all the same."""
        mean = math.fsum(values) / len(values)
        variance = math.fsum((value - mean) ** 2 for value in values) / len(values)
        return cls(mean, math.sqrt(variance), min(values), max(values))


@dataclass(frozen=True)
class Condition:
    """A conditioning variable of samples, in `Clean.cond` under its name.

    Attributes:
        name: The name.
        size: Number of labels 0 .. size-1, one per sample (`B`); by default the condition is one
            number per position (`B L`). The label -1 means unconditional, as if the condition were
            absent.
        length: Integers per sample (`B length`) instead, such as coordinates; unconditional if all
            are -1.
        labels: Names of the labels, which `sample.cond` accepts; empty if they have none.
        partial: Whether some samples have no label, such as those of held-out cell types.
        number: Range of a real number per sample (`B`) instead, such as a measured activity; NaN
            means unconditional.
    """

    name: str
    size: int | None = None
    labels: tuple[str, ...] = ()
    partial: bool = False
    length: int | None = None
    number: NumberRange | None = None

    def __post_init__(self) -> None:
        if self.size is not None and self.size < 1:
            raise ValueError(f'condition "{self.name}" requires at least one label')
        if self.labels and len(self.labels) != self.size:
            names = f"{len(self.labels)} names"
            raise ValueError(
                f'condition "{self.name}" has {self.size} labels but {names}'
            )

    def __str__(self) -> str:
        if self.length is not None:
            return f"{self.length} integers per sample"
        if self.per_position:
            return "one number per position"
        return "one label per sample" if self.number is None else "a number per sample"

    @property
    def per_position(self) -> bool:
        """Whether it is one number per position."""
        return self.size is None and self.length is None and self.number is None

    def shape(self, batch: int, positions: int) -> tuple[int, ...]:
        """Return the shape of its values for a batch of samples."""
        if self.length is not None:
            return batch, self.length
        return (batch, positions) if self.per_position else (batch,)


@dataclass(frozen=True)
class Field:
    """Consecutive positions that share one vocabulary of ids 0 .. size-1, special ids included.

    Attributes:
        name: Name, such as "nodes".
        length: Number of positions.
        size: Number of ids, with MASK and PAD if the field has them.
        mask: The MASK id, or None.
        pad: The id of unused positions, or None.
        end: The id that ends a sample, such as end of text, or None. It occurs in clean data.
    """

    name: str
    length: int
    size: int
    mask: int | None = None
    pad: int | None = None
    end: int | None = None

    def __post_init__(self) -> None:
        if self.length < 1 or self.size < 1:
            numbers = f"{self.length}, {self.size}"
            raise ValueError(
                f'field "{self.name}" requires length and size >= 1: {numbers}'
            )
        for special in ("mask", "pad", "end"):
            value = getattr(self, special)
            if value is not None and not 0 <= value < self.size:
                ids = f"the ids 0..{self.size - 1}"
                raise ValueError(
                    f'field "{self.name}": {special} = {value} is outside {ids}'
                )


@dataclass(frozen=True)
class TokenSpace:
    """Sequences of ids; each field has its own vocabulary.

    `level_end` is the largest noise level that the model is given, which a process adds to the
    space; None if unknown. It does not take part in comparisons.
    """

    fields: tuple[Field, ...]
    conditions: tuple[Condition, ...] = ()
    level_end: float | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        names = [field.name for field in self.fields]
        if not names or len(set(names)) != len(names):
            raise ValueError(
                f"a token space requires fields with unique names: {names}"
            )

    def __str__(self) -> str:
        fields = (
            f"{field.name}: {field.length} of {field.size} ids" for field in self.fields
        )
        return f"tokens ({', '.join(fields)})"

    @property
    def data(self) -> Data:
        return "tokens"

    @property
    def length(self) -> int:
        """Number of positions of all fields together."""
        return sum(field.length for field in self.fields)

    @property
    def vocab(self) -> int:
        """Size of the largest vocabulary."""
        return max(field.size for field in self.fields)

    def with_mask(self) -> TokenSpace:
        """Return the space with a MASK id in every field, appended where it is missing."""

        def masked(field: Field) -> Field:
            if field.mask is not None:
                return field
            return replace(field, mask=field.size, size=field.size + 1)

        return replace(self, fields=tuple(masked(field) for field in self.fields))

    def table(self, row: Callable[[Field], Tensor]) -> Shaped[Tensor, "rows ..."]:
        """Stack `row(field)` once per position, or once in total for a single field.

        One row broadcasts over any length, so that a single field may be sliced, as in block
        sampling.
        """
        import torch

        if len(self.fields) == 1:
            return row(self.fields[0])[None]
        rows = []
        for part in self.fields:
            values = row(part)
            rows.append(values.expand(part.length, *values.shape))
        return torch.cat(rows)

    def usable(self) -> Bool[Tensor, "rows V"]:
        """Return which ids are in the vocabulary of each position."""
        import torch

        return self.table(lambda field: torch.arange(self.vocab) < field.size)

    def clean(self) -> Bool[Tensor, "rows V"]:
        """Return which ids may occur in clean data: all except MASK and PAD."""
        import torch

        def row(field: Field) -> Tensor:
            allowed = torch.arange(self.vocab) < field.size
            for special in (field.mask, field.pad):
                if special is not None:
                    allowed[special] = False
            return allowed

        return self.table(row)

    def split(self, x: Shaped[Tensor, "..."], dim: int = 1) -> dict[str, Tensor]:
        """Split a tensor with one entry per position along `dim` into its fields."""
        if len(self.fields) == 1:
            return {self.fields[0].name: x}
        parts = x.split_with_sizes([field.length for field in self.fields], dim)
        return {
            field.name: part for field, part in zip(self.fields, parts, strict=True)
        }


@dataclass(frozen=True)
class Group:
    """Named columns `start` to `stop` (exclusive) of a feature space."""

    name: str
    start: int
    stop: int


@dataclass(frozen=True)
class FeatureSpace:
    """Real vectors: `length` positions of `width` columns, which may be grouped.

    The positions of an image are its pixels, row by row, and the columns its channels.

    Attributes:
        length: Number of positions.
        width: Number of columns.
        groups: Named ranges of columns.
        conditions: The conditioning variables.
        given: Groups that are known at every position of every sample, and so never masked.
        standardised: Whether all columns have mean 0 and standard deviation 1 on the training
            split, so that values may be negative; None if unknown.
        level_end: Largest noise level that the model is given, which a process adds to the space;
            None if unknown.
        grid: Rows and columns of the grid that the positions are, row by row; None for a sequence
            or a set.
        outputs: Numbers that the model returns for each column, which a process sets: 2 if it
            predicts variances, too. All first numbers of a position come before all second ones.
        merged: Positions of a sample in one of this space, which a model with patches sets.

    `given` and the attributes from `standardised` on do not take part in comparisons, but `grid`.
    """

    length: int
    width: int
    groups: tuple[Group, ...] = ()
    conditions: tuple[Condition, ...] = ()
    given: tuple[str, ...] = field(default=(), compare=False)
    standardised: bool | None = field(default=None, compare=False)
    level_end: float | None = field(default=None, compare=False)
    grid: tuple[int, int] | None = None
    outputs: int = field(default=1, compare=False)
    merged: int = field(default=1, compare=False)

    def __post_init__(self) -> None:
        if self.length < 1 or self.width < 1:
            numbers = f"{self.length}, {self.width}"
            raise ValueError(
                f"a feature space requires length and width >= 1: {numbers}"
            )
        if self.grid is not None and self.grid[0] * self.grid[1] != self.length:
            rows, columns = self.grid
            raise ValueError(
                f"a grid of {rows} x {columns} does not have {self.length} positions"
            )
        for group in self.groups:
            if not 0 <= group.start < group.stop <= self.width:
                span = f"{group.start}..{group.stop} of {self.width} columns"
                raise ValueError(f'group "{group.name}" spans {span}')
        if unknown := sorted(set(self.given) - {group.name for group in self.groups}):
            raise ValueError(f"given contains unknown groups: {', '.join(unknown)}")

    def __str__(self) -> str:
        return f"features ({self.length} positions of {self.width} numbers)"

    @property
    def data(self) -> Data:
        return "features"

    @property
    def raw_width(self) -> int:
        """Numbers per position that the model returns."""
        return self.width * self.outputs


Space = TokenSpace | FeatureSpace


@dataclass(frozen=True)
class ProcessFacts:
    """Properties of a process for losses and samplers.

    Attributes:
        name: Registered name of the process.
        space: The space the model must serve, MASK included.
        predict: Meaning of the raw output: posterior, plug-in, score; x0, eps, velocity,
            flow-velocity.
        prior: The distribution at t = 1: all on MASK, uniform over clean ids, their frequencies, a
            mixture of MASK and clean ids; Gaussian noise; hidden features.
        timeless: Whether states are independent of time; see `Process.fixed_time`.
        masked: Whether noise is added only to a mask's selection, next to values that stay clean.
        linear_path: Whether the factors of x_0 and Gaussian noise add up to 1 (flow matching), not
            their squares.
        whole_positions: Whether noise may cover everything that a position shows.
        prior_varies: Whether the distribution of replaced tokens depends on time; see
            `TokenProcess.prior_at`.
    """

    name: str
    space: Space
    predict: str
    prior: Literal["mask", "uniform", "frequencies", "mixture", "gaussian", "hidden"]
    timeless: bool = False
    masked: bool = False
    linear_path: bool = False
    whole_positions: bool = True
    prior_varies: bool = False


@dataclass(frozen=True)
class ModelFacts:
    """Properties of a model for samplers.

    Attributes:
        block_size: Positions per block under block-causal attention; None for full attention. A
            model with a block size takes `context=`: over tokens of a single field it is trained
            block by block, each after the clean ones.
        cache: Whether it supports a key-value cache (`new_cache`, and `cache=` of its forward).
        dropped_conditions: Conditions that training drops at random, which classifier-free guidance
            requires.
        conditions_read: Conditions that the output depends on; None if unknown.
        reads_known: Whether the model distinguishes known tokens from noised ones (`State.noisy`).
        position_free: Whether permuting the positions of a field, or the patches of a grid, permutes
            the output, so that the model cannot distinguish them.
        self_conditioning: Whether the model reads its previous prediction (`State.previous`).
        reads_noised: Whether the model reads noised positions, or the clean ones before a position
            only (autoregressive).
    """

    block_size: int | None = None
    cache: bool = True
    dropped_conditions: tuple[str, ...] = ()
    conditions_read: tuple[str, ...] | None = None
    reads_known: bool = False
    position_free: bool = False
    self_conditioning: bool = False
    reads_noised: bool = True

    def trained_blocks(self, space: Space) -> int | None:
        """Return the block size of training over this space; None for training on whole samples.

        For features or several fields, block-causal attention only restricts what a position
        attends to.
        """
        if not isinstance(space, TokenSpace) or len(space.fields) > 1:
            return None
        return self.block_size
