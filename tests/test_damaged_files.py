"""10,000 damaged experiment files: each is valid, or refused with problems that have a place."""

import random
import re
import shutil
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
EXAMPLES = 10_000
SHARES = 4
"""Tests among which they are divided, for processes that work at the same time."""
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
LETTERS = "\x00\x07\x1b\t\r\n \"'[]{}=.,#\\\u00e9\u0301\u200b\u2028\ufeff\U0001f600\uffff0aZ"


def change_lines(text, dice):
    """Drop, repeat, swap or insert a line."""
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
    pattern = dice.choice((r"""= ("[^"\n]*"|[\w.+-]+)""", r"(\{[^{}\n]*\})", r"""("[a-z0-9-]+")"""))
    found = list(re.finditer(pattern, text))
    names = re.findall(r""""[a-z0-9-]+\"""", text) or VALUES
    value = dice.choice(VALUES if dice.randrange(2) else names)
    return replace(text, dice.choice(found).span(1), value) if found else text


def misspell(text, dice):
    found = list(re.finditer(r"[a-z_]{2,}", text))
    if not found:
        return text
    start, end = dice.choice(found).span()
    at = dice.randrange(start, end - 1)
    return text[:at] + text[at + 1] + text[at] + text[at + 2 :]


def cut_off(text, dice):
    return text[: dice.randrange(len(text) + 1)]


def put_letter(text, dice):
    at = dice.randrange(len(text) + 1)
    return text[:at] + dice.choice(LETTERS) + text[at + dice.randrange(2) :]


def flip_bit(text, dice):
    content = bytearray(encoded(text))
    if content:
        content[dice.randrange(len(content))] ^= 1 << dice.randrange(8)
    return content.decode("utf-8", "surrogateescape")


def change_ends(text, dice):
    return dice.choice(("\ufeff" + text, text.replace("\n", "\r\n"), text.replace("\n", "\r"), text + "\ufeff"))


def replace(text, span, value):
    return text[: span[0]] + value + text[span[1] :]


def encoded(text):
    return text.encode("utf-8", "surrogateescape")


DAMAGES = (change_lines, change_value, misspell, cut_off, put_letter, flip_bit, change_ends)


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


@pytest.mark.parametrize("share", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in range(1, SHARES))])
def test_damaged_files_are_read_or_refused_with_a_place(folder, share):
    catalog = load_plugins().catalog
    texts = [(folder / file).read_text(encoding="utf-8") for file in FILES]
    figures = {"valid": 0, "refused": 0, "seconds": 0.0}

    @seed(share)
    @settings(max_examples=EXAMPLES // SHARES, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(
        st.integers(0, len(FILES) - 1),
        st.lists(st.tuples(st.sampled_from(DAMAGES), st.integers(0, 2**32)), min_size=1, max_size=3),
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
    assert count >= EXAMPLES // SHARES
    assert figures["refused"] > count / 4
    assert figures["valid"] > count / 20
    assert 1000 * figures["seconds"] / count < MILLISECONDS
