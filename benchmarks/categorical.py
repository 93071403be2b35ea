"""Drawing one id per row from 256 x 50,257 logits: ours against torch.multinomial and races of random numbers.

    python benchmarks/categorical.py [ROUNDS]
    python benchmarks/categorical.py memory

All draw from the same logits, in turn; printed are medians in milliseconds and the median of the ratios to
torch.multinomial of the softmax. Ours and torch.multinomial are exact in float32 arithmetic; a race of float32 Gumbel
numbers cuts the tail. "memory" prints the largest memory beyond the logits, each in a fresh process.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from types import MappingProxyType

import torch
from torch import Tensor

from dither.processes.tokens.categorical import draw_log

ROWS, V = 256, 50_257


def _gumbel(logits: Tensor) -> Tensor:
    """Race as SEDD has it."""
    return (logits.softmax(-1) / (1e-10 - (torch.rand_like(logits) + 1e-10).log())).argmax(-1)


def _cumulative(logits: Tensor) -> Tensor:
    """Search the cumulative sum, all in float32."""
    cumulative = logits.softmax(-1).cumsum(-1)
    return torch.searchsorted(cumulative, torch.rand(len(logits), 1) * cumulative[:, -1:])


WAYS: Mapping[str, Callable[[Tensor], Tensor]] = MappingProxyType(
    {
        "torch.multinomial": lambda logits: logits.softmax(-1).multinomial(1),
        "race of float32 Gumbel numbers": _gumbel,
        "cumulative sum in float32": _cumulative,
        "ours": draw_log,
    }
)
"""Each way to draw, from logits."""


def measure(rounds: int) -> None:
    """Take each way in turn."""
    torch.manual_seed(0)
    logits = 2 * torch.randn(ROWS, V)
    times: dict[str, list[float]] = {name: [] for name in WAYS}
    for number in range(rounds + 1):
        for name, way in WAYS.items():
            began = time.perf_counter()
            way(logits)
            if number:
                times[name].append(1000 * (time.perf_counter() - began))
    print(f"{'draws from 256 x 50,257 logits':34} {'ms':>7}   ratio")
    for name, some in times.items():
        ratio = median(a / b for a, b in zip(times["torch.multinomial"], some, strict=True))
        print(f"  {name:32} {median(some):7.1f}   {ratio:5.2f}x")


def peak(name: str) -> None:
    """Print the MiB that a way takes beyond the logits."""
    logits = torch.randn(ROWS, V)
    WAYS[name](logits[:2])
    Path("/proc/self/clear_refs").write_text("5")  # the high-water mark begins anew
    began = _status("VmRSS")
    WAYS[name](logits)
    print(_status("VmHWM") - began)


def memory() -> None:
    """Print the largest memory of each way."""
    for name in WAYS:
        done = subprocess.run([sys.executable, __file__, "peak", name], capture_output=True, text=True, check=True)
        print(f"  {name:32} {float(done.stdout):7.1f} MiB")


def _status(key: str) -> float:
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(key))


def main() -> None:
    """Measure time, or memory."""
    if sys.argv[1:2] == ["memory"]:
        memory()
    elif sys.argv[1:2] == ["peak"]:
        peak(sys.argv[2])
    else:
        measure(int(sys.argv[1]) if len(sys.argv) > 1 else 9)


if __name__ == "__main__":
    main()
