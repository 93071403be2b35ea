"""Experiment files: positions of keys, extends, changes, limits."""

import tomllib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dither.registry.document import Document
from dither.registry.positions import key_positions
from dither.registry.problems import Refused

NASTY = '''# a comment with [brackets] and "quotes"
title = "x = 1 # no comment"
"quoted key" . inner = 'its'
dates = [ 1979-05-27T07:32:00Z, 1979-05-27 ] # list
[a.b]
c.d = { e = 1, f = [ { g = "]" }, { g = "}" } ] }
text = """
[not a table]
key = "value"
"""
raw = \'\'\'
x = 1\'\'\'
[[points]]
x = 1
[[points]]
x = 2
[points.extra]
deep = true
[[points.more]]
y = 3
'''


def write(folder: Path, **files: str) -> None:
    for name, text in files.items():
        (folder / f"{name}.toml").write_text(text, encoding="utf-8")


def paths(tree, path=()):
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in items:
        yield (*path, key)
        yield from paths(value, (*path, key))


def test_every_key_of_a_nasty_text_is_found_where_it_stands():
    found = key_positions(NASTY)
    assert set(found) == set(paths(tomllib.loads(NASTY)))
    for path, key in {
        ("a", "b", "c", "d", "e"): "e = 1",
        ("a", "b", "c", "d", "f", 1, "g"): 'g = "}"',
        ("points", 1, "x"): "x = 2",
        ("points", 1, "extra", "deep"): "deep = true",
        ("points", 1, "more", 0, "y"): "y = 3",
        ("a", "b", "raw"): "raw = '''",
    }.items():
        assert NASTY.startswith(key, found[path])


KEYS = st.text("ab-_1", min_size=1, max_size=4) | st.sampled_from(['"x.y"', "'#'"])
SCALARS = st.sampled_from(["1", "-2.5e3", "true", '"a # b"', "'c = d'", '"""m\n"""', "1979-05-27", '"\\""'])
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3).map(lambda items: "[" + ",\n ".join(items) + "]")
        | st.dictionaries(KEYS, inner.filter(lambda v: "\n" not in v), max_size=3).map(
            lambda table: "{" + ", ".join(f"{k} = {v}" for k, v in table.items()) + "}"
        )
    ),
    max_leaves=8,
)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["pair", "table", "array"]), KEYS, KEYS, VALUES), max_size=8))
def test_positions_agree_with_tomllib_on_any_text(lines):
    text = ""
    for sort, key, other, value in lines:
        text += {"pair": f"{key}.{other} = {value}\n", "table": f"[{key}.{other}]  # c\n", "array": f"[[{key}]]\n"}[
            sort
        ]
    try:
        tree = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return
    assert set(key_positions(text)) == set(paths(tree))


def test_extends_merges_and_a_changed_use_drops_the_other_keys(tmp_path):
    write(
        tmp_path,
        base='[model]\nwidth = 8\nblock = { use = "a", heads = 2 }\nhead = "plain"\n[train]\nsteps = 1\n',
        child='extends = "base.toml"\n[model]\nblock = { use = "b" }\nhead.zero = true\n',
    )
    document = Document.load(tmp_path / "child.toml")
    assert document.tree == {
        "model": {"width": 8, "block": {"use": "b"}, "head": {"use": "plain", "zero": True}},
        "train": {"steps": 1},
    }
    assert document.origins["model", "width"].line == 2
    assert Path(document.origins["model", "block", "use"].file).name == "child.toml"
    assert ("model", "block", "heads") not in document.origins
    assert [path.name for path in document.files] == ["base.toml", "child.toml"]


def test_a_table_with_the_same_use_keeps_the_other_keys(tmp_path):
    write(
        tmp_path, base='block = { use = "a", heads = 2 }', child='extends = ["base.toml"]\nblock = { use = "a", x = 1 }'
    )
    assert Document.load(tmp_path / "child.toml").tree == {"block": {"use": "a", "heads": 2, "x": 1}}


def test_set_and_unset(tmp_path):
    write(tmp_path, e='a = 1\nblock = "plain"\n[t]\nuse = "x"\nk = 1\n')
    changes = ["a=[1, 2]", "name=some words", "block.heads=3", "t.use=y", "new.deep.er=1e-4"]
    document = Document.load(tmp_path / "e.toml", changes, ["new.deep"])
    assert document.tree == {
        "a": [1, 2],
        "name": "some words",
        "block": {"use": "plain", "heads": 3},
        "t": {"use": "y"},
        "new": {},
    }
    assert str(document.origins["t", "use"]).startswith("--set t.use=y")
    with pytest.raises(Refused, match='did you mean "block"'):
        Document.load(tmp_path / "e.toml", (), ["blok"])
    with pytest.raises(Refused, match="expected key=value"):
        Document.load(tmp_path / "e.toml", ["a"])


def test_extends_in_a_circle_names_the_circle(tmp_path):
    write(tmp_path, a='extends = "b.toml"', b='extends = "a.toml"')
    with pytest.raises(Refused, match=r"circle: .*a\.toml extends .*b\.toml extends .*a\.toml"):
        Document.load(tmp_path / "a.toml")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a = \n", r"not valid TOML: Invalid value(.|\n)*bad\.toml:1:5"),
        ("a = 1\na = 2\n", r"bad\.toml:2:"),
        ('x = "unclosed', r"bad\.toml:1"),
        ("a." * 20_000 + "b = 1", "more than 32 parts"),
        ("a = " + "[" * 5000 + "]" * 5000, "nested too deeply"),
        ("a = " + "9" * 5000, "not valid TOML"),
        ("#" * 300_000, "at most 262,144"),
        ('extends = "missing.toml"', r"missing\.toml does not exist(.|\n)*bad\.toml:1:1"),
        ("extends = 3", "expected the name of a file"),
    ],
)
def test_damaged_files_are_refused_with_their_place(tmp_path, text, message):
    write(tmp_path, bad=text)
    with pytest.raises(Refused, match=message):
        Document.load(tmp_path / "bad.toml")


def test_missing_binary_and_folder(tmp_path):
    (tmp_path / "binary.toml").write_bytes(b"a = '\xff\xfe'")
    for name, message in {"no.toml": "does not exist", "": "is not a file", "binary.toml": "not UTF-8"}.items():
        with pytest.raises(Refused, match=message):
            Document.load(tmp_path / name)
