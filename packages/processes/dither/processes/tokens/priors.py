"""Distributions of replaced tokens. Letters: V vocabulary, rows one per position or one for all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from dither.registry.contracts.spaces import Field, TokenSpace

__all__ = ["even_prior", "frequency_prior", "mask_prior"]


def mask_prior(space: TokenSpace) -> Float[Tensor, "rows V"]:
    """All mass on MASK; ValueError if a field has no MASK id."""

    def row(field: Field) -> Tensor:
        if field.mask is None:
            raise ValueError(
                f'field "{field.name}" has no MASK id; use space.with_mask()'
            )
        return torch.nn.functional.one_hot(
            torch.tensor(field.mask), space.vocab
        ).double()

    return space.table(row)


def even_prior(space: TokenSpace) -> Float[Tensor, "rows V"]:
    """Uniform over the clean ids of each field."""
    return frequency_prior(space, {})


def frequency_prior(
    space: TokenSpace, frequencies: Mapping[str, Sequence[float]]
) -> Float[Tensor, "rows V"]:
    """Proportional to `frequencies` of each field by name, one per clean id in order; uniform for other fields.

    ValueError if the number of frequencies differs from the number of clean ids.
    """

    def row(field: Field) -> Tensor:
        ids = [i for i in range(field.size) if i not in (field.mask, field.pad)]
        odds = frequencies.get(field.name, [1.0] * len(ids))
        if len(odds) != len(ids) or not sum(odds) > 0:
            raise ValueError(
                f'field "{field.name}" needs {len(ids)} frequencies with a positive sum, not {list(odds)}'
            )
        table = torch.zeros(space.vocab, dtype=torch.float64)
        table[ids] = torch.tensor(odds, dtype=torch.float64)
        return table / table.sum()

    return space.table(row)
