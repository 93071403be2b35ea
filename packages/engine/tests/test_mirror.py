"""Mirrors of runs: copies, failures, reading, names of servers."""

import functools
import http.server
import shutil
import threading
from pathlib import Path

import fsspec
import pytest

import dither
from dither.engine.cli import main
from dither.engine.files.mirror import Mirror, address_of, fetch_run
from dither.registry.config.errors import Refused


@pytest.fixture
def memory():
    store = fsspec.filesystem("memory")
    yield store
    store.store.clear()
    store.pseudo_dirs[:] = [""]


@pytest.fixture
def mirrored(experiment_file, tmp_path, memory, monkeypatch):
    """A finished run with a mirror, its directory and the address."""
    monkeypatch.setenv("DITHER_DATA", str(tmp_path / "cache"))
    runs = tmp_path / "runs"
    words = ["run.mirror=memory://box/runs", "--runs", str(runs)]
    assert main(["run", str(experiment_file), *words]) == 0
    (path,) = runs.glob("*-*")
    return path, f"memory://box/runs/{path.name}"


def content(folder):
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in files
        if path.suffix != ".lock"
    }


@pytest.mark.slow
def test_a_mirror_has_every_file_of_the_run_and_is_loaded_sampled_and_evaluated(
    mirrored, cli, tmp_path
):
    path, address = mirrored
    copy = fetch_run(address, tmp_path / "copy")
    assert content(copy) == content(path)
    assert len(list((copy / "checkpoints").iterdir())) == 2

    shutil.rmtree(path)
    assert len(dither.load(address).sample(2)) == 2
    cli("sample", address, "--count", "2")
    cli("evaluate", address)


@pytest.mark.slow
def test_a_run_is_resumed_from_its_mirror_never_over_a_local_one(mirrored, cli):
    path, address = mirrored
    words = ["run", "--resume", address, "train.steps=30", "--runs", str(path.parent)]
    cli(*words, code=2)
    shutil.rmtree(path)
    cli(*words)
    assert (path / "checkpoints" / "step-00000030").is_dir()
    copied = fetch_run(address, path.parent / "copy")
    assert content(copied) == content(path)


def test_a_failing_mirror_is_a_warning_and_tried_again(tmp_path, memory, monkeypatch):
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "a.txt").write_text("a")
    warnings = []
    mirror = Mirror(folder, "memory://box", warnings.append)
    put = type(memory).put_file

    def fail(*_, **__):
        raise OSError("https://host/a?X-Amz-Signature=secret refused")

    monkeypatch.setattr(type(memory), "put_file", fail)
    mirror.close()
    mirror.close()
    assert mirror.failures == 2
    assert "failure 2" in warnings[1]
    assert "secret" not in "".join(warnings)
    monkeypatch.setattr(type(memory), "put_file", put)
    mirror.close()
    assert memory.cat("/box/run/a.txt") == b"a"
    assert len(warnings) == 2


@pytest.mark.slow
def test_a_run_ends_well_without_its_mirror(
    experiment_file, tmp_path, capfd, monkeypatch
):
    blocked = tmp_path / "blocked"
    blocked.write_text("a file, below which there are no folders")
    words = [f"run.mirror=file://{blocked}", "--runs", str(tmp_path / "runs")]
    assert main(["run", str(experiment_file), *words]) == 0
    assert "the next checkpoint tries again" in " ".join(capfd.readouterr().out.split())


def test_a_checkpoint_is_complete_once_its_manifest_is_there(
    tmp_path, memory, monkeypatch
):
    checkpoint = tmp_path / "run" / "checkpoints" / "step-00000001"
    checkpoint.mkdir(parents=True)
    for name in ("MANIFEST.json", "a.safetensors", "z.json"):
        (checkpoint / name).write_text(name)
    order = []
    put = type(memory).put_file

    def record(self, source, target, **options):
        order.append(Path(source).name)
        put(self, source, target, **options)

    monkeypatch.setattr(type(memory), "put_file", record)
    mirror = Mirror(tmp_path / "run", "memory://box", pytest.fail)
    mirror.close()
    assert order == ["a.safetensors", "z.json", "MANIFEST.json"]
    # Removed by the run, and so by the mirror; nothing is copied twice.
    mirror.close()
    shutil.rmtree(checkpoint)
    mirror.close()
    assert len(order) == 3
    assert not memory.exists("/box/run/checkpoints/step-00000001/MANIFEST.json")


def test_names_of_a_server_never_leave_the_folder(tmp_path, memory, monkeypatch):
    find = {"/box/run/../../evil": {"size": 1}}
    monkeypatch.setattr(type(memory), "find", lambda *_, **__: find)
    with pytest.raises(Refused) as refused:
        fetch_run("memory://box/run", tmp_path / "copy")
    assert refused.value.codes == ["invalid-value"]
    assert not (tmp_path / "evil").exists()


@pytest.mark.parametrize(
    "address", ["s3://key:secret@bucket/x", "https://host/x?sig=1", "nonsense://x"]
)
def test_addresses_with_credentials_or_unknown_services_are_refused(
    experiment_file, address, cli
):
    cli("validate", str(experiment_file), f"run.mirror={address}", code=2)


@pytest.mark.parametrize(
    ("path", "address"),
    [
        (Path("s3://bucket/run"), "s3://bucket/run"),
        ("http://host:80/run", "http://host:80/run"),
        ("C:/run", None),
        ("runs/x", None),
        ("/abs/s3:/x", None),
    ],
)
def test_an_address_survives_as_a_path(path, address):
    assert address_of(path) == address


@pytest.mark.slow
def test_a_run_is_read_from_a_web_server(mirrored, tmp_path):
    pytest.importorskip("aiohttp")
    path, _ = mirrored
    handler = functools.partial(
        http.server.SimpleHTTPRequestHandler, directory=path.parent
    )
    with http.server.ThreadingHTTPServer(("localhost", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://localhost:{server.server_port}/{path.name}"
        copy = fetch_run(address, tmp_path / "copy")
        server.shutdown()
    assert content(copy) == content(path)
