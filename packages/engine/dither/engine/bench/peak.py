"""What the machine can do at best: the rate of large matrix products, measured now, under the same load as the step."""

from __future__ import annotations

import time

import torch

__all__ = ["matmul_peak"]

SIZES = {"cpu": (512, 1024, 2048), "cuda": (4096, 8192)}
"""Edges of the matrices that are tried."""


def matmul_peak(device: torch.device, dtype: torch.dtype, seconds: float = 0.5) -> float:
    """Return the best rate of a square matrix product, in floating-point operations per second.

    Args:
        device: Where.
        dtype: Of the matrices.
        seconds: For each size, after a warm-up.
    """
    best = 0.0
    for size in SIZES.get(device.type, SIZES["cpu"]):
        a = torch.randn(size, size, device=device).to(dtype)
        b = torch.randn(size, size, device=device).to(dtype)
        out = a @ b
        wait(device)
        deadline = time.perf_counter() + seconds
        while time.perf_counter() < deadline:
            repeats = 1 if device.type == "cpu" else 20  # a GPU is waited for once in a while only
            began = time.perf_counter()
            for _ in range(repeats):
                torch.matmul(a, b, out=out)
            wait(device)
            best = max(best, 2 * size**3 * repeats / (time.perf_counter() - began))
    return best


def wait(device: torch.device) -> None:
    """Wait until the device has done all that it was asked to."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()
