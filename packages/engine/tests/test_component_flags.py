"""Options of a data component on the command line of `dither prepare`."""

import pytest

from dither.engine.cli.components import overrides_from_flags
from dither.registry.kinds import DataSpec


class Books(DataSpec):
    name = "books"
    gives = "text"
    paths: list[str]
    to: str = ""
    most: int = 3
    in_order: bool = False


class Nothing(DataSpec):
    name = "nothing"
    gives = "text"


@pytest.mark.parametrize(
    ("words", "overrides"),
    [
        ([], []),
        (["a", "b c"], ['paths=["a", "b c"]']),
        (["--to", "12", "a"], ['to="12"', 'paths=["a"]']),
        (["a", "--to=x=y", "b"], ['to="x=y"', 'paths=["a", "b"]']),
        (["--in-order", "a"], ["in_order=true", 'paths=["a"]']),
        (["--in-order=false"], ["in_order=false"]),
        (["--most", "-5"], ["most=-5"]),
        (["--unknown", "x"], ["unknown=x"]),
        (["--", "--to", "-"], ['paths=["--to", "-"]']),
        (["-"], ['paths=["-"]']),
    ],
)
def test_flags_become_overrides(words, overrides):
    assert overrides_from_flags(words, Books) == overrides


@pytest.mark.parametrize(
    ("words", "spec", "code"),
    [
        (["--to"], Books, "missing-argument"),
        (["-t", "x"], Books, "unknown-option"),
        (["a", "b"], Nothing, "usage"),
    ],
)
def test_invalid_flags_are_refused(words, spec, code, refused):
    with refused(code):
        overrides_from_flags(words, spec)
