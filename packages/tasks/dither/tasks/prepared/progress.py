"""Progress of a preparation, on one line of the terminal."""

from __future__ import annotations

import sys
from time import monotonic

__all__ = ["Progress"]

EVERY = 0.1
"""Seconds between two updates."""


class Progress:
    """Counter of `what`, such as "motifs scanned", on the error stream if that is a terminal."""

    def __init__(self, what: str) -> None:
        self.what = what
        self._wrote = False
        self._next = 0.0
        self._shown = sys.stderr.isatty()

    def update(self, done: int, total: int) -> None:
        now = monotonic()
        # Rows may be as many as a million a second: the terminal is written to ten times.
        if self._shown and (now >= self._next or done == total):
            sys.stderr.write(f"\r\x1b[K{done:,} of {total:,} {self.what}")
            sys.stderr.flush()
            self._wrote = True
            self._next = now + EVERY

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *error: object) -> None:
        if self._wrote:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
