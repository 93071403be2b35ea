"""Trackers: TensorBoard event files in the folder `tensorboard` of a run, metrics.csv, W&B, Trackio, and MLflow."""

from __future__ import annotations

import csv
import importlib
import io
import math
import os
import re
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from textwrap import indent
from typing import TYPE_CHECKING, Any

from dither.registry.files.lookup import is_file
from dither.registry.kinds import TrackerSpec
from dither.registry.plugins.install_command import install_command

if TYPE_CHECKING:
    from dither.registry.contracts.protocols import Picture

__all__ = [
    "CSV",
    "CSVTracker",
    "MLflow",
    "MLflowTracker",
    "TensorBoard",
    "TensorBoardTracker",
    "Trackio",
    "TrackioTracker",
    "WandB",
    "WandBTracker",
]

MAX_CHARACTERS = 20_000
"""Characters of a text that are written."""


def _import(module: str, extra: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError:
        raise ImportError(
            f"not installed; {install_command('dither-engine', extra)}"
        ) from None


class TensorBoard(TrackerSpec):
    """Event files for TensorBoard. Without the package `tensorboard`, a run warns and continues."""

    name = "tensorboard"

    def build(self) -> TensorBoardTracker:
        return TensorBoardTracker()


class TensorBoardTracker:
    """Writes metrics, pictures, and at the end hyper-parameters with the last metrics.

    Events are appended at once: the thread of `SummaryWriter` prints its traceback when the disk is
    full.
    """

    def start(self, folder: Path, config: Mapping[str, Any], step: int = 0) -> None:
        """Name the event file, which the first event creates.

        Events after `step` of an interrupted run are hidden.
        """
        # Missing or not, without the rest of it, which takes .1 s.
        _import("tensorboard", "tensorboard")
        # TensorBoard reads the files of a run in the order of their names, and so of time.
        name = f"events.out.tfevents.{time.time():.6f}.{socket.gethostname()}.{os.getpid()}"
        self._path = folder / "tensorboard" / name
        self._config = config
        self._last: dict[str, float] = {}
        # The first event of a file names its format.
        self._beginning: list[dict[str, Any]] = [{"file_version": "brain.Event:2"}]
        if step:
            self._beginning.append(
                {"step": step + 1, "session_log": {"status": "START"}}
            )

    def _append(self, *events: Mapping[str, Any]) -> None:
        from tensorboard.compat.proto.event_pb2 import Event  # type: ignore[import-untyped]
        from tensorboard.summary.writer.record_writer import RecordWriter  # type: ignore[import-untyped]

        self._path.parent.mkdir(exist_ok=True)
        events = (*self._beginning, *events)
        self._beginning = []
        with self._path.open("ab") as file:
            for event in events:
                record = Event(wall_time=time.time(), **event)
                RecordWriter(file).write(record.SerializeToString())

    def log(self, step: int, kind: str, metrics: Mapping[str, float]) -> None:
        scalar = _import("torch.utils.tensorboard", "tensorboard").summary.scalar
        named = {f"{kind}/{name}": value for name, value in metrics.items()}
        events = []
        for name, value in named.items():
            events.append({"step": step, "summary": scalar(name, value)})
        self._append(*events)
        # The summary of hyper-parameters compares runs by what they reach on other data.
        if kind != "train":
            self._last |= named

    def log_pictures(self, step: int, pictures: Sequence[Picture]) -> None:
        text = _import("torch.utils.tensorboard", "tensorboard").summary.text
        for picture in pictures:
            if picture.png is not None:
                summary = _image_summary(picture.name, picture.png)
            elif picture.text is not None:
                # Texts are Markdown, in which indented lines are code.
                code = indent(picture.text[:MAX_CHARACTERS], "    ", lambda _: True)
                summary = text(picture.name, code)
            else:
                # TensorBoard shows no SVG.
                continue
            self._append({"step": step, "summary": summary})

    def finish(self, error: BaseException | None = None) -> None:
        """Write hyper-parameters and the last metrics unless the run failed.

        `SummaryWriter.add_hparams` would write them as another run with a second point in every
        plot.
        """
        from torch.utils.tensorboard.summary import hparams

        from ..runs.run_directory import flat

        if error is not None or not self._last:
            return
        options = {}
        for key, value in flat(self._config).items():
            # Other types are refused.
            is_plain = isinstance(value, bool | int | float | str)
            options[key] = value if is_plain else str(value)
        summaries = hparams(options, self._last)  # type: ignore[no-untyped-call]
        self._append(*({"summary": summary} for summary in summaries))


def _image_summary(name: str, png: bytes) -> Any:
    """Return a summary of an encoded picture; `SummaryWriter.add_image` would decode it and encode it again."""
    from PIL import Image
    from tensorboard.compat.proto.summary_pb2 import Summary  # type: ignore[import-untyped]

    # Reads only the header.
    with Image.open(io.BytesIO(png)) as image:
        width, height = image.size
    encoded = Summary.Image(
        height=height,
        width=width,
        # RGB, the colour space of all pictures; TensorBoard does not read it from the PNG.
        colorspace=3,
        encoded_image_string=png,
    )
    return Summary(value=[Summary.Value(tag=name, image=encoded)])


class CSV(TrackerSpec):
    """metrics.csv: one row per metric, with step, kind, name and value."""

    name = "csv"

    def build(self) -> CSVTracker:
        return CSVTracker()


class CSVTracker:
    """Appends rows; a resumed run keeps those up to its checkpoint."""

    def start(self, folder: Path, config: Mapping[str, Any], step: int = 0) -> None:
        path = folder / "metrics.csv"
        rows = [["step", "kind", "name", "value"]]
        if step and is_file(path):
            rows = list(csv.reader(path.read_text(encoding="utf-8").splitlines()))
        # csv writes the ends of lines itself.
        self._file = path.open("w", newline="", encoding="utf-8")
        self._rows = csv.writer(self._file)
        # Rows after the checkpoint will be written again.
        self._rows.writerows(
            row for row in rows if not row[0].isdecimal() or int(row[0]) <= step
        )

    def log(self, step: int, kind: str, metrics: Mapping[str, float]) -> None:
        self._rows.writerows(
            (step, kind, name, value) for name, value in metrics.items()
        )
        # The rows of a killed process must be there when it resumes.
        self._file.flush()

    def log_pictures(self, step: int, pictures: Sequence[Picture]) -> None:
        """Write nothing."""

    def finish(self, error: BaseException | None = None) -> None:
        self._file.close()


class WandB(TrackerSpec):
    """Weights & Biases, in the project `dither`. Files are in the folder `wandb` of a run."""

    name = "wandb"
    project: str = "dither"
    """Project of the run."""
    offline: bool = False
    """Write files only, which `wandb sync` sends later. The variable WANDB_MODE=offline does the
    same."""

    def build(self) -> WandBTracker:
        return WandBTracker(self)


class WandBTracker:
    """One run of Weights & Biases, named like the run directory, which a resumed run continues."""

    def __init__(self, spec: WandB) -> None:
        self._spec = spec

    def start(self, folder: Path, config: Mapping[str, Any], step: int = 0) -> None:
        """Start or continue the run; without a key, ask for one for a minute only."""
        self._wandb = wandb = _import("wandb", "wandb")
        # wandb itself reads the variable once in a process, at its first run.
        mode = os.environ.get("WANDB_MODE")
        self._run = wandb.init(
            project=self._spec.project,
            dir=str(folder),
            # Of at most 64 characters; the end of a name is its random part.
            id=folder.name[-64:],
            name=folder.name,
            config=dict(config),
            mode="offline" if self._spec.offline else mode,
            resume="allow",
            settings=wandb.Settings(
                # The console of a run is not sent anywhere.
                console="off",
                login_timeout=60,
                init_timeout=60,
                quiet=True,
            ),
        )
        # The steps of W&B never go back, as those of a resumed run do.
        self._run.define_metric("*", step_metric="step")

    def log(self, step: int, kind: str, metrics: Mapping[str, float]) -> None:
        named = {f"{kind}/{name}": value for name, value in metrics.items()}
        self._run.log({"step": step, **named})

    def log_pictures(self, step: int, pictures: Sequence[Picture]) -> None:
        from html import escape

        def as_text(text: str) -> Any:
            return self._wandb.Html(f"<pre>{escape(text)}</pre>")

        self._run.log({"step": step, **_media(pictures, self._wandb.Image, as_text)})

    def finish(self, error: BaseException | None = None) -> None:
        self._run.finish(exit_code=int(error is not None))


def _media(
    pictures: Sequence[Picture],
    image: Callable[[Any], Any],
    as_text: Callable[[str], Any],
) -> dict[str, Any]:
    """Return the PNG, or else the text, of each picture as an object of a tracker."""
    from PIL import Image

    media = {}
    for picture in pictures:
        if picture.png is not None:
            media[picture.name] = image(Image.open(io.BytesIO(picture.png)))
        elif picture.text is not None:
            media[picture.name] = as_text(picture.text)
    return media


class Trackio(TrackerSpec):
    """Trackio: a database in TRACKIO_DIR, or a server if TRACKIO_SERVER_URL or TRACKIO_SPACE_ID is set."""

    name = "trackio"
    project: str = "dither"
    """Project of the run."""

    def build(self) -> TrackioTracker:
        return TrackioTracker(self)


class TrackioTracker:
    """One run of Trackio, named like the run directory, which a resumed run continues."""

    def __init__(self, spec: Trackio) -> None:
        self._spec = spec

    def start(self, folder: Path, config: Mapping[str, Any], step: int = 0) -> None:
        self._trackio = _import("trackio", "trackio")
        self._run = self._trackio.init(
            self._spec.project,
            folder.name,
            config=dict(config),
            resume="allow",
            embed=False,
            auto_log_gpu=False,
            auto_log_cpu=False,
        )

    def log(self, step: int, kind: str, metrics: Mapping[str, float]) -> None:
        self._run.log(
            {f"{kind}/{name}": value for name, value in metrics.items()}, step
        )

    def log_pictures(self, step: int, pictures: Sequence[Picture]) -> None:
        def as_text(text: str) -> Any:
            return self._trackio.Markdown(indent(text, "    "))

        self._run.log(_media(pictures, self._trackio.Image, as_text), step)

    def finish(self, error: BaseException | None = None) -> None:
        self._run.finish()


class MLflow(TrackerSpec):
    """MLflow: metrics, options, and pictures as artifacts."""

    name = "mlflow"
    uri: str | None = None
    """Address of a server or database; by default MLFLOW_TRACKING_URI, or else a database in the
    working folder."""
    experiment: str = "dither"
    """Experiment that the run belongs to."""

    def build(self) -> MLflowTracker:
        return MLflowTracker(self)


class MLflowTracker:
    """One run of MLflow, named like the run directory, which a resumed run continues."""

    def __init__(self, spec: MLflow) -> None:
        self._spec = spec

    def start(self, folder: Path, config: Mapping[str, Any], step: int = 0) -> None:
        """Create or continue the run. By default MLflow tries a server that is down for minutes."""
        # A run must not wait long for a tracker, nor report about itself.
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "20")
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        self._client = client = _import("mlflow", "mlflow").MlflowClient(self._spec.uri)
        from mlflow.entities import Param

        from ..runs.run_directory import flat

        name = self._spec.experiment
        known = client.get_experiment_by_name(name)
        experiment = known.experiment_id if known else client.create_experiment(name)
        # A resumed run continues under its old id; if that is lost, as a new run.
        if step:
            condition = f"attributes.run_name = '{folder.name}'"
            for run in client.search_runs([experiment], condition, max_results=1):
                self._id = run.info.run_id
                client.update_run(self._id, status="RUNNING")
                return

        self._id = client.create_run(experiment, run_name=folder.name).info.run_id
        # Older servers refuse values of more than 500 characters.
        params = [Param(key, str(value)[:500]) for key, value in flat(config).items()]
        # A request may have 100 at most.
        for start in range(0, len(params), 100):
            client.log_batch(self._id, params=params[start : start + 100])

    def log(self, step: int, kind: str, metrics: Mapping[str, float]) -> None:
        """Log metrics as `kind/name`, without characters that MLflow refuses, NaN and inf."""
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        values = []
        for name, value in metrics.items():
            if math.isfinite(value):
                key = re.sub(r"[^\w\-. /]", "_", f"{kind}/{name}")
                values.append(Metric(key, float(value), now, step))
        self._client.log_batch(self._id, metrics=values)

    def log_pictures(self, step: int, pictures: Sequence[Picture]) -> None:
        """Write the PNG, or else the text, of each picture as an artifact."""
        from PIL import Image

        for picture in pictures:
            path = f"samples/step-{step:08d}/{picture.name}"
            if picture.png is not None:
                image = Image.open(io.BytesIO(picture.png))
                self._client.log_image(self._id, image, f"{path}.png")
            elif picture.text is not None:
                self._client.log_text(self._id, picture.text, f"{path}.txt")

    def finish(self, error: BaseException | None = None) -> None:
        self._client.set_terminated(self._id, "FINISHED" if error is None else "FAILED")
