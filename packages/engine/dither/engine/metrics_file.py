"""metrics.jsonl: one line of figures after the other, each written in one call, and nothing in them from a clock.

So a resumed run, cut back to where its checkpoint was written, ends with the same file as one that was never stopped.
"""

from __future__ import annotations

import errno
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["MetricsFile", "as_json", "read_metrics"]


class MetricsFile:
    """Appends lines to a file.

    Args:
        path: The file; made if it is not there.
        offset: Bytes that are kept of it, by default all.

    Attributes:
        offset: Bytes written so far.
    """

    def __init__(self, path: Path, offset: int | None = None) -> None:
        self._path = path
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self.offset = os.fstat(self._file).st_size
        if offset is not None and offset < self.offset:
            os.ftruncate(self._file, offset)
            self.offset = offset

    def write(self, step: int, kind: str, figures: Mapping[str, float]) -> None:
        """Write a line."""
        line = (as_json({"step": step, "kind": kind, **figures}) + "\n").encode()
        if os.write(self._file, line) < len(line):
            os.ftruncate(self._file, self.offset)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._path))
        self.offset += len(line)

    def sync(self) -> None:
        """Make sure that all lines are on disk."""
        os.fsync(self._file)

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


def as_json(values: Any, indent: int | None = None) -> str:
    """Write values as JSON, and null for a number that is none, for which JSON has no word."""

    def clean(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {key: clean(inner) for key, inner in value.items()}
        if isinstance(value, list | tuple):
            return [clean(inner) for inner in value]
        return None if isinstance(value, float) and not math.isfinite(value) else value

    return json.dumps(clean(values), indent=indent, allow_nan=False)


def read_metrics(path: Path) -> list[dict[str, float]]:
    """Return the lines of a metrics file."""
    return [json.loads(line) for line in path.read_text().splitlines()]
