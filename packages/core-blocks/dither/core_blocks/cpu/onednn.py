"""Linear layers on a CPU by oneDNN instead of MKL.

In float32 torch calls MKL, whose forward product and input gradient take a tenth longer than oneDNN's; the weight
gradient takes no longer. torch.compile makes the same choice, but the operator has no public name: without it
everything falls back to `torch.nn.functional.linear`. Letters: R rows, I width in, O width out.
"""

from __future__ import annotations

from math import prod
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.flop_counter import register_flop_formula

from . import ENABLED

__all__ = ["Linear", "linear"]

MIN_PRODUCTS = 1 << 25
"""Multiplications above which oneDNN gains more than the call costs."""
MIN_WEIGHTS = 1 << 21
"""Weights above which oneDNN is faster for any number of rows."""
ONEDNN = getattr(torch.ops.mkldnn, "_linear_pointwise", None) if ENABLED else None
"""(x, weight, bias, activation, its scalars, its algorithm) -> x weight' + bias."""
HAS_BFLOAT16 = ONEDNN is not None and getattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: False)()
"""Whether oneDNN supports bfloat16 on this processor."""
_under_functorch = getattr(torch._C, "_are_functorch_transforms_active", lambda: False)


class Linear(nn.Linear):
    """`nn.Linear` that uses oneDNN where that is faster."""

    def forward(self, input: Float[Tensor, "*S I"]) -> Float[Tensor, "*S O"]:
        return linear(input, self.weight, self.bias)


def linear(
    x: Float[Tensor, "*S I"], weight: Float[Tensor, "O I"], bias: Float[Tensor, " O"] | None
) -> Float[Tensor, "*S O"]:
    """Return x weight' + bias like `torch.nn.functional.linear`."""
    same_dtype = x.dtype == weight.dtype and (bias is None or bias.dtype == weight.dtype)
    if not same_dtype or torch.is_autocast_enabled("cpu") or not _pays(x, weight):
        return functional.linear(x, weight, bias)
    result: Tensor = _Linear.apply(x, weight, bias)  # type: ignore[no-untyped-call]
    return result


def product(
    x: Float[Tensor, "*S I"], weight: Float[Tensor, "O I"], bias: Float[Tensor, " O"] | None = None
) -> Float[Tensor, "*S O"]:
    """Return x weight' + bias of tensors of one dtype; differentiable only through torch's own operator."""
    if torch.is_grad_enabled() or not _pays(x, weight):
        return functional.linear(x, weight, bias)
    bias = None if bias is None else bias.contiguous()  # oneDNN ignores its strides
    result: Tensor = ONEDNN(x, weight, bias, "none", [], "")  # type: ignore[misc]
    return result


def _pays(x: Float[Tensor, "*S I"], weight: Float[Tensor, "O I"]) -> bool:
    """Whether oneDNN supports the product and is faster."""
    if ONEDNN is None or not torch.backends.mkldnn.enabled or x.device.type != "cpu" or x.ndim < 2:
        return False
    tracing = torch.jit.is_tracing()  # type: ignore[attr-defined, no-untyped-call]
    if torch.compiler.is_compiling() or tracing or _under_functorch():
        return False
    plain = type(x) in (Tensor, nn.Parameter) and type(weight) in (Tensor, nn.Parameter)
    supported = x.dtype == torch.float32 or (HAS_BFLOAT16 and x.dtype == torch.bfloat16)
    return plain and supported and (x.numel() * len(weight) >= MIN_PRODUCTS or weight.numel() >= MIN_WEIGHTS)


def _count_flops(x: tuple[int, ...], weight: tuple[int, ...], *rest: Any, out_shape: Any = None) -> int:
    return 2 * prod(x) * weight[0]


if ONEDNN is not None:
    register_flop_formula(ONEDNN)(_count_flops)


class _Linear(torch.autograd.Function):
    """Linear layer that supports double backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return product(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (grad,), (x, weight) = grads, ctx.saved_tensors
        needs_x, needs_weight, needs_bias = ctx.needs_input_grad
        rows, inputs = grad.flatten(0, -2), x.flatten(0, -2)
        grad_weight = None
        if needs_weight:  # an outer product: MKL's matrix product takes 5 ms longer for it in a step of GET
            grad_weight = rows.mT * inputs if len(inputs) == 1 else rows.mT @ inputs
        return product(grad, weight.mT) if needs_x else None, grad_weight, rows.sum(0) if needs_bias else None
