"""Cost of a training step: FLOPs and seconds."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.flop_counter import (
    FlopCounterMode,
    sdpa_backward_flop_count,
    sdpa_flop_count,
)
from torch.utils.module_tracker import ModuleTracker

from .trainer import Trainer

__all__ = ["step_flops", "synchronize", "timed"]


def step_flops(trainer: Trainer) -> int:
    """Make a step; return the FLOPs of its matrix products, attention and convolutions.

    Forward, backward and the optimizer count, two FLOPs for a multiply-add.
    """
    aten = torch.ops.aten
    # torch counts the fused attention of GPUs only.
    on_cpu: dict[Any, Callable[..., int]] = {
        aten._scaled_dot_product_flash_attention_for_cpu: _attention,
        aten._scaled_dot_product_flash_attention_for_cpu_backward: _attention_backward,
    }
    counter = FlopCounterMode(display=False, custom_mapping=on_cpu)
    counter.mod_tracker = _NoModules()
    # The counter does not see inside of compiled code.
    with counter, trainer.system.eager():
        trainer.advance()
    return int(counter.get_total_flops())


class _NoModules(ModuleTracker):
    """Tracks no modules: torch's hooks fail on a slice of a parameter in a pass without gradients."""

    def __enter__(self) -> _NoModules:
        return self

    def __exit__(self, *exception: object) -> None:
        pass


def _attention(*shapes: Any, **options: Any) -> int:
    """Return the FLOPs of attention, given the shapes of query, key and value."""
    return int(sdpa_flop_count(*shapes[:3]))  # type: ignore[no-untyped-call]


def _attention_backward(*shapes: Any, **options: Any) -> int:
    """Return the FLOPs of its gradients, given the shapes of the gradient and of query, key, value."""
    return int(sdpa_backward_flop_count(*shapes[:4]))  # type: ignore[no-untyped-call]


def timed(work: Callable[[], object], device: torch.device) -> float:
    """Return the seconds of a call, with the work that it leaves on the device."""
    synchronize(device)
    began = time.perf_counter()
    work()
    synchronize(device)
    return time.perf_counter() - began


def synchronize(device: torch.device) -> None:
    """Wait for the device."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
