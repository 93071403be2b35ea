"""What a run ran in: versions, machine, git state. What decides the bits of a result is recorded with it."""

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

__all__ = ["differences", "git_state"]

VARIABLES = ("MKL_CBWR", "MKL_ENABLE_INSTRUCTIONS", "ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "CUBLAS_WORKSPACE_CONFIG")
"""Variables of the environment that choose kernels."""
DECIDES_BITS = (
    "python",
    "torch",
    "numpy",
    "threads",
    "device",
    "processor",
    "cpu_capability",
    "optimizer",
    "switches",
    "ranks",
)


def environment(device: torch.device, optimizer: Optimizer | None = None, ranks: Ranks = SINGLE_RANK) -> dict[str, Any]:
    """Return versions and machine; runs on equal environments are equal bit for bit on the CPU."""
    found = {
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
    return found if optimizer is None else found | {"optimizer": _implementation(optimizer)}


def _implementation(optimizer: Optimizer) -> str:
    """Return which of several implementations of an optimizer it is: their results differ in the last bits."""
    chosen = [name for name in ("fused", "foreach") if optimizer.defaults.get(name)]
    parts = ", ".join(map(_implementation, getattr(optimizer, "parts", ())))
    return " ".join([*chosen, type(optimizer).__name__]) + (f" ({parts})" if parts else "")


def _processor() -> str:
    """Return the model of the CPU, by which libraries choose among kernels that round otherwise."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()


def _switches() -> str:
    """Return what of torch is switched otherwise than usual, by a plugin or from outside: it changes kernels."""
    attention: Any = torch.backends.cuda
    state = {
        "mkldnn": torch.backends.mkldnn.enabled,
        "cudnn": torch.backends.cudnn.enabled,
        "flash attention": attention.flash_sdp_enabled(),
        "memory-efficient attention": attention.mem_efficient_sdp_enabled(),
        "mathematical attention": attention.math_sdp_enabled(),
    }
    off = [f"no {name}" for name, on in state.items() if not on]
    on = ["deterministic algorithms"] * torch.are_deterministic_algorithms_enabled()
    on += ["cudnn.benchmark"] * torch.backends.cudnn.benchmark
    on += [f"{name}={os.environ[name]}" for name in VARIABLES if name in os.environ]
    return ", ".join([*on, *off, f"matrix products of {torch.get_float32_matmul_precision()} precision"])


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Say what changed of that which decides the bits of a result, and was written down."""
    changed = [key for key in DECIDES_BITS if before.get(key) not in (None, now.get(key))]
    return [f"{key}: {before[key]} -> {now.get(key)}" for key in changed]


def git_state(folder: Path) -> dict[str, Any] | None:
    """Return commit and cleanness of the work tree around a folder, or None where there is none."""

    def git(*arguments: str) -> str:
        command = ["git", "--no-optional-locks", "-C", str(folder), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()

    try:
        return {"commit": git("rev-parse", "HEAD"), "clean": not git("status", "--porcelain")}
    except (OSError, subprocess.SubprocessError):
        return None
