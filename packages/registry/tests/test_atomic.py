"""Files and folders appear whole or not at all."""

import os
import subprocess
import sys
import threading

import pytest

from dither.registry.files.atomic import (
    atomic_folder,
    atomic_write,
    move,
    remove_folder,
    remove_leftovers,
)


def fail_while_writing(path):
    with atomic_write(path) as temporary:
        temporary.write_text("half of")
        raise RuntimeError("stop")


def test_a_file_is_replaced_atomically(tmp_path):
    path = tmp_path / "new" / "x.npz"
    with atomic_write(path) as temporary:
        assert temporary.parent == path.parent
        assert temporary.suffix == ".npz"
        temporary.write_text("one")
        assert not path.exists()
    assert path.read_text() == "one"
    with path.open() as reader:
        with atomic_write(path) as temporary:
            temporary.write_text("two")
        assert reader.read() == "one"  # an open file stays as it was
    assert path.read_text() == "two"
    with pytest.raises(RuntimeError, match="stop"):
        fail_while_writing(path)
    assert path.read_text() == "two"
    assert list(path.parent.iterdir()) == [path]


def write_folder(folder, text, **options):
    with atomic_folder(folder, **options) as temporary:
        (temporary / "inner").mkdir()
        (temporary / "inner" / "file").write_text(text)


def fail_in_folder(folder):
    with atomic_folder(folder) as temporary:
        (temporary / "half").touch()
        raise RuntimeError("stop")


def be_late(folder):
    with atomic_folder(folder, overwrite=False) as temporary:
        (temporary / "file").touch()
        write_folder(folder, "of another process")


def test_a_folder_is_replaced_atomically(tmp_path):
    folder = tmp_path / "new" / "store"
    write_folder(folder, "one")
    assert (folder / "inner" / "file").read_text() == "one"
    write_folder(folder, "two")
    assert (folder / "inner" / "file").read_text() == "two"
    with pytest.raises(RuntimeError, match="stop"):
        fail_in_folder(folder)
    assert os.listdir(folder) == ["inner"]
    assert os.listdir(folder.parent) == ["store"]


def test_an_existing_folder_is_kept_if_it_may_not_be_overwritten(tmp_path):
    folder = tmp_path / "store"
    write_folder(folder, "one", overwrite=False)
    with pytest.raises(FileExistsError):
        write_folder(folder, "two", overwrite=False)
    assert (folder / "inner" / "file").read_text() == "one"
    with pytest.raises(OSError, match=str(tmp_path)):
        be_late(tmp_path / "late")
    assert sorted(os.listdir(tmp_path)) == ["late", "store"]
    assert (tmp_path / "late" / "inner" / "file").read_text() == "of another process"


def test_threads_that_write_one_folder_leave_one_whole_folder(tmp_path):
    folder = tmp_path / "store"

    def write():
        for number in range(20):
            write_folder(folder, str(number))

    threads = [threading.Thread(target=write) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (folder / "inner" / "file").read_text() == "19"
    assert os.listdir(tmp_path) == ["store"]


def test_folders_are_moved_and_removed(tmp_path):
    write_folder(tmp_path / "a", "one")
    move(tmp_path / "a", tmp_path / "b")
    assert os.listdir(tmp_path) == ["b"]
    # A link leads to a folder on another disk, which stays.
    (tmp_path / "link").symlink_to(tmp_path / "b")
    remove_folder(tmp_path / "link")
    assert os.listdir(tmp_path) == ["b"]
    remove_folder(tmp_path / "b")
    assert os.listdir(tmp_path) == []


WRITER = """
import sys
from pathlib import Path
from dither.registry.files.atomic import atomic_folder
with atomic_folder(Path(sys.argv[1])) as temporary:
    (temporary / "half").touch()
    print(flush=True)
    sys.stdin.read()
"""


def test_only_folders_of_killed_processes_are_abandoned(tmp_path):
    folder = tmp_path / "1-of-2.v1"
    options = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    command = [sys.executable, "-c", WRITER, str(folder)]
    with (
        subprocess.Popen(command, **options) as killed,
        subprocess.Popen(command, **options) as alive,
    ):
        for process in (killed, alive):
            process.stdout.readline()
        killed.kill()
        killed.wait()
        assert len(os.listdir(tmp_path)) == 2
        write_folder(folder, "one")
        (temporary,) = tmp_path.glob(".tmp-*")
        assert (temporary / "half").exists()
        alive.communicate()
    assert os.listdir(tmp_path) == [folder.name]
    assert os.listdir(folder) == ["half"]


def test_folders_of_another_host_are_not_abandoned(tmp_path):
    """Their locks cannot be seen on a network disk."""
    other = tmp_path / ".tmp-00000000-store-0123abcd"
    other.mkdir()
    write_folder(tmp_path / "store", "one")
    assert other.exists()


def test_the_former_content_stays_if_it_is_all_there_is(tmp_path):
    """A process killed between its two renames leaves the old folder and the new one."""
    folder = tmp_path / "store"
    write_folder(folder, "one")
    former = tmp_path / ".tmp-former-store-0123abcd"
    folder.replace(former)
    with pytest.raises(RuntimeError, match="stop"):
        fail_in_folder(folder)
    assert os.listdir(tmp_path) == [former.name]
    write_folder(folder, "two")
    write_folder(folder, "three")
    assert os.listdir(tmp_path) == ["store"]


def test_leftovers_of_killed_processes_are_removed(tmp_path):
    writers = [atomic_write(tmp_path / "x.json"), atomic_folder(tmp_path / "store")]
    for writer in writers:
        path = writer.__enter__()
        assert path.name.startswith(".tmp-")
    path.joinpath("half").touch()
    (tmp_path / ".tmp-x-00000000.json").touch()
    (tmp_path / "x.json").touch()
    remove_leftovers(tmp_path)
    assert os.listdir(tmp_path) == ["x.json"]


def test_nothing_is_left_of_a_folder_whose_name_is_too_long(tmp_path):
    with (
        pytest.raises(OSError, match="too long"),
        atomic_folder(tmp_path / (250 * "n")),
    ):
        pass
    assert not list(tmp_path.iterdir())
