"""How fast a run went: metrics.jsonl has nothing from a clock, but the lines for TensorBoard are stamped with the time."""

from __future__ import annotations

from pathlib import Path

__all__ = ["read_rates"]


def read_rates(folder: Path) -> list[tuple[int, float]]:
    """Return (step, steps per second since the line before) from the events of a run, or nothing where there are none.

    Evaluations and drawings between two lines count as time of training here.
    """
    if not any(folder.glob("*tfevents*")):
        return []
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    stamps: dict[int, float] = {}
    for path in sorted(folder.glob("*tfevents*")):
        for event in EventFileLoader(str(path)).Load():
            if any(value.tag == "train/loss" for value in event.summary.value):
                stamps[event.step] = event.wall_time
    steps = sorted(stamps)
    pairs = zip(steps[:-1], steps[1:], strict=True)
    return [(b, (b - a) / (stamps[b] - stamps[a])) for a, b in pairs if stamps[b] > stamps[a]]
