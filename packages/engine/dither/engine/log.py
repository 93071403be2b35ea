"""Everything that a run says of itself: metrics.jsonl, TensorBoard, and the terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from dither.registry.parts import Picture

from .board import Board
from .memory import needed_memory
from .metrics_file import BEGINNING, MetricsFile
from .progress import ProgressDisplay

__all__ = ["Log", "Silence"]


class Log:
    """Sends figures and pictures to all places at once.

    Args:
        folder: The run directory.
        console: The terminal.
        total: Steps of the run.
        done: Steps done before, when a run is resumed.
        offset: Bytes of metrics.jsonl that belong to those steps; None keeps all.
    """

    def __init__(self, folder: Path, console: Console, total: int, done: int = 0, offset: int | None = None) -> None:
        self.display = ProgressDisplay(console, total, done, needed_memory)
        self.metrics = MetricsFile(folder / "metrics.jsonl", offset, self.display.line)
        self.board = Board(folder / "tensorboard", done, self.display.line)

    def figures(self, step: int, kind: str, figures: Mapping[str, float]) -> None:
        """Take in what was measured: kind train, valid or sample."""
        self.metrics.write(step, kind, figures)
        self.board.scalars(step, kind, figures)
        self.display.figures(step, kind, figures)

    def pictures(self, step: int, pictures: Iterable[Picture]) -> None:
        """Take in what was drawn."""
        self.board.pictures(step, pictures)

    def outcome(self, options: Mapping[str, Any], figures: Mapping[str, Mapping[str, float]]) -> None:
        """Take in what was chosen, by dotted key, and what came of it, by kind."""
        plain = {key: v if isinstance(v, bool | int | float | str) else str(v) for key, v in options.items()}
        self.board.outcome(
            plain, {f"{kind}/{name}": v for kind, values in figures.items() for name, v in values.items()}
        )

    def close(self) -> None:
        """End the display and write out everything."""
        self.display.stop()
        self.board.close()
        self.metrics.close()


class Silence:
    """A log of a process that writes nothing, because another one writes for it; it has the methods of `Log`."""

    class _Nothing:
        place = BEGINNING

        def __getattr__(self, name: str) -> Callable[..., None]:
            return lambda *arguments: None

    display = metrics = board = _Nothing()

    def figures(self, step: int, kind: str, figures: Mapping[str, float]) -> None:
        """Leave it to the other one."""

    def pictures(self, step: int, pictures: Iterable[Picture]) -> None:
        """Leave it to the other one."""

    def outcome(self, options: Mapping[str, Any], figures: Mapping[str, Mapping[str, float]]) -> None:
        """Leave it to the other one."""

    def close(self) -> None:
        """Do nothing."""
