"""Weights & Biases offline, Trackio, and MLflow against a server in another process."""

import contextlib
import json
import os
import re
import shlex
import socket
import sqlite3
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from dither.engine import load as load_system
from dither.engine.cli import main
from dither.engine.runs.log import Log
from dither.engine.runs.run import run
from dither.engine.tracking.trackers import MLflow, TensorBoard, Trackio, WandB
from dither.registry.contracts.protocols import Picture

HOST = "127.0.0.1"
PNG = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010802000000907753de0000000c49444154789c63f8ffff3f0005fe02fea7"
    "35810000000049454e44ae426082"
)
PICTURES = [
    Picture("dot", png=PNG),
    Picture("words", text="a < b"),
    Picture("none", svg="<svg/>"),
]


@pytest.fixture
def port():
    with socket.socket() as sock:
        sock.bind((HOST, 0))
        return sock.getsockname()[1]


def records(file):
    """Read a small file in the log format of LevelDB: 7 bytes of header, then checksum, length, type and content."""
    from wandb.proto.wandb_internal_pb2 import Record

    content, offset = file.read_bytes(), 7
    while offset < len(content):
        end = offset + 7 + int.from_bytes(content[offset + 4 : offset + 6], "little")
        if end > len(content):  # not yet written
            return
        yield Record.FromString(content[offset + 7 : end])
        offset = end


@pytest.mark.slow
def test_wandb_writes_a_run_offline_and_continues_it(tmp_path, console):
    folder = tmp_path / "name-1"
    folder.mkdir()
    for done, error in ((0, None), (2, OSError("disk"))):
        log = Log(
            folder,
            console,
            9,
            done,
            None,
            {"wandb": WandB(offline=True).build()},
            {"train": {"steps": 9}},
        )
        log.log(done + 1, "valid", {"loss": 0.5, "nan": float("nan")})
        log.pictures(done + 1, PICTURES)
        log.close(error)
    assert "disabled" not in console.export_text()
    rows, codes, deadline = [], [], time.monotonic() + 60
    while (
        len(codes) < 2 and time.monotonic() < deadline
    ):  # wandb's own process may still be writing
        time.sleep(0.2)
        rows, codes = [], []
        for file in sorted((folder / "wandb").glob("offline-run-*/run-name-1.wandb")):
            for record in records(file):
                items = {
                    "/".join(item.nested_key) or item.key: item.value_json
                    for item in record.history.item
                }
                rows += [items] if "valid/loss" in items else []
                codes += [record.exit.exit_code] if record.HasField("exit") else []
    assert [(row["step"], row["valid/loss"]) for row in rows] == [
        ("1", "0.5"),
        ("3", "0.5"),
    ]
    assert codes == [0, 1]
    assert {path.suffix for path in folder.rglob("media/*/*")} == {".png", ".html"}


def test_trackio_stores_a_run_and_its_resumption(tmp_path, console, monkeypatch):
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "store"))
    trackio, spec = pytest.importorskip("trackio"), Trackio(project=tmp_path.name)
    for done in (0, 2):
        log = Log(
            tmp_path,
            console,
            9,
            done,
            None,
            {"trackio": spec.build()},
            {"train": {"steps": 9}},
        )
        log.log(done + 1, "valid", {"loss": 0.5, "nan": float("nan")})
        log.pictures(done + 1, PICTURES)
        log.close()
    assert "disabled" not in console.export_text()
    database = trackio.TRACKIO_DIR / f"{tmp_path.name}.db"
    with contextlib.closing(sqlite3.connect(database)) as store:
        rows = store.execute("select run_id, step, metrics from metrics").fetchall()
    assert len({run for run, *_ in rows}) == 1
    assert [(step, set(json.loads(metrics))) for _, step, metrics in rows] == [
        (step, names)
        for step in (1, 3)
        for names in ({"valid/loss", "valid/nan"}, {"dot", "words"})
    ]


