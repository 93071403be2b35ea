"""Everything that a run says of itself: metrics.jsonl, TensorBoard, and the terminal."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from dither.registry.flow.protocols import Picture

from ..files.metrics_file import BEGINNING, MetricsFile
from ..training.device import peak_run_memory
from .progress import ProgressDisplay

__all__ = ["Board", "Log", "SilentLog"]


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
        self.display = ProgressDisplay(console, total, done, peak_run_memory)
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


class SilentLog:
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


EXTRA = "dither-engine[tensorboard]"
"""What has it; all the rest of a run does without."""
LONGEST = 20_000
"""Characters of a text that are sent to TensorBoard."""


class Board:
    """Writes what TensorBoard shows, until writing fails once.

    Args:
        folder: For its event files.
        start: The step that is resumed from; what an earlier writer wrote for later steps is hidden.
        warn: Told once if writing fails.
    """

    def __init__(self, folder: Path, start: int, warn: Callable[[str], Any]) -> None:
        self._warn = warn
        self._writer: Any = None

        def open_writer() -> None:
            try:
                from torch.utils.tensorboard import SummaryWriter
            except ImportError:
                warn(f"no TensorBoard: it is not installed; pip install '{EXTRA}' brings it")
                return
            self._writer = SummaryWriter(str(folder), purge_step=start + 1 if start else None)

        self._try(open_writer)

    def _try(self, action: Callable[[], Any]) -> None:
        try:
            action()
        except Exception as error:
            self._writer = None
            self._warn(f"TensorBoard is off from here on: {type(error).__name__}: {error}")

    def scalars(self, step: int, kind: str, figures: Mapping[str, float]) -> None:
        """Show figures as `kind/name`."""

        def add() -> None:
            for name, value in figures.items():
                self._writer.add_scalar(f"{kind}/{name}", value, step)

        if self._writer is not None:
            self._try(add)

    def pictures(self, step: int, pictures: Iterable[Picture]) -> None:
        """Show the PNG or else the text of each picture."""

        def add() -> None:
            for picture in pictures:
                if picture.png is not None:
                    self._writer.file_writer.add_summary(_as_summary(picture.name, picture.png), step)
                elif picture.text is not None:
                    self._writer.add_text(picture.name, _as_markdown(picture.text[:LONGEST]), step)

        if self._writer is not None:
            self._try(add)

    def outcome(self, options: Mapping[str, bool | float | str], figures: Mapping[str, float]) -> None:
        """Show what was chosen and what came of it in the table of hyper-parameters, as part of this run.

        `SummaryWriter.add_hparams` would make a run of its own inside this one, and a second point in every plot.
        """

        def add() -> None:
            from torch.utils.tensorboard.summary import hparams

            for summary in hparams(dict(options), dict(figures)):  # type: ignore[no-untyped-call]
                self._writer.file_writer.add_summary(summary)

        if self._writer is not None:
            self._try(add)

    def close(self) -> None:
        """Write out what is held back."""
        if self._writer is not None:
            self._try(self._writer.close)


def _as_summary(name: str, png: bytes) -> Any:
    """Return a picture as it is; `SummaryWriter.add_image` takes 16 bytes a pixel, and makes a PNG of it again."""
    from PIL import Image
    from tensorboard.compat.proto.summary_pb2 import Summary  # type: ignore[import-untyped]

    with Image.open(io.BytesIO(png)) as image:  # which reads no more than the size yet
        width, height = image.size
    shown = Summary.Image(height=height, width=width, colorspace=3, encoded_image_string=png)
    return Summary(value=[Summary.Value(tag=name, image=shown)])


def _as_markdown(text: str) -> str:
    """Indented lines are shown as they are."""
    return "\n".join(f"    {line}" for line in text.splitlines())
