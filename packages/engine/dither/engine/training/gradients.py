"""The norm of all gradients, and their division, with as few passes over them as there can be."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch._utils import _flatten_dense_tensors
from torch.optim import Optimizer

__all__ = ["FLAT", "as_tensor", "divide", "divisor_of", "norm_of"]

FLAT = 2**18
"""Numbers up to which gradients on a CPU are copied into one piece: two kernels find the norm of many small ones."""

Scalar = float | Float[Tensor, ""]


def norm_of(gradients: list[Tensor]) -> Float[Tensor, ""]:
    """Return the Euclidean norm of all gradients together."""
    if gradients[0].device.type == "cpu" and sum(map(Tensor.numel, gradients)) <= FLAT:
        flat: Tensor = _flatten_dense_tensors(gradients)  # type: ignore[no-untyped-call]
    else:
        flat = torch.stack(torch._foreach_norm(gradients))
    norm: Tensor = torch.linalg.vector_norm(flat)
    return norm


def as_tensor(value: Scalar) -> Float[Tensor, ""]:
    """Return a number as a tensor; `torch.as_tensor` takes longer."""
    return value if isinstance(value, Tensor) else torch.scalar_tensor(value)


def divisor_of(weight: Scalar, clip: float, norm: Scalar) -> Scalar:
    """Return what gradients are divided by, to become those of a mean and then no longer than `clip`.

    Args:
        weight: Of which they are the sum; a number of the host, or a tensor without axes, as `norm` is.
        clip: Their norm afterwards, at most; 0 for any.
        norm: That of all of them now.
    """
    if not clip:
        return weight
    if isinstance(norm, Tensor):
        return torch.maximum(as_tensor(weight), norm / clip)
    return max(weight, norm / clip)


def divide(optimizer: Optimizer | None, gradients: list[Tensor], divisor: Any) -> None:
    """Divide gradients in place, before the next step of an optimizer or in it.

    A fused kernel does it on its way, as it does for `GradScaler`, which saves a pass over all of them.

    Args:
        optimizer: Whose step follows; None to do it by itself, as where gradients are cut up.
        gradients: Those of its parameters; what of them is here.
        divisor: A number or a tensor without axes, as from `divisor_of`.
    """
    if getattr(optimizer, "_step_supports_amp_scaling", False):
        optimizer.grad_scale = as_tensor(divisor)  # type: ignore[union-attr]
    else:
        torch._foreach_div_(gradients, divisor)
