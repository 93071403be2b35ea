"""Gradient norm, clipping and division by the weight of a batch, in as few passes over the gradients as possible."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.optim import Optimizer

__all__ = ["FLAT", "as_tensor", "divide", "divisor_of", "norm_of"]

FLAT = 2**18
"""Number of elements up to which gradients on a CPU are concatenated for their norm: two kernels instead of many."""

Scalar = float | Float[Tensor, ""]


def norm_of(gradients: list[Tensor]) -> Float[Tensor, ""]:
    """Return the Euclidean norm of all gradients together."""
    if gradients[0].device.type == "cpu" and sum(map(Tensor.numel, gradients)) <= FLAT:
        flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
    else:
        flat = torch.stack(torch._foreach_norm(gradients))
    norm: Tensor = torch.linalg.vector_norm(flat)
    return norm


def as_tensor(value: Scalar) -> Float[Tensor, ""]:
    """Return a number as a tensor, faster than `torch.as_tensor`."""
    return value if isinstance(value, Tensor) else torch.scalar_tensor(value)


def divisor_of(weight: Scalar, clip: float, norm: Scalar) -> Scalar:
    """Return the divisor that turns summed gradients into those of a weighted mean, clipped to the norm `clip`.

    Args:
        weight: Sum of the loss weights, a number on the host or a 0-d tensor like `norm`.
        clip: Largest norm after division; 0 for no clipping.
        norm: Norm of the summed gradients.
    """
    if not clip:
        return weight
    if isinstance(norm, Tensor):
        return torch.maximum(as_tensor(weight), norm / clip)
    return max(weight, norm / clip)


def divide(optimizer: Optimizer | None, gradients: list[Tensor], divisor: Any) -> None:
    """Divide gradients in place, or have a fused optimizer kernel divide them in its next step, as `GradScaler` does.

    Args:
        optimizer: Makes the next step; None to divide here.
        gradients: Gradients of its parameters; local shards if sharded.
        divisor: Number or 0-d tensor from `divisor_of`.
    """
    if getattr(optimizer, "_step_supports_amp_scaling", False):
        optimizer.grad_scale = as_tensor(divisor)  # type: ignore[union-attr]
    else:
        torch._foreach_div_(gradients, divisor)
