"""Which signals ask to stop, and what a run survives whose terminal is closed."""

import errno
import io
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress

import pytest
from rich.console import Console

from dither.engine import signals
from dither.engine.cli import main
from dither.engine.runs.progress import ProgressDisplay, Screen
from dither.engine.signals import (
    SIGNALS,
    Stopped,
    stop_on_signals,
    stop_signals,
)
from dither.engine.sweeps.point_process import exit_code_of

ON_TERMINAL = """
import fcntl, signal, sys, termios
signal.signal(signal.SIGHUP, signal.SIG_DFL)
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
from dither.engine.cli import main
sys.exit(main())
"""
"""A command as a shell runs it: its input is the terminal of its session."""


@pytest.fixture(autouse=True)
def _no_nohup():
    former = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, former)


@pytest.fixture
def ended(monkeypatch):
    """Codes with which the process would have ended at once."""
    codes = []
    monkeypatch.setattr(signals.os, "_exit", codes.append)
    return codes


@pytest.mark.parametrize("number", SIGNALS)
def test_every_signal_requests_a_stop(number, ended):
    before = signal.getsignal(number)
    with stop_on_signals() as stop:
        stop.polled = True
        signal.raise_signal(number)
        assert stop.requested == signal.Signals(number).name
        signal.raise_signal(number)
    assert ended == ([] if number == signal.SIGHUP else [128 + number]), (
        "a closed terminal says so twice"
    )
    assert signal.getsignal(number) is before


@pytest.mark.parametrize("rank", ["0", "1"])
def test_a_second_signal_leaves_its_exit_code_for_a_job_file(
    rank, tmp_path, monkeypatch, ended
):
    """As does a signal during an import; torchrun would exit with 1."""
    monkeypatch.setenv("DITHER_EXIT_CODE", str(tmp_path / "code"))
    monkeypatch.setenv("LOCAL_RANK", rank)
    with stop_on_signals() as stop:
        stop.polled = True
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
    assert ended == [143]
    left = [path.read_text() for path in tmp_path.iterdir()]
    assert left == (["143\n"] if rank == "0" else [])


@pytest.mark.parametrize("is_command", [False, True])
def test_libraries_that_catch_a_stop_do_not_hide_it(
    is_command, monkeypatch, tmp_path, capsys
):
    """pydantic builds the validator of a class in compiled code and turns any exception into its own."""

    def interrupted(*_):
        try:
            signal.raise_signal(signal.SIGTERM)
        except BaseException as error:
            raise ValueError("SchemaError") from error

    if is_command:
        monkeypatch.setattr("dither.engine.cli.commands.app_for", interrupted)
        assert main(["list"]) == 75
        assert "stopped by SIGTERM" in capsys.readouterr().err
    else:
        assert exit_code_of(interrupted) == 75


def test_a_stop_that_a_library_swallows_reaches_the_run():
    with stop_on_signals() as command:
        with suppress(Stopped):
            signal.raise_signal(signal.SIGTERM)
        with stop_on_signals() as of_run:
            assert of_run.requested == command.requested == "SIGTERM"
    with stop_on_signals() as of_next_command:
        assert of_next_command.requested is None


def test_nohup_ignores_sighup(ended):
    assert set(stop_signals()) == set(SIGNALS)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    assert set(SIGNALS) - set(stop_signals()) == {signal.SIGHUP}
    with stop_on_signals() as stop:
        signal.raise_signal(signal.SIGHUP)
    assert stop.requested is None


class Gone(io.StringIO):
    def isatty(self):
        return True

    def write(self, text):
        raise OSError(errno.EIO, os.strerror(errno.EIO))


def test_a_closed_terminal_does_not_end_a_run(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(
        Screen, "on_broken_pipe", lambda self: setattr(self, "quiet", True)
    )
    console = Screen(file=io.StringIO(), force_terminal=True)
    display = ProgressDisplay(console, 10)
    display.start()
    display.step(1)
    console.file = Gone()
    display.step(10)
    display.line("a line")
    display.stop()
    assert console.quiet
    bare = Console(file=Gone(), force_terminal=True)
    with pytest.raises(OSError, match="Input/output"):
        bare.show_cursor(True)


def test_a_closed_stream_does_not_end_a_run():
    stream = io.StringIO()
    console = Screen(file=stream, force_terminal=False)
    ProgressDisplay(console, 10).line("first")
    assert stream.getvalue() == "first\n"
    stream.close()
    ProgressDisplay(console, 10).line("second")
    assert console.quiet


@pytest.mark.slow
def test_sighup_writes_a_checkpoint(experiment_file, tmp_path, monkeypatch):
    text = (
        experiment_file.read_text()
        .replace("steps = 20", "steps = 1000000")
        .replace("every = 7", "every = 100000")
    )
    experiment_file.write_text(text)
    for name, value in {
        "DITHER_PLUGINS": "engine",
        "TERM": "xterm",
        "OMP_NUM_THREADS": "1",
    }.items():
        monkeypatch.setenv(name, value)
    given = [
        sys.executable,
        "-c",
        ON_TERMINAL,
        "run",
        str(experiment_file),
        "--runs",
        str(tmp_path / "runs"),
    ]
    terminal, end = os.openpty()
    process = subprocess.Popen(
        given, stdin=end, stdout=end, stderr=end, start_new_session=True
    )
    os.close(end)
    deadline = time.monotonic() + 60
    while (
        not list(tmp_path.glob("runs/*/checkpoints/step-*"))
        and time.monotonic() < deadline
    ):
        os.read(terminal, 65536)
    os.close(terminal)
    assert process.wait(60) == 75
    newest = max(path.name for path in tmp_path.glob("runs/*/checkpoints/step-*"))
    (metrics,) = {path.resolve() for path in tmp_path.glob("runs/*/metrics.jsonl")}
    assert (
        int(newest.removeprefix("step-"))
        >= json.loads(metrics.read_text().splitlines()[-1])["step"]
        > 0
    )
