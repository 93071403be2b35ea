"""Devices, the compiler, memory in use, and the C allocator."""

from __future__ import annotations

import ctypes
import os
import resource
import shutil
import sys
from functools import cache
from pathlib import Path

import torch

from dither.registry.config.errors import Problem, Refused
from dither.registry.files.cache import cache_folder

__all__ = ["choose_device", "keep_freed_memory", "peak_device_memory", "peak_memory", "prepare_compiler"]


def choose_device(name: str) -> torch.device:
    """Return the device of a name, Refused if missing; "auto" is a CUDA device if available, else the CPU."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    device = torch.device(name)
    available = {
        "cuda": torch.cuda.is_available() and (device.index or 0) < torch.cuda.device_count(),
        "mps": torch.backends.mps.is_available(),
    }
    if not available.get(device.type, True):
        raise Refused(Problem(f'torch {torch.__version__} finds no device "{name}"', ("train", "device")))
    return device


def prepare_compiler(device: torch.device) -> None:
    """Keep the output of torch.compile in the user's cache folder, for later runs.

    Raises:
        Refused: torch.compile needs a C++ compiler for this device, and none was found.
    """
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(cache_folder() / "compiled"))
    name = os.environ.get("CXX") or ("clang++" if sys.platform == "darwin" else "g++")
    if device.type == "cpu" and shutil.which(name) is None:
        help = "install one, name it in CXX, or remove train.compile"
        what = f"torch.compile needs a C++ compiler; {name} was not found"
        raise Refused(Problem(what, ("train", "compile"), help=help, code="missing-dependency"))


def peak_memory() -> int:
    """Return the peak resident memory of this process in bytes.

    On Linux, `ru_maxrss` includes the memory of the parent process at the fork, so /proc is read instead.
    """
    try:
        status = Path("/proc/self/status").read_text(encoding="utf-8")
        return 1024 * int(status.partition("VmHWM:")[2].split()[0])
    except (OSError, ValueError, IndexError):
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024


def peak_device_memory() -> int | None:
    """Return the peak bytes that torch has reserved on one GPU; None without a GPU."""
    used: bool = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    devices = range(torch.cuda.device_count() if used else 0)
    return max(map(torch.cuda.max_memory_reserved, devices), default=0) or None


M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4
"""Parameters of glibc: free bytes at the end of the heap that are kept, and most blocks mapped separately."""


@cache
def keep_freed_memory() -> bool:
    """Have glibc keep freed memory in this process, which saves page faults: 1 to 3 % of a step on a CPU.

    Returns whether the C library supports it.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):
        return False
    return bool(mallopt(M_MMAP_MAX, 0) and mallopt(M_TRIM_THRESHOLD, 2**31 - 1))
