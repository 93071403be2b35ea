"""Devices, the compiler, memory in use, and everything about the machine that determines results to the last bit."""

from __future__ import annotations

import ctypes
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import numpy
import torch
from torch import nn
from torch.optim import Optimizer

from dither.registry.config.errors import Problem, Refused
from dither.registry.contracts.records import Clean
from dither.registry.files.cache import cache_folder

from ..distributed.ranks import SINGLE_RANK, Ranks
from ..optimizers.muon import Muon

__all__ = [
    "HALF",
    "Precision",
    "choose_device",
    "choose_precision",
    "choose_threads",
    "compile_mode",
    "differences",
    "environment",
    "git_state",
    "keep_freed_memory",
    "peak_device_memory",
    "peak_memory",
    "prepare_compiler",
    "set_threads",
    "to_device",
]


Precision = Literal["float32", "tf32", "bfloat16", "float16"]
HALF: dict[str, torch.dtype] = {
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
"""Data types of autocast."""


def choose_device(name: str) -> torch.device:
    """Return the device of a name, Refused if missing; "auto" is a CUDA device if available, else the CPU."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    device = torch.device(name)
    available = {
        "cuda": torch.cuda.is_available()
        and (device.index or 0) < torch.cuda.device_count(),
        "mps": torch.backends.mps.is_available(),
    }
    if not available.get(device.type, True):
        raise Refused(
            Problem(
                f'torch {torch.__version__} finds no device "{name}"',
                ("train", "device"),
                code="invalid-value",
            )
        )
    return device


def to_device(batch: Clean, device: torch.device) -> Clean:
    """Copy a batch without waiting for the device."""
    if device.type == batch.valid.device.type:
        return batch
    # Only a copy from pinned memory overlaps with computation; a view with strides of 0 cannot be
    # pinned.
    if device.type == "cuda":
        batch = batch.apply(lambda value: value.contiguous().pin_memory())
    return batch.to(device, non_blocking=True)


LARGE_MATRIX = {"cpu": 1 << 18, "cuda": 1 << 19}
"""Elements of the largest linear layer from which on bfloat16 is faster. On an H200 the floor-plan model
of width 256 (393,216 elements) takes 43 ms a step in bfloat16, 30 compiled, and 27 in tf32; GET is
2.8 times as fast in bfloat16."""


def choose_precision(
    option: Precision | Literal["auto"], model: nn.Module, device: str
) -> Precision:
    """Return `train.precision`; for "auto" the fastest of those that were measured (float16 was not)."""
    if option != "auto":
        return option
    kind = choose_device(device).type
    large = kind in LARGE_MATRIX and largest_layer(model) >= LARGE_MATRIX[kind]
    if kind == "cuda":
        if not large:
            return "tf32"
        native = torch.cuda.is_bf16_supported(including_emulation=False)
        return "bfloat16" if native else "float16"
    # All CPUs with AMX have AVX512-BF16, too.
    if large and torch.cpu._is_avx512_bf16_supported():
        return "bfloat16"
    return "float32"


def largest_layer(model: nn.Module) -> int:
    """Return the number of weights of the largest linear layer, without reading any."""
    layers = [module for module in model.modules() if isinstance(module, nn.Linear)]
    return max((layer.in_features * layer.out_features for layer in layers), default=0)


SMALL_STEP = 3 * 10**9
"""Positions of a micro-batch times weights below which a second thread, which waits passively, gains
less than 10 % on a CPU: .26 to .68 10^9 in the quick runs of floor plans, regions and DNA, 2.0 10^9 in
that of language, where a step of 213 ms takes 253 ms with two."""
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")


class Threads:
    """The number of CPU threads that torch had before a small model took it down to one."""

    before: int | None = None


def choose_threads(option: int | None, size: float, device: torch.device) -> int | None:
    """Return `train.threads`; by default 1 for a small step on a CPU, and None for the number of torch.

    `size` is the number of positions of a micro-batch times that of weights. Variables of OpenMP and
    MKL take precedence.
    """
    chosen = option is not None or any(name in os.environ for name in THREAD_VARIABLES)
    if chosen or device.type != "cpu" or size >= SMALL_STEP:
        return option
    return 1


def set_threads(option: int | None, count: int | None) -> None:
    """Set the number of CPU threads to `count`, for None as before an earlier small model.

    `option` is `train.threads`, which is the user's and so stays.
    """
    if count is None and Threads.before is not None:
        torch.set_num_threads(Threads.before)
    if count is None or option is not None:
        Threads.before = None
    elif Threads.before is None:
        Threads.before = torch.get_num_threads()
    if count is not None:
        torch.set_num_threads(count)


def compile_mode(option: bool | str | None, device: torch.device) -> bool | str:
    """Return `train.compile`; by default True on a GPU if Triton and the C compiler that it calls are installed."""
    if option is not None:
        return option
    # As Triton looks for it.
    compiler = os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")
    return (
        device.type == "cuda"
        and find_spec("triton") is not None
        and compiler is not None
    )


def prepare_compiler(device: torch.device) -> None:
    """Keep the output of torch.compile in the user's cache folder, for later runs; Refused without a compiler."""
    # The default is in the folder of temporary files, which a restart of the machine empties.
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(cache_folder() / "compiled"))
    # As torch.compile looks for it.
    name = os.environ.get("CXX") or ("clang++" if sys.platform == "darwin" else "g++")
    if device.type == "cpu" and shutil.which(name) is None:
        help = "install one, name it in CXX, or remove train.compile"
        what = f"torch.compile needs a C++ compiler; {name} was not found"
        raise Refused(
            Problem(what, ("train", "compile"), help=help, code="missing-dependency")
        )


