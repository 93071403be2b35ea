"""Stopping on signals: a run finishes its step, writes a checkpoint and ends; other commands are interrupted.

The exit code is 75: the command can be repeated or resumed with the same result. A second signal
ends the process immediately, except SIGHUP, which a closed terminal and its shell both send.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

__all__ = [
    "EXIT_CODE",
    "SIGNALS",
    "STOPPED",
    "TORCHRUN",
    "Stop",
    "Stopped",
    "handle_signals",
    "interruption_message",
    "kill_suspended_ranks",
    "received",
    "record_exit_code",
    "stop_on_signals",
    "stop_signals",
]

STOPPED = 75
"""Exit code after a signal (EX_TEMPFAIL): nothing is lost."""
EXIT_CODE = "DITHER_EXIT_CODE"
"""Variable with the file for the exit code: torchrun exits with 1 for every exit code of its ranks."""
TORCHRUN = "TORCHELASTIC_RUN_ID"
"""Variable that torchrun sets for its ranks."""
NAMES = ("SIGINT", "SIGTERM", "SIGUSR1", "SIGUSR2", "SIGHUP")
"""Ctrl-C, kill, the signals of clusters before a time limit or preemption, and a closed
terminal."""
# Windows has only two of them.
SIGNALS = tuple(number for number in signal.Signals if number.name in NAMES)
DUPLICATE_WINDOW = 3.0
"""Seconds in which a second signal is a copy of the first: under torchrun, from the terminal and
from torchrun; elsewhere another signal, from a cluster and from the sweep that runs the point."""
received: list[str] = []
"""Names of the stop signals received by this process; executors read them."""
_active: list[Stop] = []
"""The stops that signals set now, the innermost last."""
IMPORT = "<frozen importlib._bootstrap>"
SHOW_CURSOR = "\x1b[?25h"


class Stopped(BaseException):
    """A signal interrupted a command; its name is the argument."""


class Stop:
    """Whether a signal requested a stop; `requested` is its name.

    Until the program checks for requests and so has set `polled`, a signal raises `Stopped`, and sets
    `raised`. `code` is the exit code of the command, once it is known.
    """

    def __init__(self, last: bool = False) -> None:
        self.last = last
        self.requested: str | None = None
        self.polled = False
        self.raised = False
        self.code = STOPPED
        self._first = 0.0

    def __call__(self) -> bool:
        return self.requested is not None

    def raise_again(self, error: BaseException) -> None:
        """Raise `Stopped` if a signal has raised it, and other code has caught it and raised `error`.

        So does pydantic while it builds the validator of a class.
        """
        if self.raised:
            raise Stopped(self.requested) from error

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal; `frame` is the interrupted one."""
        name = signal.Signals(number).name
        received.append(name)
        if self.requested is not None:
            self._handle_again(number, name)
            return
        self.requested = name
        self._first = time.monotonic()
        if self.polled:
            again = "repeat"
            if TORCHRUN in os.environ:
                again = f"repeat after {DUPLICATE_WINDOW:.0f} seconds"
            _print(
                f"\n{name}: finishing the step, then writing a checkpoint; {again} to end immediately\n"
            )
        # An exception might be lost or abort the process, and leaves modules half imported.
        elif _importing(frame):
            _end(STOPPED, f"{interruption_message(name)}\n")
        else:
            self.raised = True
            raise Stopped(name)

    def _handle_again(self, number: int, name: str) -> None:
        """End the process at a second signal, unless it is a copy of the first."""
        window = DUPLICATE_WINDOW
        if name == self.requested and TORCHRUN not in os.environ:
            window = 0.0
        if time.monotonic() - self._first >= window and name != "SIGHUP":
            # The exit code that a shell reports of a process that this signal ended.
            _end(128 + number, f"\n{name} again: ended immediately\n")


def interruption_message(name: object) -> str:
    """Return the message after an interruption."""
    return f"stopped by {name}; nothing is lost, repeat the command to continue"


