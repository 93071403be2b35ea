"""What a checkpoint costs a run: on the training path, beside it, and not at all; steps in turns in one process.

    python benchmarks/saving.py [--width 512]

A checkpoint is written every ten steps. On the path (`async_save = false`) the loop waits for files, hashes and fsync;
beside it (`async_save = true`) it waits for a copy in memory, and the write goes on during the steps after it.
Then the newest checkpoint is verified, as before a run goes on, and merely read from the cache of the system, by turns.
"""

# ruff: noqa: D103
from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import torch
from torch import nn

from dither.engine.checkpoints.async_checkpoint import Saver
from dither.engine.checkpoints.checkpoint import Checkpoints, Contents
from dither.engine.files.checksums import verify
from dither.engine.optimizers.optimizer_state import flatten

EVERY, TURNS, SAVES = 10, 4, 3


class Loop:
    """AdamW over linear layers, with a checkpoint every so many steps, or none."""

    def __init__(self, width: int, way: str, folder: Path) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(*(nn.Linear(width, width) for _ in range(8)))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), 1e-3, fused=True)
        self.x = torch.randn(64, width)
        self.saver = None if way == "none" else Saver(Checkpoints(folder), beside=way == "beside")
        self.step = 0

    def run(self) -> float:
        """Do the steps between two checkpoints, and save; return the seconds that the loop waits for that."""
        for _ in range(EVERY):
            if self.saver is not None:
                self.saver.poll()
            self.optimizer.zero_grad()
            self.model(self.x).square().mean().backward()
            self.optimizer.step()
            self.step += 1
        began = time.perf_counter()
        if self.saver is not None:
            tensors, plain = flatten(self.optimizer)
            self.saver.save(self.step, Contents(self.model, None, tensors, plain))
        return time.perf_counter() - began


def reading(path: Path) -> tuple[float, float]:
    """Return the seconds that it takes to verify a checkpoint, and to read its files, medians."""

    def read() -> None:
        for file in path.iterdir():
            file.read_bytes()

    seconds: tuple[list[float], list[float]] = ([], [])
    for _ in range(9):
        for action, kept in zip((lambda: verify(path), read), seconds, strict=True):
            began = time.perf_counter()
            action()
            kept.append(time.perf_counter() - began)
    return statistics.median(seconds[0]), statistics.median(seconds[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, default=1024)
    width = parser.parse_args().width
    ways = ("none", "on the path", "beside")
    with tempfile.TemporaryDirectory(dir=".") as made:
        loops = {way: Loop(width, way, Path(made) / way) for way in ways}
        for loop in loops.values():
            loop.run()
        seconds: dict[str, list[float]] = {way: [] for way in ways}
        stalls: dict[str, list[float]] = {way: [] for way in ways}
        for _ in range(TURNS):
            for way, loop in loops.items():
                began = time.perf_counter()
                stalls[way] += [loop.run() for _ in range(SAVES)]
                seconds[way].append((time.perf_counter() - began) / (SAVES * EVERY))
                if loop.saver is not None:
                    loop.saver.wait()  # so that the other loops run alone
        newest = max((Path(made) / "beside").iterdir())
        size = sum(file.stat().st_size for file in newest.iterdir())
        verified, read = reading(newest)
    print(f"checkpoints of {size / 2**20:.0f} MiB every {EVERY} steps, {torch.get_num_threads()} threads, medians")
    plain = statistics.median(seconds["none"])
    for way in ways:
        whole = statistics.median(seconds[way])
        stall = statistics.median(stalls[way])
        print(
            f"{way:12} {1e3 * whole:8.2f} ms a step ({whole / plain:.2f}), the loop waits {1e3 * stall:7.1f} ms a save"
        )
    print(f"verified in {1e3 * verified:.1f} ms, read in {1e3 * read:.1f} ms ({verified / read:.2f})")


if __name__ == "__main__":
    main()
