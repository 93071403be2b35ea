"""Outputs at paths that are no ordinary file: refused at once, and never opened, replaced or waited for."""

import json
import os
import socket
import stat
from pathlib import Path

import pytest

from dither.registry.files.atomic import atomic_folder, atomic_write, output_file


@pytest.fixture
def place(tmp_path, monkeypatch):
    """Make a path of a kind; return its name."""
    monkeypatch.chdir(tmp_path)

    def made(kind):
        if kind == "fifo":
            os.mkfifo(kind)
        elif kind == "socket":
            # The name of a socket may have 108 bytes.
            with socket.socket(socket.AF_UNIX) as listener:
                listener.bind(kind)
        elif kind == "folder":
            os.mkdir(kind)
        elif kind == "link":
            os.symlink("/dev/null", kind)
        return kind

    return made


COMMANDS = (
    ("schema", "--of", "output", "--out"),
    ("registry", "sync", "--file"),
    ("new", "experiment", "--from", "dna_sequence/quick"),
    ("launch", "dna_sequence/quick", "--slurm", "--out"),
    ("new", "plugin", "a", "--kind", "block", "--single-file", "--out"),
    ("layout", "diagram.toml", "--out"),
    ("prepare", "text", "text.txt", "--to"),
    ("sample", "runs/a", "--out"),
)
KINDS = ("fifo", "socket", "folder", "link", "/dev/null", "/dev/stdout", "/dev/fd/1")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("words", COMMANDS[:2])
def test_files_are_no_devices(cli, place, words, kind):
    path = place(kind)
    before = os.lstat(path)
    problem = json.loads(cli(*words, path, "--format", "json", code=2).out)["problems"]
    assert [entry["code"] for entry in problem] == ["unwritable-file"]
    after = os.lstat(path)
    assert (before.st_ino, before.st_mode) == (after.st_ino, after.st_mode)


@pytest.mark.parametrize("kind", ["fifo", "socket", "link", "/dev/null"])
@pytest.mark.parametrize("words", COMMANDS[2:])
def test_new_files_and_folders_are_no_devices(cli, place, words, kind):
    path = place(kind)
    before = os.lstat(path)
    with open("text.txt", "w") as file:
        file.write("a text")
    answer = cli(*words, path, "--format", "json", code=2)
    problems = json.loads(answer.out.splitlines()[-1])["problems"]
    assert problems[0]["code"] in ("file-exists", "file-not-found", "not-prepared")
    assert os.lstat(path).st_ino == before.st_ino


def test_links_lead_to_the_written_file(cli, tmp_path):
    link = tmp_path / "link"
    link.symlink_to("target")
    for _ in range(2):
        cli("schema", "--of", "output", "--out", str(link))
        assert link.is_symlink()
        assert "commands" in json.loads((tmp_path / "target").read_text())
    with atomic_folder(link.with_name("folder")) as folder:
        (folder / "a").write_text("a")
    other = tmp_path / "other"
    other.symlink_to("folder", target_is_directory=True)
    with atomic_folder(other) as folder:
        (folder / "b").write_text("b")
    assert [path.name for path in (tmp_path / "folder").iterdir()] == ["b"]
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["folder", "link", "other", "target"]


def test_an_atomic_write_replaces_no_device(place):
    fifo = Path(place("fifo"))
    with pytest.raises(OSError, match="a FIFO"), atomic_write(fifo):
        raise AssertionError("the block must not run")
    assert stat.S_ISFIFO(fifo.stat().st_mode)
    assert output_file(Path("/dev/shm/a")) == Path("/dev/shm/a")
