"""Damaged experiment files are refused with a place; files built to exhaust the reader end quickly."""

import json
import os
import random
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from dither.engine.config.experiment import Experiment
from dither.registry.config.document import Document
from dither.registry.config.errors import Refused
from dither.registry.config.validation import validate
from dither.registry.plugins.manager import load_plugins

ROOT = Path(__file__).parents[1] / "experiments"
FILES = sorted(path.relative_to(ROOT) for path in ROOT.rglob("*.toml"))
EXAMPLES = (100, 3200, 3200, 3200)
"""In each test; the large ones are slow."""
MILLISECONDS = 10
"""Far above what one file takes, because the machine may be busy with other tests."""
VALUES = (
    "0", "-1", "1", "1.0", "1e999", "-0.0", "nan", "inf", "9223372036854775807", "9223372036854775808", "0xff",
    "1e-320", "true", '""', '"x"', '"\\u0000"', "'''\nx'''", "[]", "[[]]", "[1, 2]", "{}", '{ use = "adamw" }',
    '{ use = 3 }', "[{}]", '{ a.b.c = 1 }', "1979-05-27", "07:32:00", "1979-05-27T07:32:00Z", '"adaln-zero"',
    '"core-blocks/adaln-zero@1"', '"x/y"', '"adaln-zero@9"', '"no such part"', '"' + "long" * 500 + '"',
    "[" * 40 + "]" * 40, "9" * 60, '"\U0001f600 e\u0301"',
)  # fmt: skip
LINES = (
    "unknown = 1", "[unknown]", "[model]", "[[model]]", "[train]", "[train.optimizer]",
    '[model.block]\nuse = "adaln-zero"', 'extends = "seed_small.toml"', 'extends = "damaged.toml"', "extends = 3",
    'extends = ["nowhere.toml"]', "[sweep.grid]", '"" = 1', "model.block.heads = 0", "train = 3", 'task = "gaussian"',
    "a." * 40 + "b = 1", "x = ", "= 1", "]", "'''", "\x00", 'plugins = ["./x.py", 3]', '"model" = {}', "\u2028",
    "name = 'a\u202eb'", "model.embedding.use = 'regions'", "seed = [",
)  # fmt: skip
LETTERS = (
    "\x00\x07\x1b\t\r\n \"'[]{}=.,#\\\u00e9\u0301\u200b\u2028\ufeff\U0001f600\uffff0aZ"
)


def change_lines(text, dice):
    lines = text.split("\n")
    one, other = dice.randrange(len(lines)), dice.randrange(len(lines))
    match dice.randrange(4):
        case 0:
            del lines[one]
        case 1:
            lines.insert(one, lines[other])
        case 2:
            lines[one], lines[other] = lines[other], lines[one]
        case _:
            lines.insert(one, dice.choice(LINES))
    return "\n".join(lines)


def change_value(text, dice):
    """Replace a value, an inline table, or the name of a component."""
    pattern = dice.choice(
        (r"""= ("[^"\n]*"|[\w.+-]+)""", r"(\{[^{}\n]*\})", r"""("[a-z0-9-]+")""")
    )
    found = list(re.finditer(pattern, text))
    names = re.findall(r""""[a-z0-9-]+\"""", text) or VALUES
    value = dice.choice(VALUES if dice.randrange(2) else names)
    start, end = dice.choice(found).span(1) if found else (0, 0)
    return text[:start] + value + text[end:]


def misspell(text, dice):
    start, end = dice.choice(
        [match.span() for match in re.finditer(r"[a-z_]{2,}", text)] or [(0, 0)]
    )
    at = dice.randrange(start, max(end - 1, 1))
    return text[:at] + text[at : at + 2][::-1] + text[at + 2 :]


def put_letter(text, dice):
    at = dice.randrange(len(text) + 1)
    return text[:at] + (
        dice.choice(LETTERS) + text[at + dice.randrange(2) :]
        if dice.randrange(2)
        else ""
    )


def flip_bit(text, dice):
    content = bytearray(encoded(text) or b" ")
    content[dice.randrange(len(content))] ^= 1 << dice.randrange(8)
    return content.decode("utf-8", "surrogateescape")


def change_ends(text, dice):
    return dice.choice(
        (
            "\ufeff" + text,
            text.replace("\n", "\r\n"),
            text.replace("\n", "\r"),
            text + "\ufeff",
        )
    )


def encoded(text):
    return text.encode("utf-8", "surrogateescape")


