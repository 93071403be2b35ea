"""Fingerprints of options depend on names, types, bounds and defaults only; their help texts."""

import os
import random
import subprocess
import sys
from typing import Annotated, Any, ClassVar
from uuid import uuid4

import pytest
from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field

from dither.registry.kinds import BlockSpec
from dither.registry.spec.base import Options
from dither.registry.spec.fingerprint import fingerprint
from dither.registry.spec.option_docs import docs_of


def even(value): ...


def odd(value): ...


class Tree(Options):
    """A recursive table."""

    branches: "list[Tree]" = []


class Inner(Options):
    """A table."""

    depth: int = 3


class Loose:
    """Has no `repr`."""


def drawn():
    return random.random()


class Everything(BlockSpec):
    """Options whose text could depend on the process."""

    name = "everything"
    checked: Annotated[int, AfterValidator(even)] = 4
    inside: list[Annotated[int, AfterValidator(lambda value: value)]] = [1]
    letters: frozenset[str] = frozenset("abcdefghijk")
    table: dict[str, frozenset[str]] = {"x": frozenset("abcdefghijk")}
    luck: float = Field(default_factory=random.random)
    drawn: float = Field(default_factory=drawn)
    chance: str = Field(default_factory=lambda: str(uuid4()))
    dependent: int = Field(default_factory=lambda data: data["checked"])
    tree: Tree = Field(default_factory=Tree)
    thing: Any = Loose()
    betas: list[float] = Field(default_factory=lambda: [0.9, 0.999])

    def build(self, width, cond): ...


def block(annotation=int, default=4, **more):
    class Other(BlockSpec):
        """A block."""

        name = "plain"
        heads: annotation = (
            Field(default, **more) if "default_factory" not in more else Field(**more)
        )

    return fingerprint(Other)


def test_it_is_the_same_in_every_process():
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); x = [object() for _ in range(int(sys.argv[2]))]; "
        "import test_fingerprint as t; print(t.fingerprint(t.Everything))"
    )
    found = {fingerprint(Everything)}
    for seed in ("1", "77"):
        command = [sys.executable, "-c", code, os.path.dirname(__file__), seed + "000"]
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
        found.add(done.stdout.strip())
    assert len(found) == 1


def model(depth=3, kind=int):
    class Inner(Options):
        """A table."""

        depth: kind = 3

    Inner.model_fields["depth"].default = depth
    return Inner


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"default": 4}, {"default": 5}),
        ({"annotation": int}, {"annotation": float}),
        ({"ge": 1}, {"ge": 2}),
        ({"ge": 1}, {"gt": 1}),
        (
            {"annotation": Annotated[int, AfterValidator(even)]},
            {"annotation": Annotated[int, AfterValidator(odd)]},
        ),
        ({"annotation": Annotated[int, AfterValidator(even)]}, {"annotation": int}),
        (
            {"annotation": Annotated[int, AfterValidator(even)]},
            {"annotation": Annotated[int, BeforeValidator(even)]},
        ),
        (
            {"annotation": list[Annotated[int, Field(ge=1)]]},
            {"annotation": list[Annotated[int, Field(ge=2)]]},
        ),
        ({"annotation": model(3)}, {"annotation": model(4)}),
        ({"default_factory": lambda: [0.9, 0.999]}, {"default_factory": lambda: [0.9, 0.99]}),
        ({"default_factory": list}, {"default_factory": dict}),
        ({"default": frozenset("ab")}, {"default": frozenset("ac")}),
    ],
)
def test_it_changes_with_the_options(one, other):
    assert block(**one) == block(**one)
    assert block(**one) != block(**other)


def test_it_does_not_depend_on_docs_or_order():
    assert block(description="how many") == block()
    assert block(list[Annotated[int, Field(ge=1, description="x")]]) == block(
        list[Annotated[int, Field(ge=1)]]
    )
    assert block(int | str) == block(str | int)
    assert block(default={"a": 1, "b": 2}) == block(default={"b": 2, "a": 1})
    assert block(Annotated[int, Field(ge=1)]) == block(ge=1)


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
    """Anew."""
    table: Table = Table()
    """A table."""


def test_text_comes_from_the_nearest_class() -> None:
    assert docs_of(Base) == {
        "width": "How wide.\n\nOver two lines.",
        "depth": "How deep.",
        "said": "In its Field.",
    }
    assert docs_of(Derived) == {"width": "Anew.", "said": "In its Field.", "table": "A table."}
    assert docs_of(Derived.Table) == {"size": "Of the table."}


def test_class_without_a_source_has_none() -> None:
    made = type(
        "Made", (Base,), {"__annotations__": {"other": int}, "other": 1, "__module__": "nowhere"}
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
