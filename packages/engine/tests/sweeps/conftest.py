"""Fixtures of the sweep tests: a fast stand-in for the process of a point, and sweeps over it."""

import textwrap

import pytest

from dither.engine.sweeps import scheduler
from dither.engine.sweeps.directory import SweepDirectory
from dither.engine.sweeps.launch import Settings, start_sweep

CHILD = """
    import json, os, signal, sys, time, tomllib
    from pathlib import Path
    folder = Path(sys.argv[1])
    lr = tomllib.loads((folder / "experiment.toml").read_text())["train"]["optimizer"]["lr"]
    def log(text):
        with open(folder.parent / "log.txt", "a") as file:
            file.write(f"{text} {folder.name}\\n")
    def end(state, code):
        log("end")
        (folder / "status.json").write_text(json.dumps({"state": state, "exit_code": code}))
        sys.exit(code)
    log("begin")
    signal.signal(signal.SIGTERM, lambda *_: end("stopped", 75))
    run = folder / "20260101T000000Z-000000"
    run.mkdir(exist_ok=True)
    (run / "resolved.toml").write_text((folder / "experiment.toml").read_text())
    with open(run / "metrics.jsonl", "a") as metrics:
        for step in range(1, 4):
            metrics.write(json.dumps({"step": step, "kind": "valid", "loss": (lr - 0.3) ** 2}) + "\\n")
    time.sleep(float(os.environ.get("CHILD_SECONDS", "0")))
    if lr == 0.5: os._exit(9)
    end("done", 0)
"""
"""Stands for a run with loss (lr - 0.3)^2; lr = 0.5 crashes, SIGTERM stops it."""


@pytest.fixture(autouse=True)
def _only_the_engine(monkeypatch):
    monkeypatch.setenv("DITHER_PLUGINS", "engine")


@pytest.fixture(autouse=True)
def child(tmp_path, monkeypatch):
    script = tmp_path / "child.py"
    script.write_text(textwrap.dedent(CHILD))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(scheduler, "POINT_MODULE", "child")
    monkeypatch.setattr(scheduler, "POLL_SECONDS", 0.01)
    return script


@pytest.fixture
def states():
    return lambda sweep: [folder.status()["state"] for folder in sweep.folders()]


@pytest.fixture
def output(console):
    return lambda: " ".join(console.export_text(clear=False).split())


@pytest.fixture
def begin(experiment_file, tmp_path, console):
    """Start a sweep over `key=[values]`, or over text added to the file; return exit code and directory."""

    def started(*sweeps, text="", **settings):
        experiment_file.write_text(experiment_file.read_text() + text)
        code = start_sweep(
            experiment_file,
            (),
            (),
            sweeps,
            tmp_path / "runs",
            ["x"],
            Settings(**settings),
            console,
        )
        (path,) = (tmp_path / "runs").iterdir()
        return code, SweepDirectory.open(path)

    return started
