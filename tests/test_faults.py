"""Damaged run directories, signals, broken pipes, and unusual environments."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dither.engine.cli import main
from dither.engine.files.checksums import with_checksum
from dither.engine.runs.run_directory import RunDirectory
from dither.registry.config.errors import Refused
from dither.registry.files.atomic import sha256_of

ROOT = Path(__file__).parents[1]


@pytest.fixture
def copy(trained, tmp_path):
    return Path(shutil.copytree(trained[1], tmp_path / "run"))


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(p.relative_to(folder)): p.read_bytes()
        for p in folder.rglob("*")
        if p.is_file() and p.name != "run.lock"
    }


@pytest.mark.parametrize("text", ["\\xff{", '{"resumed": 5}'])
def test_a_damaged_manifest_is_refused_without_side_effects(copy, text, cli):
    (copy / "manifest.json").write_text(text)
    before = contents(copy)
    assert (
        "manifest.json"
        in cli("run", "--resume", str(copy), "--set", "train.steps=4", code=2).err
    )
    assert contents(copy) == before


def test_a_checkpoint_with_matching_checksums_and_wrong_contents(copy, capsys):
    newest = max((copy / "checkpoints").iterdir())
    (newest / "state.json").write_text("{}")
    manifest = json.loads((newest / "MANIFEST.json").read_text())
    manifest["files"]["state.json"] = {
        "size": 2,
        "sha256": sha256_of(newest / "state.json"),
    }
    (newest / "MANIFEST.json").write_text(json.dumps(with_checksum(manifest)))
    assert main(["run", "--resume", str(copy), "--set", "train.steps=4"]) == 3
    assert "is intact but does not match this run" in capsys.readouterr().err


@pytest.mark.slow
def test_a_closed_output_pipe_does_not_stop_a_run(trained, tmp_path):
    command = (
        f"{sys.executable} -m experiments.run {trained[0]} --runs {tmp_path / 'runs'}"
    )
    line = f"{command} | head -1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(
        ["bash", "-c", line], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert done.stdout.splitlines()[-1] == "0", done.stderr
    (run,) = (tmp_path / "runs").glob("*-*")
    assert (run / "checkpoints" / "step-00000003").is_dir()


SIGNALS = "import os, time\nfrom dither.engine.signals import *\n"
KILLED = "import os, signal\ntry:\n    os.kill(os.getpid(), signal.SIGTERM)\nexcept BaseException:\n    print('on')\n"
WITHIN = "compile('os.kill(os.getpid(), 15)\\nfor _ in range(9): pass', '<frozen importlib._bootstrap>', 'exec')"


@pytest.mark.parametrize(
    ("torch", "code", "status", "output"),
    [
        ("import late", "with stop_on_signals():\n    import torch", 75, ""),
        ("", "with stop_on_signals():\n    import torch, late", 0, "on\n"),
        ("", "with stop_on_signals(True):\n    import torch, late", 75, ""),
        ("", f"with stop_on_signals():\n    exec({WITHIN})\n    print('on')", 75, ""),
        (
            "",
            "with stop_on_signals(True) as stop: stop.code = 3\nimport late\nprint('on')",
            3,
            "",
        ),
        ("", "with stop_on_signals(): pass\nimport late\nprint('on')", -15, ""),
    ],
    ids=[
        "in an import of torch",
        "in another import",
        "in any import of a process of dither",
        "in the import system",
        "after the command",
        "after the block",
    ],
)
def test_a_signal(tmp_path, torch, code, status, output):
    """An exception would abort an import of torch, be lost in the import system, or leave modules half imported."""
    (tmp_path / "torch.py").write_text(torch)
    (tmp_path / "late.py").write_text(KILLED)
    done = subprocess.run(
        [sys.executable, "-c", SIGNALS + code],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )
    assert (done.returncode, done.stdout) == (status, output)
    message = "stopped by SIGTERM; nothing is lost, repeat the command to continue\n"
    assert done.stderr == (message if status == 75 else "")


EXPERIMENT = Path(__file__).parents[1] / "experiments/bubble_diagram/quick.toml"
CODE = """
import os, sys, time
os.umask(0o077)
os.close(0)
past = time.time
time.time = lambda: past() - 40 * 365 * 86400  # a clock that was set back
from pathlib import Path
from dither.engine.cli import main
changes = "steps=2 batch_size=4 device='cpu' threads=1 checkpoint_every=1".split()
changes = [f"--set=train.{change}" for change in changes] + ["--set=evaluate.samples=4", "--set=sample.count=1"]
changes += ["--set=model.width=16", "--set=model.depth=1"]
changes += ["--set=task.data={ use = 'procedural-plans', train = 64, valid = 16, test = 8 }"]
experiment, runs = sys.argv[1:]
assert main(["validate", "--deep", experiment]) == 0
assert main(["run", experiment, *changes, "--runs", runs]) == 0
(run,) = Path(runs).glob("*-*")
assert main(["runs", "list", runs]) == 0
for words in (["evaluate", run], ["sample", run, "-n", "1"], ["report", run], ["runs", "verify", run]):
    assert main([str(word) for word in words]) == 0, words
assert main(["run", "--resume", str(run), "--set=train.steps=3"]) == 0
assert not [path for path in run.rglob("*") if path.stat().st_mode & 0o077]
print("all of it")
"""


def works(*command):
    return (
        shutil.which(command[0]) is not None
        and not subprocess.run(command, capture_output=True, check=False).returncode
    )


@pytest.mark.slow
def test_a_run_in_an_unusual_environment(tmp_path):
    """No HOME, no network, an unwritable working folder elsewhere, stdin closed, a far time zone, umask 077.

    Under strace, no command opens a network connection: check, run, resume, evaluate, sample, report.
    """
    place, elsewhere, calls = (
        tmp_path / ("a b ü 😀\n" + "x" * 190),
        tmp_path / "elsewhere",
        tmp_path / "calls",
    )
    place.mkdir()
    elsewhere.mkdir(mode=0o555)
    shutil.copyfile(EXPERIMENT, place / "e.toml")
    quick = (
        ["--seccomp-bpf"]
        if works("strace", "-f", "-qq", "--seccomp-bpf", "true")
        else []
    )
    watch = f"strace -f -qq {' '.join(quick)} -e trace=connect,bind,listen,accept,sendto -e signal=none -o".split()
    watch.append(str(calls))
    alone = ["unshare", "-rn"]
    probes = [
        *(watch if works(*watch, "true") else ()),
        *(alone if works(*alone, "true") else ()),
    ]
    command = [
        *probes,
        sys.executable,
        "-c",
        CODE,
        str(place / "e.toml"),
        str(place / "runs"),
    ]
    environment = {"PATH": os.defpath, "TZ": "Pacific/Kiritimati"}
    done = subprocess.run(
        command, capture_output=True, cwd=elsewhere, env=environment, check=False
    )
    assert not done.returncode, done.stderr.decode(errors="replace")
    assert b"all of it" in done.stdout
    calls_made = calls.read_text().splitlines() if calls.exists() else []
    known = (
        "nscd/socket",
        "<... connect resumed>",
    )  # glibc looks there for the name of the user
    assert not [line for line in calls_made if not any(word in line for word in known)]


def test_a_path_that_is_not_utf8_is_refused(tmp_path):
    """safetensors requires paths in UTF-8."""
    runs = tmp_path / os.fsdecode(b"not utf-8 \xff")
    with pytest.raises(Refused):
        RunDirectory.create(runs)
    assert not runs.exists()
