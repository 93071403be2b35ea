import errno
import json
import math
import os
import resource
import threading
import time

import pytest

from dither.engine.files.metrics_file import (
    MetricsFile,
    Position,
    damaged_lines,
    read_metrics,
)
from dither.engine.runs.evaluate_run import evaluate_run
from dither.engine.runs.log import Log
from dither.engine.runs.run import run
from dither.engine.tracking.trackers import TensorBoard
from dither.registry.contracts.protocols import Picture

PNG = bytes.fromhex(
    "89504e470d0a1a0a0000000d49484452000000010000000108020000009077"
    "53de0000000c49444154789c63f8cfc0000003010100c9fe92ef0000000049454e44ae426082"
)


def test_lines_are_cut_back_to_the_offset(tmp_path):
    path = tmp_path / "metrics.jsonl"
    file = MetricsFile(path)
    file.write(1, "train", {"loss": 0.1 + 0.2})
    offset = file.position.size
    file.write(2, "train", {"loss": math.nan, "other": math.inf})
    file.close()
    first = {"step": 1, "kind": "train", "loss": 0.3}
    assert read_metrics(path) == [
        first,
        {"step": 2, "kind": "train", "loss": None, "other": None},
    ]
    again = MetricsFile(path, offset)
    again.write(3, "valid", {"loss": 1.0})
    assert again.position == Position().after(path.read_bytes())
    again.close()
    assert read_metrics(path) == [first, {"step": 3, "kind": "valid", "loss": 1.0}]
    path.write_text('{"step": 1, "kind": "train"}\n{"st')
    again = MetricsFile(path, 1000)
    again.write(3, "train", {})
    again.close()
    assert [line["step"] for line in read_metrics(path)] == [1, 3], (
        "an incomplete line is dropped"
    )


@pytest.mark.parametrize("fits", [0, 5])
def test_lines_are_buffered_while_the_disk_is_full(tmp_path, monkeypatch, fits):
    path, warned = tmp_path / "metrics.jsonl", []
    file, other = (
        MetricsFile(path, warn=warned.append),
        MetricsFile(tmp_path / "other.jsonl"),
    )
    write, full = os.write, [True]

    def on_a_full_disk(handle, data):
        if full[0] and handle == file._file:
            if not fits:
                raise OSError(errno.ENOSPC, "No space left on device")
            return write(handle, data[:fits])
        return write(handle, data)

    monkeypatch.setattr(os, "write", on_a_full_disk)
    for step in (1, 2, 3, 4):
        full[0] = step in (2, 3)
        for one in (file, other):
            one.write(step, "train", {"loss": 1.0 / step})
    assert file.position == other.position
    file.sync()
    file.close()
    assert path.read_bytes() == (tmp_path / "other.jsonl").read_bytes()
    assert len(warned) == 1
    assert "buffered" in warned[0]


