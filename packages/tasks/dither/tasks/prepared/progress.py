"""How far a preparation has come, on a line of its own that rewrites itself; silent where nobody looks on."""

from __future__ import annotations

import sys
from time import monotonic
from types import TracebackType

__all__ = ["Progress"]

EVERY = 0.1
"""Seconds between two writings."""


class Progress:
    """Counts done things on the error stream, if that is a terminal.

    Args:
        what: What is counted, such as "motifs scanned for".
    """

    def __init__(self, what: str) -> None:
        self.what, self._wrote, self._next = what, False, 0.0
        self._shown = sys.stderr.isatty()

    def tell(self, done: int, total: int) -> None:
        """Say how many are done."""
        now = monotonic()
        if self._shown and (now >= self._next or done == total):
            sys.stderr.write(f"\r\x1b[K{done:,} of {total:,} {self.what}")
            sys.stderr.flush()
            self._wrote, self._next = True, now + EVERY

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._wrote:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
