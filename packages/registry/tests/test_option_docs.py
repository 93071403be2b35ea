"""Help texts of options, equal to those that pydantic collects."""

from typing import Annotated, ClassVar

from pydantic import BaseModel, ConfigDict, Field

from dither.registry.plugins.manager import load_plugins
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


class Inner(Base):
    class Table(Options):
        size: int = 1
        """Of the table."""

    depth: int = 2
    width: int = 3
    """Anew."""
    table: Table = Table()
    """A table."""


def eager(model: type[BaseModel]) -> dict[str, str]:
    """Return the texts that pydantic collected."""
    return {name: info.description for name, info in model.model_fields.items() if (info.description or "").strip()}


def test_text_comes_from_the_nearest_class() -> None:
    assert docs_of(Base) == {"width": "How wide.\n\nOver two lines.", "depth": "How deep.", "said": "In its Field."}
    assert docs_of(Inner) == {"width": "Anew.", "said": "In its Field.", "table": "A table."}
    assert docs_of(Inner.Table) == {"size": "Of the table."}


def test_class_without_a_source_has_none() -> None:
    made = type("Made", (Base,), {"__annotations__": {"other": int}, "other": 1, "__module__": "nowhere"})
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

    assert docs_of(Eager) == eager(Eager)
    assert set(docs_of(Eager)) == {"one", "two", "three"}


def test_every_installed_option_has_text() -> None:
    parts = [part.spec for part in load_plugins().catalog.parts()]
    assert len(parts) > 70
    assert [spec.name for spec in parts if docs_of(spec).keys() != spec.model_fields.keys()] == []
