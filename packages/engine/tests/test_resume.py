"""A run that was stopped and resumed equals one that never was, bit for bit: weights, average, optimizer, metrics."""

import hashlib
import json
import shutil

import pytest
import tomlkit

from dither.engine.checkpoints.checkpoint import Damaged
from dither.engine.runs import launch as module
from dither.engine.runs.launch import run
from dither.engine.runs.launch import _require_never_saved as require_never_saved
from dither.engine.runs.signals import Stop

COMPARED = ("model.safetensors", "average.safetensors", "optimizer.safetensors", "state.json")


def fingerprint(directory, step=20):
    files = {name: directory / "checkpoints" / f"step-{step:08d}" / name for name in COMPARED}
    files |= {"metrics": directory / "metrics.jsonl"}
    files |= {"samples": directory / "samples" / f"step-{step:08d}" / "samples.safetensors"}
    return {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in files.items()}


@pytest.fixture
def runs(tmp_path):
    return tmp_path / "runs"


@pytest.fixture
def start(load, runs, console):
    """Run, and return exit code and directory."""

    def started(*changes):
        before = set(runs.iterdir()) if runs.exists() else set()
        code = run(load(*changes), runs, ["test"], console=console)
        (directory,) = set(runs.iterdir()) - before
        return code, directory

    return started


@pytest.fixture
def go_on(load, runs, console):
    def resumed(directory, *changes, **options):
        loaded = load(*changes, path=directory / "resolved.toml")
        return run(loaded, runs, ["test"], directory, console, **options)

    return resumed


def test_workers_do_not_change_results(start, go_on, stop_after):
    _, plain = start()
    _, read_ahead = start("train.workers=2")
    assert fingerprint(read_ahead) == fingerprint(plain)
    stop_after(7)
    code, stopped = start("train.workers=3")
    assert code == 75
    stop_after(1000)
    assert go_on(stopped, "train.workers=1") == 0
    assert fingerprint(stopped) == fingerprint(plain)


class StopAfter(Stop):
    """A stop that is requested after a number of polls."""

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
    import contextlib

    def arrange(polls):
        @contextlib.contextmanager
        def signals():
            yield StopAfter(polls)

        monkeypatch.setattr(module, "stop_on_signals", signals)

    return arrange


CHANGES = ("sample.every=6", "train.log_every=3")


@pytest.fixture(scope="module")
def known():
    """What the run that never stopped came to, once it is known; it does not depend on the folder."""
    return {}


@pytest.fixture
def whole(start, known):
    if not known:
        code, directory = start(*CHANGES)
        assert code == 0
        known |= fingerprint(directory)
    return known


def test_runs_are_reproducible(start, whole):
    assert fingerprint(start(*CHANGES)[1]) == whole
    assert fingerprint(start(*CHANGES, "seed=4")[1])["metrics"] != whole["metrics"]


def test_stop_at_every_poll(start, go_on, stop_after, whole, monkeypatch):
    """During steps, evaluation and sampling."""
    steps = set()
    for polls in range(0, 200, 7):
        with monkeypatch.context():
            stop_after(polls)
            code, directory = start(*CHANGES)
            stop_after(10**9)
            if code == 0:
                break
            assert code == 75
            names = [path.name for path in (directory / "checkpoints").glob("step-*")]
            steps.add(max(names))
            assert go_on(directory) == 0
            assert fingerprint(directory) == whole, f"stopped after {polls} polls"
    assert len(steps) > 6


@pytest.mark.parametrize("step", [3, 4, 12])
def test_stop_during_a_step(start, go_on, whole, monkeypatch, step):
    """What the step has written to the metrics belongs to it, also where it wrote a line."""
    from dither.engine.runs.loop import Run

    plain = Run._train

    def train(self, watched):
        plain(self, watched)
        if self.trainer.step == step:
            self.stop.requested = "SIGTERM"

    with monkeypatch.context() as patch:
        patch.setattr(Run, "_train", train)
        code, directory = start(*CHANGES)
    assert code == 75
    assert go_on(directory) == 0
    assert fingerprint(directory) == whole


def test_repeated_stops(start, go_on, stop_after, whole):
    stop_after(5)
    code, directory = start(*CHANGES)
    for _ in range(30):
        if code != 75:
            break
        stop_after(14)  # one step with an evaluation and a drawing asks 11 times
        code = go_on(directory)
    assert code == 0
    assert fingerprint(directory) == whole


