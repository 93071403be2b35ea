"""What is seen of a run while it runs: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

__all__ = ["ProgressDisplay", "Screen", "say"]

REDRAW = 0.1
"""Seconds between two updates of the bar."""
PATIENCE = 10.0
"""Seconds between two plain lines."""


class Screen(Console):
    """A console that falls silent when it cannot be written to: a closed pipe or a full disk never ends a run."""

    def print(self, *objects: Any, **options: Any) -> None:
        """Print, or fall silent for good."""
        try:
            super().print(*objects, **options)
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
    """Steps done, rate, time left and loss.

    Args:
        console: Where it is shown.
        total: Steps of the run.
        done: Steps done before.
    """

    def __init__(self, console: Console, total: int, done: int = 0) -> None:
        self.console, self.total = console, total
        self._shown, self._loss = 0.0, ""
        self._began: float | None = None
        self._first = done
        self._bar: Any = None
        if console.is_terminal:
            columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[rate]}"), TimeRemainingColumn())
            self._bar = Progress(*columns, TextColumn("{task.fields[loss]}"), console=console, transient=True)
            self._task = self._bar.add_task("", total=total, completed=done, rate="", loss="")

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
        if self._bar is not None and now - self._shown > REDRAW:
            self._shown = now
            self._bar.update(self._task, completed=step, rate=self._rate(step, now), loss=self._loss)

    def figures(self, step: int, kind: str, figures: Mapping[str, float]) -> None:
        """Say what was measured; the loss stands beside the bar, an evaluation gets a line of its own."""
        text = ", ".join(f"{name} {value:.4g}" for name, value in figures.items())
        if kind == "train":
            self._loss = f"loss {figures.get('loss', float('nan')):.4g}"
            now = time.monotonic()
            if self._bar is None and (now - self._shown > PATIENCE or step == self.total):
                self._shown = now
                self.line(f"step {step}/{self.total}  {text}  {self._rate(step, now)}  {self._left(step, now)}")
        elif text:
            self.line(f"step {step}  {kind}: {text}")

    def line(self, text: str) -> None:
        """Print a line above the bar."""
        say(self.console, text)

    def _rate(self, step: int, now: float) -> str:
        if self._began is None or step == self._first:
            return ""
        return f"{(step - self._first) / max(now - self._began, 1e-9):.3g} steps/s"

    def _left(self, step: int, now: float) -> str:
        if self._began is None or step == self._first:
            return ""
        seconds = (now - self._began) / (step - self._first) * (self.total - step)
        return f"{int(seconds // 60)}:{int(seconds % 60):02d} left"
