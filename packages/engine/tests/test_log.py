import errno
import io
import math
import os
import re
import time

import pytest
from rich.console import Console

from dither.engine.files.metrics_file import BEGINNING, MetricsFile, Place, changed_lines, read_metrics
from dither.engine.runs.log import Board, Log
from dither.engine.runs.progress import ProgressDisplay
from dither.registry.flow.protocols import Picture


def test_lines_are_cut_back_to_the_offset(tmp_path):
    path = tmp_path / "metrics.jsonl"
    file = MetricsFile(path)
    file.write(1, "train", {"loss": 0.1 + 0.2})
    offset = file.place.bytes
    file.write(2, "train", {"loss": math.nan, "other": math.inf})
    file.close()
    first = {"step": 1, "kind": "train", "loss": 0.1 + 0.2}
    assert read_metrics(path) == [first, {"step": 2, "kind": "train", "loss": None, "other": None}]
    again = MetricsFile(path, offset)
    again.write(3, "valid", {"loss": 1.0})
    assert again.place.bytes == path.stat().st_size
    again.close()
    assert read_metrics(path) == [first, {"step": 3, "kind": "valid", "loss": 1.0}]


@pytest.mark.parametrize("fits", [0, 5])
def test_lines_that_find_no_space_are_held_back(tmp_path, monkeypatch, fits):
    path, warned = tmp_path / "metrics.jsonl", []
    file, other = MetricsFile(path, warn=warned.append), MetricsFile(tmp_path / "other.jsonl")
    write, full = os.write, [True]

    def on_a_full_disk(handle, data):
        if full[0] and handle == file._file:
            if not fits:
                raise OSError(errno.ENOSPC, "No space left on device")
            return write(handle, data[:fits])
        return write(handle, data)

    monkeypatch.setattr(os, "write", on_a_full_disk)
    for step in (1, 2, 3, 4):
        full[0] = step in (2, 3)
        for one in (file, other):
            one.write(step, "train", {"loss": 1.0 / step})
    assert file.place == other.place
    file.sync()
    file.close()
    assert path.read_bytes() == (tmp_path / "other.jsonl").read_bytes()
    assert len(warned) == 1
    assert "held back" in warned[0]