@pytest.mark.slow
def test_mlflow_receives_a_run_and_its_resumption(
    tmp_path, console, port, start, go_on
):
    from mlflow import MlflowClient

    store = f"sqlite:///{tmp_path}/mlflow.db"
    options = [
        "--backend-store-uri",
        store,
        "--port",
        str(port),
        "--workers",
        "1",
        "--artifacts-destination",
        "kept",
    ]
    command = [sys.executable, "-m", "mlflow", "server", *options]
    with (tmp_path / "log").open("w") as out:
        env = {**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
        server = subprocess.Popen(
            command, cwd=tmp_path, env=env, stdout=out, stderr=out
        )
    uri = f"http://{HOST}:{port}"
    try:
        for _ in range(600):
            try:
                urllib.request.urlopen(f"{uri}/health").close()
                break
            except OSError:
                time.sleep(0.2)
        code, folder = start(f'tracking.use=[{{use="mlflow",uri="{uri}"}}]')
        assert code == 0
        assert go_on(folder, "train.steps=24") == 0
        client = MlflowClient(uri)
        (found,) = client.search_runs(
            [client.get_experiment_by_name("dither").experiment_id]
        )
        assert (found.info.run_name, found.info.status) == (folder.name, "FINISHED")
        assert (found.data.params["seed"], found.data.params["train.steps"]) == (
            "3",
            "20",
        )
        losses = client.get_metric_history(found.info.run_id, "valid/loss")
        assert sorted(metric.step for metric in losses) == [7, 14, 20, 21, 24]
        pictures = client.list_artifacts(found.info.run_id, "samples/step-00000020")
        assert {file.path.rpartition("/")[2] for file in pictures} == {
            "dot.png",
            "words.txt",
        }
    finally:
        server.terminate()
        server.wait()
    assert "disabled" not in console.export_text()


@pytest.mark.parametrize(
    ("spec", "module"),
    [(WandB, "wandb"), (MLflow, "mlflow"), (TensorBoard, "torch.utils.tensorboard")],
)
def test_a_tracker_that_cannot_start_is_one_warning(
    tmp_path, console, monkeypatch, spec, module
):
    monkeypatch.setitem(sys.modules, module, None)
    log = Log(tmp_path, console, 10, trackers={spec.name: spec().build()})
    log.log(1, "train", {"loss": 1.0})
    log.close()
    text = console.export_text().replace("\n", " ")
    assert text.count(f"{spec.name} is disabled: ImportError: not installed; ") == 1
    assert text.count(f"pip install '{spec.name}") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.jsonl"]


@pytest.mark.slow
def test_a_server_that_is_down_does_not_stop_a_run(console, port, start):
    began = time.monotonic()
    assert (
        start(f'tracking.use=["csv",{{use="mlflow",uri="http://{HOST}:{port}"}}]')[0]
        == 0
    )
    assert (
        console.export_text().count('tracker "mlflow" of plugin "engine" is disabled')
        == 1
    )
    assert time.monotonic() - began < 60
    assert os.environ["MLFLOW_DISABLE_TELEMETRY"] == "true"


@pytest.mark.slow
@pytest.mark.parametrize("use", ["wandb", "csv", "tensorboard", "trackio", "mlflow"])
def test_every_next_command_works_on_a_tracked_run(
    start, tmp_path, console, monkeypatch, use
):
    """Without a flag, and pasted as it is printed."""
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "store"))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    monkeypatch.chdir(tmp_path)
    code, folder = start(f"tracking.use=['{use}']", "train.steps=4", "sample.count=2")
    assert code == 0
    assert "disabled" not in console.export_text(clear=False)
    folder = folder.rename(folder.with_name("a 'run' & more"))
    commands = (
        ["run", "--resume", str(folder), "train.steps=6"],
        ["sample", str(folder), "-n", "2"],
        ["evaluate", str(folder)],
        ["report", str(folder)],
        ["runs", "verify", str(folder)],
        ["runs", "list", str(folder.parent)],
        ["export", str(folder), "--out", "an export"],
    )
    assert [main(words) for words in commands] == [0] * len(commands)
    assert load_system("an export").sample(1).shape[0] == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", ["it's a 'folder'; $HOME", "-p", "--é 模"])
def test_printed_commands_can_be_pasted(load, console, tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    runs = Path(name)
    assert run(load("train.steps=2"), runs, console=console) == 0
    (folder,) = runs.iterdir()
    printed = re.findall(r"dither (?:report|sample|run) .*", console.export_text())
    commands = [shlex.split(line)[1:] for line in printed]
    assert len(commands) >= 2
    assert [main(words) for words in commands] == [0] * len(commands)
    assert all(folder in map(Path, words) for words in commands)
