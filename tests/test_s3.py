"""Mirrors and data at addresses of S3, against the server of moto: `pip install "moto[s3,server]" s3fs`."""

import shutil
import socket
import threading
from urllib.request import Request, urlopen

import pytest

import dither
from dither.engine.cli import main
from dither.engine.files.mirror import Mirror, fetch_run
from dither.registry.config.errors import Refused
from dither.registry.files.addresses import address_of
from dither.tasks.language_model.data import remote_files
from dither.tasks.language_model.data.remote_files import RemotePath, RemoteReader

pytestmark = pytest.mark.slow
s3fs = pytest.importorskip("s3fs", reason="s3fs is not installed")
moto_server = pytest.importorskip("moto.server", reason="moto is not installed")

EXPERIMENT = """
extends = "bubble_diagram/quick"
task = { use = "bubble-diagram", data = { use = "procedural-plans", train = 64, valid = 16, test = 8 } }
model.width = 16
model.depth = 1
[train]
steps = 6
batch_size = 8
checkpoint_every = 2
device = "cpu"
[evaluate]
samples = 8
[sample]
count = 2
"""
BOX = "s3://box/dir ü #1%20+x"
"""An address whose keys have odd characters."""


@pytest.fixture(autouse=True)
def _configured(monkeypatch, tmp_path):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("DITHER_DATA", str(tmp_path / "cache"))
    s3fs.S3FileSystem.clear_instance_cache()


@pytest.fixture
def server(monkeypatch):
    """A client of a server with the bucket `box`."""
    server = moto_server.ThreadedMotoServer(port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
    client = s3fs.S3FileSystem()
    client.mkdir("box")
    yield client
    # Its content outlives the server.
    reset = Request(f"http://{host}:{port}/moto-api/reset", method="POST")
    urlopen(reset).close()
    server.stop()


def test_a_run_is_resumed_and_sampled_from_its_mirror(content, server, tmp_path):
    (tmp_path / "exp.toml").write_text(EXPERIMENT)
    runs = tmp_path / "runs"
    words = ["run", str(tmp_path / "exp.toml"), "--runs", str(runs)]
    assert main([*words, f"run.mirror={BOX}"]) == 0
    (path,) = runs.glob("*-*")
    address = f"{BOX}/{path.name}"
    assert content(fetch_run(address, tmp_path / "copy")) == content(path)

    shutil.rmtree(path)
    words = ["run", "--resume", address, "train.steps=8", "--runs", str(runs)]
    assert main(words) == 0
    copy = fetch_run(address, tmp_path / "copy")
    # Old checkpoints are gone from both; other files of the first copy stay.
    assert {key: copy.joinpath(key).read_bytes() for key in content(path)} == content(
        path
    )
    steps = {name.rpartition("/")[2] for name in server.ls(f"{address}/checkpoints")}
    assert steps == {folder.name for folder in (path / "checkpoints").iterdir()}
    assert len(dither.load(address).sample(2)) == 2
    assert main(["evaluate", address]) == 0
    assert main(["export", address, "--out", str(tmp_path / "export")]) == 0


def test_a_missing_bucket_is_a_warning_and_not_created(server, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "a").write_text("a")
    warnings = []
    Mirror(tmp_path / "run", "s3://bos/runs", warnings.append).close()
    assert len(warnings) == 1
    server.invalidate_cache()
    assert server.ls("") == ["box"]


def test_a_missing_file_of_data_is_not_requested_again(server, monkeypatch):
    monkeypatch.setattr(remote_files.time, "sleep", pytest.fail)
    for address in ("s3://bos/text.txt", "s3://box/text.txt"):
        with pytest.raises(FileNotFoundError):
            RemoteReader(RemotePath(address)).read(1)


def test_lists_of_many_objects_have_pages(content, server, tmp_path):
    """A page has 1,000."""
    folder = tmp_path / "run"
    folder.mkdir()
    for number in range(1003):
        (folder / f"file {number}").write_text(str(number))
    mirror = Mirror(folder, BOX, print)
    mirror.close()
    assert not mirror.failures
    copy = fetch_run(f"{BOX}/run", tmp_path / "copy")
    assert content(copy) == content(folder)


def test_what_a_server_refuses_has_a_code(server, monkeypatch):
    import moto.core.responses as responses

    monkeypatch.setattr(responses.settings, "INITIAL_NO_AUTH_ACTION_COUNT", 0.0)
    with pytest.raises(Refused) as refused:
        fetch_run("s3://box/run")
    assert refused.value.codes == ["download-failed"]


def test_a_host_that_never_answers_is_not_asked_25_times(monkeypatch):
    """Five times by s3fs and five by botocore, with 15 seconds each."""
    connections = []
    listener = socket.create_server(("localhost", 0))

    def accept():
        while True:
            connections.append(listener.accept())

    threading.Thread(target=accept, daemon=True).start()
    port = listener.getsockname()[1]
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://localhost:{port}")
    monkeypatch.setattr(s3fs.S3FileSystem, "read_timeout", 0.2)
    with pytest.raises(Refused) as refused:
        fetch_run(str(address_of("s3://box/run")))
    assert refused.value.codes == ["download-failed"]
    assert len(connections) <= 10
