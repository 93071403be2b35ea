"""Progress of a run: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from shlex import join
from typing import Any, Literal

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from dither.registry.config.errors import printable
from dither.registry.files.lookup import command_line, is_folder

from ..config.machine_memory import size
from ..files.metrics_file import (
    FLOOR,
    INTERVAL,
    baselines_of,
    better_of,
    decimals,
    is_companion_metric,
    leaders,
    with_interval,
)

__all__ = [
    "ProgressDisplay",
    "Screen",
    "cell",
    "fits",
    "metric_lines",
    "say",
    "show_metrics",
    "show_result",
    "table",
]

REDRAW = 0.1
"""Seconds between two updates of the bar."""
PATIENCE = 10.0
"""Seconds between two plain lines."""
WIDE = 75
NARROW = 55
"""Columns of a terminal with room for the bar, and for rate, loss and memory."""
SHOWN = 8
"""Metrics shown of an evaluation; metrics.jsonl and the final table have all."""
HEADLINE = 10
"""Metrics shown at the end of a run."""
AHEAD = "*"
"""Mark of who is ahead."""
FLOOR_EXPLAINED = "as many samples of real data; below it, a model cannot be distinguished from the data"


class Screen(Console):
    """A console that becomes quiet if writing fails: a closed pipe or stream or a full disk never ends a run.

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
        except ValueError as error:
            if isinstance(error, UnicodeError):
                raise
            # A model or a library has closed the stream.
            self.quiet = True

    def on_broken_pipe(self) -> None:
        self.quiet = True
        # Python flushes the stream when it exits, which would fail again.
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, (sys.stderr if self.stderr else sys.stdout).fileno())
        os.close(null)


def cell(value: object) -> Text:
    """Return a value of a foreign file for a table, in one line.

    Markup, escapes and overrides of direction have no effect.
    """
    return Text(printable(str(value)).replace("\n", " "))


def table(*columns: str, right: Collection[str] = ()) -> Table:
    """Return an empty table; long cells are wrapped."""
    page = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        justify: Literal["left", "right"] = "right" if column in right else "left"
        page.add_column(cell(column), overflow="fold", justify=justify)
    return page


def fits(console: Console, page: Table) -> bool:
    """Return whether no cell of a table is wrapped."""
    # A measure is never wider than its console.
    wide = console.options.update(width=10_000)
    return console.measure(page, options=wide).maximum <= console.width


def say(console: Console, text: object, style: str | None = None) -> None:
    """Print a text without markup and without wrapping."""
    console.print(
        printable(str(text)),
        style=style,
        markup=False,
        highlight=False,
        soft_wrap=True,
    )


def show_result(console: Console, summary: Mapping[str, Any], run: Path) -> None:
    """Print the most important metrics of a finished run, its paths and the next commands."""
    show_metrics(console, summary, headline(summary))
    lines = {"run": str(run)}
    samples = max((run / "samples").glob("step-*"), default=None)
    if samples is not None:
        lines["samples"] = str(samples)
    # Quoted, so that the command can be pasted even if the folder's name has spaces.
    lines["all metrics"] = command_line("report", run)
    lines["more samples"] = command_line("sample", run)
    if is_folder(run / "tensorboard"):
        lines["curves"] = join(["tensorboard", "--logdir", str(run.parent)])
    say(console, "\n" + "\n".join(f"{name:14}{text}" for name, text in lines.items()))


def headline(summary: Mapping[str, Any]) -> list[str]:
    """Return the metrics to show first, as `kind/name`.

    They are those of the task, or else the first ones with baselines.
    """
    measured = []
    with_baselines = []
    for kind, values in summary["metrics"].items():
        for name in values:
            measured.append(f"{kind}/{name}")
            if baselines_of(kind, name, summary["baselines"]):
                with_baselines.append(f"{kind}/{name}")
    of_task = [name for name in summary.get("headline", ()) if name in measured]
    return (of_task or with_baselines)[:HEADLINE]


def show_metrics(
    console: Console, summary: Mapping[str, Any], only: Sequence[str] = ()
) -> None:
    """Print metrics with interval, noise floor and baselines; `*` marks who is ahead.

    All are printed unless `only` names some, and then also the baselines of other metrics.
    """
    rows: list[tuple[str, str, Sequence[str]]] = []
    shown: dict[str, None] = {}
    for kind, name in _chosen(summary["metrics"], only):
        values = summary["metrics"][kind]
        model, rivals = _metric_cells(kind, name, values, summary)
        rows.append((f"{kind} {name}", model, list(rivals.values())))
        shown |= dict.fromkeys(rivals)
        if any(text.startswith(AHEAD) for text in (model, *rivals.values())):
            shown[AHEAD] = None
    if rows:
        rows.insert(0, ("metric", "model", ["baselines"]))
        header, *lines = metric_lines(rows, console.width)
        say(console, header, "bold")
        for line in lines:
            say(console, line)
        for line in _explanations(shown, summary.get("explanations", {})):
            console.print(cell(line))
    if only:
        return
    names: set[str] = set()
    for kind, values in summary["metrics"].items():
        # A baseline belongs to a metric of any kind, or of the kind that its key names.
        names |= {*values, *(f"{kind} {name}" for name in values)}
    for key, value in summary["baselines"].items():
        if key.partition("/")[0] not in names:
            say(console, f"baseline {key} {value:.4g}")


