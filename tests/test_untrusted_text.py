"""Names, values and paths of foreign runs reach the terminal without escapes and overrides of direction."""

import json
import tomllib

import pytest

from dither.engine.cli import main

EVIL = "\x1b]0;owned\x07\u202etxt.exe\x9b2J"


@pytest.fixture
def run(tmp_path, text_experiment, monkeypatch, capsys):
    """A run in a folder of a hostile name, with such strings in its experiment, metrics and manifest."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text("the cat sat on the mat. " * 50)
    (tmp_path / "exp.toml").write_text(text_experiment("a.txt"))
    assert main(["run", "exp.toml"]) == 0
    (run,) = tmp_path.glob("runs/*")
    run = run.rename(run.with_name(f"x{EVIL}"))
    resolved = (run / "resolved.toml").read_text().rpartition("# sha256")[0].replace('name = "text"', "")
    lines = [line for line in resolved.splitlines() if not line.startswith(("name =", "prompt ="))]
    text = json.dumps(EVIL)
    (run / "resolved.toml").write_text(
        "\n".join([f"name = {text}", *lines]).replace("[task]", f"[task]\nprompt={text}")
    )
    manifest = json.loads((run / "manifest.json").read_text())
    manifest["environment"][EVIL] = EVIL
    manifest.pop("sha256")
    (run / "manifest.json").write_text(json.dumps(manifest))
    capsys.readouterr()
    return run


@pytest.mark.parametrize("wide", [True, False])
def test_no_control_characters_reach_the_terminal(run, tmp_path, capsys, monkeypatch, wide):
    if wide:
        monkeypatch.setenv("COLUMNS", "100")
    commands = (
        ["runs", "list", "runs"], ["runs", "verify", str(run)], ["diff", str(run), "exp.toml"], ["evaluate", str(run)],
        ["resolve", str(run / "resolved.toml")], ["explain", str(run / "resolved.toml")], ["run", "--resume", str(run)],
        ["validate", str(run / "resolved.toml")], ["report", str(run)], ["sweep", "status", str(run)],
    )  # fmt: skip
    for command in commands:
        main(command)
        captured = capsys.readouterr()
        for text in (captured.out, captured.err):
            assert all(letter == "\n" or letter.isprintable() for letter in text), (command, text)


def test_resolve_escapes_what_cannot_be_printed(run, capsys):
    changes = ["--set", f"task.prompt={json.dumps(EVIL)}", "--set", "task.length=64"]
    assert main(["resolve", "exp.toml", *changes]) == 0
    assert tomllib.loads(capsys.readouterr().out)["task"]["prompt"] == EVIL
