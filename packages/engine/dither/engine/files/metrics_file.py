"""metrics.jsonl: one line of figures after the other, each written in one call, and nothing in them from a clock.

So a resumed run, cut back to where its checkpoint was written, ends with the same file as one that was never stopped.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Callable, Container, Mapping
from pathlib import Path
from typing import Any, NamedTuple

__all__ = [
    "BEGINNING",
    "FLOOR",
    "INTERVAL",
    "MetricsFile",
    "Place",
    "as_json",
    "as_number",
    "changed_lines",
    "from_json",
    "is_companion_metric",
    "read_metrics",
    "with_interval",
]


class Place(NamedTuple):
    """A place in a file: the bytes before it, and their sha256."""

    bytes: int
    sha256: str


LARGEST = 2**63
"""An integer beyond this is no figure and no step: nothing here counts so far."""
DIGITS = 19
"""From which on an integer is read as another number is."""
BEGINNING = Place(0, "")
"""Before the first line; its hash is not compared."""


class MetricsFile:
    """Appends lines to a file. Those that find no space are held back until there is some: a full disk stops nothing.

    Args:
        path: The file; made if it is not there.
        offset: Bytes that are kept of it, by default all; a line that was cut off is not kept either.
        warn: Told once of lines that are held back.

    Attributes:
        place: Behind all lines so far, those that are held back among them.
    """

    def __init__(
        self, path: Path, offset: int | None = None, warn: Callable[[str], object] = lambda line: None
    ) -> None:
        self._path, self._warn, self._held, self._warned = path, warn, b"", False
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        size = os.fstat(self._file).st_size
        kept = os.pread(self._file, size if offset is None else min(offset, size), 0)
        kept = kept[: kept.rfind(b"\n") + 1]
        if len(kept) < size:
            os.ftruncate(self._file, len(kept))
        self._hash = hashlib.sha256(kept)
        self.place = Place(len(kept), self._hash.hexdigest())

    def write(self, step: int, kind: str, figures: Mapping[str, float]) -> None:
        """Write a line."""
        line = (as_json({"step": step, "kind": kind, **figures}) + "\n").encode()
        self._hash.update(line)
        self.place = Place(self.place.bytes + len(line), self._hash.hexdigest())
        self._held += line
        self._write()

    def _write(self) -> None:
        try:
            self._held = self._held[os.write(self._file, self._held) :]
            reason = "no space left"
        except OSError as error:
            reason = error.strerror or str(error)
        if self._held and not self._warned:
            self._warned = True
            self._warn(f"{self._path} cannot be written ({reason}); its lines are held back until it can")

    def sync(self) -> None:
        """Bring all lines to disk, if there is space for them."""
        try:
            if self._held:
                self._write()
            os.fsync(self._file)
        except OSError as error:
            self._warn(f"{self._path} cannot be brought to disk: {error.strerror}")

    def close(self) -> None:
        """Close the file."""
        if self._held:
            self._write()
        if self._held:
            self._warn(f"{self._path} lacks its last {len(self._held):,} bytes")
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


def from_json(text: str) -> Any:
    """Read JSON; an integer that no float holds is infinite, so that what is drawn and written need not ask."""
    return json.loads(text, parse_int=lambda digits: int(digits) if len(digits) < DIGITS else float(digits))


def as_number(value: object) -> float | None:
    """Return a figure that was read, or None for what is none: a text, or a number that no float can hold."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if isinstance(value, float) or abs(value) <= LARGEST else None


def read_metrics(path: Path) -> list[dict[str, float]]:
    """Return the lines of a metrics file."""
    return [from_json(line) for line in path.read_text(encoding="utf-8").splitlines()]


def changed_lines(path: Path, before: Place) -> str | None:
    """Return how the lines before a place are not what was written, or None; an empty hash is not compared."""
    try:
        with path.open("rb") as file:
            kept = file.read(before.bytes)
    except OSError as error:
        return f"cannot be read: {error.strerror}" if before.bytes else None
    if len(kept) < before.bytes:
        return f"has lost {before.bytes - len(kept):,} bytes: figures of earlier steps are missing in it"
    if before.sha256 and hashlib.sha256(kept).hexdigest() != before.sha256:
        return "is not what was written: figures of earlier steps in it are wrong"
    return None


INTERVAL = "_ci95"
"""Half of the 95 % interval of the figure before it."""
FLOOR = "_floor"
"""The noise floor of the figure before it: what as many samples of the data themselves reach."""


def is_companion_metric(name: str, names: Container[str]) -> bool:
    """Tell whether a figure belongs to another one of these."""
    return any(name.endswith(end) and name.removesuffix(end) in names for end in (INTERVAL, FLOOR))


def with_interval(name: str, figures: Mapping[str, float], digits: int = 4) -> str:
    """Return a figure as a text, with its interval behind it where there is one."""
    half = figures.get(name + INTERVAL, math.nan)
    return f"{figures[name]:.{digits}g}" + (f" ± {half:.2g}" if math.isfinite(half) else "")
