"""Products of matrices on a CPU, by the faster of the two libraries that torch brings.

In float32, torch asks MKL, whose products of a linear map and of the slopes of its input take a tenth longer than
oneDNN's; the slopes of weights take no longer. torch uses oneDNN so in what it compiles, and has no public name for it:
where the name is missing, all is as torch does it. Letters: R rows, I width in, O width out.
"""

from __future__ import annotations

from math import prod
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.flop_counter import register_flop_formula

__all__ = ["linear", "product", "weight_grad"]

MANY = 1 << 25
"""Multiplications from which on oneDNN gains more than asking it takes."""
LARGE = 1 << 21
"""Weights from which on it reads them faster, however few rows there are."""
ONEDNN = getattr(torch.ops.mkldnn, "_linear_pointwise", None)
"""x, weight, bias, what is done to the result, numbers for that, how -> x weight' + bias."""
HALF = ONEDNN is not None and torch.ops.mkldnn._is_mkldnn_bf16_supported()
"""Whether it knows bfloat16 on this processor."""


def linear(
    x: Float[Tensor, "*S I"], weight: Float[Tensor, "O I"], bias: Float[Tensor, " O"] | None
) -> Float[Tensor, "*S O"]:
    """Return x weight' + bias, as `torch.nn.functional.linear` does, which it is wherever that is no slower."""
    alike = x.dtype == weight.dtype and (bias is None or bias.dtype == weight.dtype)
    if not alike or torch.is_autocast_enabled("cpu") or not _pays(x, weight):
        return functional.linear(x, weight, bias)
    result: Tensor = _Linear.apply(x, weight, bias)  # type: ignore[no-untyped-call]
    return result


def product(
    x: Float[Tensor, "*S I"], weight: Float[Tensor, "O I"], bias: Float[Tensor, " O"] | None = None
) -> Float[Tensor, "*S O"]:
    """Return x weight' + bias of tensors of one precision, without a gradient where none is being recorded."""
    if torch.is_grad_enabled() or not _pays(x, weight):
        return functional.linear(x, weight, bias)
    bias = None if bias is None else bias.contiguous()  # oneDNN takes it as such without a look at its strides
    result: Tensor = ONEDNN(x, weight, bias, "none", [], "")  # type: ignore[misc]
    return result


def weight_grad(slope: Float[Tensor, "R O"], x: Float[Tensor, "R I"]) -> Float[Tensor, "O I"]:
    """Return slope' x. A single row is no product of matrices; MKL took 5 ms for it in a step of GET."""
    return slope.mT * x if len(x) == 1 else slope.mT @ x


def _pays(x: Float[Tensor, "*S I"], weight: Float[Tensor, "O I"]) -> bool:
    """Whether oneDNN is there, can do it, and it is worth asking."""
    if ONEDNN is None or not torch.backends.mkldnn.enabled or x.device.type != "cpu" or x.ndim < 2:
        return False
    if torch.compiler.is_compiling() or torch._C._get_tracing_state() or torch._C._are_functorch_transforms_active():
        return False
    plain = type(x) in (Tensor, nn.Parameter) and type(weight) in (Tensor, nn.Parameter)
    known = x.dtype == torch.float32 or (HALF and x.dtype == torch.bfloat16)
    return plain and known and (x.numel() * len(weight) >= MANY or weight.numel() >= LARGE)


def _operations(x: tuple[int, ...], weight: tuple[int, ...], *rest: Any, out_shape: Any = None) -> int:
    """Count as torch does: a multiplication and an addition for each weight and row."""
    return 2 * prod(x) * weight[0]


if ONEDNN is not None:
    register_flop_formula(ONEDNN)(_operations)


class _Linear(torch.autograd.Function):
    """A linear map, whose slopes can be differentiated again."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Compute, and keep what the linear map of torch keeps."""
        ctx.save_for_backward(x, weight)
        ctx.save_for_forward(x, weight)
        return product(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor | None, ...]:
        """Slopes of input, weight and bias."""
        (slope,), (x, weight) = slopes, ctx.saved_tensors
        of_x, of_weight, of_bias = ctx.needs_input_grad
        rows = slope.flatten(0, -2)
        return (
            product(slope, weight.mT) if of_x else None,
            weight_grad(rows, x.flatten(0, -2)) if of_weight else None,
            rows.sum(0) if of_bias else None,
        )

    @staticmethod
    def jvp(ctx: Any, *changes: Tensor | None) -> Tensor:
        """Change of the result, for forward-mode derivatives."""
        (of_x, of_weight, of_bias), (x, weight) = changes, ctx.saved_tensors
        change = x.new_zeros(()) if of_bias is None else of_bias
        for one, other in ((of_x, weight), (x, of_weight)):
            change = change if one is None or other is None else change + functional.linear(one, other)
        return change
