"""What is seen of a run while it runs: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TextColumn, TimeRemainingColumn

from ..config.machine_memory import size
from ..files.metrics_file import is_companion_metric, with_interval

__all__ = ["ProgressDisplay", "Screen", "say"]

REDRAW = 0.1
"""Seconds between two updates of the bar."""
PATIENCE = 10.0
"""Seconds between two plain lines."""
WIDE, NARROW = 75, 55
"""Columns of a terminal with room for the bar, and with room for rate, loss and memory."""
MOST = 8
"""Figures of an evaluation that are told; metrics.jsonl and the table at the end have all."""


class Screen(Console):
    """A console that falls silent when it cannot be written to: a closed pipe or a full disk never ends a run."""

    def __exit__(self, *raised: Any) -> None:
        """Write what was printed, or moved the cursor, or fall silent for good."""
        try:
            super().__exit__(*raised)
        except OSError:
            self.on_broken_pipe()

    def on_broken_pipe(self) -> None:
        """Go on without output; metrics.jsonl holds the figures."""
        self.quiet = True
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, (sys.stderr if self.stderr else sys.stdout).fileno())
        os.close(nowhere)


def say(console: Console, text: object, style: str | None = None) -> None:
    """Print a text as it is: nothing in it is taken for markup, and no line is cut."""
    console.print(str(text), style=style, markup=False, highlight=False, soft_wrap=True)


class ProgressDisplay:
    """Steps done, rate, time left, loss and memory.

    Args:
        console: Where it is shown.
        total: Steps of the run.
        done: Steps done before.
        memory: Tells the bytes that the run has needed so far.
    """

    def __init__(self, console: Console, total: int, done: int = 0, memory: Callable[[], int] = lambda: 0) -> None:
        self.console, self.total, self._memory = console, total, memory
        self._shown, self._loss = 0.0, ""
        self._began: float | None = None
        self._first = done
        self._bar: Any = None
        if console.is_terminal and not console.is_dumb_terminal:
            texts = (TextColumn(f"{{task.fields[{name}]}}") for name in ("rate", "loss", "memory"))
            columns: list[ProgressColumn] = [BarColumn(20), MofNCompleteColumn(), TimeRemainingColumn(), *texts]
            shown = columns if console.width >= WIDE else columns[1:] if console.width >= NARROW else columns[1:3]
            self._bar = Progress(*shown, console=console, transient=True)
            self._task = self._bar.add_task("", total=total, completed=done, rate="", loss="", memory="")

    def start(self) -> None:
        """Begin to show."""
        if self._bar is not None:
            self._bar.start()

    def stop(self) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.stop()

    def step(self, step: int) -> None:
        """Say that a step was done; it is shown when there is time."""
        now = time.monotonic()
        if self._began is None:  # the first step loads kernels and more, and would spoil the rate
            self._began, self._first = now, step
        if self._bar is not None and (now - self._shown > REDRAW or step == self.total):
            self._shown = now
            told = {"rate": self._rate(step, now), "loss": self._loss, "memory": self._held()}
            self._bar.update(self._task, completed=step, **told)

    def doing(self, what: str) -> None:
        """Say what is done between two steps, for as long as the bar stands still."""
        if self._bar is not None:
            self._bar.update(self._task, loss=what)

    def figures(self, step: int, kind: str, figures: Mapping[str, float]) -> None:
        """Say what was measured; the loss stands beside the bar, an evaluation gets a line of its own."""
        text = _told(figures)
        if kind == "train":
            self._loss = f"loss {figures.get('loss', float('nan')):.4g}"
            now = time.monotonic()
            if self._bar is None and (now - self._shown > PATIENCE or step == self.total):
                self._shown = now
                told = (text, self._rate(step, now), self._left(step, now), self._held())
                self.line("  ".join([f"step {step}/{self.total}", *filter(None, told)]))
        elif text:
            self.line(f"step {step}  {kind}: {text}")

    def line(self, text: str) -> None:
        """Print a line above the bar."""
        say(self.console, text)

    def _rate(self, step: int, now: float) -> str:
        if self._began is None or step == self._first:
            return ""
        rate = (step - self._first) / max(now - self._began, 1e-9)
        return f"{rate:,.0f} steps/s" if rate >= 100 else f"{rate:.3g} steps/s"

    def _left(self, step: int, now: float) -> str:
        if self._began is None or step == self._first:
            return ""
        seconds = (now - self._began) / (step - self._first) * (self.total - step)
        return f"{timedelta(seconds=int(seconds))} left"

    def _held(self) -> str:
        held = self._memory()
        return size(held) if held else ""


def _told(figures: Mapping[str, float]) -> str:
    """Return the first figures with their intervals, and how many there are besides."""
    names = [name for name in figures if not is_companion_metric(name, figures)]
    told = ", ".join(f"{name} {with_interval(name, figures)}" for name in names[:MOST])
    return told + (f" and {len(names) - MOST} more" if len(names) > MOST else "")