def stop_signals() -> list[signal.Signals]:
    """Return the signals that request a stop: `SIGNALS`, without SIGHUP if it is ignored, as under nohup."""
    return [
        one
        for one in SIGNALS
        if not (one.name == "SIGHUP" and signal.getsignal(one) is signal.SIG_IGN)
    ]


@contextmanager
def handle_signals(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Handle the signals that request a stop; restore the former handlers at the end."""
    former = {number: signal.signal(number, handler) for number in stop_signals()}
    try:
        yield
    finally:
        for number, previous in former.items():
            signal.signal(number, previous)


@contextmanager
def stop_on_signals(last: bool = False) -> Iterator[Stop]:
    """Yield a `Stop` that signals set; restore the former handlers at the end.

    Once the stop is polled, signals only set it, so that a checkpoint is never interrupted. Within
    another one that a signal has set, it is set: a library that caught `Stopped` and went on delays
    the stop until the program checks for requests.

    Args:
        last: Whether the process ends afterwards; a later signal ends it immediately with the exit
            code of the command.
    """
    stop = Stop(last)
    if _active:
        stop.requested = _active[-1].requested
        stop._first = _active[-1]._first
    former = {}
    # Only the main thread may set handlers.
    with suppress(ValueError):
        for number in stop_signals():
            former[number] = signal.signal(number, stop.handle)
    _active.append(stop)
    try:
        yield stop
    except Exception as error:
        stop.raise_again(error)
        raise
    finally:
        _active.remove(stop)
        if last:
            # stdout is missing, closed, or a broken pipe.
            with suppress(OSError, ValueError, AttributeError):
                sys.stdout.flush()
        for number, handler in former.items():
            signal.signal(number, (lambda *_: os._exit(stop.code)) if last else handler)


def _importing(frame: FrameType | None) -> bool:
    """Return whether the import system or an import of torch is interrupted; in a process of dither, any import."""
    # importlib marks a module while it is imported.
    torch = getattr(sys.modules.get("torch"), "__spec__", None)
    if getattr(torch, "_initializing", False):
        return True
    # The process of others, such as a notebook, outlives a stop.
    is_own = any(stop.last for stop in _active)
    while frame is not None:
        if frame.f_code.co_filename == IMPORT:
            return True
        frame = frame.f_back if is_own else None
    return False


def record_exit_code(code: int | None) -> None:
    """Leave the exit code for a job file, or remove that of an earlier start of the ranks."""
    file = os.environ.get(EXIT_CODE)
    if file is None or os.environ.get("LOCAL_RANK") != "0":
        return
    # A full disk must not change the exit code.
    with suppress(OSError):
        if code is None:
            Path(file).unlink(missing_ok=True)
        else:
            Path(file).write_text(f"{code}\n", encoding="ascii")


def kill_suspended_ranks(torchrun: int | None = None) -> None:
    """Kill the ranks that are suspended, for which torchrun would wait 30 seconds; Linux only.

    No other process is killed: one that works may be writing a checkpoint.

    Args:
        torchrun: Its process id; by default the ranks are those next to this one.
    """
    if torchrun is None:
        # Without torchrun, the parent is one of many other processes.
        if TORCHRUN not in os.environ:
            return
        torchrun = os.getppid()
    variable = f"{TORCHRUN}=".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        # Of another user, or gone.
        with suppress(OSError):
            # After the name of the program, which may contain anything.
            state = (folder / "stat").read_text().rpartition(")")[2].split()
            is_suspended = state[:2] == ["T", str(torchrun)]
            # Others may have this parent, if torchrun is gone.
            if is_suspended and variable in (folder / "environ").read_bytes():
                os.kill(int(folder.name), signal.SIGKILL)


def _end(code: int, text: str) -> None:
    """End the process, with the cursor that a progress bar hides shown again."""
    # stdout is missing or closed.
    with suppress(OSError, AttributeError, ValueError):
        _print((SHOW_CURSOR if sys.stdout.isatty() else "") + text)
    record_exit_code(code)
    kill_suspended_ranks()
    os._exit(code)


def _print(text: str) -> None:
    # A handler may interrupt `print`, which is not reentrant.
    with suppress(OSError):
        os.write(2, text.encode())
