"""What a person is told: each mistake with its file, line, column and caret, what is allowed, and the nearest name."""

import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Annotated

import pytest
from pydantic import Field

from dither.engine.cli import main
from dither.registry import Catalog, Options, Refused, Slot
from dither.registry.config.document import Document
from dither.registry.config.errors import Origin, Problem, dotted
from dither.registry.config.validation import validate
from dither.registry.config.validation_errors import PATTERN_MESSAGE
from dither.registry.kinds.training import LossSpec

GIVEN = (Path(__file__).parents[1] / "experiments/bubble_diagram/quick.toml").read_text(encoding="utf-8")


@pytest.fixture
def refused(tmp_path, monkeypatch, capsys):
    """Return what `dither validate` prints of an experiment in which one text stands for another."""
    monkeypatch.chdir(tmp_path)

    def refuse(old: str = "", new: str = "", *arguments: str) -> str:
        assert old in GIVEN
        (tmp_path / "e.toml").write_text(GIVEN.replace(old, new) if old else GIVEN, encoding="utf-8")
        assert main(["validate", "e.toml", *arguments]) == 2
        printed = capsys.readouterr()
        assert "Traceback" not in printed.err
        return printed.err + printed.out

    return refuse


def under_caret(text: str) -> list[str]:
    """Return what stands above each run of carets."""
    lines = text.splitlines()
    found = []
    for above, line in pairwise(lines):
        if match := re.search(r"\| *(\^+)$", line):
            found.append(above[match.start(1) : match.end(1)])
    return found


@pytest.mark.parametrize(
    ("old", "new", "message", "at_fault"),
    [
        ("depth = 3", "dpeth = 3", 'model.dpeth: unknown key(.|\n)*did you mean "depth"', "dpeth"),
        ("depth = 3", "depth = 0", "model.depth: expected at least 1, got the integer 0", "0"),
        ("depth = 3", "depth = 3.0", "expected an integer, got the number 3.0", "3.0"),
        ("depth = 3", "depth = true", "expected an integer, got the boolean true", "true"),
        ("depth = 3", "depth = 1979-05-27", "expected an integer, got the date 1979-05-27", "1979-05-27"),
        ("depth = 3", 'final = "adalm"', 'expected "adaln" or "norm"(.|\n)*did you mean "adaln"', '"adalm"'),
        ("depth = 3", "block.heads = 3", "the key was given before", "block"),
        ("lr = 3e-3", "lr = nan", "expected a finite number", "nan"),
        ("lr = 3e-3", "betas = [0.9]", "expected at least 2 elements, got the list", "[0.9]"),
        ("lr = 3e-3", 'betas = [0.9, "x"]', r"betas\[1\]: expected a number, got the string", '"x"'),
        ('loss = "masked-ce"', 'loss = "absorbing"', '"absorbing" is a process, not a loss', '"absorbing"'),
        ('"adaln-zero"', '"adaln-zer"', 'Did you mean "adaln-zero"', '"adaln-zer"'),
        ('"adaln-zero"', '"adaln-zero@9"', "core-blocks/adaln-zero@1", '"adaln-zero@9"'),
        ("heads = 4", "heads = 7", "heads may be 1, 2, 4", "7"),
        ('name = "bubble-quick"', 'name = "a/b"', "expected at most 64 letters, digits", '"a/b"'),
        ('name = "bubble-quick"', "name = { a = 1 }", "expected a string, got a table", "{ a = 1 }"),
        ('name = "bubble-quick"', 'extends = "nowhere.toml"', "nowhere.toml does not exist", '"nowhere.toml"'),
        ('name = "bubble-quick"', "extends = 3", "expected the name of a file", "3"),
        ("[train]", "[trian]", 'trian: unknown key(.|\n)*did you mean "train"', "trian"),
        ("steps = 1500", "steps = many", 'expected a value(.|\n)*a "string" in quotes', "m"),
        ("steps = 1500", 'steps = "1500', "the string does not end on its line", ""),
        ("steps = 1500", "steps 1500", 'expected "=" after the key', "1"),
        ("steps = 1500", "steps = 1500\nsteps = 3", "the key was given before", "steps"),
        ("[sample]", "[train]", "the table was opened before", "train"),
        ("[sample]", "[sample]\n日本 = 1", "neither a key nor", "日本"),
        ("[sample]", '[sample]\n"日本" = "日本"', 'sample."日本": unknown key', '"日本" ='),
    ],
)  # fmt: skip
def test_a_mistake_is_told_in_words_with_a_caret_under_it(refused, old, new, message, at_fault):
    text = refused(old, new)
    assert re.search(message, text), text
    assert re.search(r"--> e\.toml:\d+:\d+\n", text)
    assert under_caret(text) == [at_fault], text


