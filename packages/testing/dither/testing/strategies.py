"""Hypothesis strategies: options of any Spec, spaces, and batches. Everything is small.

    from hypothesis import given, strategies as st
    from dither.registry import default_catalog
    from dither.testing.strategies import cleans, spaces, specs

    @given(specs(MySpec, default_catalog()))
    def test_options(spec):
        spec.build(16, 16)

    @given(st.data(), spaces())
    def test_batches(data, space):
        clean = data.draw(cleans(space))

Letters: B batch, L length, M features.
"""

from __future__ import annotations

import torch
from hypothesis import strategies as st
from jaxtyping import Bool, Shaped
from torch import Tensor

from dither.registry import Condition, FeatureSpace, Field, Group, Space, TokenSpace
from dither.registry.flow import Clean

from .options import specs

__all__ = ["TOLD", "cleans", "feature_spaces", "graph_spaces", "spaces", "specs", "token_spaces"]

TOLD = (Condition("cell", 3), Condition("centre"))
"""What every space tells beside a sample: a label, and where its positions lie."""


@st.composite
def token_spaces(draw: st.DrawFn, most: int = 3) -> TokenSpace:
    """Draw one to `most` fields, each with or without MASK and PAD."""
    fields = []
    for index in range(draw(st.integers(1, most))):
        ids, special = draw(st.integers(2, 5)), draw(st.sampled_from(["", "m", "p", "mp", "pm"]))
        marks = {{"m": "mask", "p": "pad"}[letter]: ids + place for place, letter in enumerate(special)}
        fields.append(Field(f"field{index}", draw(st.integers(1, 6)), ids + len(special), **marks))
    return TokenSpace(tuple(fields), TOLD)


@st.composite
def graph_spaces(draw: st.DrawFn) -> TokenSpace:
    """Draw nodes and one edge for each pair of them, with MASK and PAD."""
    n, kinds, relations = draw(st.integers(2, 4)), draw(st.integers(2, 4)), draw(st.integers(2, 4))
    nodes = Field("nodes", n, kinds + 2, mask=kinds, pad=kinds + 1)
    edges = Field("edges", n * (n - 1) // 2, relations + 2, mask=relations, pad=relations + 1)
    return TokenSpace((nodes, edges), TOLD)


@st.composite
def feature_spaces(draw: st.DrawFn) -> FeatureSpace:
    """Draw a few positions of a few numbers, whose columns may have names."""
    length, width = draw(st.integers(1, 8)), draw(st.integers(2, 5))
    cut = draw(st.integers(0, width - 1))
    groups = (Group("left", 0, cut), Group("right", cut, width)) if cut else ()
    return FeatureSpace(length, width, groups, (*TOLD, Condition("tss")))


def spaces() -> st.SearchStrategy[Space]:
    """Draw a space of any sort."""
    return st.one_of(token_spaces(), graph_spaces(), feature_spaces())


@st.composite
def cleans(draw: st.DrawFn, space: Space, rows: int | None = None) -> Clean:
    """Draw a batch of a space: each field has its own padding at the end, and some values are known.

    Args:
        draw: Given by hypothesis.
        space: What a sample looks like.
        rows: Number of samples; by default 1 to 3.
    """
    n = draw(st.integers(1, 3)) if rows is None else rows
    padded, known = draw(st.booleans()), draw(st.sampled_from(["none", "positions", "values"]))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**16)))
    lengths = [field.length for field in space.fields] if isinstance(space, TokenSpace) else [space.length]
    kept = [torch.randint(1, m + 1, (n, 1), generator=generator) if padded else torch.full((n, 1), m) for m in lengths]
    valid = torch.cat([torch.arange(m) < k for m, k in zip(lengths, kept, strict=True)], 1)
    if isinstance(space, FeatureSpace):
        x0 = torch.randn(n, space.length, space.width, generator=generator) * valid[..., None]
    else:
        parts = [torch.randint(len(_ids(field)), (n, field.length), generator=generator) for field in space.fields]
        x0 = torch.cat([torch.tensor(_ids(f))[part] for f, part in zip(space.fields, parts, strict=True)], 1)
        padding = space.table(lambda field: torch.tensor(field.pad or 0)).expand(x0.shape)
        x0 = torch.where(valid, x0, padding)
    shape = x0.shape if known == "values" else (*valid.shape, *[1] * (x0.ndim - 2))
    given = (torch.rand(shape, generator=generator) < (known != "none") * 0.3).expand(x0.shape)
    known_values = given & valid.reshape(*valid.shape, *[1] * (x0.ndim - 2))
    return Clean(x0, valid, known_values, {told.name: _told(told, valid, generator) for told in space.conditions})


def _told(condition: Condition, valid: Bool[Tensor, "B L"], generator: torch.Generator) -> Shaped[Tensor, "B *L"]:
    """Labels, some of them not told; or places that lie further and further along, 0 on padding."""
    if condition.size is not None:
        return torch.randint(-1, condition.size, (len(valid),), generator=generator)
    return torch.randint(1, 100_000, valid.shape, generator=generator).cumsum(1) * valid


def _ids(field: Field) -> list[int]:
    return [i for i in range(field.size) if i not in (field.mask, field.pad)]
