"""Norms over the last axis, and what follows them. Letters: B batch, L length, D width."""

from __future__ import annotations

from functools import partial
from typing import Any, cast

from jaxtyping import Float
from torch import Tensor, nn, promote_types
from torch.nn import functional

from .cpu.recompute_linear import DeferredInput, is_plain, keeps_inputs
from .options import Affine, NormName

__all__ = ["make_norm", "modulate", "normed"]


def make_norm(norm: NormName, width: int, *, affine: Affine = False, eps: float = 1e-6) -> nn.Module:
    """Return layer norm (Ba et al., 2016) or RMS norm (Zhang and Sennrich, 2019) over the last axis.

    Args:
        norm: "layer" is (x - mean) / sqrt(variance + eps), "rms" is x / sqrt(mean of squares + eps).
        width: Size of the last axis.
        affine: True adds a learned scale, and for layer norm a learned shift; "scale" adds the scale alone.
        eps: Added under the root.

    Raises:
        ValueError: The norm is unknown.
    """
    if norm == "layer":
        return nn.LayerNorm(width, eps, elementwise_affine=bool(affine), bias=affine is True)
    if norm == "rms":
        return nn.RMSNorm(width, eps, elementwise_affine=bool(affine))
    raise ValueError(f'norm may be "layer" or "rms", not "{norm}"')


def modulate(
    x: Float[Tensor, "B L D"], shift: Float[Tensor, "B #L D"], scale: Float[Tensor, "B #L D"]
) -> Float[Tensor, "B L D"]:
    """Return x * (1 + scale) + shift."""
    # Not addcmul: it saves a pass forward and takes two more backward, where it multiplies each factor by its value, 1.
    return x * (1 + scale) + shift


def normed(
    norm: nn.Module,
    x: Float[Tensor, "*B L D"],
    shift: Float[Tensor, "*B #L D"] | None = None,
    scale: Float[Tensor, "*B #L D"] | None = None,
) -> Float[Tensor, "*B L D"] | DeferredInput:
    """Return norm(x), shifted and scaled where that is given, for a linear map that reads it.

    A norm of another class, or with hooks, is called as it is.
    """
    if is_plain(norm, nn.LayerNorm, nn.RMSNorm):
        weight, bias = (_widened(getattr(norm, name, None), x) for name in ("weight", "bias"))
        if keeps_inputs(x, x.shape[-1]):
            return DeferredInput(partial(_normed, cast(Any, norm)), (x, shift, scale, weight, bias))
        return _normed(cast(Any, norm), x, shift, scale, weight, bias)
    x = norm(x)
    return x if shift is None or scale is None else modulate(x, shift, scale)


def _widened(weight: Float[Tensor, " D"] | None, x: Float[Tensor, "*B L D"]) -> Float[Tensor, " D"] | None:
    """Return a weight in at least the precision of x; weights that came from other ranks may be narrower."""
    return None if weight is None else weight.to(promote_types(weight.dtype, x.dtype))


def _normed(
    norm: nn.LayerNorm | nn.RMSNorm,
    x: Float[Tensor, "*B L D"],
    shift: Float[Tensor, "*B #L D"] | None,
    scale: Float[Tensor, "*B #L D"] | None,
    weight: Float[Tensor, " D"] | None,
    bias: Float[Tensor, " D"] | None,
) -> Float[Tensor, "*B L D"]:
    """Do the same with weights of the norm that are given."""
    shape = tuple(norm.normalized_shape)
    if isinstance(norm, nn.RMSNorm):
        x = functional.rms_norm(x, shape, weight, norm.eps)
    else:
        x = functional.layer_norm(x, shape, weight, bias, norm.eps)
    return x if shift is None or scale is None else modulate(x, shift, scale)
