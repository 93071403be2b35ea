"""What the C library is told about memory, in processes of their own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

LARGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")

FAULTS = """
import resource, torch
from dither.engine.allocator import keep_freed_memory
assert {kept} is False or keep_freed_memory()
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
def step(n):
    for size in (n, n + 4096, n + 8192):
        a = torch.ones(size); b = a * 2; del a
        c = b + 1; del b
    del c
step(1_000_000)
before = faults()
for n in range(1_000_000, 1_100_000, 10_000):
    step(n)
print(faults() - before)
"""


def faults(kept: bool) -> int:
    """Return how many pages ten steps over tensors of 4 MB and changing sizes had to ask for."""
    script = FAULTS.format(kept=kept)
    return int(subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout)


@pytest.mark.skipif(not LARGE_PAGES.exists() or "[never]" in LARGE_PAGES.read_text(), reason="no large pages here")
def test_steps_whose_tensors_change_in_size_ask_for_hardly_a_page() -> None:
    assert faults(kept=True) < 100
    assert faults(kept=False) > 1000


def test_under_a_limit_of_addresses_nothing_is_reserved() -> None:
    script = (
        "import resource; resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30))\n"
        "import ctypes, dither.engine.allocator as a\n"
        "size = lambda: int(open('/proc/self/statm').read().split()[0]) * 4096\n"
        "before = size(); print(a.keep_freed_memory(), size() - before < a.HEAP // 2)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "True"]