def peak_memory() -> int:
    """Return the peak resident memory of this process in bytes.

    On Linux, `ru_maxrss` includes the memory of the parent process at the fork, so /proc is read
    instead.
    """
    try:
        status = Path("/proc/self/status").read_text(encoding="utf-8")
        return 1024 * int(status.partition("VmHWM:")[2].split()[0])
    except (OSError, ValueError, IndexError):
        try:
            import resource
        # Windows has no such module.
        except ImportError:
            return 0
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024


def peak_device_memory() -> int | None:
    """Return the peak bytes that torch has reserved on one GPU; None without a GPU."""
    # Querying its memory would initialise CUDA in a process that does not use it.
    used: bool = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    devices = range(torch.cuda.device_count() if used else 0)
    return max(map(torch.cuda.max_memory_reserved, devices), default=0) or None


MALLOPT_TRIM_THRESHOLD = -1
MALLOPT_MMAP_MAX = -4
"""Parameters of glibc: free bytes kept at the end of the heap, and most blocks mapped
separately."""


def keep_freed_memory() -> bool:
    """Have glibc keep freed memory instead of returning it to the system; False if it is another library.

    A step frees what the next one allocates again, and each page that is returned in between costs
    a page fault: 3 to 10 % of the CPU time of a step (get-region and language model, quick runs).
    """
    try:
        libc = ctypes.CDLL(None)
        return bool(
            libc.mallopt(MALLOPT_MMAP_MAX, 0)
            and libc.mallopt(MALLOPT_TRIM_THRESHOLD, 2**31 - 1)
        )
    # musl and macOS have no mallopt.
    except (OSError, AttributeError, TypeError):
        return False


VARIABLES = (
    "MKL_CBWR",
    "MKL_ENABLE_INSTRUCTIONS",
    "ONEDNN_MAX_CPU_ISA",
    "DNNL_MAX_CPU_ISA",
    "CUBLAS_WORKSPACE_CONFIG",
)
"""Environment variables that select kernels."""


def environment(
    device: torch.device,
    optimizer: Optimizer | None = None,
    ranks: Ranks = SINGLE_RANK,
    precision: str = "float32",
) -> dict[str, Any]:
    """Return versions, machine and precision; on a CPU, runs in equal environments are bit-equal."""
    values = {
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "numpy": numpy.__version__,
        "platform": platform.platform(),
        "device": device.type,
        "threads": torch.get_num_threads(),
        "processor": _processor(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "switches": _switches(),
        "ranks": ranks.size,
        "precision": precision,
    }
    if device.type == "cuda":
        values["device"] = torch.cuda.get_device_name(device)
    if optimizer is not None:
        values["optimizer"] = _implementation(optimizer)
    return values


def _implementation(optimizer: Optimizer) -> str:
    """Return the implementation of an optimizer; results of fused and foreach differ in the last bits."""
    chosen = [name for name in ("fused", "foreach") if optimizer.defaults.get(name)]
    title = " ".join([*chosen, type(optimizer).__name__])
    if not isinstance(optimizer, Muon):
        return title
    return f"{title} ({', '.join(map(_implementation, optimizer.parts))})"


def _processor() -> str:
    """Return the CPU model, by which libraries select kernels with different rounding."""
    with suppress(OSError):
        for line in (
            Path("/proc/cpuinfo")
            .read_text(encoding="utf-8", errors="replace")
            .splitlines()
        ):
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()


def _switches() -> str:
    """Return torch settings that differ from the defaults and select other kernels."""
    attention: Any = torch.backends.cuda
    state = {
        "deterministic algorithms": torch.are_deterministic_algorithms_enabled(),
        "cudnn.benchmark": torch.backends.cudnn.benchmark,
        **{
            f"{name}={os.environ[name]}": True
            for name in VARIABLES
            if name in os.environ
        },
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
    changed = [
        key
        for key in now
        # The platform has the version of the kernel. Older runs did not record every value.
        if key != "platform" and before.get(key) not in (None, now[key])
    ]
    return [f"{key}: {before[key]} -> {now[key]}" for key in changed]


def git_state(folder: Path) -> dict[str, Any] | None:
    """Return commit and cleanness of the git work tree of a folder, or None."""

    def git(*arguments: str) -> str:
        # git status would otherwise lock the index, which may disturb another command.
        command = ["git", "--no-optional-locks", "-C", str(folder), *arguments]
        return subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=True,
            timeout=10,
        ).stdout.strip()

    try:
        return {
            "commit": git("rev-parse", "HEAD"),
            "clean": not git("status", "--porcelain"),
        }
    except (OSError, subprocess.SubprocessError):
        return None
