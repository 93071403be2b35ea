"""LayerNorm and RMSNorm over the last axis, and adaLN modulation. Letters: B batch, L length, D width."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor, layer_norm, nn, promote_types
from torch.nn import functional

from .options import Affine, NormName, ResidualBlock

__all__ = ["LayerNorm", "RMSNorm", "make_norm", "modulate", "norm_of_block"]


class LayerNorm(nn.LayerNorm):
    """`nn.LayerNorm` whose weights may have a lower precision than the input, as FSDP gathers them in bfloat16."""

    def forward(self, input: Float[Tensor, "*B L D"]) -> Float[Tensor, "*B L D"]:
        weight = _promote(self.weight, input)
        bias = _promote(self.bias, input)
        return layer_norm(input, self.normalized_shape, weight, bias, self.eps)


class RMSNorm(nn.RMSNorm):
    """`nn.RMSNorm` whose weight may have another precision than the input, which the output has."""

    def forward(self, x: Float[Tensor, "*B L D"]) -> Float[Tensor, "*B L D"]:
        weight = _promote(self.weight, x)
        # Under autocast, queries and keys have a lower precision than the weight.
        wide = x if weight is None else x.to(weight.dtype)
        y = functional.rms_norm(wide, self.normalized_shape, weight, self.eps)
        return y.to(x.dtype)


def _promote(
    weight: Float[Tensor, " D"] | None, x: Float[Tensor, "*B L D"]
) -> Float[Tensor, " D"] | None:
    # Without a cast the kernels would refuse two dtypes; a downcast would lose the stream's
    # precision.
    if weight is None or weight.dtype == x.dtype:
        return weight
    return weight.to(promote_types(weight.dtype, x.dtype))


def make_norm(
    norm: NormName,
    width: int,
    *,
    affine: Affine,
    eps: float,
) -> nn.Module:
    """Return LayerNorm (Ba et al., 2016) or RMSNorm (Zhang and Sennrich, 2019).

    Args:
        norm: "layer" is (x - mean) / sqrt(variance + eps), "rms" is x / sqrt(mean of squares +
            eps).
        width: Size of the last axis.
        affine: True adds a learned scale and, to LayerNorm, a learned shift; "scale" adds the scale
            only.
        eps: Added to the variance.
    """
    # RMSNorm subtracts no mean, and has no shift to learn.
    if norm == "rms":
        return RMSNorm(width, eps, elementwise_affine=bool(affine))
    return LayerNorm(width, eps, elementwise_affine=bool(affine), bias=affine is True)


def norm_of_block(width: int, options: ResidualBlock) -> nn.Module:
    """Return the norm before a part of a block."""
    return make_norm(options.norm, width, affine=options.affine, eps=options.eps)


def modulate(
    x: Float[Tensor, "B L D"],
    shift: Float[Tensor, "B #L D"],
    scale: Float[Tensor, "B #L D"],
) -> Float[Tensor, "B L D"]:
    """Return x * (1 + scale) + shift."""
    # Not addcmul: it saves one pass in the forward but costs two more in the backward, which
    # multiplies by `value`.
    return x * (1 + scale) + shift
