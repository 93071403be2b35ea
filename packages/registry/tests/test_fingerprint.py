"""A fingerprint depends on names, types, bounds and defaults only: no addresses, hash seeds, randomness or time."""

import os
import random
import subprocess
import sys
from typing import Annotated, Any, ClassVar
from uuid import uuid4

import pytest
from pydantic import AfterValidator, BeforeValidator, Field

from dither.registry.kinds import BlockSpec
from dither.registry.spec.base import Options
from dither.registry.spec.fingerprint import fingerprint


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
    """Return a random number."""
    return random.random()


class Everything(BlockSpec):
    """Options whose text could depend on the process."""

    name: ClassVar[str] = "everything"
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

    def build(self, width, cond):
        """Nothing."""


def block(annotation=int, default=4, **more):
    """Return the fingerprint of a component with one option."""

    class Other(BlockSpec):
        """A block."""

        name: ClassVar[str] = "plain"
        heads: annotation = Field(default, **more) if "default_factory" not in more else Field(**more)

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
        ({"annotation": Annotated[int, AfterValidator(even)]}, {"annotation": Annotated[int, AfterValidator(odd)]}),
        ({"annotation": Annotated[int, AfterValidator(even)]}, {"annotation": int}),
        ({"annotation": Annotated[int, AfterValidator(even)]}, {"annotation": Annotated[int, BeforeValidator(even)]}),
        ({"annotation": list[Annotated[int, Field(ge=1)]]}, {"annotation": list[Annotated[int, Field(ge=2)]]}),
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
    assert block(list[Annotated[int, Field(ge=1, description="x")]]) == block(list[Annotated[int, Field(ge=1)]])
    assert block(int | str) == block(str | int)
    assert block(default={"a": 1, "b": 2}) == block(default={"b": 2, "a": 1})
    assert block(Annotated[int, Field(ge=1)]) == block(ge=1)