def test_a_line_that_was_cut_off_is_not_gone_on_with(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n{"step": 2}\n{"st')
    file = MetricsFile(path, 1000)
    file.write(3, "train", {})
    file.close()
    assert [line["step"] for line in read_metrics(path)] == [1, 2, 3]


def test_lines_before_a_checkpoint_that_changed_are_told(tmp_path):
    path = tmp_path / "metrics.jsonl"
    file = MetricsFile(path)
    file.write(1, "train", {"loss": 0.25})
    place = file.place
    file.write(2, "train", {"loss": 0.5})
    file.close()
    assert changed_lines(path, place) is None
    path.write_text(path.read_text().replace("0.25", "0.35"))
    assert "not what was written" in changed_lines(path, place)
    assert changed_lines(path, Place(place.bytes, "")) is None
    os.truncate(path, place.bytes - 3)
    assert "has lost 3 bytes" in changed_lines(path, place)
    path.unlink()
    assert "cannot be read" in changed_lines(path, place)
    assert changed_lines(path, BEGINNING) is None


def test_tensorboard_gets_scalars_pictures_and_text(tmp_path, load, events):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    load()
    warnings = []
    board = Board(tmp_path, 0, warnings.append)
    board.scalars(3, "valid", {"loss": 2.5})
    png = events.__globals__["toy_plugin"]().PNG
    board.pictures(3, [Picture("dot", png=png, text="also"), Picture("words", text="a\nb")])
    board.close()
    assert warnings == []
    seen = EventAccumulator(str(tmp_path)).Reload()
    (scalar,) = seen.Scalars("valid/loss")
    assert (scalar.step, scalar.value) == (3, 2.5)
    (image,) = seen.Images("dot")
    assert (image.width, image.height) == (1, 1)
    assert "words/text_summary" in seen.Tags()["tensors"]


def test_a_failing_tensorboard_is_said_once_and_stops_nothing(tmp_path, console):
    (tmp_path / "tensorboard").write_text("in the way")
    log = Log(tmp_path, console, 10)
    for step in (1, 2):
        log.figures(step, "train", {"loss": 1.0})
        log.pictures(step, [Picture("broken", png=b"no picture")])
    log.close()
    assert console.export_text().count("TensorBoard is off") == 1
    assert len(read_metrics(tmp_path / "metrics.jsonl")) == 2


def test_a_picture_that_cannot_be_read_stops_nothing(tmp_path):
    warnings = []
    board = Board(tmp_path, 0, warnings.append)
    for _ in range(2):
        board.pictures(1, [Picture("broken", png=b"no picture")])
        board.scalars(1, "train", {"loss": 1.0})
    board.close()
    assert len(warnings) == 1


def test_without_a_terminal_lines_are_plain_and_few(tmp_path, console):
    log = Log(tmp_path, console, 100)
    log.display.start()
    for step in range(1, 101):
        log.display.step(step)
        if step % 2 == 0:
            log.figures(step, "train", {"loss": 1.5})
    log.figures(100, "valid", {"loss": 1.25, "accuracy": 0.5})
    log.close()
    lines = console.export_text().splitlines()
    assert len(lines) == 3
    assert re.fullmatch(r"step 100/100  loss 1.5  [\d.,e+]+ steps/s  0:00:00 left  [\d.]+ [MG]iB", lines[1])
    assert lines[2] == "step 100  valid: loss 1.25, accuracy 0.5"
    assert "\x1b" not in "".join(lines)


def test_on_a_terminal_there_is_a_bar(tmp_path):
    out = io.StringIO()
    log = Log(tmp_path, Console(file=out, force_terminal=True, width=100), 10)
    log.display.start()
    log.figures(1, "train", {"loss": 1.5})
    log.display._shown = 0.0
    log.display.step(7)
    log.close()
    assert "7/10" in out.getvalue()
    assert "loss 1.5" in out.getvalue()
    assert re.search(r"[\d.]+ [MG]iB", out.getvalue()), "memory"


def test_the_bar_says_what_is_done_between_steps_and_reaches_the_end():
    out = io.StringIO()
    display = ProgressDisplay(Console(file=out, force_terminal=True, width=100), 10, memory=lambda: 3 << 20)
    display.start()
    display.step(9)
    display.step(10)  # at once after it, and shown all the same
    display.doing("drawing")
    display.stop()
    assert "10/10" in out.getvalue()
    assert "drawing" in out.getvalue()
    assert "3.0 MiB" in out.getvalue()


@pytest.mark.parametrize("width", [30, 46, 80])
def test_the_bar_keeps_to_one_line(width):
    out = io.StringIO()
    display = ProgressDisplay(Console(file=out, force_terminal=True, width=width), 20_000, memory=lambda: 557 << 20)
    display.start()
    display.step(1)
    display.figures(2, "train", {"loss": 1.2345})
    time.sleep(0.11)
    display.step(12_345)
    display.stop()
    shown = [line for line in re.split(r"[\r\n]", re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", out.getvalue())) if line]
    assert max(map(len, shown)) <= width
    assert all("12345/20000 0:00:" in line for line in shown if "12345" in line)
    assert "…" not in shown[-1], "nothing is cut off"


def test_a_terminal_that_cannot_move_its_cursor_gets_lines(monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    out = io.StringIO()
    display = ProgressDisplay(Console(file=out, force_terminal=True, width=100), 10)
    display.start()
    display.figures(10, "train", {"loss": 1.5})
    display.stop()
    assert out.getvalue() == "step 10/10  loss 1.5\n"


def test_of_many_figures_the_first_are_told_with_their_intervals(console):
    display = ProgressDisplay(console, 10)
    figures = {"loss": 2.0, "nats": 3.0, "nats_ci95": 0.25, "nats_floor": 1.0, "nan": 1.0, "nan_ci95": math.nan}
    display.figures(5, "valid", figures)
    display.figures(5, "sample", {f"f{number}": 1.0 for number in range(11)})
    first, second = console.export_text().splitlines()
    assert first == "step 5  valid: loss 2, nats 3 ± 0.25, nan 1"
    assert second.endswith("f7 1 and 3 more")


def test_hyper_parameters_stand_in_the_run_itself(tmp_path, console):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    log = Log(tmp_path, console, 1)
    log.figures(1, "valid", {"loss": 2.0})
    log.outcome({"train.steps": 1, "model.use": "net", "list": [1, 2], "none": None}, {"valid": {"loss": 2.0}})
    log.close()
    assert [path.parent.name for path in tmp_path.rglob("events*")] == ["tensorboard"], "no run inside the run"
    read = EventAccumulator(str(tmp_path / "tensorboard"))
    read.Reload()
    assert read.Tags()["scalars"] == ["valid/loss"]
    assert len(read.Scalars("valid/loss")) == 1
    content = read.SummaryMetadata("_hparams_/session_start_info").plugin_data.content
    assert b"model.use" in content
    assert b"train.steps" in content
    assert b"[1, 2]" in content
