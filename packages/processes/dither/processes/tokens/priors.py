"""Distributions of replaced tokens. Letters: V vocabulary, rows one per position or one for all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import one_hot

from dither.registry.contracts.spaces import Field, TokenSpace

__all__ = ["even_prior", "frequency_prior", "mask_prior"]


def mask_prior(space: TokenSpace) -> Float[Tensor, "rows V"]:
    """All mass on MASK; ValueError if a field has no MASK id."""

    def row(field: Field) -> Tensor:
        if field.mask is None:
            raise ValueError(
                f'field "{field.name}" has no MASK id; use space.with_mask()'
            )
        return one_hot(torch.tensor(field.mask), space.vocab).double()

    # One row per position, or one for all if there is one field
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
        # Noise never makes PAD, and MASK only under `mask_prior`.
        special = (field.mask, field.pad)
        clean_ids = [i for i in range(field.size) if i not in special]

        odds = frequencies.get(field.name)
        if odds is None:
            odds = [1.0] * len(clean_ids)
        if len(odds) != len(clean_ids) or not sum(odds) > 0:
            raise ValueError(
                f'field "{field.name}" needs {len(clean_ids)} frequencies '
                f"with a positive sum, not {list(odds)}"
            )

        # 0 for special ids, and for those of other fields with more ids
        prior = torch.zeros(space.vocab, dtype=torch.float64)
        prior[clean_ids] = torch.tensor(odds, dtype=torch.float64)
        return prior / prior.sum()

    return space.table(row)
