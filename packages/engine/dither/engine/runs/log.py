"""Metrics and pictures of a run: to metrics.jsonl, the terminal and the trackers."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any, Literal

from rich.console import Console

from dither.registry.contracts.protocols import Picture, Tracker
from dither.registry.plugins.status import describe_exception
from dither.registry.spec.process_settings import protected_settings

from ..files.metrics_file import MetricsFile, Position, rounded
from ..signals import Stopped
from ..training.device import peak_device_memory, peak_memory
from .events import Measured
from .progress import ProgressDisplay

__all__ = ["Log"]


class Log:
    """Sends metrics and pictures to metrics.jsonl in `folder` (None on ranks that write none), terminal and trackers.

    A tracker that raises an exception is reported once and not called again. Trackers receive
    copies, so that none can change what the run decides by.

    Args:
        total: Number of steps of the run.
        done: The last finished step of a resumed run.
        offset: Bytes of metrics.jsonl up to it; None keeps all.
        trackers: Trackers by the titles of their components.
        config: The experiment, for the trackers.
        emit: Called with each line of metrics.jsonl.
    """

    def __init__(
        self,
        folder: Path | None,
        console: Console,
        total: int,
        done: int = 0,
        offset: int | None = None,
        trackers: Mapping[str, Tracker] | None = None,
        config: Mapping[str, Any] | None = None,
        emit: Callable[[Measured], object] = lambda event: None,
    ) -> None:
        self._emit = emit
        self.display = ProgressDisplay(
            console, total, done, lambda: peak_device_memory() or peak_memory()
        )
        self._file: MetricsFile | None = None
        if folder is not None:
            self._file = MetricsFile(
                folder / "metrics.jsonl", offset, self.display.line
            )
        self._trackers = dict(trackers or {})
        place = folder or Path()
        self._each(
            # A copy, as a tracker may change it.
            lambda tracker: tracker.start(place, deepcopy(dict(config or {})), done)
        )

    @property
    def position(self) -> Position:
        """The end of metrics.jsonl."""
        return Position() if self._file is None else self._file.position

    def log(
        self,
        step: int,
        kind: Literal["train", "valid", "sample"],
        metrics: Mapping[str, float],
        rate: float | None = None,
    ) -> None:
        """Report metrics; `kind` is "train", "valid" or "sample", `rate` the samples per second."""
        if self._file is not None:
            times = {"wall_time": round(time.time(), 3)}
            if rate is not None:
                times["samples_per_second"] = rate
            self._file.write(step, kind, metrics, times)
            values = {name: rounded(value) for name, value in metrics.items()}
            self._emit(Measured(step=step, kind=kind, metrics={**values}))
        self.display.metrics(step, kind, metrics)
        self._each(lambda tracker: tracker.log(step, kind, dict(metrics)))

    def pictures(self, step: int, pictures: Sequence[Picture]) -> None:
        self._each(lambda tracker: tracker.log_pictures(step, list(pictures)))

    def require(self) -> None:
        """Raise `Vanished` if metrics.jsonl is gone."""
        if self._file is not None:
            self._file.require()

    def sync(self) -> None:
        if self._file is not None:
            self._file.sync()

    def close(self, error: BaseException | None = None) -> None:
        """Close all destinations; `error` is the exception that ended the run, if any."""
        self.display.stop()
        self._each(lambda tracker: tracker.finish(error))
        if self._file is not None:
            self._file.close()

    def _each(self, call: Callable[[Tracker], None]) -> None:
        for name, tracker in list(self._trackers.items()):
            try:
                with protected_settings(name):
                    call(tracker)
            except BaseException as error:
                # Ctrl-C raises no KeyboardInterrupt during a run: the tracker has raised it.
                if isinstance(error, Stopped):
                    raise
                del self._trackers[name]
                self.display.line(f"{name} is disabled: {describe_exception(error)}")
