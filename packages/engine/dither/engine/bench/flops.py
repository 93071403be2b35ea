"""Floating-point operations of a step, counted by torch from the shapes of its matrix products."""

from __future__ import annotations

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from ..system import Diffusion

__all__ = ["step_flops"]


def step_flops(system: Diffusion, rows: list[int], device: torch.device) -> int:
    """Return the operations of forward and backward over some training samples; gradients are left as they were.

    Attention is counted as its matrix products, whatever kernel runs it otherwise. Work that is done twice to save
    memory is counted twice here.
    """
    parameters = list(system.model.parameters())
    kept = [parameter.grad for parameter in parameters]
    clean = system.task.batch("train", rows).to(device)
    counter = FlopCounterMode(display=False)
    with torch.compiler.set_stance("force_eager"), sdpa_kernel(SDPBackend.MATH), counter:
        system(clean).total().backward()
    for parameter, gradient in zip(parameters, kept, strict=True):
        parameter.grad = gradient
    return int(counter.get_total_flops())
