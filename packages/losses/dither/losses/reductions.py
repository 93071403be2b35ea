"""Reduction of losses per token to losses per sample. Letters: B batch, L length, D width."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from dither.registry.contracts.protocols import Loss, Process
from dither.registry.contracts.records import Measured, Noised

from .chunked import chunked

__all__ = ["PerSample"]


@dataclass(frozen=True)
class PerSample:
    """The mean over samples of the sum over their tokens: nats per graph, where a sample is a graph.

    Values times weights do not change. Samples without a token of positive weight have weight 0.
    """

    loss: Loss

    def __call__(self, pred: Any, noised: Noised) -> Measured:
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
        compiled: bool = False,
        share: Float[Tensor, "B #L"] | None = None,
    ) -> Measured:
        """Compute the loss from hidden states; arguments as of `FusedLoss`."""
        measured = chunked(self.loss).fused(
            h, linear, process, noised, t, half=half, compiled=compiled, share=share
        )
        return _per_sample(measured)


def _per_sample(measured: Measured) -> Measured:
    # The mean over a batch weighs each sample with 1, and its value is a sum over tokens.
    tokens = measured.weights.sum(1, keepdim=True).clamp_min(1)
    return replace(
        measured, values=measured.values * tokens, weights=measured.weights / tokens
    )
