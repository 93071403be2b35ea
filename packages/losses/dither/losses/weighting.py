"""Losses in which some tokens count more than others. Letters: B batch, L length, V vocabulary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from dither.registry.flow import Measured, Noised
from dither.registry.parts import Loss
from dither.registry.spaces import TokenSpace

__all__ = ["Weighted", "weight_table"]


@dataclass(frozen=True)
class Weighted:
    """A loss times a weight that goes by position and true id. It is no bound, whatever the loss was.

    Attributes:
        loss: What is weighted.
        table: The weight of each id at each position.
    """

    loss: Loss
    table: Float[Tensor, "L V"]

    def __call__(self, pred: Any, noised: Noised) -> Measured:
        """Measure a prediction."""
        measured = self.loss(pred, noised)
        table = self.table.to(measured.values)
        weight = table.expand(*noised.x0.shape, -1).gather(-1, noised.x0[..., None])[..., 0]
        return Measured(measured.values * weight, measured.weights)


def weight_table(space: TokenSpace, weights: Mapping[str, float | Sequence[float]]) -> Float[Tensor, "L V"]:
    """Return a weight for each position and id: one for a whole field, or one for each of its clean ids, in order."""
    table = torch.ones(space.length, space.vocab)
    for name, rows in space.split(torch.arange(space.length)[None]).items():
        field = next(field for field in space.fields if field.name == name)
        said = weights.get(name, 1.0)
        clean = [i for i in range(field.size) if i not in (field.mask, field.pad)]
        for place, i in enumerate(clean):
            table[rows[0], i] = said[place] if isinstance(said, Sequence) else float(said)
    return table
