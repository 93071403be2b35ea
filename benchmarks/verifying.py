"""How long it takes to verify a checkpoint of 1 GiB beside reading it, from the disk and from the cache of its pages.

Command: python benchmarks/verifying.py [MiB]
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

from dither.engine.files import checksums as intact
from dither.engine.files.checksums import with_checksum
from dither.registry.files.atomic import sha256_of

SHARES = {"model.safetensors": 1, "average.safetensors": 1, "optimizer.safetensors": 2}
PIECE = 1 << 20
TURNS = 5


def written(folder: Path, size: int) -> list[Path]:
    """Write files of these shares, and the manifest of a checkpoint."""
    paths = []
    for name, share in SHARES.items():
        paths.append(folder / name)
        with paths[-1].open("wb") as file:
            for _ in range(size * share // sum(SHARES.values())):
                file.write(os.urandom(PIECE))
            os.fsync(file.fileno())
    (folder / "state.json").write_text("{}")
    files = {path.name: {"size": path.stat().st_size, "sha256": sha256_of(path)} for path in folder.iterdir()}
    (folder / intact.MANIFEST).write_text(
        json.dumps(with_checksum({"format": intact.FORMAT, "step": 1, "files": files}))
    )
    return paths


def read(paths: list[Path]) -> None:
    """Read every byte, and do nothing with it."""
    buffer = bytearray(PIECE)
    for path in paths:
        with path.open("rb", buffering=0) as file:
            while file.readinto(buffer):
                pass


def forget(paths: list[Path]) -> None:
    """Ask the system to drop what it holds of files."""
    for path in paths:
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def timed(act: Callable[[], object]) -> float:
    """Return seconds."""
    began = time.perf_counter()
    act()
    return time.perf_counter() - began


def verify(folder: Path, much: int) -> None:
    """Verify, beside each other from so many bytes on."""
    intact.MUCH = much
    assert intact.verify(folder) is None


def main() -> None:
    """Print medians and ratios."""
    size = int(sys.argv[1]) if len(sys.argv) > 1 else 1024
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        paths = written(folder, size)
        acts = {
            "reading": lambda: read(paths),
            "verifying": lambda: verify(folder, 0),
            "one file after the other": lambda: verify(folder, sys.maxsize),
        }
        print(f"{size} MiB, medians of {TURNS}")
        for where, before in (("from the disk", forget), ("from the cache", lambda paths: None)):
            seconds: dict[str, list[float]] = {name: [] for name in acts}
            for _ in range(TURNS):
                for name, act in acts.items():
                    before(paths)
                    seconds[name].append(timed(act))
            first = median(seconds["reading"])
            for name, found in seconds.items():
                print(f"{where:15} {name:26} {median(found):6.3f} s  {median(found) / first:5.2f}x")


if __name__ == "__main__":
    main()
