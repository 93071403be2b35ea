"""Damaged run directories, signals, broken pipes and faulty plugins."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dither.engine.cli import main
from dither.engine.files.checksums import with_checksum

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def finished(tmp_path_factory, text_experiment):
    """An experiment file and a finished run of it."""
    folder = tmp_path_factory.mktemp("faults")
    (folder / "a.txt").write_text("the cat sat on the mat. " * 40)
    text = text_experiment(str(folder / "a.txt")).replace("steps = 2", "steps = 3\ncheckpoint_every = 2")
    (folder / "tiny.toml").write_text(text)
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


@pytest.mark.parametrize("text", ["[1]", "\\xff{", '{"resumed": 5}'])
def test_a_damaged_manifest_is_refused_without_side_effects(copy, text, capsys):
    (copy / "manifest.json").write_text(text)
    before = contents(copy)
    assert main(["run", "--resume", str(copy), "--set", "train.steps=4"]) == 2
    assert "manifest.json" in capsys.readouterr().err
    assert contents(copy) == before


def test_a_checkpoint_with_matching_checksums_and_wrong_contents(copy, capsys):
    import hashlib

    newest = max((copy / "checkpoints").iterdir())
    (newest / "state.json").write_text("{}")
    manifest = json.loads((newest / "MANIFEST.json").read_text())
    manifest["files"]["state.json"] = {"size": 2, "sha256": hashlib.sha256(b"{}").hexdigest()}
    (newest / "MANIFEST.json").write_text(json.dumps(with_checksum(manifest)))
    assert main(["run", "--resume", str(copy), "--set", "train.steps=4"]) == 3
    assert "is intact but does not match this run" in capsys.readouterr().err


def test_a_closed_output_pipe_does_not_stop_a_run(finished, tmp_path):
    command = f"{sys.executable} -m experiments.run {finished[0]} --runs {tmp_path / 'runs'}"
    line = f"{command} | head -1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.stdout.splitlines()[-1] == "0", done.stderr
    (run,) = (tmp_path / "runs").iterdir()
    assert (run / "checkpoints" / "step-00000003").is_dir()


SIGNALS = "import os, time\nfrom dither.engine.runs.signals import *\n"
KILLED = "import os, signal\ntry:\n    os.kill(os.getpid(), signal.SIGTERM)\nexcept BaseException:\n    print('on')\n"
WITHIN = "compile('os.kill(os.getpid(), 15)\\nfor _ in range(9): pass', '<frozen importlib._bootstrap>', 'exec')"


@pytest.mark.parametrize(
    ("torch", "code", "status", "output"),
    [
        ("import late", "with stop_on_signals():\n    import torch", 75, ""),
        ("", "with stop_on_signals():\n    import torch, late", 0, "on\n"),
        ("", f"with stop_on_signals():\n    exec({WITHIN})\n    print('on')", 75, ""),
        ("", "with stop_on_signals(True) as stop: stop.code = 3\nimport late\nprint('on')", 3, ""),
        ("", "with stop_on_signals(): pass\nimport late\nprint('on')", -15, ""),
    ],
    ids=["in an import of torch", "in another import", "in the import system", "after the command", "after the block"],
)
def test_a_signal(tmp_path, torch, code, status, output):
    """An exception would abort an import of torch, and be lost in the import system."""
    (tmp_path / "torch.py").write_text(torch)
    (tmp_path / "late.py").write_text(KILLED)
    done = subprocess.run(
        [sys.executable, "-c", SIGNALS + code], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert (done.returncode, done.stdout) == (status, output)
    message = "stopped by SIGTERM; nothing is lost, repeat the command to continue\n"
    assert done.stderr == (message if status == 75 else "")
