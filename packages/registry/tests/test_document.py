"""Experiment files: positions of keys, extends, overrides, limits."""

import re
import tomllib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dither.registry.config.document import Document, _paths
from dither.registry.config.errors import Refused
from dither.registry.config.toml_spans import key_spans

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


KEYS = st.text("ab-_1", min_size=1, max_size=4) | st.sampled_from(['"x.y"', "'#'"])
SCALARS = st.sampled_from(
    ["1", "-2.5e3", "true", '"a # b"', "'c = d'", '"""m\n"""', "1979-05-27", '"\\""']
)
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


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(["pair", "table", "array"]), KEYS, KEYS, VALUES),
        max_size=8,
    )
)
def test_positions_agree_with_tomllib_on_any_text(lines):
    text = ""
    for sort, key, other, value in lines:
        text += {
            "pair": f"{key}.{other} = {value}\n",
            "table": f"[{key}.{other}]  # c\n",
            "array": f"[[{key}]]\n",
        }[sort]
    assert_spans(text)


def assert_spans(text):
    try:
        tree = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return
    found = key_spans(text)
    assert set(found) == set(_paths(tree))
    for path, span in found.items():
        if span.key != span.value:
            value = tomllib.loads(f"k = {text[slice(*span.value)]}")["k"]
            assert value == Document.value_of(tree, path)
            assert tomllib.loads(f"{text[slice(*span.key)]} = 1") == {path[-1]: 1}


def test_spans_of_a_nasty_text():
    assert_spans(NASTY)
    found = key_spans(NASTY)
    assert (
        found["points",].key[0]
        == NASTY.index("points")
        == found["points", 0].key[0]
        < found["points", 1].key[0]
    )
    for path in (("points", 1, "x"), ("points", 1, "extra", "deep"), ("a", "b", "raw")):
        assert NASTY.startswith(path[-1], found[path].key[0])


def test_extends_merges_and_a_changed_use_drops_the_other_keys(tmp_path):
    write(
        tmp_path,
        base='[model]\nwidth = 8\nblock = { use = "a", heads = 2 }\nhead = "plain"\n[train]\nuse = "t"\nsteps = 1\n',
        child='extends = "base.toml"\n[model]\nblock = { use = "b" }\nhead.zero = true\n[train]\nuse = "t"\n',
    )
    document = Document.load(tmp_path / "child.toml")
    assert document.tree == {
        "model": {
            "width": 8,
            "block": {"use": "b"},
            "head": {"use": "plain", "zero": True},
        },
        "train": {"use": "t", "steps": 1},
    }
    assert document.origin(("model", "width")).line == 2
    assert Path(document.origin(("model", "block", "use")).file).name == "child.toml"
    assert ("model", "block", "heads") not in document.given
    assert [path.name for path in document.files] == ["base.toml", "child.toml"]


def test_set_and_unset(tmp_path, refused):
    write(tmp_path, e='a = 1\nblock = "plain"\n[t]\nuse = "x"\nk = 1\n')
    changes = [
        "a=[1, 2]",
        "name=some words",
        "block.heads=3",
        "t.use=y",
        "new.deep.er=1e-4",
    ]
    document = Document.load(tmp_path / "e.toml", changes, ["new.deep"])
    assert document.tree == {
        "a": [1, 2],
        "name": "some words",
        "block": {"use": "plain", "heads": 3},
        "t": {"use": "y"},
        "new": {},
    }
    assert str(document.origin(("t", "use"))) == "--set t.use=y"
    with refused("unknown-key", match='did you mean "block"'):
        Document.load(tmp_path / "e.toml", (), ["blok"])


@pytest.mark.parametrize(
    ("change", "tree"),
    [
        ("a=1", {"a": 1}),
        ("a = {b = 1}", {"a": {"b": 1}}),
        ('a."x.y=z".c=true', {"a": {"x.y=z": {"c": True}}}),
        ("a=b=c", {"a": "b=c"}),
        ("a=", {"a": ""}),
        ("a=1\nb=2", {"a": "1\nb=2"}),
        ("a=[1,", {"a": "[1,"}),
    ],
)
def test_an_override_is_toml_or_else_a_string(change, tree):
    assert Document.from_overrides([change]).tree == tree


@pytest.mark.parametrize(
    "change", ["a", "=1", "a..b=1", ".a=1", "a b=1", "[a]=1", "a\n=1", "a#=1", "é=1="]
)
def test_an_override_without_a_valid_key_is_rejected(change, refused):
    with refused("usage"):
        Document.from_overrides([change])