DAMAGES = (change_lines, change_value, misspell, put_letter, flip_bit, change_ends)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("damaged") / "experiments"
    shutil.copytree(ROOT, folder, ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    return folder


def examine(path, text, catalog):
    """Read a file as `dither validate` does, up to where data are read; return the problems and the seconds."""
    started = time.perf_counter()
    try:
        validate(Experiment, Document.load(path), catalog)
        problems = ()
    except Refused as refused:
        problems = refused.problems
        assert problems
    seconds = time.perf_counter() - started
    lines = text.removeprefix("\ufeff").replace("\r\n", "\n").split("\n")
    for problem in problems:
        assert not problem.path or problem.origin is not None, problem
        assert problem.message, problem
        assert "\x1b" not in str(problem)
        origin = problem.origin
        if origin is not None and origin.line is not None and origin.file == str(path):
            assert origin.source == lines[origin.line - 1]
            assert 1 <= origin.column <= len(origin.source) + 1
    return problems, seconds


@pytest.mark.parametrize(
    "share",
    [0, *(pytest.param(n, marks=pytest.mark.slow) for n in range(1, len(EXAMPLES)))],
)
def test_damaged_files_are_read_or_refused_with_a_place(folder, share):
    catalog = load_plugins().catalog
    texts = [(folder / file).read_text(encoding="utf-8") for file in FILES]
    figures = {"valid": 0, "refused": 0, "seconds": 0.0}

    @seed(share)
    @settings(
        max_examples=EXAMPLES[share],
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(
        st.integers(0, len(FILES) - 1),
        st.lists(
            st.tuples(st.sampled_from(DAMAGES), st.integers(0, 2**32)),
            min_size=1,
            max_size=3,
        ),
    )
    def read(number, damages):
        text = texts[number]
        for damage, dice in damages:
            text = damage(text, random.Random(dice))
        path = folder / FILES[number].parent / "damaged.toml"
        path.write_bytes(encoded(text))
        problems, seconds = examine(path, text, catalog)
        figures["refused" if problems else "valid"] += 1
        figures["seconds"] += seconds

    read()
    count = figures["valid"] + figures["refused"]
    assert count >= EXAMPLES[share]
    assert figures["refused"] > count / 4
    assert figures["valid"] > count / 20
    assert 1000 * figures["seconds"] / count < MILLISECONDS


FINE = Path(__file__).parents[1] / "experiments/bubble_diagram/quick.toml"
SECONDS = 1.0
"""CPU time, so that a busy machine does not matter."""
MEGABYTES = 150
KEY = ".".join(["a"] * 20_000)
QUOTED = ".".join(['"a b"'] * 20_000)

TEXTS = {
    "deep arrays": ("a = " + "[" * 50_000 + "]" * 50_000, "too-large"),
    "deep but few": ("a = " + "[" * 300 + "]" * 300, "too-large"),
    "dotted key": (f"{KEY} = 1", "too-large"),
    "dotted quoted key": (f"{QUOTED} = 1", "too-large"),
    "dotted header": (f"[{KEY}]\nb = 1", "too-large"),
    "huge integer": ("a = " + "9" * 5000, "out-of-range"),
    "huge hexadecimal": ("a = 0x" + "f" * 200_000, "out-of-range"),
    "200,000 keys": (
        "".join(f"k{number} = 1\n" for number in range(200_000)),
        "too-large",
    ),
    "32,000 keys": (
        "".join(f"{number:x}=1\n" for number in range(32_000)),
        "more-problems",
    ),
    "names of plugins": (
        f"plugins = {[f'no{number}' for number in range(8_000)]}",
        "unknown-plugin",
    ),
    "conditions": (
        f'extends = "{FINE}"\nsample.cond = {{ {", ".join(f"k{number} = 1" for number in range(9_000))} }}',
        "more-problems",
    ),
    "names of weights": (
        f'extends = "{FINE}"\nmodel.depth = 20_000\ntrain.freeze = {[f"b*.{n}.x" for n in range(5_000)]}',
        None,
    ),
    "long string": (f'name = "{"x" * 250_000}"', "invalid-value"),
    "long key": (f"{'k' * 250_000} = 1", "unknown-key"),
    "escapes": ('name = "' + "\\n" * 120_000 + '"', "invalid-value"),
    "quotes without an end": ("a = " + '\\"' * 100_000 + "." * 40, "syntax-error"),
    "long strings without an end": (
        "." * 40 + '\na = """' + '\\"""' * 60_000 + "\\",
        "syntax-error",
    ),
    "10 MB": ("# " + "x" * 10_000_000, "too-large"),
}

UNREADABLE = (
    "a pipe", "/dev/zero", "/dev/null", "a link to a device", "a folder", "links in a circle",
    "a folder of links in a circle", "a parent that is a pipe", "a parent that is a link in a circle",
    "a parent with a zero byte",
)  # fmt: skip
FOLDERS = dict.fromkeys(UNREADABLE, "unreadable-file") | {
    "a circle": "extends-cycle", "twice each": None,
    "a long chain": "too-large",
}  # fmt: skip
"""Special files, and files that extend each other; None where nothing is wrong."""
LONG = "x" * 100_000
CHANGES = {
    "key": ([f"--set={KEY}=1"], "too-large"),
    "key in a value": ([f"--set=a={{{KEY}=1}}"], "too-large"),
    "deep value": (["--set=a=" + "[" * 50_000], "too-large"),
    "huge integer": (["--set=seed=" + "9" * 5000], "out-of-range"),
    "long string": ([f"--set=name={LONG}"], "invalid-value"),
    "no key": ([f"--set={LONG}"], "usage"),
    "dotted key to unset": ([f"--unset={KEY}"], "too-large"),
}

READER = """
import json, os, sys, time
from dither.engine.cli import main
main(["validate", "fine.toml"])  # imports
results = {}
for name, arguments in json.load(open("cases.json")).items():
    with open("output", "wb") as output:
        child = os.fork()
        if child == 0:
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
            code = 99
            try:
                code = main(["validate", *arguments])
                sys.stdout.flush()
            finally:
                os._exit(code)
    _, status, usage = os.wait4(child, 0)
    text = open("output", errors="replace").read()
    results[name] = {
        "code": os.waitstatus_to_exitcode(status), "seconds": usage.ru_utime + usage.ru_stime,
        "megabytes": usage.ru_maxrss / 1024, "text": text[:20_000] + text[20_000:][-1000:], "length": len(text),
    }
json.dump(results, open("results.json", "w"))
"""
"""Run and measure every case in a process forked after a first validation."""


def write_special_files(folder: Path) -> None:
    """Create the files named in FOLDERS."""

    def write(name: str, text: str) -> None:
        (folder / f"{name}.toml").write_text(text, encoding="utf-8")

    os.mkfifo(folder / "a pipe.toml")
    (folder / "a link to a device.toml").symlink_to("/dev/zero")
    (folder / "a folder.toml").mkdir()
    (folder / "links in a circle.toml").symlink_to("links in a circle.toml")
    (folder / "round").symlink_to("round")
    write("a parent that is a pipe", 'extends = "a pipe.toml"')
    write("a parent that is a link in a circle", 'extends = "links in a circle.toml"')
    write("a parent with a zero byte", 'extends = "a\\u0000.toml"')
    write("a circle", 'extends = "other.toml"')
    write("other", 'extends = "a circle.toml"')
    for number in range(1, 25):
        write(
            f"twice{number}",
            f'extends = ["twice{number - 1}.toml", "./twice{number - 1}.toml"]\n',
        )
    shutil.copyfile(FINE, folder / "twice0.toml")
    write("twice each", 'extends = ["twice24.toml", "twice24.toml"]\n')
    write("chain0", "")
    for number in range(1, 2000):
        write(f"chain{number}", f'extends = "chain{number - 1}.toml"\n')
    write("a long chain", 'extends = "chain1999.toml"')


def file_of(name: str) -> str:
    return (
        name
        if name.startswith("/")
        else "round/x.toml"
        if name.startswith("a folder of")
        else f"{name}.toml"
    )


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bombs")
    shutil.copyfile(FINE, folder / "fine.toml")
    write_special_files(folder)
    for name, (text, _) in TEXTS.items():
        (folder / f"{name}.toml").write_text(text, encoding="utf-8")
    cases = {name: [file_of(name)] for name in (*TEXTS, *FOLDERS)}
    cases |= {
        f"set {name}": ["fine.toml", *words] for name, (words, _) in CHANGES.items()
    }
    (folder / "cases.json").write_text(json.dumps(cases))
    done = subprocess.run(
        [sys.executable, "-c", READER],
        capture_output=True,
        text=True,
        cwd=folder,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads((folder / "results.json").read_text())


CODES = {name: code for name, (_, code) in TEXTS.items()} | FOLDERS
CODES |= {f"set {name}": code for name, (_, code) in CHANGES.items()}


@pytest.mark.parametrize("name", CODES)
def test_hostile_input_ends_quickly_with_one_problem(results, name):
    result, code = results[name], CODES[name]
    assert "Traceback" not in result["text"]
    assert result["code"] == (0 if code is None else 2), result["text"]
    assert code is None or f"[{code}]" in result["text"], result["text"]
    assert result["length"] < 60_000
    assert result["seconds"] < SECONDS
    assert result["megabytes"] < MEGABYTES