@pytest.mark.parametrize("moment", ["step", "log", "save", "evaluate", "draw"])
def test_kill(start, go_on, whole, monkeypatch, moment, runs):
    """Work since the last checkpoint is repeated with the same result, and no line is written twice."""
    from dither.engine.runs.loop import Run

    name = {"step": "_train", "log": "_train"}.get(moment, moment)
    original, calls = getattr(Run, name), []

    def killed(self, *arguments):
        calls.append(self.trainer.step)
        result = original(self, *arguments) if moment != "step" else None
        if len(calls) == (12 if name == "_train" else 2):
            raise KeyboardInterrupt
        return result if moment != "step" else original(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(Run, name, killed)
        with pytest.raises(KeyboardInterrupt):
            start(*CHANGES)
    (directory,) = [path for path in runs.iterdir() if not (path / "summary.json").exists()]
    assert go_on(directory) == 0
    assert fingerprint(directory) == whole


@pytest.mark.parametrize("changes", [(), ("train.checkpoint_every=2",)])  # none is missing that was not due yet
def test_kill_before_the_first_checkpoint(start, go_on, whole, monkeypatch, runs, changes):
    from dither.engine.runs.loop import Run

    original = Run._train
    with monkeypatch.context() as patch:
        patch.setattr(Run, "_train", lambda self, watched: original(self, watched) if self.trainer.step < 4 else 1 / 0)
        with pytest.raises(ZeroDivisionError):
            start(*CHANGES)
    (directory,) = [path for path in runs.iterdir() if not (path / "summary.json").exists()]
    assert not (directory / "checkpoints").exists()
    assert go_on(directory, *changes) == 0
    assert fingerprint(directory) == whole


def test_a_damaged_newest_checkpoint_is_repeated(start, go_on, whole, console):
    _, directory = start(*CHANGES)
    weights = directory / "checkpoints" / "step-00000020" / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-3] ^= 16
    weights.write_bytes(data)
    assert go_on(directory) == 0
    text = console.export_text()
    assert "step-00000020 is damaged and was skipped: model.safetensors does not match its checksum" in text
    assert "resuming from step 15" in text
    assert fingerprint(directory) == whole


def test_no_intact_checkpoint_is_exit_code_3(start, go_on, console):
    _, directory = start()
    for path in (directory / "checkpoints").glob("step-*"):
        (path / "state.json").unlink()
    assert go_on(directory) == 3
    assert "state.json is missing" in console.export_text()


def test_a_finished_run_can_be_extended(start, go_on, console):
    _, directory = start()
    assert go_on(directory, "train.steps=23") == 0
    assert "changed: train.steps: 20 -> 23" in console.export_text()
    assert (directory / "checkpoints" / "step-00000023").is_dir()


def test_a_run_without_its_checkpoints_does_not_restart(start, go_on, stop_after, whole, console):
    _, ended = start(*CHANGES)
    stop_after(33)
    code, stopped = start(*CHANGES)
    assert code == 75
    stop_after(10**9)
    for directory, reason in ((ended, "it has finished"), (stopped, "it has trained for")):
        before = (directory / "metrics.jsonl").read_bytes()
        shutil.rmtree(directory / "checkpoints")
        (directory / "checkpoints").mkdir()
        assert go_on(directory) == 3
        assert (directory / "metrics.jsonl").read_bytes() == before
        assert reason in console.file.getvalue().replace("\n", " ")
        assert go_on(directory, accept_changes=True) == 0
        assert fingerprint(directory) == whole


@pytest.mark.parametrize(
    ("late", "lines", "resumed", "summary", "lost"),
    [
        (False, [4, 5], [], False, False),  # the checkpoint of step 5 may have been interrupted
        (False, [4, 6], [], False, True),
        (True, [9, 10], [], False, False),
        (True, [11], [], False, True),
        (False, [], [3], False, True),
        (False, [6], [3, 0], False, True),
        (False, [2], [3, 0], False, False),
        (False, [], [], True, True),
        (False, [None, "9", 9.5, 4], [None], False, False),
    ],
)
def test_signs_of_lost_checkpoints(tmp_path, late, lines, resumed, summary, lost):
    text = tomlkit.dumps({"train": {"checkpoint_every": 5, "async_save": late}})
    (tmp_path / "resolved.toml").write_text(text)
    written = [json.dumps({"step": step, "kind": "train"}) for step in lines]
    (tmp_path / "metrics.jsonl").write_text("\n".join([*written, "[]", '{"step": 1e999}', '{"step": 7']))
    if summary:
        (tmp_path / "summary.json").write_text("{}")
    before = {"resumed": [{} if step is None else {"step": step} for step in resumed]}
    if not lost:
        require_never_saved(tmp_path, before)
        return
    with pytest.raises(Damaged, match=str(tmp_path)) as info:
        require_never_saved(tmp_path, before)
    assert info.value.codes == ["missing-checkpoint"]