def test_damage_before_a_checkpoint_is_reported(tmp_path):
    path = tmp_path / "metrics.jsonl"
    file = MetricsFile(path)
    file.write(1, "train", {"loss": 0.25}, {"wall_time": 1.5})
    position = file.position
    file.write(2, "train", {"loss": 0.5})
    file.close()
    assert damaged_lines(path, position) == []
    whole = path.read_bytes()
    # The times, and lines after the checkpoint, may be others.
    path.write_bytes(whole.replace(b": 1.5}", b": 2.75}").replace(b"0.5", b"0.7"))
    assert damaged_lines(path, position) == []
    path.write_bytes(whole.replace(b"0.25", b"0.24"))
    assert "not as written" in damaged_lines(path, position)[0]

    # A crash of the machine can leave zeros where data was not written.
    path.write_bytes(whole[: len(whole) // 3] + bytes(len(whole)))
    assert "missing" in damaged_lines(path, position)[0]
    path.write_bytes(whole)
    os.truncate(path, position.size - 3)
    assert (
        "bytes: metrics of earlier steps are missing"
        in damaged_lines(path, position)[0]
    )
    path.unlink()
    assert "cannot be read" in damaged_lines(path, position)[0]
    assert damaged_lines(path, Position()) == []


def test_tensorboard_receives_metrics_pictures_and_hyper_parameters(tmp_path):
    tracker = TensorBoard().build()
    tracker.start(
        tmp_path,
        {"train": {"steps": 1}, "model": {"use": "net"}, "list": [1, 2], "none": None},
    )
    tracker.log(3, "valid", {"loss": 2.5})
    tracker.log_pictures(
        3, [Picture("dot", png=PNG, text="also"), Picture("words", text="a\nb")]
    )
    tracker.finish()
    assert [path.parent.name for path in tmp_path.rglob("events*")] == [
        "tensorboard"
    ], "add_hparams nests a run"
    from tensorboard.backend.event_processing import event_accumulator

    events = event_accumulator.EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    (scalar,) = events.Scalars("valid/loss")
    assert (scalar.step, scalar.value) == (3, 2.5)
    (image,) = events.Images("dot")
    assert (image.width, image.height) == (1, 1)
    assert "words/text_summary" in events.Tags()["tensors"]
    content = events.SummaryMetadata("_hparams_/session_start_info").plugin_data.content
    for name in (b"model.use", b"train.steps", b"[1, 2]"):
        assert name in content


@pytest.mark.parametrize("blocked", [True, False])
def test_a_failing_tracker_is_disabled_with_one_warning(tmp_path, console, blocked):
    if blocked:
        (tmp_path / "tensorboard").write_text("not a folder")
    log = Log(tmp_path, console, 10, trackers={"tensorboard": TensorBoard().build()})
    for step in (1, 2):
        log.log(step, "train", {"loss": 1.0})
        log.pictures(step, [Picture("broken", png=b"no picture")])
    log.close()
    assert console.export_text().count("tensorboard is disabled") == 1
    assert len(read_metrics(tmp_path / "metrics.jsonl")) == 2


def test_a_full_disk_is_one_line_without_a_traceback(tmp_path, console, monkeypatch):
    raised, limits = [], resource.getrlimit(resource.RLIMIT_FSIZE)
    monkeypatch.setattr(threading, "excepthook", raised.append)
    log = Log(tmp_path, console, 10, trackers={"tensorboard": TensorBoard().build()})
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, limits[1]))
    try:
        for step in range(10):
            log.pictures(step, [Picture("words", text="x" * 500)])
            time.sleep(0.05)
        log.close(OSError(errno.EFBIG, "File too large"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not raised
    assert console.export_text().count("tensorboard is disabled: OSError") == 1


TRACKER = """
import json
from typing import ClassVar
from dither.registry import hookimpl
from dither.registry.contracts.protocols import Metrics
from dither.registry.kinds import MetricSpec, TrackerSpec

class Recorder:
    def start(self, folder, config, step=0):
        self.file = (folder / "tracked").open("a")
        self.write("start", step, config["train"]["steps"])
    def write(self, *values):
        print(json.dumps(values), file=self.file, flush=True)
    def log(self, step, kind, metrics):
        self.write(kind, step, sorted(metrics))
    def log_pictures(self, step, pictures):
        self.write("pictures", step, [picture.name for picture in pictures])
    def finish(self, error=None):
        self.write("finish", None if error is None else str(error))
        self.file.close()

class File(TrackerSpec):
    "Writes calls into a file."
    name = "toy-file"
    def build(self):
        return Recorder()

class Broken(TrackerSpec):
    "Cannot be built."
    name = "toy-broken"
    def build(self):
        raise SystemExit(3)

class Letters:
    def __call__(self, samples, like):
        return {"distinct_letters": float(len(samples.unique()))}

class Masked(Metrics):
    def __init__(self):
        self.masked = self.all = 0
    def update(self, clean, noised, pred, measured):
        self.masked += noised.target_mask.sum().item()
        self.all += noised.target_mask.numel()
    def compute(self):
        return {"masked_share": self.masked / self.all}

class Share:
    def metrics(self):
        return Masked()

class LettersMetric(MetricSpec):
    "Counts letters in samples."
    name = "toy-letters"
    serves: ClassVar[frozenset] = frozenset({"tokens"})
    def build(self, space):
        return Letters()

class ShareMetric(MetricSpec):
    "Share of masked positions."
    name = "toy-share"
    serves: ClassVar[frozenset] = frozenset({"tokens"})
    def build(self, space):
        return Share()

@hookimpl
def register_components():
    return [Broken, File, LettersMetric, ShareMetric]
"""


@pytest.fixture
def tracked(experiment_file, load):
    """The experiment with two trackers, and two metrics of another plugin file."""
    experiment_file.with_name("tracker.py").write_text(TRACKER)
    text = experiment_file.read_text().replace(
        '["toy_plugin.py"]', '["toy_plugin.py", "tracker.py"]'
    )
    experiment_file.write_text(text)
    names = (
        "tracking.use=['toy-broken', 'toy-file']",
        "evaluate.metrics=['toy-letters', 'toy-share']",
    )
    return lambda *changes: load(*names, *changes)


def test_a_run_reports_to_trackers_and_metrics_of_plugins(tracked, tmp_path, console):
    assert run(tracked(), tmp_path / "runs", console=console) == 0
    (folder,) = (tmp_path / "runs").iterdir()
    calls = [json.loads(line) for line in (folder / "tracked").read_text().splitlines()]
    disabled = 'tracker "toy-broken" of plugin "tracker" is disabled: SystemExit: 3'
    assert disabled in console.export_text()
    assert calls[0] == ["start", 0, 20]
    assert calls[-1] == ["finish", None]
    assert ["pictures", 20, ["words", "dot"]] in calls
    assert [call[1] for call in calls if call[0] == "valid"] == [7, 14, 20]
    assert not (folder / "tensorboard").exists()
    metrics = json.loads((folder / "summary.json").read_text())["metrics"]
    assert 0 < metrics["valid"]["masked_share"] < 1
    assert metrics["sample"]["distinct_letters"] >= 1
    assert evaluate_run(folder)[0]["masked_share"] == metrics["valid"]["masked_share"]
