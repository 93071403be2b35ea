"""A plugin is asked in a process of its own, which may do what it likes, and of which nothing is left."""

import os
import resource
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from dither.registry.plugins.probe import probe, time_limit


@pytest.fixture
def ask(tmp_path, monkeypatch):
    """Ask a plugin of this source."""
    monkeypatch.syspath_prepend(tmp_path)

    def ask(source, seconds=20.0):
        (tmp_path / "tp_probed.py").write_text(textwrap.dedent(source))
        (menu,) = probe([("tp-probed", "tp_probed")], seconds)
        return menu

    return ask


def gone(pid):
    status = Path(f"/proc/{pid}/status")
    for _ in range(200):
        if not status.exists() or "Z (zombie)" in status.read_text():
            return True
        time.sleep(0.02)
    return False


GOOD = "from dither.registry import hookimpl\n@hookimpl\ndef before_run(run): ...\n"
START = """
import pathlib, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], stderr=sys.stderr)
pathlib.Path({!r}).write_text(str(child.pid))
"""


def test_what_a_good_plugin_leaves_running_with_our_stderr_is_ended(ask, tmp_path):
    began = time.monotonic()
    assert ask(GOOD + START.format(str(tmp_path / "pid"))).failure == ""
    assert time.monotonic() - began < 15
    assert gone(int((tmp_path / "pid").read_text()))


def test_a_menu_counts_although_its_process_does_not_end(ask):
    patch = "import os, time; replace = os.replace; os.replace = lambda *names: (replace(*names), time.sleep(60))\n"
    assert ask(patch + GOOD, 2.0).failure == ""


def test_a_flood_of_words_is_cut(ask):
    menu = ask("import sys\nfor _ in range(40): sys.stderr.write('x' * 1_000_000 + '\\n')\nsys.stderr.flush()")
    assert "File too large" in menu.failure
    assert len(menu.failure) < 300
    menu = ask("import os, sys\nfor _ in range(10): sys.stderr.write('x' * 1_000_000 + '\\n')\nos._exit(3)")
    assert menu.failure == "its import ended with exit code 3: " + "x" * 200


def test_the_folder_we_are_in_is_not_imported_from(ask, tmp_path, monkeypatch):
    folder = tmp_path / "here"
    folder.mkdir()
    (folder / "json.py").write_text("raise RuntimeError('not the json you want')")
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [*map(Path, sys.path)])
    assert ask(GOOD).failure == ""


def test_a_plugin_that_takes_too_long_is_told_what_helps(ask):
    menu = ask("import time; time.sleep(60)", 1.0)
    assert menu.timed_out
    assert menu.failure.startswith("its import took longer than 1 s")
    assert "DITHER_PLUGIN_SECONDS" in menu.failure
    assert "dither plugins --fresh" in menu.failure
    assert not ask("raise ValueError").timed_out


def test_more_plugins_than_processors_answer_in_order(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    for number, wait in enumerate([0.3, 0.0, 0.0]):
        (tmp_path / f"tp_{number}.py").write_text(f"import time; time.sleep({wait}); raise ValueError({number})")
    menus = probe([(f"tp-{number}", f"tp_{number}") for number in range(3)], 20.0)
    assert [menu.failure.split()[1] for menu in menus] == ["0", "1", "2"]
    assert probe([]) == []


@pytest.mark.parametrize("given", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_search_leaves_no_process(tmp_path, given):
    pid = tmp_path / "pid"
    note = f"import os, pathlib, time\npathlib.Path({str(pid)!r}).write_text(str(os.getpid()))\n"
    (tmp_path / "tp_slow.py").write_text(note + "time.sleep(60)")
    limit = 30.0 if given == signal.SIGINT else 1.5
    code = f"from dither.registry.probe import probe; probe([('tp-slow', 'tp_slow')], {limit})"
    path = {"PYTHONPATH": str(tmp_path), "TMPDIR": str(tmp_path)}
    process = subprocess.Popen([sys.executable, "-c", code], env=os.environ | path, stderr=subprocess.DEVNULL)
    while not pid.exists() or not pid.read_text():
        assert process.poll() is None
        time.sleep(0.01)
    sent = time.monotonic()
    process.send_signal(given)
    process.wait(20)
    assert time.monotonic() - sent < 2
    assert gone(int(pid.read_text()))


def test_a_lower_limit_on_files_is_kept(ask):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    assert ask("import resource; raise ValueError(resource.getrlimit(resource.RLIMIT_FSIZE)[0])").failure.startswith(
        f"ValueError: {16 << 20} "
    )
    assert resource.getrlimit(resource.RLIMIT_FSIZE) == (soft, hard)


@pytest.mark.parametrize(
    ("text", "seconds"), [("3.5", 3.5), ("0", 0.1), ("-1", 0.1), ("nan", 10), ("inf", 10), ("x", 10)]
)
def test_the_limit_may_be_chosen(monkeypatch, text, seconds):
    monkeypatch.setenv("DITHER_PLUGIN_SECONDS", text)
    assert time_limit() == seconds
