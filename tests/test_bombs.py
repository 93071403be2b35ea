"""Files and overrides built to exhaust the reader: each ends quickly, in little memory, with one problem code."""

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
"""CPU time, so that a busy machine does not matter."""
MEGABYTES = 150
KEY = ".".join(["a"] * 20_000)
QUOTED = ".".join(['"a b"'] * 20_000)

TEXTS = {
    "deep arrays": ("a = " + "[" * 50_000 + "]" * 50_000, "too-large"),
    "deep tables": ("a = " + "{ a = " * 20_000 + "1" + " }" * 20_000, "too-large"),
    "deep but few": ("a = " + "[" * 300 + "]" * 300, "too-large"),
    "dotted key": (f"{KEY} = 1", "too-large"),
    "dotted quoted key": (f"{QUOTED} = 1", "too-large"),
    "dotted header": (f"[{KEY}]\nb = 1", "too-large"),
    "dotted key in a table": (f"t = {{ {KEY} = 1 }}", "too-large"),
    "huge integer": ("a = " + "9" * 5000, "out-of-range"),
    "large integer": ("[t]\na = [1, " + "9" * 100 + "]", "out-of-range"),
    "huge hexadecimal": ("a = 0x" + "f" * 200_000, "out-of-range"),
    "200,000 keys": ("".join(f"k{number} = 1\n" for number in range(200_000)), "too-large"),
    "32,000 keys": ("".join(f"{number:x}=1\n" for number in range(32_000)), "more-problems"),
    "20,000 keys": ("".join(f"k{number}=1\n" for number in range(19_000)), "more-problems"),
    "names of plugins": (f"plugins = {[f'no{number}' for number in range(15_000)]}", "unknown-plugin"),
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
    "long name of a part": (f'loss = "{"x" * 250_000}"', "unknown-component"),
    "escapes": ('name = "' + "\\n" * 120_000 + '"', "invalid-value"),
    "quotes without an end": ("a = " + '\\"' * 100_000 + "." * 40, "syntax-error"),
    "long strings without an end": ("." * 40 + '\na = """' + '\\"""' * 60_000 + "\\", "syntax-error"),
    "10 MB": ("# " + "x" * 10_000_000, "too-large"),
}

UNREADABLE = (
    "a pipe", "/dev/zero", "/dev/null", "a link to a device", "a folder", "links in a circle",
    "a folder of links in a circle", "a parent that is a pipe", "a parent that is a link in a circle",
    "a parent with a zero byte",
)  # fmt: skip
FOLDERS = dict.fromkeys(UNREADABLE, "unreadable-file") | {
    "a circle": "extends-cycle", "a circle of one": "extends-cycle", "twice each": None,
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
    "long key": ([f"--set={LONG}=1"], "unknown-key"),
    "no key": ([f"--set={LONG}"], "usage"),
    "long key to unset": ([f"--unset={LONG}"], "unknown-key"),
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
    write("a circle of one", 'extends = ["a circle of one.toml"]')
    for number in range(1, 25):
        write(f"twice{number}", f'extends = ["twice{number - 1}.toml", "./twice{number - 1}.toml"]\n')
    shutil.copyfile(FINE, folder / "twice0.toml")
    write("twice each", 'extends = ["twice24.toml", "twice24.toml"]\n')
    write("chain0", "")
    for number in range(1, 2000):
        write(f"chain{number}", f'extends = "chain{number - 1}.toml"\n')
    write("a long chain", 'extends = "chain1999.toml"')


def file_of(name: str) -> str:
    return name if name.startswith("/") else "round/x.toml" if name.startswith("a folder of") else f"{name}.toml"


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bombs")
    shutil.copyfile(FINE, folder / "fine.toml")
    write_special_files(folder)
    for name, (text, _) in TEXTS.items():
        (folder / f"{name}.toml").write_text(text, encoding="utf-8")
    cases = {name: [file_of(name)] for name in (*TEXTS, *FOLDERS)}
    cases |= {f"set {name}": ["fine.toml", *words] for name, (words, _) in CHANGES.items()}
    (folder / "cases.json").write_text(json.dumps(cases))
    done = subprocess.run(
        [sys.executable, "-c", READER], capture_output=True, text=True, cwd=folder, timeout=300, check=False
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


def test_a_pipe_is_not_read(tmp_path):
    os.mkfifo(tmp_path / "pipe.toml")
    descriptor = os.open(tmp_path / "pipe.toml", os.O_RDWR)
    try:
        os.write(descriptor, b"a = 1\n")
        with pytest.raises(Refused) as caught:
            Document.load(tmp_path / "pipe.toml")
        assert caught.value.codes == ["unreadable-file"]
        assert os.read(descriptor, 100) == b"a = 1\n"
    finally:
        os.close(descriptor)
