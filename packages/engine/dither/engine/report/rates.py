"""How fast a run went: metrics.jsonl has nothing from a clock, but the events for TensorBoard are stamped with one."""

from __future__ import annotations

from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any

__all__ = ["read_rates"]


def read_rates(folder: Path) -> list[tuple[int, float]]:
    """Return (step, steps per second since the line before) from the events of a run, or nothing where there are none.

    Evaluations and drawings between two lines count as time of training here.
    """
    if not any(folder.glob("*tfevents*")):
        return []
    loader: Any = import_module("tensorboard.backend.event_processing.event_file_loader").EventFileLoader

    stamps: dict[int, float] = {}
    for path in sorted(folder.glob("*tfevents*")):
        for event in loader(str(path)).Load():
            if any(value.tag == "train/loss" for value in event.summary.value):
                stamps[event.step] = event.wall_time
    steps = sorted(stamps)
    return [(b, (b - a) / (stamps[b] - stamps[a])) for a, b in pairwise(steps) if stamps[b] > stamps[a]]
