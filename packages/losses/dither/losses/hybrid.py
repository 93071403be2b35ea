"""Loss of processes with predicted variances: L_simple + w L_vlb (Nichol and Dhariwal, 2021, eq. 16).

L_vlb trains the variances only: its mean is detached. Read without torch until a loss is built.
Letters: B batch, L length, M features.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

from pydantic import Field

from dither.registry import FeatureSpace, Misfit
from dither.registry.kinds import FEATURES, LossSpec, ProcessFacts

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

    from dither.registry.contracts.protocols import Loss
    from dither.registry.contracts.records import Measured, NoisedStep

__all__ = ["Hybrid", "hybrid"]

EDGE = 0.999
"""Values beyond +-EDGE are in the outermost bin, which is unbounded."""
MIN_PROBABILITY = 1e-12


class Hybrid(LossSpec):
    """Squared error, and a small weight on the variational bound, which trains predicted variances.

    The bound is in bits per value. Its last term gives a value in [-1, 1] the probability of its bin.
    """

    name = "hybrid"
    serves = FEATURES
    denoises = True
    weight: float = Field(1e-3, gt=0, le=1)
    """Weight of the bound over all steps."""
    bins: int = Field(256, ge=2, le=65_536)
    """Number of values of the data, evenly from -1 to 1, such as 256 of pixels."""

    def check(self, process: ProcessFacts) -> Iterable[Misfit]:
        """Require a process with predicted variances."""
        yield from super().check(process)
        if isinstance(process.space, FeatureSpace) and process.space.outputs != 2:
            message = f'loss "{self.name}" requires predicted variances, which process'
            yield Misfit(
                f'{message} "{process.name}" does not have',
                related=("process",),
                help='use process "learned-variance", or loss "mse"',
                code="process-mismatch",
            )

    def build(self, process: ProcessFacts) -> Loss:
        return partial(
            hybrid, target=process.predict, weight=self.weight, bins=self.bins
        )


def hybrid(
    pred: Any,
    noised: NoisedStep,
    *,
    target: str,
    weight: float,
    bins: int,
) -> Measured:
    """Return the squared error of `target` plus `weight` times the bound, averaged over target values.

    A draw of one step estimates the bound over all steps by their number times its own term.
    """
    import torch

    from .features import feature_error, reduce_features

    targets = noised.target_mask
    error = feature_error(pred, noised, target)
    simple = torch.where(targets, error, 0.0).square()
    bits = step_nats(pred, noised, bins) / math.log(2)
    bits = torch.where(targets, bits, 0.0)
    values = simple + weight * noised.steps * bits
    return reduce_features(values, noised, "element-mean")


def step_nats(pred: Any, noised: NoisedStep, bins: int) -> Float[Tensor, "B L M"]:
    """Return the term of the bound of each value: KL of the reverse step, or -log p(x_0 | x_t) at the first."""
    import torch

    from dither.registry.contracts.records import over

    x0 = noised.x0
    # Means of q(x_s | x_t, x_0) and of the model differ by their x_0 times this (DDPM, eq. 7).
    gap = noised.noise.since(noised.before)
    variance = noised.noise.one_minus_alpha(x0)
    factor = (
        noised.before.alpha(x0).sqrt()
        * gap.one_minus_alpha(x0)
        / torch.where(variance > 0, variance, 1.0)
    )
    predicted = pred.x0.detach()
    difference = factor * (x0 - predicted)
    smallest, largest = (
        over(bound, x0) for bound in noised.log_variances.to(x0.dtype).unbind(-1)
    )
    log_variance = torch.lerp(
        smallest.expand_as(x0), largest.expand_as(x0), pred.variance_share
    )

    # KL of N(mean_q, beta~) from N(mean, variance)
    excess = log_variance - smallest
    kl = (
        excess - 1 + (-excess).exp() + difference.square() * (-log_variance).exp()
    ) / 2
    first = over(noised.before.sigma, x0) == 0
    decoder = _bin_nats(x0, predicted, (log_variance / 2).exp(), 1 / (bins - 1))
    return torch.where(first, decoder, kl)


def _bin_nats(
    x: Float[Tensor, "B L M"],
    mean: Float[Tensor, "B L M"],
    deviation: Float[Tensor, "B L M"],
    half: float,
) -> Float[Tensor, "B L M"]:
    """Return -log of the probability of the bin x - half to x + half under normal distributions."""
    import torch

    def below(edge: Tensor) -> Tensor:
        share: Tensor = torch.special.ndtr((edge - mean) / deviation)
        return share

    upper = torch.where(x > EDGE, 1.0, below(x + half))
    lower = torch.where(x < -EDGE, 0.0, below(x - half))
    return -(upper - lower).clamp_min(MIN_PROBABILITY).log()
