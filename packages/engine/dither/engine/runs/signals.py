"""A signal asks to stop: a run finishes its step, writes a checkpoint and ends; anything else is broken off.

Exit code 75 in either case: started again, or gone on with, it comes to the same end. A second signal ends it at once,
but for the one of a terminal that was closed: a shell sends that, too, and so it comes twice.
After the end of a command a signal changes nothing, unless the process hangs there.
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

__all__ = ["STOPPED", "Stop", "Stopped", "broken_off", "heeded", "stop_on_signals"]

STOPPED = 75
"""Exit code after a signal (EX_TEMPFAIL): nothing is lost, and it can be done again or gone on with."""
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP)
"""Ctrl-C, kill, what clusters send before a time limit or in place of another job, and a terminal that was closed."""
AGAIN = 3.0
"""Seconds after which a signal under torchrun is another one."""
PATIENCE = 8.0
"""Seconds in which what was broken off has to come to its end; a C library may have swallowed the exception."""
IMPORT = "<frozen importlib._bootstrap>"
SOON = 0.01
"""Seconds after which a signal is sent again that found Python's own importing, where an exception may be lost."""
AT_END = 2.0
"""Seconds after the end of a command in which one signal goes unheard: the process ends anyway."""
SHOW_CURSOR = "\x1b[?25h"


class Stopped(BaseException):
    """A signal broke off what was under way; its name is the argument."""


class Stop:
    """Whether a run has been asked to stop. Call it, or read `requested`.

    Attributes:
        requested: Name of the signal, or None.
        polled: Whether somebody asks. As long as nobody does, a signal raises `Stopped` where it finds the program.
        code: Exit code of the command, once it is known.
    """

    def __init__(self) -> None:
        self.requested: str | None = None
        self.polled = False
        self.code = STOPPED

    def __call__(self) -> bool:
        """Tell whether to stop."""
        return self.requested is not None


def broken_off(name: object) -> str:
    """Return what is said where a signal of this name broke something off."""
    return f"stopped by {name}; nothing is lost, the same command begins again"


def heeded() -> list[signal.Signals]:
    """Return the signals that ask to stop: all `SIGNALS`, but SIGHUP where it is ignored, as under nohup."""
    deaf = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return [number for number in SIGNALS if not (deaf and number == signal.SIGHUP)]


@contextmanager
def stop_on_signals(last: bool = False) -> Iterator[Stop]:
    """Yield a `Stop` that the signals of `heeded` set, and put the former handlers back at the end.

    Once the stop is polled the handler only takes note: what is under way, a checkpoint above all, is not broken off.
    Under torchrun one Ctrl-C comes twice, from the terminal and from torchrun, so there a signal counts as another one
    only after a while.

    Args:
        last: Whether nothing comes after it but the end of the process, which one signal does not disturb any more.
    """
    stop = Stop()
    first = 0.0
    grace = AGAIN if "TORCHELASTIC_RUN_ID" in os.environ else 0.0
    deadline = Timer(PATIENCE, os._exit, (STOPPED,))
    deadline.daemon = True

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal first
        name = signal.Signals(number).name
        soon = time.monotonic() - first < grace
        if stop.requested is not None and (soon or number == signal.SIGHUP):
            return
        if stop.requested is not None:
            _tell(f"{_cursor()}\n{name} again: ended at once\n")
            os._exit(128 + number)
        if not stop.polled and frame is not None and frame.f_code.co_filename == IMPORT and not _importing_torch():
            Timer(SOON, os.kill, (os.getpid(), number)).start()
            return
        stop.requested, first = name, time.monotonic()
        if stop.polled:
            _tell(f"\n{name}: finishing the step, then writing a checkpoint; once more to end at once\n")
            return
        if _importing_torch():
            _tell(f"{_cursor()}{broken_off(name)}\n")
            os._exit(STOPPED)
        deadline.start()
        raise Stopped(name)

    former = {}
    with suppress(ValueError):  # only the main thread may; another one leaves signals as they are
        for number in heeded():
            former[number] = signal.signal(number, handle)
    try:
        yield stop
    finally:
        deadline.cancel()
        if last and former:
            _watch_end(stop.code)
        for number, handler in former.items():
            signal.signal(number, _unheard if last else handler)


def _watch_end(code: int) -> None:
    """End the process with this code at a second signal, or a late one: something hangs at its exit.

    A thread is told of signals even while the main one waits in C, as for other ranks. What is printed is out by then.
    """
    ended = time.monotonic()
    reader, writer = os.pipe()
    os.set_blocking(writer, False)

    def watch() -> None:
        number = os.read(reader, 1)[0]
        if time.monotonic() - ended < AT_END:
            number = os.read(reader, 1)[0]
        _tell(f"{_cursor()}{signal.Signals(number).name} after the end: ended at once\n")
        os._exit(code)

    Thread(target=watch, daemon=True).start()
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    with suppress(OSError, ValueError, AttributeError):  # there is no stdout, it is closed, or nobody reads it
        sys.stdout.flush()


def _unheard(number: int, frame: FrameType | None) -> None:
    """Do nothing; unlike SIG_IGN this leaves a signal its effect once Python itself has been taken down."""


def _importing_torch() -> bool:
    """Tell whether torch is being imported, before which there is nothing to save.

    Its C++ calls Python back, where the handler may find it; an exception from there aborts the process.
    """
    return bool(getattr(getattr(sys.modules.get("torch"), "__spec__", None), "_initializing", False))


def _tell(text: str) -> None:
    """Print to stderr from within a handler; that it is closed, or its disk full, must not end the run."""
    with suppress(OSError):
        os.write(2, text.encode())


def _cursor() -> str:
    """Return what brings the cursor of a terminal back, which a progress bar hides."""
    try:
        return SHOW_CURSOR if sys.stdout.isatty() else ""
    except (AttributeError, ValueError):  # there is no stdout, or it is closed
        return ""