def test_all_mistakes_are_told_at_once_in_the_order_of_the_lines(refused):
    text = refused("[train]\nsteps = 1500", '[train]\nsteps = "many"\nstpes = 1\nbatch = 2', "--set", "seed=-1")
    assert "4 problems" in text
    places = list(map(int, re.findall(r"e\.toml:(\d+):", text)))
    assert places == sorted(places)
    assert text.count("accepted: ") == 1


def test_a_change_and_a_removal_are_told_as_they_were_given(refused):
    text = refused("", "", "--set", "train.stpes=3", "--unset", "loss")
    assert '--> --set train.stpes=3\n  help: did you mean "steps"?' in text
    assert "loss: is missing\n  --> --unset loss" in text


def test_a_misspelt_key_is_not_told_as_missing_as_well(refused):
    text = refused('loss = "masked-ce"', 'los = "masked-ce"')
    assert 'did you mean "loss"' in text
    assert "is missing" not in text


def test_an_empty_file_is_told_what_an_experiment_needs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("empty.toml").write_text("")
    assert main(["validate", "empty.toml"]) == 2
    text = capsys.readouterr().err
    assert text.count("error: ") == 1
    assert "task, process, model and loss are missing\n  --> empty.toml" in text
    assert re.search(r'process = "..."  # absorbing, .* or uniform', text)
    assert len(text.splitlines()) <= 8


class Inner(Options):
    size: int
    """How large."""
    word: str = Field("a", pattern="^a+$", json_schema_extra={PATTERN_MESSAGE: "one or more letters a"})


class Wide(Options):
    number: int | Annotated[list[int], Field(max_length=3)] | None = None
    spec: Slot[LossSpec] | None = None
    tables: dict[str, Inner] = {}
    many: list[Inner] = []
    bare: str = Field("b", pattern="^b$")


@pytest.mark.parametrize(
    ("text", "path", "message"),
    [
        ('number = "x"', "number", 'expected an integer or a list, got the string "x"'),
        ("number = [1, 2.5]", "number[1]", "expected an integer, got the number 2.5"),
        ("number = [1, 2, 3, 4]", "number", "expected at most 3 elements, got the list [1, 2, 3, 4]"),
        ("spec = true", "spec", 'expected the name of a loss, or a table with `use = "name"`; registered: none'),
        ("tables.x = { siz = 1 }", "tables.x.siz", "unknown key"),
        ("tables.x = { size = true }", "tables.x.size", "expected an integer, got the boolean true"),
        ("tables = { x = {} }", "tables.x.size", "is missing"),
        ("many = [{ size = 1 }, { size = 1, wrod = 'a' }]", "many[1].wrod", "unknown key"),
        ("many = [{ size = 1, word = 'b' }]", "many[0].word", 'expected one or more letters a, got the string "b"'),
        ("bare = 'a'", "bare", 'expected text like ^b$, got the string "a"'),
    ],
)  # fmt: skip
def test_options_of_several_types_and_inner_tables_are_readable(tmp_path, text, path, message):
    file = tmp_path / "e.toml"
    file.write_text(text)
    with pytest.raises(Refused) as caught:
        validate(Wide, Document.load(file), Catalog())
    (problem,) = caught.value.problems
    assert (dotted(problem.path), problem.message.partition(", got a")[0]) == (path, message)
    assert problem.origin.line == 1
    if message == "unknown key":
        assert problem.help.endswith("accepted: size, word")


def test_a_key_that_would_steer_the_terminal_is_shown_harmless():
    problem = Problem("odd \x1b[31m", ("a.b", "\x1b]0;x\x07", 3), Origin.within("f", "x\ta = '\x1b[0m'", 2, 3))
    text = str(problem)
    assert "\x1b" not in text
    assert "\x07" not in text
    assert '"a.b"."' in text


