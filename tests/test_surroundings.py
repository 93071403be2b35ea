"""A run in surroundings that nobody tried it in: everything odd at once, and output that nobody reads."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dither.engine.runs.run_directory import RunDirectory
from dither.registry.config.errors import Refused

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
(run,) = Path(runs).iterdir()
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
    place, elsewhere, calls = tmp_path / ("a b ü 😀\n" + "x" * 190), tmp_path / "elsewhere", tmp_path / "calls"
    place.mkdir()
    elsewhere.mkdir(mode=0o555)
    shutil.copyfile(EXPERIMENT, place / "e.toml")
    quick = ["--seccomp-bpf"] if works("strace", "-f", "-qq", "--seccomp-bpf", "true") else []
    watch = f"strace -f -qq {' '.join(quick)} -e trace=connect,bind,listen,accept,sendto -e signal=none -o".split()
    watch.append(str(calls))
    alone = ["unshare", "-rn"]
    probes = [*(watch if works(*watch, "true") else ()), *(alone if works(*alone, "true") else ())]
    command = [*probes, sys.executable, "-c", CODE, str(place / "e.toml"), str(place / "runs")]
    environment = {"PATH": os.defpath, "TZ": "Pacific/Kiritimati"}
    done = subprocess.run(command, capture_output=True, cwd=elsewhere, env=environment, check=False)
    assert not done.returncode, done.stderr.decode(errors="replace")
    assert b"all of it" in done.stdout
    calls_made = calls.read_text().splitlines() if calls.exists() else []
    assert not [line for line in calls_made if "nscd/socket" not in line], "glibc looks there for the name of the user"


def test_a_path_that_is_not_utf8_is_refused(tmp_path):
    """safetensors requires paths in UTF-8."""
    runs = tmp_path / os.fsdecode(b"not utf-8 \xff")
    with pytest.raises(Refused):
        RunDirectory.create(runs)
    assert not runs.exists()
