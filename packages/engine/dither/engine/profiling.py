"""A look at where the time of a few steps goes: a trace that chrome://tracing and Perfetto show."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile, schedule

__all__ = ["profiled"]

WARM, TRACED = 3, 5
"""Steps before the trace, and steps in it."""


@contextmanager
def profiled(folder: Path | None) -> Iterator[Callable[[], None]]:
    """Yield what is to be called after each step; the trace of steps 4 to 8 goes into `folder`, unless that is None."""
    if folder is None:
        yield lambda: None
        return
    activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * torch.cuda.is_available()
    folder.mkdir(parents=True, exist_ok=True)

    def write(found: profile) -> None:
        found.export_chrome_trace(str(folder / "trace.json"))
        table = found.key_averages().table(sort_by="self_cpu_time_total", row_limit=30)
        (folder / "operations.txt").write_text(table, encoding="utf-8")

    plan = schedule(wait=WARM - 1, warmup=1, active=TRACED, repeat=1)
    with profile(activities=activities, schedule=plan, on_trace_ready=write, profile_memory=True) as found:
        yield found.step
