"""How a loss per token becomes one number. Letters: B batch, L length, D width."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from dither.registry.flow.protocols import Loss, Process
from dither.registry.flow.records import Measured, Noised
from dither.registry.flow.spaces import TokenSpace

from .fused.losses import fused_form

__all__ = ["PerActive", "PerSample", "Weighted", "weight_table"]


@dataclass(frozen=True)
class PerSample:
    """The mean over samples of the sum over their tokens: nats per graph, where a sample is a graph.

    Values times weights are the same as before. Only samples with a token that counts take part.
    """

    loss: Loss

    def __call__(self, pred: Any, noised: Noised) -> Measured:
        """Measure a prediction."""
        return _per_sample(self.loss(pred, noised))

    def fused(
        self,
        h: Float[Tensor, "B L D"],
        linear: nn.Linear,
        process: Process,
        noised: Noised,
        t: Float[Tensor, "B *L"],
        *,
        half: bool = False,
        share: Float[Tensor, "B #L"] | None = None,
    ) -> Measured:
        """Measure what the head would make of h; arguments as of `FusedLoss`."""
        return _per_sample(fused_form(self.loss).fused(h, linear, process, noised, t, half=half, share=share))


@dataclass(frozen=True)
class PerActive:
    """The mean over samples of the sum over their tokens divided by the number that is in doubt, k of N.

    A public system calls this its ELBO. It is no bound: with even logits over V ids it is log V (1 + 1/2 + .. + 1/N).
    """

    loss: Loss

    def __call__(self, pred: Any, noised: Noised) -> Measured:
        """Measure a prediction."""
        measured = PerSample(self.loss)(pred, noised)
        return replace(measured, values=measured.values / _active(noised))

    def fused(
        self,
        h: Float[Tensor, "B L D"],
        linear: nn.Linear,
        process: Process,
        noised: Noised,
        t: Float[Tensor, "B *L"],
        *,
        half: bool = False,
        share: Float[Tensor, "B #L"] | None = None,
    ) -> Measured:
        """Measure what the head would make of h; arguments as of `FusedLoss`."""
        each = (1.0 if share is None else share) / _active(noised).double()
        return PerSample(self.loss).fused(h, linear, process, noised, t, half=half, share=each)


def _per_sample(measured: Measured) -> Measured:
    tokens = measured.weights.sum(1, keepdim=True).clamp_min(1)
    return replace(measured, values=measured.values * tokens, weights=measured.weights / tokens)


def _active(noised: Noised) -> Int[Tensor, "B 1"]:
    return noised.target_mask.sum(1, keepdim=True).clamp_min(1)


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
