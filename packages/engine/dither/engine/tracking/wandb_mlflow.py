"""Trackers of services: Weights & Biases, and MLflow."""

from __future__ import annotations

import html
import io
import math
import os
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from dither.registry.kinds import TrackerSpec
from dither.registry.plugins.install_command import install_command

if TYPE_CHECKING:
    from dither.registry.flow.protocols import Picture

__all__ = ["MLflow", "MLflowTracker", "WandB", "WandBTracker"]


class WandB(TrackerSpec):
    """Weights & Biases, in the project `dither`. Files are in the folder `wandb` of a run."""

    name: ClassVar[str] = "wandb"
    project: str = "dither"
    """Project on the server."""
    offline: bool = False
    """Write files only, which `wandb sync` sends later. The variable WANDB_MODE=offline does the same."""

    def build(self) -> WandBTracker:
        return WandBTracker(self)


class WandBTracker:
    """One run of Weights & Biases, named like the run directory, which a resumed run continues."""

    def __init__(self, spec: WandB) -> None:
        self._spec = spec

    def start(self, folder: Path, config: Mapping[str, Any], step: int = 0) -> None:
        """Start or continue the run; without a key, ask for one for a minute only."""
        try:
            import wandb
        except ImportError:
            raise ImportError(f"not installed; {install_command('dither-engine', 'wandb')}") from None
        self._wandb = wandb
        self._run = wandb.init(
            project=self._spec.project, dir=str(folder), id=folder.name[-64:], name=folder.name, config=dict(config),
            mode="offline" if self._spec.offline else None, resume="allow",
            settings=wandb.Settings(console="off", login_timeout=60, init_timeout=60, quiet=True),
        )  # fmt: skip
        self._run.define_metric("*", step_metric="step")  # the steps of W&B never go back, as those of a resumed run do

    def log(self, step: int, kind: str, metrics: Mapping[str, float]) -> None:
        """Log metrics as `kind/name`."""
        self._run.log({"step": step, **{f"{kind}/{name}": value for name, value in metrics.items()}})

    def log_pictures(self, step: int, pictures: Sequence[Picture]) -> None:
        """Log the PNG, or else the text, of each picture."""
        from PIL import Image

        shown: dict[str, Any] = {}
        for picture in pictures:
            if picture.png is not None:
                shown[picture.name] = self._wandb.Image(Image.open(io.BytesIO(picture.png)))
            elif picture.text is not None:
                shown[picture.name] = self._wandb.Html(f"<pre>{html.escape(picture.text)}</pre>")
        self._run.log({"step": step, **shown})

    def finish(self, error: BaseException | None = None) -> None:
        """Send what is left."""
        self._run.finish(exit_code=int(error is not None))


class MLflow(TrackerSpec):
    """MLflow: metrics, options, and pictures as artifacts."""

    name: ClassVar[str] = "mlflow"
    uri: str | None = None
    """Address of a server or database; by default MLFLOW_TRACKING_URI, or else a database in the working folder."""
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
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "20")
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        try:
            from mlflow import MlflowClient
            from mlflow.entities import Param
        except ImportError:
            raise ImportError(f"not installed; {install_command('dither-engine', 'mlflow')}") from None
        from ..runs.run_directory import flat

        self._client = client = MlflowClient(self._spec.uri)
        known = client.get_experiment_by_name(self._spec.experiment)
        experiment = client.create_experiment(self._spec.experiment) if known is None else known.experiment_id
        same = client.search_runs([experiment], f"attributes.run_name = '{folder.name}'", max_results=1) if step else ()
        if same:
            self._id = same[0].info.run_id
            client.update_run(self._id, status="RUNNING")
            return
        self._id = client.create_run(experiment, run_name=folder.name).info.run_id
        params = [Param(key, str(value)[:500]) for key, value in flat(config).items()]
        for start in range(0, len(params), 100):  # the most that a request may have
            client.log_batch(self._id, params=params[start : start + 100])

    def log(self, step: int, kind: str, metrics: Mapping[str, float]) -> None:
        """Log metrics as `kind/name`, without characters that MLflow refuses, and without NaN and inf."""
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        finite = {f"{kind}/{name}": float(value) for name, value in metrics.items() if math.isfinite(value)}
        values = [Metric(re.sub(r"[^\w\-. /]", "_", name), value, now, step) for name, value in finite.items()]
        self._client.log_batch(self._id, metrics=values)

    def log_pictures(self, step: int, pictures: Sequence[Picture]) -> None:
        """Write the PNG, or else the text, of each picture as an artifact."""
        from PIL import Image

        for picture in pictures:
            path = f"samples/step-{step:08d}/{picture.name}"
            if picture.png is not None:
                self._client.log_image(self._id, Image.open(io.BytesIO(picture.png)), f"{path}.png")
            elif picture.text is not None:
                self._client.log_text(self._id, picture.text, f"{path}.txt")

    def finish(self, error: BaseException | None = None) -> None:
        """End the run."""
        self._client.set_terminated(self._id, "FINISHED" if error is None else "FAILED")
