"""Files and changes made to exhaust who reads them: each ends at once, in little memory, with one clear message."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dither.registry.config.document import Document
from dither.registry.config.errors import Refused

FINE = Path(__file__).parents[1] / "experiments/bubble_diagram/quick.toml"
SECONDS = 1.0
"""Of processor time, so that it does not matter how busy the machine is."""
MEGABYTES = 150
KEY = ".".join(["a"] * 20_000)
QUOTED = ".".join(['"a b"'] * 20_000)

TEXTS = {
    "deep arrays": ("a = " + "[" * 50_000 + "]" * 50_000, "nested more than"),
    "deep arrays unclosed": ("a = " + "[" * 50_000, "nested more than"),
    "deep tables": ("a = " + "{ a = " * 20_000 + "1" + " }" * 20_000, "nested more than"),
    "deep but few": ("a = " + "[" * 300 + "]" * 300, "nested more than"),
    "dotted key": (f"{KEY} = 1", "20,000 parts"),
    "dotted key with spaces": (f"{KEY.replace('.', ' . ')} = 1", "20,000 parts"),
    "dotted quoted key": (f"{QUOTED} = 1", "20,000 parts"),
    "dotted literal key": (QUOTED.replace('"', "'") + " = 1", "20,000 parts"),
    "dotted header": (f"[{KEY}]\nb = 1", "20,000 parts"),
    "dotted array header": (f"[[{QUOTED}]]\nb = 1", "20,000 parts"),
    "dotted key in a table": (f"t = {{ {KEY} = 1 }}", "20,000 parts"),
    "huge integer": ("a = " + "9" * 5000, "5000 digits"),
    "large integer": ("[t]\na = [1, " + "9" * 100 + "]", "64 bits"),
    "huge hexadecimal": ("a = 0x" + "f" * 200_000, "64 bits"),
    "huge binary": ("a = 0b" + "1" * 200_000, "64 bits"),
    "huge octal": ("seed = 0o" + "7" * 200_000, "64 bits"),
    "200,000 keys": ("".join(f"k{number} = 1\n" for number in range(200_000)), "at most 262,144"),
    "32,000 keys": ("".join(f"{number:x}=1\n" for number in range(32_000)), "more problems are not shown"),
    "20,000 keys": ("".join(f"k{number}=1\n" for number in range(19_000)), "more problems are not shown"),
    "20,000 elements": ("plugins = [" + "1," * 19_000 + "]", "more problems"),
    "names of plugins": (f"plugins = {[f'no{number}' for number in range(15_000)]}", "14,950 more names"),
    "conditions": (
        f'extends = "{FINE}"\nsample.cond = {{ {", ".join(f"k{number} = 1" for number in range(9_000))} }}',
        "8,950 more problems",
    ),
    "names of weights": (
        f'extends = "{FINE}"\nmodel.depth = 20_000\ntrain.freeze = {[f"b*.{n}.x" for n in range(5_000)]}',
        None,
    ),
    "20,000 tables": ("".join(f"[t{number}]\n" for number in range(19_000)), "more problems"),
    "long string": (f'name = "{"x" * 250_000}"', "expected at most 64 letters"),
    "long key": (f"{'k' * 250_000} = 1", "unknown key"),
    "long name of a part": (f'loss = "{"x" * 250_000}"', "unknown loss"),
    "escapes": ('name = "' + "\\n" * 120_000 + '"', "expected at most 64 letters"),
    "quotes without an end": ("a = " + '\\"' * 100_000 + "." * 40, "invalid TOML"),
    "long strings without an end": ("." * 40 + '\na = """' + '\\"""' * 60_000 + "\\", "invalid TOML"),
    "10 MB": ("# " + "x" * 10_000_000, "10,000,002 bytes"),
}

FOLDERS = {
    "a pipe": "is a pipe or a device",
    "/dev/zero": "is a pipe or a device",
    "/dev/null": "is a pipe or a device",
    "a link to a device": "is a pipe or a device",
    "a folder": "is a folder",
    "links in a circle": "symbolic links",
    "a folder of links in a circle": "symbolic links",
    "a parent that is a pipe": "is a pipe or a device",
    "a parent that is a link in a circle": "symbolic links",
    "a parent with a zero byte": "null byte",
    "a circle": "in a circle",
    "a circle of one": "in a circle",
    "twice each": None,
    "a long chain": "more than 32 files",
    "the same many times": "15,000 files",
    "many large parents": "together with the files it extends",
}
"""What a file can be besides a text, and files that extend each other; None where nothing is wrong."""
LONG = "x" * 100_000
CHANGES = {
    "key": ([f"--set={KEY}=1"], "20,000 parts"),
    "quoted key": ([f"--set={QUOTED}=1"], "20,000 parts"),
    "key in a value": ([f"--set=a={{{KEY}=1}}"], "20,000 parts"),
    "deep value": (["--set=a=" + "[" * 50_000], "nested more than"),
    "huge integer": (["--set=seed=" + "9" * 5000], "5000 digits"),
    "huge hexadecimal": (["--set=seed=0x" + "f" * 50_000], "64 bits"),
    "long string": ([f"--set=name={LONG}"], "expected at most 64 letters"),
    "long key": ([f"--set={LONG}=1"], "unknown key"),
    "no key": ([f"--set={LONG}"], "expected key=value"),
    "many": ([f"--set=k{number}=1" for number in range(5_000)], "4,950 more problems"),
    "elements": (["--set=plugins=[" + "1," * 30_000 + "]"], "more problems"),
    "long key to unset": ([f"--unset={LONG}"], "no such key"),
    "dotted key to unset": ([f"--unset={KEY}"], "20,000 parts"),
}

READER = """
import json, os, sys, time
from dither.engine.cli import main
main(["validate", "fine.toml"])  # what is imported is imported once
figures = {}
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
    figures[name] = {
        "code": os.waitstatus_to_exitcode(status), "seconds": usage.ru_utime + usage.ru_stime,
        "megabytes": usage.ru_maxrss / 1024, "text": text[:20_000] + text[20_000:][-1000:], "length": len(text),
    }
