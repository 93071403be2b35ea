"""Stopping on signals: a run finishes its step, writes a checkpoint and ends; other commands are interrupted.

The exit code is 75: the command can be repeated or resumed with the same result. A second signal ends the process
immediately, except SIGHUP, which a closed terminal and its shell both send. After the end of a command a signal has no
effect unless the process hangs at its exit.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Thread, Timer
from types import FrameType

__all__ = ["STOPPED", "Stop", "Stopped", "interruption_message", "stop_on_signals", "stop_signals"]

STOPPED = 75
"""Exit code after a signal (EX_TEMPFAIL): nothing is lost."""
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP)
"""Ctrl-C, kill, the signals of clusters before a time limit or preemption, and a closed terminal."""
DUPLICATE_WINDOW = 3.0
"""Seconds in which a second signal under torchrun is taken for a copy of the first."""
PATIENCE = 8.0
"""Seconds until an interrupted command is ended; a C library may have swallowed the exception."""
IMPORT = "<frozen importlib._bootstrap>"
SOON = 0.01
"""Seconds after which a signal is sent again that arrived inside importlib, where an exception may be lost."""
AT_END = 2.0
"""Seconds after the end of a command in which one signal is ignored: the process ends anyway."""
SHOW_CURSOR = "\x1b[?25h"


class Stopped(BaseException):
    """A signal interrupted a command; its name is the argument."""


class Stop:
    """Whether a signal requested a stop. Call it, or read `requested`.

    Attributes:
        requested: Name of the signal, or None.
        polled: Whether the program checks for a request; until then a signal raises `Stopped`.
        code: Exit code of the command, once it is known.
    """

    def __init__(self) -> None:
        self.requested: str | None = None
        self.polled = False
        self.code = STOPPED

    def __call__(self) -> bool:
        """Return whether to stop."""
        return self.requested is not None


def interruption_message(name: object) -> str:
    """Return the message after an interruption."""
    return f"stopped by {name}; nothing is lost, repeat the command to continue"


def stop_signals() -> list[signal.Signals]:
    """Return the signals that request a stop: `SIGNALS`, without SIGHUP if it is ignored, as under nohup."""
    ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return [number for number in SIGNALS if not (ignored and number == signal.SIGHUP)]


@contextmanager
def stop_on_signals(last: bool = False) -> Iterator[Stop]:
    """Yield a `Stop` that signals set; restore the former handlers at the end.

    Once the stop is polled, signals only set it, so that a checkpoint is never interrupted. Under torchrun one Ctrl-C
    arrives twice, from the terminal and from torchrun, so a second signal counts only after a few seconds.

    Args:
        last: Whether the process ends afterwards; one signal then no longer disturbs it.
    """
    stop = Stop()
    first = 0.0
    grace = DUPLICATE_WINDOW if "TORCHELASTIC_RUN_ID" in os.environ else 0.0
    deadline = Timer(PATIENCE, os._exit, (STOPPED,))
    deadline.daemon = True

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal first
        name = signal.Signals(number).name
        soon = time.monotonic() - first < grace
        if stop.requested is not None and (soon or number == signal.SIGHUP):
            return
        if stop.requested is not None:
            _print(f"{_cursor()}\n{name} again: ended immediately\n")
            os._exit(128 + number)
        if not stop.polled and frame is not None and frame.f_code.co_filename == IMPORT and not _importing_torch():
            Timer(SOON, os.kill, (os.getpid(), number)).start()
            return
        stop.requested, first = name, time.monotonic()
        if stop.polled:
            _print(f"\n{name}: finishing the step, then writing a checkpoint; repeat to end immediately\n")
            return
        if _importing_torch():
            _print(f"{_cursor()}{interruption_message(name)}\n")
            os._exit(STOPPED)
        deadline.start()
        raise Stopped(name)

    former = {}
    with suppress(ValueError):  # only the main thread may set handlers
        for number in stop_signals():
            former[number] = signal.signal(number, handle)
    try:
        yield stop
    finally:
        deadline.cancel()
        if last and former:
            _watch_end(stop.code)
        for number, handler in former.items():
            signal.signal(number, _ignore if last else handler)


def _watch_end(code: int) -> None:
    """End the process with this code on a second or a late signal, as it hangs at its exit.

    The wakeup descriptor works even while the main thread waits in C code, for example for other ranks.
    """
    ended = time.monotonic()
    reader, writer = os.pipe()
    os.set_blocking(writer, False)

    def watch() -> None:
        number = os.read(reader, 1)[0]
        if time.monotonic() - ended < AT_END:
            number = os.read(reader, 1)[0]
        _print(f"{_cursor()}{signal.Signals(number).name} after the end: ended immediately\n")
        os._exit(code)

    Thread(target=watch, daemon=True).start()
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    with suppress(OSError, ValueError, AttributeError):  # stdout is missing, closed, or a broken pipe
        sys.stdout.flush()


def _ignore(number: int, frame: FrameType | None) -> None:
    """Do nothing; unlike with SIG_IGN, signals work again after Python has shut down."""


def _importing_torch() -> bool:
    """Return whether torch is being imported, when there is nothing to save.

    An exception in a Python callback of its C++ code would abort the process.
    """
    return bool(getattr(getattr(sys.modules.get("torch"), "__spec__", None), "_initializing", False))


def _print(text: str) -> None:
    """Write to stderr from a handler, ignoring errors."""
    with suppress(OSError):
        os.write(2, text.encode())


def _cursor() -> str:
    """Return the escape sequence that shows the cursor, which a progress bar hides."""
    try:
        return SHOW_CURSOR if sys.stdout.isatty() else ""
    except (AttributeError, ValueError):  # stdout is missing or closed
        return ""
