"""Protocols of heads that predict a distribution of values instead of one value per element.

    h --head.distribution--> ValueDistribution --process.read--> DistributionPrediction

A loss trains the distribution by `squared_errors`, a sampler draws from it, and `x0` is its mean.
Letters: B batch, L length, M features, D width.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from jaxtyping import Bool, Float
    from torch import Tensor

__all__ = ["DistributionHead", "DistributionPrediction", "ValueDistribution", "sample_prediction"]


@runtime_checkable
class ValueDistribution(Protocol):
    """The joint distribution of the values at each position, independent between positions."""

    def mean(self, x: Float[Tensor, "B L M"], masked: Bool[Tensor, "B L M"]) -> Float[Tensor, "B L M"]:
        """Return the mean of the masked values given the others at the position; `head(h)` if all are masked."""

    def sample(self, x: Float[Tensor, "B L M"], masked: Bool[Tensor, "B L M"]) -> Float[Tensor, "B L M"]:
        """Draw the masked values given the others at the position, which are returned unchanged."""

    def squared_errors(self, x0: Float[Tensor, "B L M"], target_mask: Bool[Tensor, "B L M"]) -> Float[Tensor, "B L M"]:
        """Return squared errors whose mean is minimal at the distribution of the data; 0 outside `target_mask`.

        Each call draws new noise.
        """


@runtime_checkable
class DistributionHead(Protocol):
    """A head, also an nn.Module, that predicts a distribution. Calling it returns the mean."""

    def __call__(self, h: Float[Tensor, "B L D"]) -> Float[Tensor, "B L M"]:
        """Return the mean."""

    def distribution(self, h: Float[Tensor, "B L D"]) -> ValueDistribution:
        """Return the distribution."""


@runtime_checkable
class DistributionPrediction(Protocol):
    """A `FeaturePrediction` with a distribution; its x0 is the mean."""

    def draw(self) -> Float[Tensor, "B L M"]:
        """Draw clean samples; values that are not masked are kept."""

    def squared_errors(self, x0: Float[Tensor, "B L M"], target_mask: Bool[Tensor, "B L M"]) -> Float[Tensor, "B L M"]:
        """Return the errors that train the distribution."""


def sample_prediction(pred: Any) -> Float[Tensor, "B L M"]:
    """Draw clean features from a `DistributionPrediction`; return x0 of any other `FeaturePrediction`."""
    x: Float[Tensor, "B L M"] = pred.draw() if isinstance(pred, DistributionPrediction) else pred.x0
    return x
