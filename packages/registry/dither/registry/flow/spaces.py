"""Spaces: what one sample of a task looks like, position by position.

A space is plain data. It is known before torch is imported, so that parts which do not fit are refused early; torch is
imported only by the methods that return tensors. Letters: B batch, L length, V vocabulary (the largest of all fields).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from jaxtyping import Bool, Shaped
    from torch import Tensor

__all__ = ["Condition", "Data", "FeatureSpace", "Field", "Group", "Space", "TokenSpace"]

Data = Literal["tokens", "features"]


@dataclass(frozen=True)
class Condition:
    """Something that a task tells beside each sample, in `Clean.cond` under this name.

    Attributes:
        name: The name.
        size: Number of labels 0 .. size-1, one per sample (`B`); None for one number per position (`B L`). A label of
            -1 says that it is not told for this sample, as if the condition were absent.
        labels: What the labels are called, by which samples may be asked for; empty where they have no names.
        partial: Whether there are samples of which no label is told, such as those of cell types that are held out.
    """

    name: str
    size: int | None = None
    labels: tuple[str, ...] = ()
    partial: bool = False

    def __post_init__(self) -> None:
        if self.size is not None and self.size < 1:
            raise ValueError(f'condition "{self.name}" needs at least one label, not {self.size}')
        if self.labels and len(self.labels) != self.size:
            raise ValueError(f'condition "{self.name}" has {self.size} labels, and {len(self.labels)} names for them')


@dataclass(frozen=True)
class Field:
    """A run of positions that share one vocabulary: ids 0 .. size-1, specials included.

    Attributes:
        name: What the positions are, such as "nodes".
        length: Number of positions.
        size: Number of ids, MASK and PAD included where the field has them.
        mask: The id that says "hidden", or None.
        pad: The id on positions that a sample does not use, or None.
        end: The id after which nothing of a sample counts, such as the end of a text, or None. Clean data holds it.
    """

    name: str
    length: int
    size: int
    mask: int | None = None
    pad: int | None = None
    end: int | None = None

    def __post_init__(self) -> None:
        if self.length < 1 or self.size < 1:
            raise ValueError(f'field "{self.name}" needs a length and a size of at least 1: {self.length}, {self.size}')
        for special in ("mask", "pad", "end"):
            value = getattr(self, special)
            if value is not None and not 0 <= value < self.size:
                raise ValueError(f'field "{self.name}": {special} = {value} is outside the ids 0..{self.size - 1}')


@dataclass(frozen=True)
class TokenSpace:
    """Sequences of ids; each field keeps a vocabulary of its own. `conditions` are told beside each sample."""

    fields: tuple[Field, ...]
    conditions: tuple[Condition, ...] = ()

    def __post_init__(self) -> None:
        names = [field.name for field in self.fields]
        if not names or len(set(names)) != len(names):
            raise ValueError(f"a token space needs at least one field, and different names: {names}")

    def __str__(self) -> str:
        return "tokens (" + ", ".join(f"{f.name}: {f.length} of {f.size} ids" for f in self.fields) + ")"

    @property
    def data(self) -> Data:
        """The sort of data: tokens."""
        return "tokens"

    @property
    def length(self) -> int:
        """Number of positions of all fields."""
        return sum(field.length for field in self.fields)

    @property
    def vocab(self) -> int:
        """Number of ids of the largest field."""
        return max(field.size for field in self.fields)

    def with_mask(self) -> TokenSpace:
        """Return the space in which every field has a MASK id, appended where there is none."""

        def masked(field: Field) -> Field:
            return field if field.mask is not None else replace(field, mask=field.size, size=field.size + 1)

        return replace(self, fields=tuple(masked(field) for field in self.fields))

    def table(self, row: Callable[[Field], Tensor]) -> Shaped[Tensor, "rows ..."]:
        """Stack `row(field)` once per position, or once in all when there is a single field.

        One row broadcasts over any length, which lets a single field come in pieces, as in block sampling.
        """
        import torch

        if len(self.fields) == 1:
            return row(self.fields[0])[None]
        return torch.cat([row(field).expand(field.length, *row(field).shape) for field in self.fields])

    def usable(self) -> Bool[Tensor, "rows V"]:
        """True for the ids inside the vocabulary of the position."""
        import torch

        return self.table(lambda field: torch.arange(self.vocab) < field.size)

    def clean(self) -> Bool[Tensor, "rows V"]:
        """True for the ids that clean data may hold: neither MASK nor PAD."""
        import torch

        def row(field: Field) -> Tensor:
            allowed = torch.arange(self.vocab) < field.size
            for special in (field.mask, field.pad):
                if special is not None:
                    allowed[special] = False
            return allowed

        return self.table(row)

    def split(self, x: Shaped[Tensor, "..."], dim: int = 1) -> dict[str, Tensor]:
        """Cut a tensor with one entry per position along `dim` into the parts of its fields."""
        if len(self.fields) == 1:
            return {self.fields[0].name: x}
        parts = x.split_with_sizes([field.length for field in self.fields], dim)
        return {field.name: part for field, part in zip(self.fields, parts, strict=True)}


@dataclass(frozen=True)
class Group:
    """A named run of columns of a feature space, `start` to `stop` (exclusive)."""

    name: str
    start: int
    stop: int


@dataclass(frozen=True)
class FeatureSpace:
    """Real vectors: `length` positions of `width` numbers, whose columns may have named groups.

    Attributes:
        length: Number of positions.
        width: Numbers of each.
        groups: Named runs of columns.
        conditions: What is told beside each sample.
        given: Names of the groups that are known at every position of every sample, so that nothing of them is hidden.
        standardised: Whether every column has mean 0 and standard deviation 1 over the training samples, so that values
            fall below 0; None where the task does not say.

    Spaces are equal where samples have the same shape and names; `given` and `standardised` say what they may hold.
    """

    length: int
    width: int
    groups: tuple[Group, ...] = ()
    conditions: tuple[Condition, ...] = ()
    given: tuple[str, ...] = field(default=(), compare=False)
    standardised: bool | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        if self.length < 1 or self.width < 1:
            raise ValueError(f"a feature space needs a length and a width of at least 1: {self.length}, {self.width}")
        for group in self.groups:
            if not 0 <= group.start < group.stop <= self.width:
                raise ValueError(f'group "{group.name}" spans {group.start}..{group.stop} of {self.width} columns')
        if strange := sorted(set(self.given) - {group.name for group in self.groups}):
            raise ValueError(f"given names no groups of columns: {', '.join(strange)}")

    def __str__(self) -> str:
        return f"features ({self.length} positions of {self.width} numbers)"

    @property
    def data(self) -> Data:
        """The sort of data: features."""
        return "features"


Space = TokenSpace | FeatureSpace
