"""Hypothesis strategies for options of any Spec, spaces, and batches, all of them small.

    @given(specs(MySpec, default_catalog()))
    def test_options(spec):
        spec.build(16, 16)

Letters: B batch, L length, M features.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

import torch
from annotated_types import Ge, Gt, Le, Lt, MaxLen, MinLen, MultipleOf
from hypothesis import reject
from hypothesis import strategies as st
from jaxtyping import Bool, Int, Shaped
from pydantic import ValidationError
from pydantic.fields import FieldInfo
from torch import Tensor

from dither.registry import (
    Catalog,
    Condition,
    FeatureSpace,
    Field,
    Group,
    NumberRange,
    Options,
    Space,
    Spec,
    TokenSpace,
)
from dither.registry.contracts.records import Clean, over
from dither.registry.spec.base import Place

__all__ = [
    "CONDITIONS",
    "cleans",
    "feature_spaces",
    "graph_spaces",
    "spaces",
    "specs",
    "token_spaces",
]

CONDITIONS = (
    Condition("cell", 3),
    Condition("centre"),
    Condition("boundary", length=12),
    # bfloat16 would round the mean to 100.5, a standard deviation too many.
    Condition("activity", number=NumberRange(100.3, 0.2, 99.9, 100.9)),
)
"""Conditions of every space: a label per sample, a coordinate per position, integers and a number."""


# Faults that small inputs hide: limits at powers of two, in loops and in tables.
LARGE_ROWS = (9, 12, 17)
LARGE_LENGTHS = (66, 70, 81)
LARGE_WIDTHS = (6, 9, 12)
LARGE_VOCABULARIES = (18, 20, 33)


@st.composite
def token_spaces(
    draw: st.DrawFn, max_fields: int = 3, *, large: bool = False
) -> TokenSpace:
    """Draw 1 to `max_fields` fields, each with or without MASK and PAD.

    A large space has a first field of more than 64 positions and 16 ids.
    """
    fields = []
    for index in range(draw(st.integers(1, max_fields))):
        # One id would make any prediction right.
        ids = draw(st.integers(2, 5))
        length = draw(st.integers(1, 6))
        if large and index == 0:
            ids = draw(st.sampled_from(LARGE_VOCABULARIES))
            length = draw(st.sampled_from(LARGE_LENGTHS))
        special = draw(
            st.sampled_from([(), ("mask",), ("pad",), ("mask", "pad"), ("pad", "mask")])
        )
        tokens = {name: ids + offset for offset, name in enumerate(special)}
        fields.append(Field(f"field{index}", length, ids + len(special), **tokens))
    return TokenSpace(tuple(fields), CONDITIONS)


@st.composite
def graph_spaces(draw: st.DrawFn, *, large: bool = False) -> TokenSpace:
    """Draw nodes and one edge per pair of them, with MASK and PAD."""
    n = draw(st.integers(2, 4))
    kinds = draw(st.integers(2, 4))
    relations = draw(st.integers(2, 4))
    if large:
        # 66 edges.
        n = 12
        kinds = draw(st.sampled_from(LARGE_VOCABULARIES))
        relations = draw(st.sampled_from(LARGE_VOCABULARIES))
    nodes = Field(
        name="nodes",
        length=n,
        size=kinds + 2,
        mask=kinds,
        pad=kinds + 1,
    )
    edges = Field(
        name="edges",
        length=n * (n - 1) // 2,
        size=relations + 2,
        mask=relations,
        pad=relations + 1,
    )
    return TokenSpace((nodes, edges), CONDITIONS)


@st.composite
def feature_spaces(draw: st.DrawFn, *, large: bool = False) -> FeatureSpace:
    """Draw a few positions of a few columns, which may be in groups, or on a grid."""
    length = draw(st.integers(1, 8))
    # Patches of two divide the second.
    grid = draw(st.sampled_from([None, (2, 4), (1, length)]))
    if grid is not None:
        length = grid[0] * grid[1]
    width = draw(st.integers(2, 5))
    if large:
        length = draw(st.sampled_from(LARGE_LENGTHS))
        width = draw(st.sampled_from(LARGE_WIDTHS))
        if grid is not None:
            grid = (8, 10)
            length = 80
    cut = draw(st.integers(0, width - 1))
    groups = (Group("left", 0, cut), Group("right", cut, width)) if cut else ()
    return FeatureSpace(
        length=length,
        width=width,
        groups=groups,
        conditions=(*CONDITIONS, Condition("tss")),
        grid=grid,
    )


def spaces() -> st.SearchStrategy[Space]:
    """Draw a space of any type."""
    return st.one_of(token_spaces(), graph_spaces(), feature_spaces())


@st.composite
def cleans(
    draw: st.DrawFn, space: Space, rows: int | None = None, *, large: bool = False
) -> Clean:
    """Draw a batch of `rows` samples (1 to 3 by default, more than 8 of a large batch).

    Fields are padded at the end, and some values are known.
    """
    n = draw(st.sampled_from(LARGE_ROWS) if large else st.integers(1, 3))
    if rows is not None:
        n = rows
    padded = draw(st.booleans())
    known = draw(st.sampled_from(["none", "positions", "values"]))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**16)))

    lengths = [space.length]
    if isinstance(space, TokenSpace):
        lengths = [field.length for field in space.fields]
    parts = []
    for length in lengths:
        count = torch.full((n, 1), length)
        if padded:
            count = torch.randint(1, length + 1, (n, 1), generator=generator)
        parts.append(torch.arange(length) < count)
    valid = torch.cat(parts, 1)

    if isinstance(space, TokenSpace):
        x0 = _draw_ids(space, valid, generator)
        value_shape: tuple[int, ...] = valid.shape
    else:
        x0 = torch.randn(n, space.length, space.width, generator=generator)
        x0 = x0.masked_fill(~valid[..., None], 0.0)
        # One draw for all values of a position, or for each.
        value_shape = (*valid.shape, 1)
        if known == "values":
            value_shape = x0.shape
    chosen = torch.rand(value_shape, generator=generator) < 0.3
    if known == "none":
        chosen.zero_()
    known_values = chosen.expand(x0.shape) & over(valid, x0)
    cond = {c.name: _draw_condition(c, valid, generator) for c in space.conditions}
    return Clean(x0, valid, known_values, cond)


def _draw_ids(
    space: TokenSpace, valid: Bool[Tensor, "B L"], generator: torch.Generator
) -> Int[Tensor, "B L"]:
    parts = []
    for field in space.fields:
        special = {field.mask, field.pad}
        ids = torch.tensor(sorted({*range(field.size)} - special))
        shape = (len(valid), field.length)
        index = torch.randint(len(ids), shape, generator=generator)
        parts.append(ids[index])
    padding = space.table(lambda field: torch.tensor(field.pad or 0))
    return torch.where(valid, torch.cat(parts, 1), padding)


def _draw_condition(
    condition: Condition, valid: Bool[Tensor, "B L"], generator: torch.Generator
) -> Shaped[Tensor, "B *L"]:
    """Draw labels or numbers, some of them missing, or increasing coordinates, 0 on padding."""
    rows = len(valid)
    if condition.size is not None:
        return torch.randint(-1, condition.size, (rows,), generator=generator)
    if condition.length is not None:
        shape = (rows, condition.length)
        return torch.randint(-1, 256, shape, generator=generator)
    if condition.number is not None:
        standardised = torch.randn(rows, generator=generator)
        numbers = condition.number.mean + condition.number.std * standardised
        missing = torch.rand(rows, generator=generator) < 0.2
        return numbers.masked_fill(missing, float("nan"))
    steps = torch.randint(1, 100_000, valid.shape, generator=generator)
    return steps.cumsum(1) * valid


SMALL = (0, 1, 2, 3, 4, 6, 8, 16)
"""Integers that make small components; those within the bounds of an option are tried."""
SIZES = (8, 16)
"""The same for options with a large default, such as widths, which other options must divide."""
MAX_DEPTH = 2
"""Nesting depth of components; at this depth only components without slots are drawn."""
O = TypeVar("O", bound=Options)  # noqa: E741


@dataclass(frozen=True)
class _SpecStrategy:
    """Settings of one strategy."""

    catalog: Catalog
    small: bool
    fits: Callable[[Spec], bool]
    depth: int = 0

    def options(self, model: type[O]) -> st.SearchStrategy[O]:
        """Options of a model; about half of them keep their default."""
        return _options(self, model)

    def keeps_default(self, info: FieldInfo) -> bool:
        """Whether the default of an option may be drawn: not if it is large, or a component that does not fit."""
        if info.is_required():
            return False
        default = info.get_default(call_default_factory=True, validated_data={})
        is_slot = any(isinstance(item, Place) for item in info.metadata)
        if default is not None and is_slot:
            kind: Any = info.annotation
            if not isinstance(default, Spec):
                default = self.catalog.parse(kind.kind, default)
            return self.fits(default)
        return not (self.small and makes_large(default))

    def field(self, info: FieldInfo) -> st.SearchStrategy[Any] | None:
        """Values of an option; None if only its default makes sense, such as a path."""
        if not info.is_required() and str in _leaves(info.annotation):
            return None
        if self.small and type(info.annotation) is type and makes_large(info.default):
            return _integers(info.metadata, SIZES)
        return self.values(info.annotation, info.metadata)

    def values(
        self, annotation: Any, metadata: Iterable[Any] = ()
    ) -> st.SearchStrategy[Any]:
        origin = get_origin(annotation)
        arguments = get_args(annotation)
        metadata = list(metadata)
        if origin is Annotated:
            for item in arguments[1:]:
                metadata += item.metadata if isinstance(item, FieldInfo) else [item]
            return self.values(arguments[0], metadata)
        if any(isinstance(item, Place) for item in metadata):
            return self.parts(annotation.kind)
        if origin is Literal:
            return st.sampled_from(arguments)
        if origin in (Union, types.UnionType):
            # TOML has no null: None comes as a default only.
            members = [member for member in arguments if member is not type(None)]
            return st.one_of(*(self.values(member, metadata) for member in members))
        if origin in (list, tuple, dict):
            return self._collection(origin, arguments, metadata)
        return self._scalar(annotation, metadata)

    def parts(self, kind: str) -> st.SearchStrategy[Spec]:
        """Fitting components of a kind, of any plugin."""
        deeper = replace(self, depth=self.depth + 1)
        candidates = [
            part.spec for part in self.catalog.parts(kind) if self._may_fit(part.spec)
        ]
        # Components that contain others of their kind would nest without end.
        if self.depth >= MAX_DEPTH:
            candidates = [
                spec
                for spec in candidates
                if not any(map(_has_place, spec.model_fields.values()))
            ]
        if not candidates:
            raise LookupError(f"no {kind} is registered")
        return st.sampled_from(candidates).flatmap(deeper.options).filter(self.fits)

    def _may_fit(self, spec: type[Spec]) -> bool:
        """Whether a component fits with its defaults, or has required options."""
        try:
            return self.fits(spec.model_validate({}, context={"catalog": self.catalog}))
        except ValidationError:
            return True

    def _collection(
        self, origin: type, arguments: tuple[Any, ...], metadata: list[Any]
    ) -> st.SearchStrategy[Any]:
        least = _least_length(metadata)
        limits = [item.max_length for item in metadata if isinstance(item, MaxLen)]
        most = min([*limits, least + 2])
        if origin is dict:
            keys = st.sampled_from("abcdef")
            return st.dictionaries(
                keys, self.values(arguments[1]), min_size=least, max_size=most
            )
        if origin is tuple and Ellipsis not in arguments:
            return st.tuples(*map(self.values, arguments))
        values = self.values(arguments[0])
        return st.lists(values, min_size=least, max_size=most).map(origin)

    def _scalar(self, annotation: Any, metadata: list[Any]) -> st.SearchStrategy[Any]:
        if isinstance(annotation, type) and issubclass(annotation, Options):
            return self.options(annotation)
        if annotation is bool:
            return st.booleans()
        if annotation is int:
            return _integers(metadata, SMALL if self.small else None)
        if annotation is float:
            return _numbers(metadata, self.small)
        if annotation is str:
            least = _least_length(metadata)
            return st.text("abcxyz", min_size=least, max_size=least + 3)
        raise TypeError(f"no strategy for options of type {annotation}")


@st.composite
def _options(draw: st.DrawFn, strategy: _SpecStrategy, model: type[O]) -> O:
    chosen = {}
    for key, info in model.model_fields.items():
        values = strategy.field(info)
        if values is None:
            continue
        # hypothesis shrinks to False, so that the simplest Spec has defaults only.
        if not strategy.keeps_default(info) or draw(st.booleans()):
            chosen[key] = draw(values)
    try:
        return model.model_validate(chosen, context={"catalog": strategy.catalog})
    except ValidationError:
        # Options that exclude each other.
        reject()


def _least_length(metadata: list[Any]) -> int:
    lengths = [item.min_length for item in metadata if isinstance(item, MinLen)]
    return max(lengths, default=0)


def _leaves(annotation: Any) -> set[Any]:
    arguments = get_args(annotation)
    if get_origin(annotation) is Literal:
        return {Literal}
    return set().union(*map(_leaves, arguments)) if arguments else {annotation}


def _has_place(info: FieldInfo) -> bool:
    # The annotation of `Slot[X] | None` stays inside of the type.
    is_slot = any(isinstance(item, Place) for item in info.metadata)
    return is_slot or "Place()" in str(info.annotation)


def _bound(
    metadata: list[Any], inclusive: tuple[type, str], exclusive: tuple[type, str]
) -> tuple[Any, bool]:
    """Return a bound of an option, and whether it is excluded; None if there is none."""
    for excluded, (kind, name) in ((False, inclusive), (True, exclusive)):
        for item in metadata:
            if isinstance(item, kind):
                return getattr(item, name), excluded
    return None, False


def _range(metadata: list[Any]) -> tuple[Any, bool, Any, bool]:
    """Return the lower and the upper bound of an option, each with whether it is excluded."""
    low, low_excluded = _bound(metadata, (Ge, "ge"), (Gt, "gt"))
    high, high_excluded = _bound(metadata, (Le, "le"), (Lt, "lt"))
    return low, low_excluded, high, high_excluded


def makes_large(default: Any) -> bool:
    """Whether a default is an integer that makes components large."""
    return type(default) is int and default > SMALL[-1]


def _integers(
    metadata: list[Any], small: tuple[int, ...] | None
) -> st.SearchStrategy[int]:
    low, low_excluded, high, high_excluded = _range(metadata)
    if low_excluded:
        low += 1
    if high_excluded:
        high -= 1
    step: Any = 1
    for item in metadata:
        if isinstance(item, MultipleOf):
            step = item.multiple_of
    if small is None:
        return st.integers(low, high).filter(lambda n: bool(n % step == 0))

    # Start at the lower bound if it is far from zero, such as a year or a port.
    start = 0 if low is None else int(low)
    candidates = list(small)
    if start > small[-1]:
        candidates = [start + n * step for n in small]
    largest = max(candidates) if high is None else high
    allowed = {n for n in candidates if start <= n <= largest and n % step == 0}
    return st.sampled_from(sorted(allowed) or [start])


def _numbers(metadata: list[Any], small: bool) -> st.SearchStrategy[float]:
    low, low_excluded, high, high_excluded = _range(metadata)
    if not small:
        return st.floats(
            low,
            high,
            exclude_min=low_excluded,
            exclude_max=high_excluded,
            allow_nan=False,
            allow_infinity=False,
        )
    start = low
    if start is None:
        start = 0.0 if high is None or high > 0 else high - 1.0
    stop = start + 2.0
    if high is not None:
        stop = min(high, stop)

    # The ends too, where formulas divide by zero.
    shares = (0.01, 0.1, 0.25, 0.5, 0.75, 0.9)
    numbers = [start + (stop - start) * share for share in shares]
    if not low_excluded:
        numbers.append(float(start))
    if not (high_excluded and stop == high):
        numbers.append(float(stop))
    return st.sampled_from(numbers)


def specs(
    spec: type[O],
    catalog: Catalog,
    *,
    small: bool = True,
    fits: Callable[[Spec], bool] = lambda part: True,
) -> st.SearchStrategy[O]:
    """Draw specs of one class from the types and bounds of its options. The simplest has defaults only.

    `catalog` fills slots with components that `fits` accepts; with `small`, numbers are small.
    """
    return _SpecStrategy(catalog, small, fits).options(spec)
