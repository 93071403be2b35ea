"""Devices, the compiler, memory in use, and the C allocator."""

from __future__ import annotations

import ctypes
import mmap
import os
import resource
import shutil
import sys
from functools import cache
from pathlib import Path

import torch

from dither.registry.config.errors import Problem, Refused
from dither.registry.files.cache import cache_folder

__all__ = [
    "choose_device",
    "keep_compiled",
    "keep_freed_memory",
    "peak_device_memory",
    "peak_memory",
    "peak_run_memory",
    "require_compiler",
]


def choose_device(name: str) -> torch.device:
    """Return the device of a name; "auto" is a CUDA device if available, else the CPU.

    Raises:
        Refused: This machine or this build of torch does not have it.
    """
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


def keep_compiled() -> None:
    """Keep the output of torch.compile in the user's cache folder, for later runs."""
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(cache_folder() / "compiled"))


def require_compiler(device: torch.device) -> None:
    """Check that a C++ compiler is installed if torch.compile needs one.

    Raises:
        Refused: There is no compiler.
    """
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


def peak_run_memory() -> int:
    """Return the peak bytes on the GPU if the run uses one, else of this process."""
    return peak_device_memory() or peak_memory()


M_TRIM_THRESHOLD = -1
"""glibc: bytes that may lie free at the end of the heap before they go back to the system."""
M_MMAP_MAX = -4
"""glibc: how many large pieces may be asked of the system one by one, to go back when they are freed."""
HEAP = 1 << 30
"""Bytes of the heap that are to lie in large pages; the system gives each page when it is first touched."""
M_MXFAST = 1
"""glibc: bytes of the largest piece that is not joined with its free neighbours as soon as it is freed."""
SMALL = range(24, 105, 16)
"""Bytes of what is left beside a tensor that begins at a multiple of 64, and of what may be put there."""
STOCK = 5_000
"""Pieces of each of these sizes that are kept ready: 4 MB together."""
PAGE = 1 << 21
"""Bytes of a large page."""


@cache
def keep_freed_memory() -> bool:
    """Let freed memory stay with this process; where the C library is not glibc, nothing happens.

    As it is, glibc asks the system for every large tensor and gives it back when it is freed, and the system fills each
    page with zeros before the process may touch it again: in every step anew. Tensors whose sizes change from step to
    step come to lie in new pages all the same, now and then; large pages make that rare.

    And as it is, a tensor does not fit where one of its size was freed, once a few bytes beside it, left over since
    tensors begin at multiples of 64, hold something else: what is small gets a place of its own.

    Returns:
        Whether the library has taken it.
    """
    try:
        libc = ctypes.CDLL(None)
        mallopt = libc.mallopt
    except (OSError, AttributeError, TypeError):
        return False
    if not mallopt(M_MMAP_MAX, 0) or not mallopt(M_TRIM_THRESHOLD, 2**31 - 1):
        return False
    libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    libc.free.argtypes = [ctypes.c_void_p]
    _prefer_large_pages(libc)
    _keep_small_pieces_ready(libc)
    return True


def _prefer_large_pages(libc: ctypes.CDLL) -> None:
    """Let the heap grow by addresses, not by memory, and ask the system for large pages there."""
    advice = getattr(mmap, "MADV_HUGEPAGE", None)
    if advice is None or resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY:
        return
    libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    piece = libc.malloc(HEAP)
    if piece is None:
        return
    start, end = -(-piece // PAGE) * PAGE, (piece + HEAP) // PAGE * PAGE
    libc.madvise(start, end - start, advice)  # a system without large pages says no, and all is as before
    libc.free(piece)


def _keep_small_pieces_ready(libc: ctypes.CDLL) -> None:
    """Free many small pieces, each beside one that stays, so that they are never joined with others."""
    libc.mallopt(M_MXFAST, 0)
    ready = []
    for size in SMALL:
        for _ in range(STOCK):
            ready.append(libc.malloc(size))
            libc.malloc(SMALL[0])
    for piece in ready:
        libc.free(piece)
