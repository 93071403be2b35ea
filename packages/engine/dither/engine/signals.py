"""A signal asks a run to stop: it finishes its step, writes a checkpoint and ends. A second signal ends it at once."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["Stop", "stop_on_signals"]

AGAIN = 3.0
"""Seconds after which a signal under torchrun is another one."""
SHOW_CURSOR = "\x1b[?25h"


class Stop:
    """Whether a run has been asked to stop. Call it, or read `requested`.

    Attributes:
        requested: Name of the signal, or None.
    """

    def __init__(self) -> None:
        self.requested: str | None = None

    def __call__(self) -> bool:
        """Tell whether to stop."""
        return self.requested is not None


@contextmanager
def stop_on_signals() -> Iterator[Stop]:
    """Yield a `Stop` that SIGINT, SIGTERM and SIGUSR1 set, and put the former handlers back at the end.

    The handler only takes note: what is under way, a checkpoint above all, is not broken off. Under torchrun one Ctrl-C
    comes twice, from the terminal and from torchrun, so there a signal counts as another one only after a while.
    """
    stop = Stop()
    first = 0.0
    grace = AGAIN if "TORCHELASTIC_RUN_ID" in os.environ else 0.0

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal first
        name = signal.Signals(number).name
        if stop.requested is not None and time.monotonic() - first < grace:
            return
        if stop.requested is not None:
            restore = SHOW_CURSOR if sys.stdout.isatty() else ""
            os.write(2, f"{restore}\n{name} again: ended at once\n".encode())
            os._exit(128 + number)
        stop.requested, first = name, time.monotonic()
        os.write(2, f"\n{name}: finishing the step, then writing a checkpoint; once more to end at once\n".encode())

    former = {}
    try:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
            former[number] = signal.signal(number, handle)
    except ValueError:  # only the main thread may; another one leaves signals as they are
        pass
    try:
        yield stop
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)
