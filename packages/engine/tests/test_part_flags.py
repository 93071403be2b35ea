import pytest

from dither.engine.cli.flags import overrides_from_flags
from dither.registry.config.errors import Refused
from dither.registry.kinds.task import DataSpec


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
    ("words", "changes"),
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
def test_words_become_changes(words, changes):
    assert overrides_from_flags(words, Books) == changes


@pytest.mark.parametrize(
    ("words", "spec", "says"),
    [
        (["--to"], Books, "--to wants a value"),
        (["-t", "x"], Books, "written in full"),
        (["a", "b"], Nothing, 'data "nothing" takes no paths: a, b'),
    ],
)
def test_words_that_mean_nothing_are_refused(words, spec, says):
    with pytest.raises(Refused, match=says):
        overrides_from_flags(words, spec)
