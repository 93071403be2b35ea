"""Progress of a run: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from dither.registry.config.errors import printable

from ..config.machine_memory import size
from ..files.metrics_file import (
    FLOOR,
    baselines_of,
    is_companion_metric,
    shown_baselines,
    with_interval,
)

__all__ = ["ProgressDisplay", "Screen", "cell", "say", "show_metrics", "show_result", "table"]

REDRAW = 0.1
"""Seconds between two updates of the bar."""
PATIENCE = 10.0
"""Seconds between two plain lines."""
WIDE = 75
NARROW = 55
"""Columns of a terminal with room for the bar, and for rate, loss and memory."""
SHOWN = 8
"""Metrics shown of an evaluation; metrics.jsonl and the final table have all."""


class Screen(Console):
    """A console that becomes quiet if writing fails: a closed pipe or a full disk never ends a run.

    In a notebook it prints plain lines, which are kept as one output.
    """

    def __init__(self, **options: Any) -> None:
        if type(sys.stdout).__module__.startswith("ipykernel"):
            options.setdefault("force_terminal", False)
        super().__init__(force_jupyter=False, **options)

    def __exit__(self, *raised: Any) -> None:
        try:
            super().__exit__(*raised)
        except OSError:
            self.on_broken_pipe()

    def on_broken_pipe(self) -> None:
        self.quiet = True
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, (sys.stderr if self.stderr else sys.stdout).fileno())
        os.close(null)


def cell(value: object) -> Text:
    """Return a value of a foreign file for a table: in one line, without markup, escapes and overrides of direction."""
    return Text(printable(str(value)).replace("\n", " "))


def table(*columns: str, right: Collection[str] = ()) -> Table:
    """Return an empty table; long cells are wrapped."""
    page = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        page.add_column(
            cell(column), overflow="fold", justify="right" if column in right else "left"
        )
    return page


def say(console: Console, text: object, style: str | None = None) -> None:
    """Print a text without markup and without wrapping."""
    console.print(
        printable(str(text)),
        style=style,
        markup=False,
        highlight=False,
        soft_wrap=True,
    )


HEADLINE = 10
"""Metrics shown at the end of a run."""


def show_result(console: Console, summary: Mapping[str, Any], run: Path) -> None:
    """Print the most important metrics of a finished run, its paths and the next commands."""
    show_metrics(console, summary, headline(summary))
    samples = max((run / "samples").glob("step-*"), default=None)
    lines = {
        "run": run,
        "samples": samples,
        "all metrics": f"dither report {run}",
        "more samples": f"dither sample {run}",
        "curves": f"tensorboard --logdir {run.parent}" if (run / "tensorboard").is_dir() else None,
    }
    say(
        console,
        "\n" + "\n".join(f"{name:14}{text}" for name, text in lines.items() if text is not None),
    )


def headline(summary: Mapping[str, Any]) -> list[str]:
    """Return the metrics to show first, as `kind/name`: those of the task, or the first ones with baselines."""
    metrics = summary["figures"]
    baselines = summary["baselines"]
    all_ = [f"{kind}/{name}" for kind, values in metrics.items() for name in values]
    chosen = [name for name in summary.get("headline", ()) if name in all_]
    split = (name.partition("/") for name in all_)
    return (
        chosen
        or [f"{kind}/{name}" for kind, _, name in split if baselines_of(kind, name, baselines)]
    )[:HEADLINE]


def show_metrics(console: Console, summary: Mapping[str, Any], only: Sequence[str] = ()) -> None:
    """Print metrics with interval, noise floor and baselines, by default all, then the baselines of other metrics."""
    metrics = summary["figures"]
    baselines = dict(summary["baselines"])
    page = table("metric", "model", "baseline", right=["model"])
    for column in page.columns[:2]:
        column.no_wrap = True
    for kind, values in metrics.items():
        for name in [name for name in values if not is_companion_metric(name, values)]:
            if only and f"{kind}/{name}" not in only:
                continue
            floor = [f"floor {values[name + FLOOR]:.4g}"] if name + FLOOR in values else []
            shown = ", ".join(filter(None, [*floor, shown_baselines(kind, name, baselines)]))
            page.add_row(*map(cell, (f"{kind} {name}", with_interval(name, values), shown)))
    if page.row_count:
        console.print(page)
    if only:
        return
    names = {
        full
        for kind, values in metrics.items()
        for name in values
        for full in (name, f"{kind} {name}")
    }
    for key in [key for key in baselines if key.partition("/")[0] not in names]:
        say(console, f"baseline {key} {baselines[key]:.4g}")


class ProgressDisplay:
    """Steps done of `total`, rate, time left, loss, and the peak memory in bytes that `memory` returns."""

    def __init__(
        self,
        console: Console,
        total: int,
        done: int = 0,
        memory: Callable[[], int] = lambda: 0,
    ) -> None:
        self.console = console
        self.total = total
        self._memory = memory
        self._shown = 0.0
        self._loss = ""
        self._began: float | None = None
        self._first = done
        self._bar: Progress | None = None
        if console.is_terminal and not console.is_dumb_terminal and not console.quiet:
            columns = (
                BarColumn(20),
                MofNCompleteColumn(),
                TimeRemainingColumn(),
                TextColumn("left  {task.description}"),
            )
            shown = (
                columns
                if console.width >= WIDE
                else columns[1:]
                if console.width >= NARROW
                else columns[1:3]
            )
            self._bar = Progress(*shown, console=console, transient=True)
            self._task = self._bar.add_task("", total=total, completed=done)

    def start(self) -> None:
        if self._bar is not None:
            self._bar.start()

    def stop(self) -> None:
        if self._bar is not None:
            self._bar.stop()

    def step(self, step: int) -> None:
        """Report a finished step; the bar is updated at most every `REDRAW` seconds."""
        now = time.monotonic()
        if self._began is None:  # the first step compiles and loads kernels
            self._began = now
            self._first = step
        if self._bar is not None and (now - self._shown > REDRAW or step == self.total):
            self._shown = now
            rate, _ = self._speed(step, now)
            text = "  ".join(filter(None, (rate, self._loss, self._peak())))
            self._bar.update(self._task, completed=step, description=text)

    def doing(self, activity: str) -> None:
        """Show an activity between two steps, such as "sampling"."""
        if self._bar is not None:
            self._bar.update(self._task, description=activity)

    def metrics(self, step: int, kind: str, metrics: Mapping[str, float]) -> None:
        """Show the training loss next to the bar, and an evaluation on a line of its own."""
        names = [name for name in metrics if not is_companion_metric(name, metrics)]
        text = ", ".join(f"{name} {with_interval(name, metrics)}" for name in names[:SHOWN])
        text += f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
        if kind == "train":
            self._loss = f"loss {metrics.get('loss', float('nan')):.4g}"
            now = time.monotonic()
            if self._bar is None and (now - self._shown > PATIENCE or step == self.total):
                self._shown = now
                texts = (f"step {step}/{self.total}", text, *self._speed(step, now), self._peak())
                self.line("  ".join(filter(None, texts)))
        elif text:
            self.line(f"step {step}  {kind}: {text}")

    def line(self, text: str) -> None:
        """Print a line above the bar."""
        say(self.console, text)

    def _speed(self, step: int, now: float) -> tuple[str, str]:
        """Format the steps per second and the time left."""
        if self._began is None or step == self._first:
            return "", ""
        rate = (step - self._first) / max(now - self._began, 1e-9)
        left = timedelta(seconds=int((self.total - step) / rate))
        return f"{rate:,.0f} steps/s" if rate >= 100 else f"{rate:.3g} steps/s", f"{left} left"

    def _peak(self) -> str:
        peak = self._memory()
        return size(peak) if peak else ""
