"""File names from names in data stay inside their folder and apart from each other."""

import os
import shlex
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dither.registry.files.lookup import command_line
from dither.registry.files.safe_path import MAX_BYTES, safe_name

HOSTILE = [
    "",
    ".",
    "..",
    "...",
    " ",
    "-",
    "a/../../x",
    "/etc/passwd",
    "..\\x",
    "C:\\x",
    "a\0b",
    "\n",
    "\x1b[2J",
    "x" * 1000,
    "\N{GREEK SMALL LETTER ALPHA}" * 500,
    "\N{GRINNING FACE}" * 200,
    "\ud800",
    ".hidden",
    "trailing.",
    "trailing ",
    "T/NK",
]


@pytest.mark.parametrize(
    "name",
    ["K562", "T_NK", "CD4-", "CD4+ T cell", "naive B (cord)", "x.y", "7", "\u03b2"],
)
def test_ordinary_names_stay_as_they_are(name):
    assert safe_name(name) == name


@pytest.mark.parametrize("name", HOSTILE)
def test_any_name_is_a_file_in_the_folder(tmp_path, name):
    path = tmp_path / f"{safe_name(name)}.json"
    path.write_text("{}")
    assert path.resolve().parent == tmp_path.resolve()
    assert os.listdir(tmp_path) == [path.name]
    assert path.name.isprintable()
    assert not path.name.startswith((".", "-"))


def test_different_names_are_different_files():
    names = [
        *HOSTILE,
        "T_NK",
        "T\\NK",
        "T:NK",
        "x" * 999,
        "x" * MAX_BYTES,
        "x" * (MAX_BYTES + 1),
    ]
    # Names that look like the altered form of another name are altered themselves.
    names += [safe_name(name) for name in names if safe_name(name) != name]
    assert len({safe_name(name) for name in names}) == len(set(names))


def test_names_that_differ_by_case_or_unicode_form_are_different_files_everywhere():
    names = ["NK", "nk", "B", "caf\u00e9", "cafe\u0301"]
    files = [safe_name(name, among=names) for name in names]
    assert files[2] == "B"
    assert len({file.casefold() for file in files}) == len(names)
    assert files[0].startswith("NK-")


@given(st.text(st.characters()), st.text(st.characters()))
def test_a_safe_name_is_short_and_injective(first, second):
    names = [first, second]
    files = [safe_name(name, among=names) for name in names]
    for file in files:
        assert 0 < len(file.encode()) <= MAX_BYTES
        assert not {"/", "\\", "\0"} & set(file)
    assert (files[0] == files[1]) == (first == second)


@given(st.lists(st.text(alphabet="-a b'$\\\"", min_size=1)))
def test_printed_commands_can_be_pasted(names):
    words = shlex.split(command_line("runs", "diff", *map(Path, names), "KEY=1 2"))
    assert words[:3] == ["dither", "runs", "diff"]
    assert words[-1] == "KEY=1 2"
    assert [Path(word) for word in words[3:-1]] == list(map(Path, names))
    assert not any(word.startswith("-") for word in words)
