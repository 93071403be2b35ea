"""Norms over the last axis."""

from __future__ import annotations

from torch import nn

from .specs import Affine, NormName

__all__ = ["make_norm"]


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