json.dump(figures, open("figures.json", "w"))
"""
"""Runs every case in a process of its own, forked from one that has read a file already, and measures it."""


def lay_traps(folder: Path) -> None:
    """Make what FOLDERS names."""

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
    write("a circle of one", 'extends = ["a circle of one.toml"]')
    for number in range(1, 25):
        write(f"twice{number}", f'extends = ["twice{number - 1}.toml", "./twice{number - 1}.toml"]\n')
    shutil.copyfile(FINE, folder / "twice0.toml")
    write("twice each", 'extends = ["twice24.toml", "twice24.toml"]\n')
    write("chain0", "")
    for number in range(1, 2000):
        write(f"chain{number}", f'extends = "chain{number - 1}.toml"\n')
    write("a long chain", 'extends = "chain1999.toml"')
    write("the same many times", "extends = [" + '"fine.toml",' * 15_000 + "]")
    for number in range(32):
        write(f"large{number}", "".join(f"k{number}_{key}=1\n" for key in range(19_000)))
    write("many large parents", "extends = [" + ",".join(f'"large{number}.toml"' for number in range(32)) + "]")


def file_of(name: str) -> str:
    return name if name.startswith("/") else "round/x.toml" if name.startswith("a folder of") else f"{name}.toml"


@pytest.fixture(scope="module")
def figures(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bombs")
    shutil.copyfile(FINE, folder / "fine.toml")
    lay_traps(folder)
    for name, (text, _) in TEXTS.items():
        (folder / f"{name}.toml").write_text(text, encoding="utf-8")
    cases = {name: [file_of(name)] for name in (*TEXTS, *FOLDERS)}
    cases |= {f"set {name}": ["fine.toml", *words] for name, (words, _) in CHANGES.items()}
    (folder / "cases.json").write_text(json.dumps(cases))
    done = subprocess.run(
        [sys.executable, "-c", READER], capture_output=True, text=True, cwd=folder, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads((folder / "figures.json").read_text())


MESSAGES = {name: message for name, (_, message) in TEXTS.items()} | FOLDERS
MESSAGES |= {f"set {name}": message for name, (_, message) in CHANGES.items()}


@pytest.mark.parametrize("name", MESSAGES)
def test_a_bomb_ends_at_once_with_one_clear_message(figures, name):
    measured, message = figures[name], MESSAGES[name]
    assert "Traceback" not in measured["text"]
    assert measured["code"] == (0 if message is None else 2), measured["text"]
    assert message is None or message in measured["text"], measured["text"]
    assert measured["length"] < 60_000
    assert measured["seconds"] < SECONDS
    assert measured["megabytes"] < MEGABYTES
    if message is not None and "more problems" not in message and "more names" not in message:
        assert measured["text"].count("error: ") <= 1 + ("missing" in measured["text"])


def test_a_pipe_that_is_written_to_is_not_read(tmp_path):
    os.mkfifo(tmp_path / "pipe.toml")
    descriptor = os.open(tmp_path / "pipe.toml", os.O_RDWR)
    try:
        os.write(descriptor, b"a = 1\n")
        with pytest.raises(Refused, match="is a pipe"):
            Document.load(tmp_path / "pipe.toml")
        assert os.read(descriptor, 100) == b"a = 1\n"
    finally:
        os.close(descriptor)
