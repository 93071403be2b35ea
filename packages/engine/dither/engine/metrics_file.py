"""metrics.jsonl: one figure line after the other, each written in one call, and nothing in it that changes by the clock.

So a resumed run, cut back to where its checkpoint was written, ends with the same file as one that was never stopped.
"""

from __future__ import annotations

import errno
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path

__all__ = ["MetricsFile", "read_metrics"]


class MetricsFile:
    """Appends lines to a file.

    Args:
        path: The file; made if it is not there.
        offset: Bytes that are kept of it, by default all.
    """

    def __init__(self, path: Path, offset: int | None = None) -> None:
        self._path = path
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        if offset is not None and offset < self.offset:
            os.ftruncate(self._file, offset)

    @property
    def offset(self) -> int:
        """Bytes written so far."""
        return os.fstat(self._file).st_size

    def write(self, step: int, kind: str, figures: Mapping[str, float]) -> None:
        """Write a line; a figure that is no number becomes null, which JSON has."""
        values = {name: value if math.isfinite(value) else None for name, value in figures.items()}
        line = (json.dumps({"step": step, "kind": kind, **values}) + "\n").encode()
        before = self.offset
        if os.write(self._file, line) < len(line):
            os.ftruncate(self._file, before)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._path))

    def sync(self) -> None:
        """Make sure that all lines are on disk."""
        os.fsync(self._file)

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


def read_metrics(path: Path) -> list[dict[str, float]]:
    """Return the lines of a metrics file."""
    return [json.loads(line) for line in path.read_text().splitlines()]
