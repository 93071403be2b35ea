"""Help texts of options: the docstring below a field, of the nearest class."""

from typing import Annotated, ClassVar

from pydantic import ConfigDict, Field

from dither.registry.spec.base import Options
from dither.registry.spec.option_docs import docs_of


class Base(Options):
    width: int = 1
    """How wide.

    Over two lines.
    """
    depth: Annotated[int, Field(ge=1)] = 1
    """How deep."""
    bare: int = 0
    said: int = Field(0, description="In its Field.")
    """Not this one."""
    empty: int = 0
    """   """


class Derived(Base):
    class Table(Options):
        size: int = 1
        """Of the table."""

    depth: int = 2
    width: int = 3
    """From scratch."""
    table: Table = Table()
    """A table."""


def test_text_comes_from_the_nearest_class() -> None:
    assert docs_of(Base) == {
        "width": "How wide.\n\nOver two lines.",
        "depth": "How deep.",
        "said": "In its Field.",
    }
    assert docs_of(Derived) == {
        "width": "From scratch.",
        "said": "In its Field.",
        "table": "A table.",
    }
    assert docs_of(Derived.Table) == {"size": "Of the table."}


def test_class_without_a_source_has_none() -> None:
    made = type(
        "Made",
        (Base,),
        {"__annotations__": {"other": int}, "other": 1, "__module__": "nowhere"},
    )
    assert docs_of(made) == docs_of(Base)


def test_same_as_pydantic_reads() -> None:
    class Eager(Options):
        model_config = ConfigDict(use_attribute_docstrings=True)
        one: int = 1
        """Line one,

            indented.
        """
        two: int = 1
        "Plain."
        three: int = 1
        # a comment in between
        """Three."""
        four: int = 1
        five: ClassVar[int] = 1
        """Of no field."""

    texts = {name: info.description for name, info in Eager.model_fields.items()}
    assert docs_of(Eager) == {name: text for name, text in texts.items() if text}
    assert set(docs_of(Eager)) == {"one", "two", "three"}
