"""Menus are kept as long as they are true, and shared by the processes that ask at the same time."""

import json
import multiprocessing
import os
import time
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from dither.registry.plugins import manifest_cache as module
from dither.registry.plugins.discovery import Installed
from dither.registry.plugins.manifest import Menu, Offer
from dither.registry.plugins.manifest_cache import menus_of

GOOD = Menu((Offer("block", "one", 1, "A block.", "abc"),))
BAD = Menu(failure="ValueError")
LATE = Menu(failure="its import took longer than 1 s", timed_out=True)


def plugin(version="1.0", name="tp", failure=""):
    return Installed(name, "tp_not_there", "tp", version, EntryPoint(name, "tp", "dither.plugins"), failure=failure)


class Asked:
    """In place of `probe`: answers with `menu`, and counts."""

    def __init__(self):
        self.menu, self.count = GOOD, 0

    def __call__(self, plugins):
        self.count += len(plugins)
        return [self.menu for _ in plugins]


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv(module.FOLDER, str(tmp_path / "menus"))
    return tmp_path / "menus"


@pytest.fixture
def asked(cache, monkeypatch):
    asked = Asked()
    monkeypatch.setattr(module, "probe", asked)
    return asked


def again(asked, **options):
    """Say whether the plugin is asked, and what comes out."""
    before = asked.count
    menu = menus_of([plugin()], **options)["tp"]
    return asked.count > before, menu


def test_a_good_menu_is_kept(asked, monkeypatch):
    assert again(asked) == (True, GOOD)
    monkeypatch.setattr(module, "environment_stamp", lambda: "another")
    monkeypatch.setattr(time, "time", lambda: 1e12)
    assert again(asked) == (False, GOOD)
    assert again(asked, fresh=True) == (True, GOOD)
    assert menus_of([]) == {}


@pytest.mark.parametrize(("menu", "seconds"), [(BAD, 600), (LATE, 60)])
def test_a_failure_is_kept_for_a_while_and_where_nothing_changed(asked, monkeypatch, menu, seconds):
    asked.menu = menu
    assert again(asked) == (True, menu)
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + seconds - 5)
    assert again(asked) == (False, menu)
    monkeypatch.setattr(time, "time", lambda: now + seconds + 5)
    assert again(asked)[0]
    monkeypatch.setattr(time, "time", lambda: now)  # a clock that was set back
    assert again(asked)[0]
    assert not again(asked)[0]
    monkeypatch.setattr(module, "environment_stamp", lambda: "another")
    assert again(asked)[0]
    assert not again(asked)[0]
    monkeypatch.setenv("DITHER_PLUGIN_SECONDS", "33")
    assert again(asked)[0]


def test_a_failure_takes_no_good_menu_s_place(asked):
    assert again(asked) == (True, GOOD)
    asked.menu = BAD
    assert again(asked, fresh=True) == (True, BAD)
    assert again(asked) == (False, GOOD)


def test_broken_metadata_is_a_failure_without_asking(asked):
    assert menus_of([plugin(failure="no Name")])["tp"].failure == "no Name"
    assert not asked.count


@pytest.mark.parametrize(
    "damage",
    [
        b"",
        b"\xff",
        b"[" * 100_000,
        b'{"menu": {}}',
        {"seconds": "x"},
        {"hooks": "before_run"},
        {"failure": 3},
        {"offers": [{"kind": "block"}]},
        {"offers": [["block", "one", 1, "", ""]]},
        {"offers": [{"kind": "block", "name": 5, "rev": 1, "summary": "", "options": ""}]},
        {"offers": [{"kind": "block", "name": "x", "rev": "1", "summary": "", "options": ""}]},
    ],
)
def test_a_damaged_entry_is_none(asked, cache, damage):
    again(asked)
    (file,) = cache.glob("*.json")
    if isinstance(damage, dict):
        kept = json.loads(file.read_text())
        kept["menu"] |= damage
        damage = json.dumps(kept).encode()
    file.write_bytes(damage)
    assert again(asked) == (True, GOOD)
    assert again(asked) == (False, GOOD)


def test_a_pipe_or_a_folder_in_the_cache_is_none(asked, cache):
    again(asked)
    (file,) = cache.glob("*.json")
    file.unlink()
    os.mkfifo(file)
    assert again(asked) == (True, GOOD)
    file.unlink()
    file.mkdir()
    assert again(asked) == (True, GOOD)


def test_old_menus_of_the_same_plugin_are_dropped(asked, cache, monkeypatch):
    monkeypatch.setattr(module, "KEPT", 3)
    menus_of([plugin(name="other")])
    (other,) = cache.glob("*.json")
    os.utime(other, (1, 1))
    for number in range(5):
        menus_of([plugin(f"{number}.0")])
        for age, file in enumerate(sorted(cache.glob("*.json"), key=lambda file: file.stat().st_mtime_ns)):
            os.utime(file, (age + 1, age + 1))
    assert other.exists()
    assert len(list(cache.glob("*.json"))) == 4
    asked.count = 0
    menus_of([plugin("4.0")])
    assert not asked.count
    menus_of([plugin("0.0")])
    assert asked.count


def test_nobody_needs_a_home_or_a_cache(asked, monkeypatch, tmp_path):
    monkeypatch.delenv(module.FOLDER)
    for name in ("HOME", "DITHER_DATA", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)

    def nowhere():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", nowhere)
    assert again(asked) == (True, GOOD)
    assert again(asked) == (True, GOOD)
    (tmp_path / "file").touch()
    monkeypatch.setenv(module.FOLDER, str(tmp_path / "file"))
    assert again(asked) == (True, GOOD)
    monkeypatch.delenv(module.FOLDER)
    monkeypatch.setenv("DITHER_DATA", str(tmp_path))
    assert again(asked) == (True, GOOD)
    assert list((tmp_path / "plugins").glob("*.json"))


def ask(folder):
    """In a process of its own: ask, and leave a trace."""

    def slowly(plugins):
        for _ in plugins:
            (folder / str(os.getpid())).touch()
            time.sleep(0.5)
        return [GOOD for _ in plugins]

    module.probe = slowly
    return menus_of([plugin()])["tp"] == GOOD


def test_processes_that_start_together_ask_once(cache, tmp_path):
    context = multiprocessing.get_context("fork")
    (tmp_path / "asked").mkdir()
    processes = [context.Process(target=ask, args=(tmp_path / "asked",)) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(20)
    assert [process.exitcode for process in processes] == [0] * 4
    assert len(list((tmp_path / "asked").iterdir())) == 1


def test_a_process_that_stands_still_is_not_waited_for(asked, cache, monkeypatch):
    fcntl = pytest.importorskip("fcntl")
    monkeypatch.setenv("DITHER_PLUGIN_SECONDS", "0.3")
    cache.mkdir()
    with (cache / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        began = time.monotonic()
        assert again(asked) == (True, GOOD)
    assert 0.2 < time.monotonic() - began < 3
