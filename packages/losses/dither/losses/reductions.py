"""How a loss per token becomes one number. Letters: B batch, L length."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dither.registry.flow import Measured, Noised
from dither.registry.parts import Loss

__all__ = ["PerActive", "PerSample"]


@dataclass(frozen=True)
class PerSample:
    """The mean over samples of the sum over their tokens: nats per graph, where a sample is a graph.

    Values times weights are the same as before. Only samples with a token that counts take part.
    """

    loss: Loss

    def __call__(self, pred: Any, noised: Noised) -> Measured:
        """Measure a prediction."""
        measured = self.loss(pred, noised)
        tokens = measured.weights.sum(1, keepdim=True).clamp_min(1)
        return Measured(measured.values * tokens, measured.weights / tokens)


@dataclass(frozen=True)
class PerActive:
    """The mean over samples of the sum over their tokens divided by the number that is in doubt, k of N.

    A public system calls this its ELBO. It is no bound: with even logits over V ids it is log V (1 + 1/2 + .. + 1/N).
    """

    loss: Loss

    def __call__(self, pred: Any, noised: Noised) -> Measured:
        """Measure a prediction."""
        measured = PerSample(self.loss)(pred, noised)
        active = noised.wanted.sum(1, keepdim=True).clamp_min(1)
        return Measured(measured.values / active, measured.weights)
