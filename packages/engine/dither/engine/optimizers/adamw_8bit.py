"""AdamW whose averages have 8 bits a value (Dettmers et al., 2022), 2 bytes a weight instead of 8."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from jaxtyping import Bool, Float, Float32, UInt8
from torch import Tensor

from .eager_optimizer import EagerOptimizer

__all__ = ["AdamW8bit", "dequantized", "dynamic_map", "quantized"]

BLOCK = 256
"""Consecutive values that share a scale."""
SMALL = 4096
"""Values below which a tensor keeps float32, as in bitsandbytes and torchao."""
TINY = 1e-12


class AdamW8bit(EagerOptimizer):
    """AdamW with averages in blocks of 8-bit values of a dynamic type.

    `grad_scale` and `found_inf` are as for the fused optimizers of torch. Parameters are not sharded:
    a block would not be the same on another number of ranks.
    """

    # As for the fused optimizers of torch: the trainer sets the two tensors below, and does not wait
    # for the device.
    _step_supports_amp_scaling = True
    grad_scale: Tensor | None = None
    found_inf: Tensor | None = None

    def __init__(
        self,
        groups: list[dict[str, Any]],
        lr: float,
        betas: tuple[float, float],
        eps: float,
    ) -> None:
        super().__init__(groups, {"lr": lr, "betas": betas, "eps": eps})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        value = None if closure is None else torch.enable_grad()(closure)()
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    self._update(weight, group)
        return value

    def _update(self, weight: Tensor, group: dict[str, Any]) -> None:
        state = self.state[weight]
        if not state:
            state["step"] = torch.zeros((), device=weight.device)
            for name in ("exp_avg", "exp_avg_sq"):
                state |= _zeros(name, weight)
        gradient = weight.grad
        assert gradient is not None
        if self.grad_scale is not None:
            gradient = gradient / self.grad_scale

        lr = group["lr"]
        beta1, beta2 = group["betas"]
        step = state["step"] + 1
        mean = _read(state, "exp_avg").lerp(gradient, 1 - beta1)
        square = _read(state, "exp_avg_sq").lerp(gradient.square(), 1 - beta2)
        # Decoupled weight decay, as in AdamW: it takes no part in the averages.
        decayed = weight - lr * group["weight_decay"] * weight
        deviation = square.sqrt() / (1 - beta2**step).sqrt() + group["eps"]
        updated = decayed - lr * (mean / (1 - beta1**step)) / deviation

        # Whether the step counts is known on the device only.
        cancelled = None if self.found_inf is None else self.found_inf > 0
        _assign(weight, updated, cancelled)
        _assign(state["step"], step, cancelled)
        _write(state, "exp_avg", mean, cancelled)
        _write(state, "exp_avg_sq", square, cancelled)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        # torch gives every state the type of its weight.
        for state in self.state.values():
            for name in state:
                if name.endswith(".codes"):
                    state[name] = state[name].to(torch.uint8)


def _zeros(name: str, weight: Tensor) -> dict[str, Tensor]:
    if weight.numel() < SMALL or weight.numel() % BLOCK:
        return {name: torch.zeros_like(weight, memory_format=torch.contiguous_format)}
    codes, scales = quantized(torch.zeros_like(weight), signed=name == "exp_avg")
    return {f"{name}.codes": codes, f"{name}.scales": scales}


def _read(state: dict[str, Tensor], name: str) -> Tensor:
    if name in state:
        return state[name]
    codes = state[f"{name}.codes"]
    return dequantized(codes, state[f"{name}.scales"], signed=name == "exp_avg")


def _write(
    state: dict[str, Tensor],
    name: str,
    values: Tensor,
    cancelled: Bool[Tensor, ""] | None,
) -> None:
    if name in state:
        _assign(state[name], values, cancelled)
        return
    codes, scales = quantized(values, signed=name == "exp_avg")
    _assign(state[f"{name}.codes"], codes, cancelled)
    _assign(state[f"{name}.scales"], scales, cancelled)


def _assign(target: Tensor, values: Tensor, cancelled: Bool[Tensor, ""] | None) -> None:
    if cancelled is not None:
        values = torch.where(cancelled, target, values)
    target.copy_(values)


def quantized(
    values: Float[Tensor, "*n"], *, signed: bool
) -> tuple[UInt8[Tensor, "*n"], Float32[Tensor, " b"]]:
    """Return the codes of values, and the largest magnitude of each block."""
    blocks = values.reshape(-1, BLOCK)
    # A block of zeros is divided by its scale, too.
    scales = blocks.abs().amax(1).clamp_min(TINY)
    levels = dynamic_map(signed, values.device)
    # The nearest level: a value in the middle of two is rounded up.
    middles = (levels[1:] + levels[:-1]) / 2
    codes = torch.bucketize(blocks / scales[:, None], middles, right=True)
    return codes.to(torch.uint8).view(values.shape), scales


def dequantized(
    codes: UInt8[Tensor, "*n"], scales: Float32[Tensor, " b"], *, signed: bool
) -> Float32[Tensor, "*n"]:
    """Return the values of codes."""
    levels = dynamic_map(signed, codes.device)
    values = levels[codes.view(-1, BLOCK).int()] * scales[:, None]
    return values.view(codes.shape)


@cache
def dynamic_map(signed: bool, device: torch.device) -> Float32[Tensor, " 256"]:
    """Return the 256 levels of the dynamic type, in order: seven decades down from 1.

    Each decade has twice as many levels as the one below it. The unsigned type has twice as many as
    the signed one has of a sign.
    """
    levels = [0.0, 1.0]
    for decade in range(7):
        count = 2**decade if signed else 2 ** (decade + 1)
        edges = torch.linspace(0.1, 1, count + 1)
        centres = (edges[:-1] + edges[1:]) / 2 * 10.0 ** (decade - 6)
        levels += centres.tolist()
        if signed:
            levels += (-centres).tolist()
    return torch.tensor(sorted(levels), device=device)
