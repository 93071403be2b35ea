"""The TensorBoard tracker: event files in the folder `tensorboard` of a run."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import indent
from typing import TYPE_CHECKING, Any, ClassVar

from dither.registry.kinds import TrackerSpec
from dither.registry.plugins.install_command import install_command

if TYPE_CHECKING:
    from dither.registry.flow.protocols import Picture

__all__ = ["TensorBoard", "TensorBoardTracker"]

MAX_CHARACTERS = 20_000
"""Characters of a text that are written."""


class TensorBoard(TrackerSpec):
    """Event files for TensorBoard. Without the package `tensorboard`, a run warns and continues."""

    name: ClassVar[str] = "tensorboard"

    def build(self) -> TensorBoardTracker:
        """Return the tracker."""
        return TensorBoardTracker()


class TensorBoardTracker:
    """Writes metrics, pictures, and at the end hyper-parameters with the last metrics."""

    def __init__(self) -> None:
        self._writer: Any = None
        self._config: Mapping[str, Any] = {}
        self._last: dict[str, float] = {}

    def start(self, folder: Path, config: Mapping[str, Any], step: int = 0) -> None:
        """Open the event file; events after `step` of an interrupted run are hidden."""
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise ImportError(f"not installed; {install_command('dither-engine', 'tensorboard')}") from None
        self._config = config
        self._writer = SummaryWriter(str(folder / "tensorboard"), purge_step=step + 1 if step else None)

    def log(self, step: int, kind: str, metrics: Mapping[str, float]) -> None:
        """Write metrics as `kind/name`."""
        named = {f"{kind}/{name}": value for name, value in metrics.items()}
        for name, value in named.items():
            self._writer.add_scalar(name, value, step)
        if kind != "train":
            self._last |= named

    def log_pictures(self, step: int, pictures: Sequence[Picture]) -> None:
        """Write the PNG, or else the text, of each picture."""
        for picture in pictures:
            if picture.png is not None:
                self._writer.file_writer.add_summary(_image_summary(picture.name, picture.png), step)
            elif picture.text is not None:
                self._writer.add_text(picture.name, indent(picture.text[:MAX_CHARACTERS], "    ", lambda _: True), step)

    def finish(self, error: BaseException | None = None) -> None:
        """Write hyper-parameters and the last metrics unless the run failed, and close.

        `SummaryWriter.add_hparams` would write them as another run with a second point in every plot.
        """
        from torch.utils.tensorboard.summary import hparams

        from ..runs.run_directory import flat

        if error is None and self._last:
            options = {
                k: v if isinstance(v, bool | int | float | str) else str(v) for k, v in flat(self._config).items()
            }
            for summary in hparams(options, self._last):  # type: ignore[no-untyped-call]
                self._writer.file_writer.add_summary(summary)
        self._writer.close()


def _image_summary(name: str, png: bytes) -> Any:
    """Return a summary of an encoded picture; `SummaryWriter.add_image` would decode it and encode it again."""
    from PIL import Image
    from tensorboard.compat.proto.summary_pb2 import Summary  # type: ignore[import-untyped]

    with Image.open(io.BytesIO(png)) as image:  # reads only the header
        width, height = image.size
    encoded = Summary.Image(height=height, width=width, colorspace=3, encoded_image_string=png)
    return Summary(value=[Summary.Value(tag=name, image=encoded)])
