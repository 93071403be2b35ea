"""Where a run reports to: metrics.jsonl, the terminal, and the trackers of the experiment."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from dither.registry.flow.protocols import Picture, Tracker

from ..files.metrics_file import BEGINNING, FilePosition, MetricsFile
from ..training.device import peak_device_memory, peak_memory
from .progress import ProgressDisplay

__all__ = ["Log"]


class Log:
    """Sends metrics and pictures to all destinations.

    Args:
        folder: The run directory; None for a rank that writes nothing.
        console: The terminal.
        total: Steps of the run.
        done: Last finished step of a resumed run.
        offset: Bytes of metrics.jsonl that belong to these steps; None keeps all.
        trackers: Trackers by name. One that raises an exception is reported once and not called again.
        config: The resolved experiment in plain values, for the trackers.
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
    ) -> None:
        self.display = ProgressDisplay(console, total, done, lambda: peak_device_memory() or peak_memory())
        self._file = None if folder is None else MetricsFile(folder / "metrics.jsonl", offset, self.display.line)
        self._trackers = dict(trackers or {})
        self._each(lambda tracker: tracker.start(folder or Path(), config or {}, done))

    @property
    def position(self) -> FilePosition:
        """The end of metrics.jsonl."""
        return BEGINNING if self._file is None else self._file.position

    def log(self, step: int, kind: str, metrics: Mapping[str, float]) -> None:
        """Report metrics; `kind` is "train", "valid" or "sample"."""
        if self._file is not None:
            self._file.write(step, kind, metrics)
        self._each(lambda tracker: tracker.log(step, kind, metrics))
        self.display.metrics(step, kind, metrics)

    def pictures(self, step: int, pictures: Sequence[Picture]) -> None:
        """Report pictures of samples."""
        self._each(lambda tracker: tracker.log_pictures(step, pictures))

    def sync(self) -> None:
        """Flush metrics.jsonl to disk."""
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
                call(tracker)
            except (Exception, SystemExit) as error:
                del self._trackers[name]
                self.display.line(f'tracker "{name}" is disabled: {type(error).__name__}: {error}')
