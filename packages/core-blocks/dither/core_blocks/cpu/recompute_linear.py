"""A linear map behind a cheap function, such as a norm: what the function is given is kept, not what it gives.

Autograd keeps the input of every linear map until its way back. Where that is a norm, shifted and scaled, or a GELU,
it costs a hundredth of the map to compute it again, and of a wide block a third less is kept. On a GPU this is left to
torch.compile, which chooses by itself what to compute again. There is no second derivative through it, and no
torch.func: a map that needs either has to be given a tensor. Letters: R rows, I width in, O width out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from ..options import RECOMPUTE_MIN_WIDTH
from ..qkv import QVBiased
from .onednn import linear as mapped
from .onednn import product, weight_grad

__all__ = ["DeferredInput", "apply_linear", "defer", "is_plain", "keeps_inputs"]

Cheap = Callable[..., Tensor]


@dataclass(frozen=True)
class DeferredInput:
    """What a linear map is to read.

    Attributes:
        function: From the inputs, and nothing else that has a gradient or chance.
        inputs: They are kept.
    """

    function: Cheap
    inputs: tuple[Tensor | None, ...]


def keeps_inputs(x: Float[Tensor, "*S I"], width: int) -> bool:
    """Whether it pays, in a block of some width, to keep what a cheap function of x is given, not what it gives."""
    wide = width >= RECOMPUTE_MIN_WIDTH and x.device.type == "cpu"
    return wide and torch.is_grad_enabled() and not torch.compiler.is_compiling()


def is_plain(module: nn.Module, *kinds: type[nn.Module]) -> bool:
    """Whether a module is of one of these very classes and has no hooks: it need not be called to do what it does."""
    hooks = module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks
    changed = any(hooks) or "forward" in vars(module) or nn.modules.module._has_any_global_hook()  # type: ignore[no-untyped-call]
    return type(module) in kinds and not changed


def defer(function: Cheap, width: int, *inputs: Float[Tensor, "*S I"]) -> Float[Tensor, "*S I"] | DeferredInput:
    """Return function(*inputs), or what `apply_linear` makes it of, for a linear map in a block of some width."""
    return DeferredInput(function, inputs) if keeps_inputs(inputs[0], width) else function(*inputs)


def apply_linear(linear: nn.Linear, x: Float[Tensor, "*S I"] | DeferredInput) -> Float[Tensor, "*S O"]:
    """Return what a linear map makes of x.

    One that is changed, by a hook or by LoRA, is called as it is, and its input is kept.
    """
    if not is_plain(linear, nn.Linear, QVBiased):
        result: Tensor = linear(x if isinstance(x, Tensor) else x.function(*x.inputs))
        return result
    bias = linear.whole_bias() if isinstance(linear, QVBiased) else linear.bias
    if isinstance(x, Tensor):
        return mapped(x, linear.weight, bias)
    result = _Behind.apply(x.function, linear.weight, bias, *x.inputs)  # type: ignore[no-untyped-call]
    return result


class _Behind(torch.autograd.Function):
    """linear(function(*inputs)). Under autocast, copies in lower precision are made anew on the way back too."""

    @staticmethod
    def forward(
        ctx: Any, function: Cheap, weight: Float[Tensor, "O I"], bias: Float[Tensor, " O"] | None, *inputs: Tensor
    ) -> Float[Tensor, "*S O"]:
        """Compute, and keep the inputs."""
        lower = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else None
        ctx.function, ctx.lower = function, lower
        ctx.save_for_backward(weight, *inputs)
        h = function(*inputs)
        with torch.autocast("cpu", enabled=False):
            lowered = None if bias is None else _lowered(bias, lower)
            return product(_lowered(h, lower), _lowered(weight, lower), lowered)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *slopes: Float[Tensor, "*S O"]) -> tuple[Tensor | None, ...]:
        """Slopes of weight, bias and inputs."""
        weight, *inputs = ctx.saved_tensors
        _, of_weight, of_bias, *of_inputs = ctx.needs_input_grad
        again = [None if part is None else part.detach() for part in inputs]
        wanted = [
            part.requires_grad_() for part, needed in zip(again, of_inputs, strict=True) if part is not None and needed
        ]
        with torch.enable_grad(), torch.autocast("cpu", ctx.lower, enabled=ctx.lower is not None):
            h = ctx.function(*again)
        slope = slopes[0].flatten(0, -2)
        to_weight = to_bias = None
        if of_weight:
            to_weight = weight_grad(slope, _lowered(h.detach(), ctx.lower).flatten(0, -2)).to(weight.dtype)
        if of_bias:
            to_bias = slope.sum(0).to(weight.dtype)
        found: Iterator[Tensor] = iter(())
        if wanted:
            to_h = product(slope, _lowered(weight, ctx.lower).mT).view_as(h).to(h.dtype)
            found = iter(torch.autograd.grad(h, wanted, to_h))
        return None, to_weight, to_bias, *(next(found) if needed else None for needed in of_inputs)


def _lowered(part: Tensor, lower: torch.dtype | None) -> Tensor:
    """Cast what autocast would: all but double precision."""
    return part if lower is None or part.dtype == torch.float64 else part.to(lower)
