"""Fixtures of these tests: plugins on the path, and plugin sources."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from dither.registry.config.errors import Refused

BLOCK = """
from typing import ClassVar
from dither.registry import hookimpl
from dither.registry.kinds import BlockSpec

class Block(BlockSpec):
    '''A block.'''
    name: ClassVar[str] = "{name}"
    def build(self, width, cond): ...

@hookimpl
def register_components():
    return [Block]
"""


@pytest.fixture
def block() -> Callable[[str], str]:
    """Return the source of a plugin with one block of this name."""
    return lambda name: BLOCK.format(name=name)


@contextmanager
def _refused(*codes: str) -> Iterator[Any]:
    with pytest.raises(Refused) as info:
        yield info
    assert info.value.codes == list(codes), str(info.value)


@pytest.fixture
def refused() -> Callable[..., Any]:
    """Return a context manager that expects problems with these codes."""
    return _refused
