"""Pipes, links to devices and sparse files in place of the files of a run: named at once, in little memory."""

import json
import os
import subprocess
import sys

import pytest

SCRIPT = """
import os, resource, shutil, signal, sys, json
from pathlib import Path
from dither.engine.cli import main
main(["run", "exp.toml", "--runs", "runs"])
(run,) = Path("runs").iterdir()
results = {}
for name in sys.argv[1:]:
    (file,) = [file for file in run.rglob(name)][:1]
    for kind in ("pipe", "device", "sparse"):
        for command in (["run", "--resume"], ["report"], ["runs", "verify"]):
            case = Path(f"{kind} {command[-1]}") / "run"
            shutil.rmtree(case.parent, ignore_errors=True)
            shutil.copytree(run, case)
            bad = case / file.relative_to(run)
            bad.unlink()
            if kind == "pipe":
                os.mkfifo(bad)
            elif kind == "device":
                bad.symlink_to("/dev/zero")
            else:
                with bad.open("wb") as sparse:
                    sparse.truncate(50 << 30)
            words = [*command, str(case), *([str(case)] if command == ["diff"] else [])]
            with open("output", "wb") as output:
                child = os.fork()
                if child == 0:
                    signal.alarm(20)
                    used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
                    resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 31), used + (1 << 31)))
                    os.dup2(output.fileno(), 1)
                    os.dup2(output.fileno(), 2)
                    code = 99
                    try:
                        code = main(words)
                        sys.stdout.flush()
                        sys.stderr.flush()
                    finally:
                        os._exit(code)
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            results[f"{name} {case.parent}"] = [code, open("output", errors="replace").read()[-2000:]]
json.dump(results, open("results.json", "w"))
"""
pytestmark = pytest.mark.slow  # each of 54 cases starts a process
FILES = ("MANIFEST.json", "manifest.json", "resolved.toml", "metrics.jsonl", "summary.json", "state.json")


@pytest.fixture(scope="module")
def results(tmp_path_factory, text_experiment):
    """Exit code and output by file, kind and command; each command runs in a process forked after the imports."""
    folder = tmp_path_factory.mktemp("special")
    (folder / "a.txt").write_text("the cat sat on the mat. " * 100)
    (folder / "exp.toml").write_text(text_experiment("a.txt"))
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *FILES], cwd=folder, env=environment, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr.decode()
    return json.loads((folder / "results.json").read_text())


@pytest.mark.parametrize("name", FILES)
def test_special_files_are_refused_by_name(results, name):
    for case, (code, output) in results.items():
        if case.startswith(f"{name} "):
            assert code in (0, 1, 2, 3), (case, code, output)
            assert "Traceback" not in output, (case, output)
            assert "emory" not in output, (case, output)
            assert code == 0 or name in output or "checkpoint" in output or "not a run" in output, (case, code, output)
