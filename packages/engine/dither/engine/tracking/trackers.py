"""Trackers: TensorBoard event files in the folder `tensorboard` of a run, and metrics.csv."""

from __future__ import annotations

import csv
import io
import os
import socket
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import indent
from typing import TYPE_CHECKING, Any, ClassVar

from dither.registry.kinds import TrackerSpec
from dither.registry.plugins.install_command import install_command

if TYPE_CHECKING:
    from dither.registry.flow.protocols import Picture

__all__ = ["CSV", "CSVTracker", "TensorBoard", "TensorBoardTracker"]

MAX_CHARACTERS = 20_000
"""Characters of a text that are written."""


class TensorBoard(TrackerSpec):
    """Event files for TensorBoard. Without the package `tensorboard`, a run warns and continues."""

    name: ClassVar[str] = "tensorboard"

    def build(self) -> TensorBoardTracker:
        return TensorBoardTracker()


class TensorBoardTracker:
    """Writes metrics, pictures, and at the end hyper-parameters with the last metrics.

    Events are appended at once: the thread of `SummaryWriter` prints its traceback when the disk is full.
    """

    def start(self, folder: Path, config: Mapping[str, Any], step: int = 0) -> None:
        """Create the event file; events after `step` of an interrupted run are hidden."""
        try:
            import torch.utils.tensorboard  # noqa: F401 - checks its version
            from tensorboard.compat.proto.event_pb2 import SessionLog  # type: ignore[import-untyped]
        except ImportError:
            raise ImportError(f"not installed; {install_command('dither-engine', 'tensorboard')}") from None
        name = f"events.out.tfevents.{time.time():.6f}.{socket.gethostname()}.{os.getpid()}"  # sorted by time
        self._path, self._config = folder / "tensorboard" / name, config
        self._last: dict[str, float] = {}
        self._path.parent.mkdir(exist_ok=True)
        self._append({"file_version": "brain.Event:2"})
        if step:
            self._append({"step": step + 1, "session_log": SessionLog(status=SessionLog.START)})

    def _append(self, *events: Mapping[str, Any]) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.summary.writer.record_writer import RecordWriter  # type: ignore[import-untyped]

        with self._path.open("ab") as file:
            for event in events:
                RecordWriter(file).write(Event(wall_time=time.time(), **event).SerializeToString())

    def log(self, step: int, kind: str, metrics: Mapping[str, float]) -> None:
        """Write metrics as `kind/name`."""
        from torch.utils.tensorboard.summary import scalar

        named = {f"{kind}/{name}": value for name, value in metrics.items()}
        self._append(*({"step": step, "summary": scalar(*item)} for item in named.items()))  # type: ignore[no-untyped-call]
        if kind != "train":
            self._last |= named

    def log_pictures(self, step: int, pictures: Sequence[Picture]) -> None:
        """Write the PNG, or else the text, of each picture."""
        from torch.utils.tensorboard.summary import text

        for picture in pictures:
            if picture.png is not None:
                self._append({"step": step, "summary": _image_summary(picture.name, picture.png)})
            elif picture.text is not None:
                code = indent(picture.text[:MAX_CHARACTERS], "    ", lambda _: True)
                self._append({"step": step, "summary": text(picture.name, code)})  # type: ignore[no-untyped-call]

    def finish(self, error: BaseException | None = None) -> None:
        """Write hyper-parameters and the last metrics unless the run failed.

        `SummaryWriter.add_hparams` would write them as another run with a second point in every plot.
        """
        from torch.utils.tensorboard.summary import hparams

        from ..runs.run_directory import flat

        if error is None and self._last:
            options = {
                k: v if isinstance(v, bool | int | float | str) else str(v) for k, v in flat(self._config).items()
            }
            self._append(*({"summary": summary} for summary in hparams(options, self._last)))  # type: ignore[no-untyped-call]


def _image_summary(name: str, png: bytes) -> Any:
    """Return a summary of an encoded picture; `SummaryWriter.add_image` would decode it and encode it again."""
    from PIL import Image
    from tensorboard.compat.proto.summary_pb2 import Summary  # type: ignore[import-untyped]

    with Image.open(io.BytesIO(png)) as image:  # reads only the header
        width, height = image.size
    encoded = Summary.Image(height=height, width=width, colorspace=3, encoded_image_string=png)
    return Summary(value=[Summary.Value(tag=name, image=encoded)])


class CSV(TrackerSpec):
    """metrics.csv: one row per metric, with step, kind, name and value."""

    name: ClassVar[str] = "csv"

    def build(self) -> CSVTracker:
        return CSVTracker()


class CSVTracker:
    """Appends rows; a resumed run keeps those up to its checkpoint."""

    def start(self, folder: Path, config: Mapping[str, Any], step: int = 0) -> None:
        """Open the file."""
        path = folder / "metrics.csv"
        kept = [["step", "kind", "name", "value"]]
        if step and path.is_file():
            kept = list(csv.reader(path.read_text(encoding="utf-8").splitlines()))
        self._file = path.open("w", newline="", encoding="utf-8")
        self._rows = csv.writer(self._file)
        self._rows.writerows(row for row in kept if not row[0].isdecimal() or int(row[0]) <= step)

    def log(self, step: int, kind: str, metrics: Mapping[str, float]) -> None:
        """Write a row for each metric."""
        self._rows.writerows((step, kind, name, value) for name, value in metrics.items())
        self._file.flush()

    def log_pictures(self, step: int, pictures: Sequence[Picture]) -> None:
        """Write nothing."""

    def finish(self, error: BaseException | None = None) -> None:
        """Close the file."""
        self._file.close()