def test_json_is_one_document_on_stdout(refused, capsys):
    document = json.loads(refused("heads = 4", "heads = 7, hedas = 1", "--format", "json"))
    assert document["valid"] is False
    (problem,) = document["problems"]
    assert problem["path"] == "model.block.hedas"
    assert (problem["file"], problem["line"], problem["given"]) == ("e.toml", 23, 1)
    assert problem["column"] > 1
    assert 'did you mean "heads"' in problem["help"]
    related = json.loads(refused('loss = "masked-ce"', 'loss = "mse"', "--format=json"))["problems"][0]["related"]
    assert related[0]["line"] == 12
    assert main(["--format", "json", "validate", "e.toml", "--set", "loss=masked-ce"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["valid"] is True
    assert document["parts"]["loss"] == "masked-ce"
    assert document["problems"] == []


@pytest.mark.parametrize(
    "value", ["nan", "1e999", "1979-05-27", '"' + "x" * 5000 + '"', "[[[1]]]", "{ a = { b = nan } }"]
)
def test_json_takes_any_value(refused, value):
    document = json.loads(refused("depth = 3", f"depth = {value}", "--format", "json"))
    assert len(json.dumps(document["problems"][0]["given"])) < 300


def test_github_annotations_stand_at_the_key(refused):
    text = refused("depth = 3", "dpeth = 3", "--format", "github")
    assert text.startswith(
        "::error file=e.toml,line=19,endLine=19,col=1,endColumn=6::model.dpeth: unknown key%0Adid you"
    )
    assert text.count("\n") == 1
    text = refused("", "", "--set", "train.steps=-1", "--format", "github")
    assert text.startswith("::error::train.steps: expected at least 0, got the integer -1 (--set train.steps=-1)")


@pytest.mark.parametrize("name", ["a\\u0000.py", "./round.py", "./folder.py", "../elsewhere.py"])
def test_plugin_files_that_cannot_be_read_are_refused_where_they_are_named(refused, tmp_path, name):
    (tmp_path / "round.py").symlink_to("round.py")
    (tmp_path / "folder.py").mkdir()
    text = refused('name = "bubble-quick"', f'plugins = ["{name}"]')
    assert text.startswith("error: plugins[0]: plugin file")
    assert under_caret(text) == [f'"{name}"']


def test_an_unknown_format_and_a_wrong_option_are_told(refused, capsys):
    assert "'text', 'json', 'github'" in refused("", "", "--format", "xml")
    assert main(["validate", "e.toml", "--bogus", "--format", "json"]) == 2
    assert "--bogus" in json.loads(capsys.readouterr().out)["problems"][0]["message"]
    assert main(["validate", "e.toml", "--bogus"]) == 2
    assert "--bogus" in capsys.readouterr().err


def test_traceback_shows_where_something_was_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("broken.py").write_text("import nothing_of_this_name\n")
    Path("e.toml").write_text('plugins = ["./broken.py"]\n' + GIVEN)
    assert main(["validate", "e.toml", "--traceback"]) == 2
    text = capsys.readouterr().err
    assert 'broken.py", line 1' in text
    assert "nothing_of_this_name" in text.rpartition("error: ")[2]
    assert main(["validate", "e.toml"]) == 2
    assert "Traceback" not in capsys.readouterr().err


def test_the_verb_may_follow_the_options(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["--format", "json", "missing.toml"], verb="run") == 2
    assert "missing.toml does not exist" in json.loads(capsys.readouterr().out)["problems"][0]["message"]


def test_what_is_found_out_while_parts_are_built_is_told_at_its_line_too(tmp_path, capsys):
    text = "loss = 'masked-ce'\nprocess = 'absorbing'\nmodel = 'denoiser'\nsampler = 'ancestral'\n[task]\n"
    text += "use = 'language-model'\nlength = 64\ntokenizer = 'chars'\nprompt = '\u65e5'\n[train]\nsteps = 1\n"
    (tmp_path / "e.toml").write_text(text, "utf-8")
    assert main(["run", str(tmp_path / "e.toml"), "--runs", str(tmp_path / "runs")]) == 2
    told = capsys.readouterr().err
    assert "e.toml:9:10" in told
    assert "the training text does not" in told
