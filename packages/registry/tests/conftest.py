"""Fixtures of these tests: plugins on the path, and plugin sources."""

from collections.abc import Callable

import pytest

BLOCK = """
from dither.registry import hookimpl
from dither.registry.kinds import BlockSpec

class Block(BlockSpec):
    '''A block.'''
    name = "{name}"
    def build(self, width, cond): ...

@hookimpl
def register_components():
    return [Block]
"""


@pytest.fixture
def block() -> Callable[[str], str]:
    return lambda name: BLOCK.format(name=name)
