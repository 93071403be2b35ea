"""Heads that tell a law: not one value for each position, but what values it may have, and how likely they are.

    h --head.law--> Law --process.read--> LawPrediction

The loss asks a prediction for the errors that train the law, the process for draws as it fills in; whoever asks for x0
gets the mean. Letters: B batch, L length, M features, D width.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from jaxtyping import Bool, Float
    from torch import Tensor

__all__ = ["DistributionHead", "DistributionPrediction", "ValueDistribution"]


@runtime_checkable
class ValueDistribution(Protocol):
    """The laws of the values at each position, each by itself."""

    def mean(self, x: Float[Tensor, "B L M"], masked: Bool[Tensor, "B L M"]) -> Float[Tensor, "B L M"]:
        """Return the expected hidden values of each position, given its others; `head(h)` where all are hidden."""
        ...

    def sample(self, x: Float[Tensor, "B L M"], masked: Bool[Tensor, "B L M"]) -> Float[Tensor, "B L M"]:
        """Draw the hidden values of each position, given its others, which come out as they are."""
        ...

    def squared_errors(self, x0: Float[Tensor, "B L M"], target_mask: Bool[Tensor, "B L M"]) -> Float[Tensor, "B L M"]:
        """Return squared errors that are least where the law is that of the data; 0 where not wanted.

        They are measured with noise drawn anew at each call.
        """
        ...


@runtime_checkable
class DistributionHead(Protocol):
    """A head, an nn.Module, that tells a law. Called like any other it gives the mean."""

    def __call__(self, h: Float[Tensor, "B L D"]) -> Float[Tensor, "B L M"]:
        """Return the mean."""
        ...

    def distribution(self, h: Float[Tensor, "B L D"]) -> ValueDistribution:
        """Return the law."""
        ...


@runtime_checkable
class DistributionPrediction(Protocol):
    """A `FeaturePrediction` that tells a law; its x0 is the mean."""

    def draw(self) -> Float[Tensor, "B L M"]:
        """Draw clean samples; what is seen is as it is."""
        ...

    def squared_errors(self, x0: Float[Tensor, "B L M"], target_mask: Bool[Tensor, "B L M"]) -> Float[Tensor, "B L M"]:
        """Return the errors that train the law."""
        ...
