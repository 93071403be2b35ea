"""A run that was stopped and resumed equals one that never was, bit for bit: weights, average, optimizer, metrics."""

import contextlib
import hashlib
import json
import shutil

import pytest

from dither.engine.files.metrics_file import without_times
from dither.engine.runs import run as module
from dither.engine.runs.list_runs import verify_run
from dither.engine.runs.run import Run
from dither.engine.signals import Stop

COMPARED = (
    "model.safetensors",
    "ema.safetensors",
    "optimizer.safetensors",
    "state.json",
)
CHANGES = ("sample.every=6", "train.log_every=3")


def fingerprint(directory, step=20):
    files = {
        name: directory / "checkpoints" / f"step-{step:08d}" / name for name in COMPARED
    }
    files |= {"metrics": directory / "metrics.jsonl"}
    files |= {
        "samples": directory / "samples" / f"step-{step:08d}" / "samples.safetensors"
    }
    contents = {name: without_times(path.read_bytes()) for name, path in files.items()}
    return {
        name: hashlib.sha256(content).hexdigest() for name, content in contents.items()
    }


class StopAfter(Stop):
    def __init__(self, polls):
        super().__init__()
        self.polls = polls

    def __call__(self):
        self.polls -= 1
        if self.polls < 0:
            self.requested = "SIGTERM"
        return super().__call__()


@pytest.fixture
def stop_after(monkeypatch):
    """Let a signal arrive between the given poll and the next."""

    def arrange(polls):
        stopped = StopAfter(polls)
        monkeypatch.setattr(
            module, "stop_on_signals", lambda: contextlib.nullcontext(stopped)
        )

    return arrange


@pytest.fixture(scope="module")
def known():
    """The fingerprint of the uninterrupted run, once it is known; it does not depend on the folder."""
    return {}


@pytest.fixture
def whole(start, known):
    if not known:
        code, directory = start(*CHANGES)
        assert code == 0
        known |= fingerprint(directory)
    return known


@pytest.mark.slow
def test_runs_are_reproducible_with_workers_and_async_save(start, whole):
    beside = start(*CHANGES, "train.workers=2", "train.async_save=true")[1]
    assert fingerprint(beside) == whole
    assert fingerprint(start(*CHANGES, "seed=4")[1])["metrics"] != whole["metrics"]


@pytest.mark.slow
def test_stops_and_workers(start, go_on, stop_after, whole):
    """During steps, evaluation and sampling, once or repeatedly, with any number of workers."""
    steps = set()
    for polls in range(0, 110, 36):
        stop_after(polls)
        code, directory = start(*CHANGES, "train.workers=2")
        for _ in range(20):
            if code == 0:
                break
            assert code == 75
            steps.add(
                max(path.name for path in (directory / "checkpoints").glob("step-*"))
            )
            stop_after(
                14 if polls == 36 else 10**9
            )  # one step with an evaluation and samples polls 11 times
            code = go_on(directory, "train.workers=1")
        assert code == 0
        assert fingerprint(directory) == whole, f"stopped after {polls} polls"
    assert len(steps) > 2


@pytest.mark.parametrize("step", [3, 12])
def test_stop_during_a_step(start, go_on, whole, monkeypatch, step):
    """The metrics of the step belong to it, also those of a line that it has written."""
    plain = Run._train

    def train(self):
        plain(self)
        if self.trainer.step == step:
            self.stop.requested = "SIGTERM"

    with monkeypatch.context() as patch:
        patch.setattr(Run, "_train", train)
        code, directory = start(*CHANGES)
    assert code == 75
    assert go_on(directory) == 0
    assert fingerprint(directory) == whole


@pytest.mark.parametrize(
    ("name", "call", "before"),
    [("_train", 4, True), ("_train", 12, False), ("save", 2, True), ("save", 2, False), ("evaluate", 2, False),
     ("draw", 2, True)],
)  # fmt: skip
def test_kill(start, go_on, whole, monkeypatch, name, call, before, tmp_path):
    """Work since the last checkpoint, if there is one, is repeated with the same result, and no line written twice."""
    original, calls = getattr(Run, name), []

    def killed(self, *arguments):
        calls.append(self.trainer.step)
        if not before or len(calls) < call:
            original(self, *arguments)
        if len(calls) == call:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Run, name, killed)
        with pytest.raises(KeyboardInterrupt):
            start(*CHANGES)
    directory = max(
        (tmp_path / "runs").iterdir(), key=lambda path: path.stat().st_ctime_ns
    )
    assert (directory / "checkpoints").exists() == (call != 4)
    assert go_on(directory) == 0
    assert fingerprint(directory) == whole


def test_damaged_and_lost_checkpoints(start, go_on, whole, console):
    _, directory = start(*CHANGES)
    weights = directory / "checkpoints" / "step-00000020" / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-3] ^= 16
    weights.write_bytes(data)
    assert go_on(directory) == 0
    text = console.export_text()
    assert (
        "step-00000020 is damaged and was skipped: model.safetensors does not match its checksum"
        in text
    )
    assert "resuming from step 15" in text
    assert fingerprint(directory) == whole

    for path in (directory / "checkpoints").glob("step-*"):
        (path / "state.json").unlink()
    assert go_on(directory) == 3
    assert "state.json is missing" in console.export_text()

    shutil.rmtree(directory / "checkpoints")
    assert go_on(directory) == 0, (
        "a run is a function of its seed, so that it is repeated"
    )
    assert fingerprint(directory) == whole


def test_a_finished_run_can_be_extended(start, go_on, console, monkeypatch):
    _, directory = start()
    monkeypatch.setattr("platform.python_version", lambda: "3.99")
    metrics = directory / "metrics.jsonl"
    metrics.write_bytes(metrics.read_bytes()[:100])
    assert go_on(directory, "train.steps=23") == 0
    text = console.export_text()
    assert "results may differ: python: " in " ".join(text.split())
    assert "changed: train.steps: 20 -> 23" in text
    assert "metrics.jsonl lacks" in text.replace("\n", "")
    assert (directory / "checkpoints" / "step-00000023").is_dir()


def test_a_changed_number_of_an_earlier_metric_is_reported(start, go_on, console):
    _, directory = start()
    metrics = directory / "metrics.jsonl"
    lines = metrics.read_text().splitlines(keepends=True)
    first = json.loads(lines[0])
    changed = str(first["loss"] + 1)
    metrics.write_text(
        "".join([lines[0].replace(str(first["loss"]), changed), *lines[1:]])
    )
    (finding,) = [one for one in verify_run(directory) if one.reason]
    assert finding.path == "metrics.jsonl"
    assert go_on(directory, "train.steps=23") == 0
    assert "metrics.jsonl was changed" in console.export_text().replace("\n", "")
