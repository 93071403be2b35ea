"""The cache folder, and wheels with data."""

import hashlib
import shutil
import subprocess
import zipfile
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

from dither.registry.files import cache as storage


def test_the_cache_folder_follows_the_environment(monkeypatch, tmp_path):
    for name in ("DITHER_DATA", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert storage.cache_folder() == tmp_path / ".cache" / "dither"
    monkeypatch.setenv("XDG_CACHE_HOME", "not/absolute")
    assert storage.cache_folder() == tmp_path / ".cache" / "dither"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert storage.cache_folder() == tmp_path / "xdg" / "dither"
    monkeypatch.setenv("DITHER_DATA", "~/mine")
    assert storage.cache_folder() == tmp_path / "mine"


WHEEL = b"a wheel"
SHA256 = hashlib.sha256(WHEEL).hexdigest()


@pytest.fixture
def pip(monkeypatch, tmp_path):
    """Replace pip: write `content`, or fail with `error`; record the commands."""

    class Pip:
        content, error = WHEEL, ""

        def __init__(self):
            self.calls, self.environments = [], []

        def run(self, command, **options):
            self.calls.append(command)
            self.environments.append(options["env"])
            if self.error:
                return subprocess.CompletedProcess(command, 1, "", self.error)
            (
                Path(command[command.index("--dest") + 1]) / "some-1.0-py3-none-any.whl"
            ).write_bytes(self.content)
            return subprocess.CompletedProcess(command, 0, "", "")

    pip = Pip()
    monkeypatch.setenv("DITHER_DATA", str(tmp_path / "data"))
    monkeypatch.setattr(storage.subprocess, "run", pip.run)
    return pip


def cached(tmp_path):
    return sorted(
        path.name for path in (tmp_path / "data").rglob("*") if path.is_file()
    )


def test_a_wheel_is_fetched_once_and_only_as_a_wheel(pip, tmp_path):
    path = storage.fetch_wheel("some", "1.0", SHA256)
    assert path.read_bytes() == WHEEL
    assert storage.fetch_wheel("some", "1.0", SHA256) == path
    (command,) = pip.calls
    assert command[1:4] == ["-Pm", "pip", "download"]
    assert {"--no-deps", "--only-binary=:all:", "some==1.0"} <= set(command)
    assert cached(tmp_path) == [path.name]
    path.write_bytes(b"a whee1")
    assert storage.fetch_wheel("some", "1.0", SHA256).read_bytes() == WHEEL
    assert len(pip.calls) == 2, "a damaged copy is fetched again"


def test_a_wheel_is_fetched_in_an_environment_without_pip(
    pip, tmp_path, monkeypatch, refused
):
    monkeypatch.setenv("UV_DEFAULT_INDEX", "scheme://index")
    bundled = tmp_path / "python" / "_bundled" / "pip-1-py3-none-any.whl"
    bundled.mkdir(parents=True)
    there = SimpleNamespace(origin=str(bundled.parents[1] / "__init__.py"))
    for path, uv, spec in [
        (str(bundled / "pip"), None, there),
        ("pip", "/bin/uv", there),
        (None, None, None),
    ]:
        monkeypatch.setattr(
            storage.importlib.util, "find_spec", {"ensurepip": spec}.get
        )
        monkeypatch.setattr(storage.shutil, "which", lambda name, uv=uv: uv)
        with nullcontext() if path else refused("download-failed"):
            storage.fetch_wheel("some", "1.0", SHA256).unlink()
            assert pip.calls[-1][pip.calls[-1].index("download") - 1] == path
            assert pip.environments[-1]["PIP_INDEX_URL"] == "scheme://index"
        shutil.rmtree(bundled, ignore_errors=True)


def test_a_wheel_with_another_checksum_is_rejected(pip, tmp_path, refused):
    pip.content = b"something else"
    with refused("damaged-file"):
        storage.fetch_wheel("some", "1.0", SHA256)
    assert cached(tmp_path) == []


def test_errors_of_pip_are_shown_without_passwords(pip, tmp_path, refused):
    pip.error = "WARNING: x\nERROR: no match at scheme://user:secret@host/simple\n"
    with refused("download-failed") as info:
        storage.fetch_wheel("some", "1.0", SHA256)
    assert "secret" not in str(info.value)
    assert "ERROR: no match at scheme://host/simple" in str(info.value)
    assert cached(tmp_path) == []


def test_a_cache_that_cannot_be_written_is_reported(
    pip, tmp_path, monkeypatch, refused
):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("DITHER_DATA", str(tmp_path / "file"))
    with refused("unwritable-file") as info:
        storage.fetch_wheel("some", "1.0", SHA256)
    assert "DITHER_DATA" in info.value.problems[0].help


def test_members_of_a_wheel(tmp_path, refused):
    wheel = tmp_path / "x.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("a/b.txt", "text " * 50)
    assert storage.read_member(wheel, "a/b.txt") == b"text " * 50
    with refused("file-not-found"):
        storage.read_member(wheel, "a/c.txt")
    with refused("too-large"):
        storage.read_member(wheel, "a/b.txt", limit=10)
    content = wheel.read_bytes()
    wheel.write_bytes(content.replace(b"text text", b"test text", 1))
    with refused("damaged-file"):
        storage.read_member(wheel, "a/b.txt")
    wheel.write_bytes(content[:40])
    with refused("damaged-file"):
        storage.read_member(wheel, "a/b.txt")
