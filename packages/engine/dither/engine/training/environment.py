"""Versions, machine and git state of a run: everything that determines its results to the last bit."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy
import torch
from torch.optim import Optimizer

from ..distributed.ranks import SINGLE_RANK, Ranks

__all__ = ["differences", "environment", "git_state"]

VARIABLES = ("MKL_CBWR", "MKL_ENABLE_INSTRUCTIONS", "ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "CUBLAS_WORKSPACE_CONFIG")
"""Environment variables that select kernels."""


def environment(device: torch.device, optimizer: Optimizer | None = None, ranks: Ranks = SINGLE_RANK) -> dict[str, Any]:
    """Return versions and machine; on a CPU, runs in equal environments are bit-equal."""
    values = {
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "numpy": numpy.__version__,
        "platform": platform.platform(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "threads": torch.get_num_threads(),
        "processor": _processor(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "switches": _switches(),
        "ranks": ranks.size,
    }
    return values if optimizer is None else values | {"optimizer": _implementation(optimizer)}


def _implementation(optimizer: Optimizer) -> str:
    """Return the implementation of an optimizer; results of fused and foreach differ in the last bits."""
    chosen = [name for name in ("fused", "foreach") if optimizer.defaults.get(name)]
    parts = ", ".join(map(_implementation, getattr(optimizer, "parts", ())))
    return " ".join([*chosen, type(optimizer).__name__]) + (f" ({parts})" if parts else "")


def _processor() -> str:
    """Return the CPU model, by which libraries select kernels with different rounding."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()


def _switches() -> str:
    """Return torch settings that differ from the defaults and select other kernels."""
    attention: Any = torch.backends.cuda
    state = {
        "deterministic algorithms": torch.are_deterministic_algorithms_enabled(),
        "cudnn.benchmark": torch.backends.cudnn.benchmark,
        **{f"{name}={os.environ[name]}": True for name in VARIABLES if name in os.environ},
        "no mkldnn": not torch.backends.mkldnn.enabled,
        "no cudnn": not torch.backends.cudnn.enabled,
        "no flash attention": not attention.flash_sdp_enabled(),
        "no memory-efficient attention": not attention.mem_efficient_sdp_enabled(),
        "no mathematical attention": not attention.math_sdp_enabled(),
        f"matrix products of {torch.get_float32_matmul_precision()} precision": True,
    }
    return ", ".join(name for name, on in state.items() if on)


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return the recorded values that changed, among those that determine results to the last bit."""
    changed = [key for key in now if key != "platform" and before.get(key) not in (None, now[key])]
    return [f"{key}: {before[key]} -> {now[key]}" for key in changed]


def git_state(folder: Path) -> dict[str, Any] | None:
    """Return commit and cleanness of the git work tree of a folder, or None."""

    def git(*arguments: str) -> str:
        command = ["git", "--no-optional-locks", "-C", str(folder), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()

    try:
        return {"commit": git("rev-parse", "HEAD"), "clean": not git("status", "--porcelain")}
    except (OSError, subprocess.SubprocessError):
        return None
