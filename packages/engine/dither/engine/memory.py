"""How much memory a run has needed so far."""

from __future__ import annotations

import torch

from .environment import peak_memory

__all__ = ["needed_memory", "peak_device_memory"]


def peak_device_memory() -> int | None:
    """Return the most bytes that torch has taken of one GPU so far, as its driver counts them; None without a GPU."""
    used: bool = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    devices = range(torch.cuda.device_count() if used else 0)
    return max(map(torch.cuda.max_memory_reserved, devices), default=0) or None


def needed_memory() -> int:
    """Return the most bytes so far: on the GPU where the run has one, else of this process."""
    return peak_device_memory() or peak_memory()
