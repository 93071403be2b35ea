"""Damaged run directories, signals, broken pipes and faulty plugins."""

import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dither.engine.cli import main
from dither.engine.files.checksums import with_checksum
from dither.engine.runs.signals import stop_signals

ROOT = Path(__file__).parents[1]
QUICK = str(ROOT / "experiments/bubble_diagram/quick.toml")
TINY = """
extends = "{quick}"
task = {{ use = "bubble-diagram", data = {{ use = "procedural-plans", train = 64, valid = 16 }} }}
model = {{ width = 16, depth = 1, block = {{ heads = 2 }} }}
train = {{ steps = 3, batch_size = 8, checkpoint_every = 2, threads = 1 }}
evaluate = {{ samples = 16 }}
sample = {{ count = 2 }}
"""


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """An experiment file and a finished run of it."""
    folder = tmp_path_factory.mktemp("faults")
    (folder / "tiny.toml").write_text(TINY.format(quick=QUICK))
    assert main(["run", str(folder / "tiny.toml"), "--runs", str(folder / "runs")]) == 0
    (run,) = (folder / "runs").iterdir()
    return folder / "tiny.toml", run


@pytest.fixture
def copy(finished, tmp_path):
    return Path(shutil.copytree(finished[1], tmp_path / "run"))


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file() and p.name != "run.lock"
    }


@pytest.mark.parametrize("text", ["[1]", "\\xff{", '{"environment": 3}', '{"resumed": 5}'])
def test_a_damaged_manifest_is_refused_without_side_effects(copy, text, capsys):
    (copy / "manifest.json").write_text(text)
    before = contents(copy)
    assert main(["run", "--resume", str(copy), "--set", "train.steps=4"]) == 2
    assert "manifest.json" in capsys.readouterr().err
    assert contents(copy) == before


def test_a_file_in_place_of_the_checkpoints(copy, capsys):
    shutil.rmtree(copy / "checkpoints")
    (copy / "checkpoints").write_text("x")
    assert main(["run", "--resume", str(copy), "--set", "train.steps=4"]) == 3
    assert "not a folder" in capsys.readouterr().err


def test_resume_falls_back_to_the_newest_intact_checkpoint(copy, capsys):
    newest = max((copy / "checkpoints").iterdir())
    data = bytearray((newest / "model.safetensors").read_bytes())
    data[-5] ^= 1
    (newest / "model.safetensors").write_bytes(data)
    assert main(["run", "--resume", str(copy)]) == 0
    printed = capsys.readouterr()
    assert newest.name in printed.out + printed.err
    assert "resuming from step 2" in printed.out
    for checkpoint in (copy / "checkpoints").iterdir():
        (checkpoint / "MANIFEST.json").write_text("")
    assert main(["run", "--resume", str(copy)]) == 3
    assert main(["evaluate", str(copy)]) == 3


def test_a_checkpoint_with_matching_checksums_and_wrong_contents(copy, capsys):
    import hashlib

    newest = max((copy / "checkpoints").iterdir())
    (newest / "state.json").write_text("{}")
    manifest = json.loads((newest / "MANIFEST.json").read_text())
    manifest["files"]["state.json"] = {"size": 2, "sha256": hashlib.sha256(b"{}").hexdigest()}
    (newest / "MANIFEST.json").write_text(json.dumps(with_checksum(manifest)))
    assert main(["run", "--resume", str(copy), "--set", "train.steps=4"]) == 3
    assert "is intact but does not match this run" in capsys.readouterr().err


def test_samples_are_never_overwritten(copy, tmp_path, capsys):
    for _ in range(2):
        assert main(["sample", str(copy), "--count", "2"]) == 0
    names = sorted(path.name for path in (copy / "samples").iterdir())
    assert [name for name in names if "seed-0" in name] == [
        "step-00000003-seed-0-count-2",
        "step-00000003-seed-0-count-2-2",
    ]
    assert main(["sample", str(copy), "--out", str(copy / "samples")]) == 2
    (tmp_path / "file").write_text("")
    assert main(["sample", str(copy), "--out", str(tmp_path / "file" / "inner")]) == 2
    error = capsys.readouterr().err
    assert "[file-exists]" in error
    assert "[unreadable-file]" in error


def test_a_closed_output_pipe_does_not_stop_a_run(finished, tmp_path):
    command = f"{sys.executable} -m experiments.run {finished[0]} --runs {tmp_path / 'runs'}"
    line = f"{command} | head -1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.stdout.splitlines()[-1] == "0", done.stderr
    (run,) = (tmp_path / "runs").iterdir()
    assert (run / "checkpoints" / "step-00000003").is_dir()