def metric_lines(
    rows: Sequence[tuple[str, str, Sequence[str]]], width: int | None
) -> Iterator[str]:
    """Yield aligned lines of metrics, their values, and their baselines; `width` None is that of the longest line.

    Baselines that do not fit next to a metric continue below, or all begin below if one is too long.
    """
    names = max(len(name) for name, _, _ in rows)
    values = max(len(value) for _, value, _ in rows)
    longest = max((len(text) for _, _, texts in rows for text in texts), default=0)
    start = names + values + 4
    beside = width is None or start + longest < width
    if not beside:
        start = 4
    for name, value, texts in rows:
        line = f"{name:{names}}  {value:>{values}}  "
        for number, text in enumerate(texts):
            word = text if number == len(texts) - 1 else f"{text},"
            full = width is not None and len(line) + len(word) > width
            if full or not (beside or number):
                yield line.rstrip()
                line = " " * start
            line += f"{word} "
        yield line.rstrip()


def _chosen(
    metrics: Mapping[str, Mapping[str, float]], only: Sequence[str]
) -> Iterator[tuple[str, str]]:
    """Yield kind and name of the metrics to show, in order."""
    for kind, values in metrics.items():
        for name in values:
            chosen = not only or f"{kind}/{name}" in only
            if chosen and not is_companion_metric(name, values):
                yield kind, name


def _metric_cells(
    kind: str, name: str, values: Mapping[str, float], summary: Mapping[str, Any]
) -> tuple[str, dict[str, str]]:
    """Return a metric of the model, and floor and baselines by name, with equal decimals."""
    baselines = summary["baselines"]
    references = baselines_of(kind, name, baselines)
    if name + FLOOR in values:
        references = {"floor": values[name + FLOOR], **references}
    places = decimals([values[name], *references.values()])
    better = better_of(name, summary.get("higher", ()), summary.get("lower", ()))
    ahead = leaders(kind, name, values, baselines, better)

    half = values.get(name + INTERVAL, math.nan)
    interval = f" ± {half:,.{places}f}" if math.isfinite(half) else ""
    mark = AHEAD if "" in ahead else ""
    model = f"{mark}{values[name]:,.{places}f}{interval}"
    rivals = {}
    for rival, value in references.items():
        mark = AHEAD if rival in ahead else ""
        rivals[rival] = f"{mark}{rival} {value:,.{places}f}"
    return model, rivals


def _explanations(
    shown: Collection[str], explanations: Mapping[str, str]
) -> Iterator[str]:
    """Yield a line for the mark and each baseline of a table that has an explanation."""
    if AHEAD in shown:
        yield f"{AHEAD} ahead; both are marked if the difference is within the 95 % interval"
    for name in shown:
        text = {"floor": FLOOR_EXPLAINED, **explanations}.get(name)
        if text:
            yield f"{name}: {text}"


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
            shown: Sequence[ProgressColumn] = columns[1:3]
            if console.width >= WIDE:
                shown = columns
            elif console.width >= NARROW:
                shown = columns[1:]
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
        # The first step compiles and loads kernels.
        if self._began is None:
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
        if kind != "train":
            if metrics:
                self.line(f"step {step}  {kind}: {_listed(metrics)}")
            return
        self._loss = f"loss {metrics.get('loss', float('nan')):.4g}"
        now = time.monotonic()
        if self._bar is None and (now - self._shown > PATIENCE or step == self.total):
            self._shown = now
            rate, left = self._speed(step, now)
            texts = (
                f"step {step}/{self.total}",
                _listed(metrics),
                rate,
                left,
                self._peak(),
            )
            self.line("  ".join(filter(None, texts)))

    def line(self, text: str) -> None:
        """Print a line above the bar."""
        say(self.console, text)

    def _speed(self, step: int, now: float) -> tuple[str, str]:
        """Format the steps per second and the time left."""
        if self._began is None or step == self._first:
            return "", ""
        # Two steps may be closer than the resolution of the clock.
        rate = (step - self._first) / max(now - self._began, 1e-9)
        left = timedelta(seconds=int((self.total - step) / rate))
        shown = f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}"
        return f"{shown} steps/s", f"{left} left"

    def _peak(self) -> str:
        peak = self._memory()
        return size(peak) if peak else ""


def _listed(metrics: Mapping[str, float]) -> str:
    """Return the first metrics with their intervals, and the number of the others."""
    names = [name for name in metrics if not is_companion_metric(name, metrics)]
    text = ", ".join(f"{name} {with_interval(name, metrics)}" for name in names[:SHOWN])
    if len(names) > SHOWN:
        text += f" and {len(names) - SHOWN} more"
    return text