@pytest.mark.parametrize(
    ("text", "code", "line", "column"),
    [
        ("a = 1\na = 2\n", "syntax-error", 2, 1),
        ("[t]\n[u]\n  [t]\n", "syntax-error", 3, 4),
        ("a = many", "syntax-error", 1, 5),
        ("\n\na = [1, 2", "syntax-error", 3, 10),
        ("b = 0\n" + ".".join(["a"] * 65) + " = 1", "too-large", 2, 1),
        ("[" + ".".join(['"a b"'] * 65) + "]", "too-large", 1, 2),
        ("x = 9223372036854775808", "out-of-range", 1, 5),
        ("x = " + "[" * 66 + "]" * 66, "too-large", None, None),
    ],
)
def test_invalid_toml_is_located(tmp_path, text, code, line, column, refusal):
    write(tmp_path, e=text)
    (problem,) = refusal(Document.load, tmp_path / "e.toml").problems
    assert problem.code == code
    assert line is None or (problem.origin.line, problem.origin.column) == (
        line,
        column,
    )


DOTS = ".".join("a" * 100)


@pytest.mark.parametrize(
    "value",
    [
        f'"{DOTS}"',
        f"'{DOTS}'",
        f'"""\n{DOTS}\n"""',
        f"'''\n\"{DOTS}\n'''",
        "[" + ", ".join(["0.5"] * 100) + "]",
        f"1  # it's {DOTS}",
        f'"\\\\"  # {DOTS}',
    ],
)
def test_dots_in_strings_numbers_and_comments_are_not_keys(tmp_path, value):
    write(tmp_path, e=f"x = {value}")
    assert Document.load(tmp_path / "e.toml").tree == tomllib.loads(f"x = {value}")


def test_history_of_a_value(tmp_path):
    write(
        tmp_path,
        base='lr = 1\nlist = [1, 2]\n[model]\nuse = "a"\nheads = 2\nhead = "plain"\n',
        middle='extends = "base.toml"\nmodel = { use = "b", heads = 3 }\n',
        child='extends = "middle.toml"\nlr = 2\nmodel.head.zero = true\n',
    )
    document = Document.load(tmp_path / "child.toml", ["lr=3", "lr=4"], ["model.heads"])

    def places(*path):
        return [
            f"{o.file.rpartition('/')[2]}:{o.line}:{o.column}" if o.line else str(o)
            for o in document.history(path)
        ]

    assert places("lr") == [
        "--set lr=4",
        "--set lr=3",
        "child.toml:2:6",
        "base.toml:1:6",
    ]
    assert places("list", 1) == ["base.toml:2:12"]
    assert places("model", "use") == ["middle.toml:2:17", "base.toml:4:7"]
    assert places("model", "heads") == ["--unset model.heads", "middle.toml:2:30"]
    assert places("model", "head", "zero") == ["child.toml:3:19"]
    assert places("model", "nothing") == []
    assert str(document.origin(("model", "heads"))) == "--unset model.heads"


def test_a_file_that_is_extended_twice_counts_once(tmp_path):
    write(
        tmp_path,
        base="a = 1\nb = 1\n",
        left='extends = "base.toml"\na = 2\n',
        right='extends = "./base.toml"\nb = 3\n',
        child='extends = ["left.toml", "right.toml"]\n',
    )
    document = Document.load(tmp_path / "child.toml")
    assert document.tree == {"a": 2, "b": 3}
    assert [path.stem for path in document.files] == ["base", "left", "right", "child"]


def test_extends_in_a_circle_is_located(tmp_path, refused):
    write(
        tmp_path,
        a='extends = "b.toml"',
        b='x = 1\nextends = ["c.toml"]',
        c='# a comment\nextends = "a.toml"',
    )
    with refused("extends-cycle") as caught:
        Document.load(tmp_path / "a.toml")
    (problem,) = caught.value.problems
    assert re.findall(r"(\w)\.toml", problem.message) == ["a", "b", "c", "a"]
    assert problem.path == ("extends",)
    assert str(problem.origin).endswith("c.toml:2:11")
    assert problem.origin.width == len('"a.toml"')


def test_a_missing_parent_is_located_with_a_suggestion(tmp_path, refusal):
    write(tmp_path, base="", child='extends = ["base.toml", "bse.toml"]')
    (problem,) = refusal(Document.load, tmp_path / "child.toml").problems
    assert (problem.code, problem.help) == (
        "file-not-found",
        'did you mean "base.toml"?',
    )
    assert str(problem.origin).endswith("child.toml:1:25")
    with pytest.raises(Refused, match='did you mean "child.toml"'):
        Document.load(tmp_path / "chlid.toml")