def test_a_nan_loss_exits_4(finished, tmp_path, capsys):
    (tmp_path / "nan.py").write_text(
        "from typing import ClassVar\n"
        "from dither.registry import hookimpl\n"
        "from dither.registry.kinds import LossSpec\n"
        "class Nan(LossSpec):\n"
        "    '''NaN.'''\n"
        "    name: ClassVar[str] = 'nan'\n"
        "    def build(self, process):\n"
        "        from dither.registry.flow import Measured\n"
        "        def loss(pred, noised):\n"
        "            values = pred.log_clean().clamp_min(-9).sum(-1) * float('nan')\n"
        "            return Measured(values, noised.valid.to(values))\n"
        "        return loss\n"
        "@hookimpl\n"
        "def register_components():\n"
        "    return [Nan]\n"
    )
    (tmp_path / "e.toml").write_text(f'extends = "{finished[0]}"\nplugins = ["./nan.py"]\nloss = "nan"\n')
    assert main(["run", str(tmp_path / "e.toml"), "--runs", str(tmp_path / "runs")]) == 4
    assert "step 1" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("code", "message"),
    [("import nosuchmod", "p.py:1"), ("x = 1", "@hookimpl"), ("def f(:\n", "p.py")],
)
def test_a_broken_plugin_file_is_reported_with_both_places(finished, tmp_path, code, message, capsys):
    (tmp_path / "p.py").write_text(code)
    (tmp_path / "e.toml").write_text(f'extends = "{finished[0]}"\nplugins = ["./p.py"]\n')
    assert main(["validate", str(tmp_path / "e.toml")]) == 2
    printed = capsys.readouterr().err
    assert message in printed
    assert "e.toml:2:12" in printed


def test_a_byte_order_mark_is_accepted(finished, tmp_path):
    (tmp_path / "bom.toml").write_bytes(b"\xef\xbb\xbf" + finished[0].read_bytes())
    assert main(["validate", str(tmp_path / "bom.toml")]) == 0


def python(code, folder):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=folder, check=False)


SIGNALS = "import os, time\nfrom dither.engine.runs.signals import *\n"
KILLED = "import os, signal\ntry:\n    os.kill(os.getpid(), signal.SIGTERM)\nexcept BaseException:\n    print('on')\n"


def test_sigterm_during_torch_import_exits_75(tmp_path):
    (tmp_path / "torch.py").write_text("import late")
    (tmp_path / "late.py").write_text(KILLED)
    done = python(SIGNALS + "with stop_on_signals():\n    import torch", tmp_path)
    assert (done.returncode, done.stdout) == (75, "")
    assert done.stderr == "stopped by SIGTERM; nothing is lost, repeat the command to continue\n"


def test_sigterm_during_other_imports_raises(tmp_path):
    (tmp_path / "torch.py").write_text("")
    (tmp_path / "late.py").write_text(KILLED)
    done = python(SIGNALS + "with stop_on_signals():\n    import torch, late", tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "on\n", "")


def test_sigterm_inside_the_import_system_is_deferred(tmp_path):
    """Its callbacks would swallow the exception."""
    within = "compile('os.kill(os.getpid(), 15)\\nfor _ in range(9): pass', '<frozen importlib._bootstrap>', 'exec')"
    text = f"with stop_on_signals():\n    exec({within})\n    print('on', flush=True)\n    time.sleep(5)"
    done = python(SIGNALS + text, tmp_path)
    assert (done.returncode, done.stdout) == (1, "on\n")
    assert done.stderr.endswith("dither.engine.runs.signals.Stopped: SIGTERM\n")


@pytest.mark.parametrize(("last", "code"), [(True, 0), (False, -15)])
def test_a_signal_after_completion_is_ignored(tmp_path, last, code):
    text = SIGNALS + f"with stop_on_signals({last}): pass\nos.kill(os.getpid(), 15)\ntime.sleep(0.01)"
    assert python(text, tmp_path).returncode == code


HANGS = {
    "a thread": "import threading\nthreading.Thread(target=time.sleep, args=(20,)).start()\n",
    "C": "import atexit, ctypes\natexit.register(ctypes.CDLL(None).system, b'exec sleep 9 >&- 2>&-')\n",
}


@pytest.mark.parametrize("hangs", HANGS)
@pytest.mark.parametrize("late", [False, True])
def test_a_process_that_hangs_at_exit_ends_at_the_next_signal(tmp_path, hangs, late):
    text = SIGNALS + "import dither.engine.runs.signals as signals\n" + HANGS[hangs]
    text += f"signals.AT_END = {0 if late else 60}\nwith stop_on_signals(True) as stop: stop.code = 3\nprint('done')"
    command = [sys.executable, "-uc", text]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=tmp_path) as process:
        process.stdout.readline()
        time.sleep(0.1)
        if not late:
            process.send_signal(signal.SIGTERM)
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(0.2)
        process.send_signal(signal.SIGTERM)
        try:
            assert process.wait(5) == 3
        finally:
            process.kill()
        assert process.stderr.read() == b"SIGTERM after the end: ended immediately\n"


def test_main_registers_the_exit_code(monkeypatch):
    codes = []
    monkeypatch.setattr("dither.engine.runs.signals._watch_end", codes.append)
    monkeypatch.setattr("dither.engine.cli.atexit.register", lambda function: None)
    former = {number: signal.getsignal(number) for number in stop_signals()}
    monkeypatch.setattr(sys, "argv", ["dither", "validate", "none-such.toml"])
    try:
        assert main() == 2
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)
    assert codes == [2]
